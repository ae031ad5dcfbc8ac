"""Variables of a Keras 3 model under a strategy, created before its first step: of layers, metrics and optimizers.

Keras calls the model on a first batch for that. A model with a ``train_step`` of its own may have no ``call``, or one that
takes something else than the data: what is missing is created as that step uses it, which nobody else can know.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.training.tensorflow import optimizers


class _Thread(threading.local):
    updates: list[tuple[Any, list[Any]]] | None = None  # while a step is traced: its optimizers, and what each trains


_thread = _Thread()


def install() -> None:
    """Patch Keras's optimizers to note alone what they would update while a step is traced for what it creates."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    for kind in (BaseOptimizer, LossScaleOptimizer):
        _note_only_while_tracing(kind)


def _note_only_while_tracing(optimizer: Any) -> None:
    original = optimizer.apply

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        if _thread.updates is None:
            original(self, grads, trainable_variables)
        elif trainable_variables is not None:
            _thread.updates.append((self, list(trainable_variables)))

    optimizer.apply = apply


def build(model: Any, batch: Any) -> None:
    """Build a compiled model for ``batch`` or its specification, within the scope of its strategy.

    A model with a step of its own that cannot be called on the data is built as far as possible; the rest by its first step.
    Raises what the model's ``call`` raises for the data, where Keras's own step is going to call it.
    """
    if not _has_own_step(model):
        model._symbolic_build(data_batch=batch)
        return
    context = current()
    may_restore = context is not None and context.commits is not None
    if not _layers_are_built(model) or (may_restore and unbuilt_optimizers(model)):
        _trace(model, batch)
    if _layers_are_built(model):  # so that a call on what it is not for cannot build one wrongly
        with contextlib.suppress(Exception):
            model._symbolic_build(data_batch=batch)
        optimizer = model.optimizer
        if optimizer is not None and not optimizers.is_built(optimizer) and model.trainable_variables:
            optimizer.build(model.trainable_variables)


def unbuilt_optimizers(model: Any) -> list[str]:
    """Return names of attributes that hold optimizers without variables, beside the one it is compiled with."""
    compiled = getattr(model, "optimizer", None)
    return [
        name
        for name, value in vars(model).items()
        if optimizers.is_optimizer(value) and value is not compiled and not optimizers.is_built(value)
    ]


def _has_own_step(model: Any) -> bool:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    kind = type(model)
    return kind.train_step is not TensorFlowTrainer.train_step or kind.test_step is not TensorFlowTrainer.test_step


def _layers_are_built(model: Any) -> bool:
    return all(layer.built for layer in model._flatten_layers(include_self=False))


def _trace(model: Any, batch: Any) -> None:
    """Run the model's step on symbols; an error of it, which the first real step raises as well, ends it early."""
    import tensorflow as tf
    from keras.src import backend, tree

    def symbol(leaf: Any) -> Any:
        return None if leaf is None else backend.KerasTensor(leaf.shape, backend.standardize_dtype(leaf.dtype))

    def step(data: Any) -> Any:
        with tf.distribute.ReplicaContext(model.distribute_strategy, 0):  # where gradients of variables can be had
            return model.train_step(data)

    with _noting() as updates, contextlib.suppress(Exception):
        backend.compute_output_spec(step, tree.map_structure(symbol, batch))
    for optimizer, variables in updates:
        if not optimizers.is_built(optimizer):
            optimizer.build(variables)


@contextlib.contextmanager
def _noting() -> Iterator[list[tuple[Any, list[Any]]]]:
    updates: list[tuple[Any, list[Any]]] = []
    _thread.updates = updates
    try:
        yield updates
    finally:
        _thread.updates = None
