"""Creation of all variables of a Keras 3 model under a strategy before its first step: layers, metrics and optimizers.

Keras calls the model on a first batch to create them. A model with a custom ``train_step`` may have no ``call``, or a
``call`` that takes other arguments than the data: the missing variables are then created by a trace of that step, as only
the step determines how they are used.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.training.tensorflow import optimizers


class _Thread(threading.local):
    prepares = False  # True while a step is traced for the variables that it creates


_thread = _Thread()


def install() -> None:
    """Patch Keras's optimizers to create their variables alone while a step is traced for what it creates."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    for kind in (BaseOptimizer, LossScaleOptimizer):
        _build_only_while_preparing(kind)


def _build_only_while_preparing(optimizer: Any) -> None:
    original = optimizer.apply

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        if not _thread.prepares:
            original(self, grads, trainable_variables)
        elif not self.built and trainable_variables is not None:
            self.build(list(trainable_variables))
            self.built = True

    optimizer.apply = apply


def build(model: Any, batch: Any) -> None:
    """Build a compiled model for ``batch`` or its specification, within the scope of its strategy.

    A model with a custom step that cannot be called on the data is built as far as possible; its first step builds the rest.
    An exception of the model's ``call`` is passed on if Keras's own step will call the model on the data.
    """
    if not _has_own_step(model):
        model._symbolic_build(data_batch=batch)
        return
    context = current()
    may_restore = context is not None and context.commits is not None
    if not _layers_are_built(model) or (may_restore and unbuilt_optimizers(model)):
        _trace(model, batch)
    if _layers_are_built(model):  # a call on unsuitable data could build a layer with wrong shapes
        with contextlib.suppress(Exception):
            model._symbolic_build(data_batch=batch)
        optimizer = model.optimizer
        if optimizer is not None and not optimizers.is_built(optimizer) and model.trainable_variables:
            optimizer.build(model.trainable_variables)


def unbuilt_optimizers(model: Any) -> list[str]:
    """Return the attributes that hold optimizers without variables, other than the optimizer the model is compiled with."""
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
    from keras.src import backend, tree

    def symbol(leaf: Any) -> Any:
        return None if leaf is None else backend.KerasTensor(leaf.shape, backend.standardize_dtype(leaf.dtype))

    with _preparing(), contextlib.suppress(Exception):
        backend.compute_output_spec(model.train_step, tree.map_structure(symbol, batch))


@contextlib.contextmanager
def _preparing() -> Iterator[None]:
    _thread.prepares = True
    try:
        yield
    finally:
        _thread.prepares = False
