"""Repairs of Keras 3's trainer and optimizers under MultiWorkerMirroredStrategy.

Keras 3 does not support the strategy (its own trainer fails on the first batch). These places differ under it:

* the trainer draws a first batch to build the model, and calls the model on it, which may have no suitable ``call``:
  use the data's specification, and let the first step build what cannot be built from it (``build_model``);
* the logs of a step are averaged over the first axis of a scalar: average over replicas, all logs in one collective;
* arrays given to ``fit`` are shuffled by each worker independently, and the worker's share is cut from its own order,
  so that samples would be used twice or never: all workers use one order, drawn by the chief, unless the user has set
  a seed; as Keras's shuffling gives every epoch the same order once there is a seed, each epoch's order is drawn
  again;
* a warning says that the data ran out and should be repeated at the end of each first epoch over data whose length is
  not known before, such as rows of a DataFrame that are still arriving: leave it out;
* ``LossScaleOptimizer`` (mixed float16) decides on each worker alone if gradients are finite, before they are
  reduced; workers that decide differently wait for each other endlessly: decide together;
* gradients may lack a static shape, which depends on the batch that was traced: use their variable's shape;
* optimizers clip each worker's part of the gradient, and sum the clipped parts: sum first.

Other strategies, and training without one, are unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.training.tensorflow import state_variables
from hopsml.training.tensorflow.fit import feeds, input_data
from hopsml.training.tensorflow.groups import broadcast_bytes, spans_workers
from hopsml.training.tensorflow.keras import group_state, saving

_prepares = False  # True while a step is traced for the variables that it creates, in whichever thread


def patch_optimizer_build() -> None:
    """Patch Keras's optimizers to only create their variables while a step is traced for that purpose."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    for kind in (BaseOptimizer, LossScaleOptimizer):
        _build_only_while_preparing(kind)


def _build_only_while_preparing(optimizer: Any) -> None:
    """Patch an optimizer class to create its variables without an update while a step is traced."""
    original = optimizer.apply

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        if not _prepares:
            original(self, grads, trainable_variables)
        elif not self.built and trainable_variables is not None:
            self.build(list(trainable_variables))
            self.built = True

    optimizer.apply = apply


def build_model(model: Any, batch: Any) -> None:
    """Build a compiled model for ``batch`` or its specification, within the scope of its strategy.

    A model with a custom step that cannot be called on the data is built as far as possible; its first step builds
    the rest. An exception of the model's ``call`` is passed on if Keras's own step will call the model on the data.
    """
    if not _has_own_step(model):
        model._symbolic_build(data_batch=batch)
        return
    if not _layers_are_built(model):
        _trace(model, batch)
    build_optimizers_for_commits(model, batch)
    if _layers_are_built(model):  # a call on unsuitable data could build a layer with wrong shapes
        with suppress(Exception):
            model._symbolic_build(data_batch=batch)
        optimizer = model.optimizer
        if optimizer is not None and not state_variables.is_built(optimizer) and model.trainable_variables:
            optimizer.build(model.trainable_variables)


def build_optimizers_for_commits(model: Any, batch: Any) -> None:
    """Build optimizers that the model's own step uses, if a commit may be restored to it before its first step.

    Prints the names of those that cannot be built: a restarted run could not restore their variables from a commit.
    """
    context = current()
    if context is None or context.commits is None or not unbuilt_optimizers(model):
        return
    error = _trace(model, batch)
    if left := unbuilt_optimizers(model):
        print(
            f"hopsml: the model's optimizers {', '.join(left)} have no variables before the first step, and a run that "
            f"begins anew from a commit cannot go on without: call their build(variables) before fit() ({error})"
        )


def unbuilt_optimizers(model: Any) -> list[str]:
    """Return the names of attributes with optimizers without variables, except the optimizer compiled with."""
    compiled = getattr(model, "optimizer", None)
    return [
        name
        for name, value in vars(model).items()
        if state_variables.is_optimizer(value) and value is not compiled and not state_variables.is_built(value)
    ]


def _has_own_step(model: Any) -> bool:
    """Return True if the model's class overrides the training or test step."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    kind = type(model)
    return kind.train_step is not TensorFlowTrainer.train_step or kind.test_step is not TensorFlowTrainer.test_step


def _layers_are_built(model: Any) -> bool:
    """Return True if all layers have their variables."""
    return all(layer.built for layer in model._flatten_layers(include_self=False))


def _trace(model: Any, batch: Any) -> str:
    """Run the model's step on symbols, for what it creates; return the error that has ended it early, else ""."""
    from keras.src import backend, tree

    def symbol(leaf: Any) -> Any:
        return None if leaf is None else backend.KerasTensor(leaf.shape, backend.standardize_dtype(leaf.dtype))

    def step(data: Any) -> Any:
        strategy = model._distribute_strategy
        return model.train_step(data) if strategy is None else strategy.run(model.train_step, args=(data,))

    with _preparing():
        try:
            backend.compute_output_spec(step, tree.map_structure(symbol, batch))
        except Exception as error:  # noqa: BLE001 user code
            return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def _preparing() -> Iterator[None]:
    """Let optimizers only create their variables inside the block."""
    global _prepares
    _prepares = True
    try:
        yield
    finally:
        _prepares = False


