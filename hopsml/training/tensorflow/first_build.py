"""Creation of all variables of a Keras 3 model under a strategy before its first step.

They are those of layers, metrics and optimizers. Keras calls the model on a first batch to create them. A model with
a custom ``train_step`` may have no ``call``, or a ``call`` that takes other arguments than the data: the missing
variables are then created by a trace of that step, as only the step determines how they are used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.training.tensorflow import optimizers

_prepares = False  # True while a step is traced for the variables that it creates, in whichever thread


def install() -> None:
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


def build(model: Any, batch: Any) -> None:
    """Build a compiled model for ``batch`` or its specification, within the scope of its strategy.

    A model with a custom step that cannot be called on the data is built as far as possible; its first step builds
    the rest. An exception of the model's ``call`` is passed on if Keras's own step will call the model on the data.
    """
    if not _has_own_step(model):
        model._symbolic_build(data_batch=batch)
        return
    if not _layers_are_built(model):
        _trace(model, batch)
    build_for_commits(model, batch)
    if _layers_are_built(model):  # a call on unsuitable data could build a layer with wrong shapes
        with contextlib.suppress(Exception):
            model._symbolic_build(data_batch=batch)
        optimizer = model.optimizer
        if optimizer is not None and not optimizers.is_built(optimizer) and model.trainable_variables:
            optimizer.build(model.trainable_variables)


def build_for_commits(model: Any, batch: Any) -> None:
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
        if optimizers.is_optimizer(value) and value is not compiled and not optimizers.is_built(value)
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


@contextlib.contextmanager
def _preparing() -> Iterator[None]:
    """Let optimizers only create their variables inside the block."""
    global _prepares
    _prepares = True
    try:
        yield
    finally:
        _prepares = False