_orders_are_drawn = False  # True while datasets made from arrays must be shuffled for a group


def install_repairs(trainer: ModuleType) -> None:
    """Apply all repairs to Keras 3.

    Args:
        trainer: the module ``keras.src.backend.tensorflow.trainer``.
    """
    patch_optimizer_build()
    _repair_first_batch(trainer)
    _repair_log_reduction(trainer)
    _repair_shuffling(trainer)
    _repair_end_of_data(trainer)
    feeds.patch_epoch_iterator(trainer)
    from keras.src.backend.tensorflow import optimizer
    from keras.src.optimizers import loss_scale_optimizer

    _repair_gradient_shapes(optimizer.TFOptimizer)
    _repair_clipping(optimizer.TFOptimizer)
    _repair_finite_check(loss_scale_optimizer.LossScaleOptimizer)
    group_state.patch_keras3_normalization()
    saving.patch_file_callbacks(trainer)
    group_state.install_state_comparison()


def _repair_first_batch(trainer: ModuleType) -> None:
    """Patch the trainer to build the model from the data's specification instead of a first batch."""
    original = trainer.TensorFlowTrainer._maybe_symbolic_build

    def maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        # Also for a single worker: drawing a batch would lose it from a generator, and advance a shuffled order.
        if strategy is None or getattr(strategy, "_should_use_with_coordinator", False):
            original(self, iterator=iterator, data_batch=data_batch)
            batch = _specification(iterator._distributed_dataset) if strategy is None and iterator is not None else None
            if batch is not None:
                build_optimizers_for_commits(self, batch)
            return
        batch = data_batch if iterator is None else _specification(iterator._distributed_dataset)
        if batch is not None:
            with strategy.scope():
                build_model(self, batch)

    trainer.TensorFlowTrainer._maybe_symbolic_build = maybe_symbolic_build


def _specification(dataset: Any) -> Any:
    """Return the shapes and types of a replica's batches; None if a rank is unknown until a batch is read.

    A batch that has been read cannot be put back: the source may be readable only once, and an iterator prefetches
    from it.
    """
    import tensorflow as tf
    from keras.src import tree
    from tensorflow.python.distribute.values import PerReplicaSpec

    def of_leaf(leaf: Any) -> Any:
        leaf = leaf._component_specs[0] if isinstance(leaf, PerReplicaSpec) else leaf
        return None if isinstance(leaf, tf.OptionalSpec) else leaf  # Keras's representation of an absent part

    found = tree.map_structure(of_leaf, dataset.element_spec)
    known = all(leaf is None or leaf.shape.rank is not None for leaf in tree.flatten(found))
    return found if known else None


def _repair_log_reduction(trainer: ModuleType) -> None:
    """Patch the trainer to average the logs of a step over the replicas."""
    from keras.src import tree

    original = trainer.reduce_per_replica

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if reduction not in ("auto", "mean", "sum") or not spans_workers(strategy):
            return original(values, strategy, reduction)
        flat = [_local(value) for value in tree.flatten(values)]
        reduced = strategy.extended.batch_reduce_to(
            "SUM" if reduction == "sum" else "MEAN", [(value, value) for value in flat]
        )
        return tree.pack_sequence_as(values, [strategy.experimental_local_results(value)[0] for value in reduced])

    trainer.reduce_per_replica = reduce_per_replica  # type: ignore[attr-defined]


def _local(value: Any) -> Any:
    """Return this worker's value if a metric's result is a variable, which the strategy does not reduce."""
    import tensorflow as tf
    from keras.src.backend import Variable

    value = value.value if isinstance(value, Variable) else value
    if not isinstance(value, tf.distribute.DistributedValues) or not isinstance(value.values[0], tf.Variable):
        return value
    with tf.device(value.values[0].device):
        return tf.identity(value.values[0])


def _repair_shuffling(trainer: ModuleType) -> None:
    """Patch the trainer's data iterators to use the same order on all workers."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    original = trainer.TFEpochIterator.__init__
    dataset_of = ArrayDataAdapter.get_tf_dataset

    def init(self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("shuffle") or not spans_workers(distribute_strategy):
            original(self, distribute_strategy, *args, **kwargs)
            return
        with _one_order(distribute_strategy):
            original(self, distribute_strategy, *args, **kwargs)
        input_data.share_batch_orders(self.data_adapter, distribute_strategy)

    def get_tf_dataset(self: Any) -> Any:
        return input_data.shuffled_dataset(self) if _orders_are_drawn and self._shuffle else dataset_of(self)

    get_iterator = trainer.TFEpochIterator._get_iterator

    def get_iterator_in_use(self: Any) -> Any:
        # Keras creates one more iterator after an epoch's last batch, and drops it; in a group it would draw from the
        # source.
        done = self._current_iterator is not None and self._num_batches and self._steps_seen >= self._num_batches
        one_pass = hasattr(self.data_adapter, "py_dataset") and self.steps_per_epoch is None
        unused = done and one_pass and spans_workers(self._distribute_strategy)
        return () if unused else get_iterator(self)

    trainer.TFEpochIterator._get_iterator = get_iterator_in_use
    input_data.install_shared_orders()
    trainer.TFEpochIterator.__init__ = init
    ArrayDataAdapter.get_tf_dataset = get_tf_dataset


def _repair_end_of_data(trainer: ModuleType) -> None:
    """Patch the trainer's data iterators to not warn when data of unknown length ends, which is the end of an epoch."""
    original = trainer.TFEpochIterator._interrupted_warning

    def interrupted_warning(self: Any) -> None:
        is_expected = self.data_adapter.num_batches is None and not self.steps_per_epoch
        if not (is_expected and spans_workers(self._distribute_strategy)):
            original(self)

    trainer.TFEpochIterator._interrupted_warning = interrupted_warning


@contextmanager
def _one_order(strategy: Any) -> Iterator[None]:
    """Let all workers draw the same random order inside the block, from the chief's seed or the user's."""
    global _orders_are_drawn
    import tensorflow as tf
    from tensorflow.python.eager import context

    own_seed = context.global_seed() is None
    if own_seed:
        tf.random.set_seed(int.from_bytes(broadcast_bytes(strategy, os.urandom(4)), "big"))
    _orders_are_drawn = True
    try:
        yield
    finally:
        _orders_are_drawn = False
        if own_seed:
            tf.random.set_seed(None)


def _repair_gradient_shapes(optimizer: Any) -> None:
    """Patch an optimizer to give gradients their variables' shapes."""
    original = optimizer._all_reduce_sum_gradients

    def all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        return original(self, [(_with_shape_of(grad, variable), variable) for grad, variable in grads_and_vars])

    optimizer._all_reduce_sum_gradients = all_reduce_sum_gradients


def _with_shape_of(gradient: Any, variable: Any) -> Any:
    """Return a gradient with its variable's static shape."""
    import tensorflow as tf

    if isinstance(gradient, tf.Tensor) and not gradient.shape.is_fully_defined():
        return tf.ensure_shape(gradient, variable.shape)
    return gradient


def _repair_clipping(optimizer: Any) -> None:
    """Patch an optimizer to clip the sum of gradients over all workers, as one process would."""
    clip, update = optimizer._clip_gradients, optimizer._backend_update_step

    def clip_gradients(self: Any, grads: Any) -> Any:
        return list(grads) if _is_summed() else clip(self, grads)

    def backend_update_step(self: Any, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        import tensorflow as tf

        if not _is_summed():
            update(self, grads, trainable_variables, learning_rate)
            return
        variables = [group_state.tensorflow_variable(one) for one in trainable_variables]
        pairs = self._all_reduce_sum_gradients(list(zip(grads, variables, strict=True)))
        clipped = clip(self, [gradient for gradient, _ in pairs])
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._distributed_tf_update_step,
            self._distribution_strategy,
            [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs, strict=True)],
            learning_rate,
        )

    optimizer._clip_gradients = clip_gradients
    optimizer._backend_update_step = backend_update_step


def _is_summed() -> bool:
    """Return True in a step whose optimizers sum gradients over the replicas of one model."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    return replica is not None and group_state.trains_one_model(replica.strategy)


def _repair_finite_check(optimizer: Any) -> None:
    """Patch a loss-scaling optimizer to decide together with all workers if gradients are finite."""
    original = optimizer.check_finite

    def check_finite(self: Any, grads: Any) -> Any:
        import tensorflow as tf

        finite = original(self, grads)
        replica = tf.distribute.get_replica_context()
        if replica is None or not spans_workers(replica.strategy):
            return finite
        votes = replica.strategy.extended._replica_ctx_all_reduce(
            tf.distribute.ReduceOp.MEAN, tf.cast(finite, tf.float32)
        )
        return tf.equal(votes, 1.0)

    optimizer.check_finite = check_finite
