"""Class ``TfDistributedConfig`` for ``lagom``: configuration of a distributed training by TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.maggy.config.lagom import LagomConfig


@dataclass
class TfDistributedConfig(LagomConfig):
    """Configuration of a distributed training by TensorFlow: one process on each executor, all with the same weights.

    Args:
        model: a class or function that creates the Keras model, or a list of them; not a model.
        dataset: a list of arguments for ``process_data``, or of arrays; earlier ``train_set`` and ``test_set``. A text
            is a path, of this machine or of the project.
        process_data: called in each worker, with ``dataset``, or with ``train_set`` and ``test_set``; its result
            replaces them. Of a ``train_set`` and ``test_set`` each worker gets its own rows, in batches, if ``hparams``
            has ``train_batch_size`` and ``test_batch_size``: rows in one step of all workers.
        mixed_precision: compute in 16 bits, bfloat16 without a GPU; variables stay in 32 bits.
        hparams: passed to the function.
    """

    model: Any = None
    dataset: Any = None
    process_data: Callable[..., Any] | None = None
    mixed_precision: bool = False
    name: str = "tfDist"
    hb_interval: float = 1
    description: str = ""
    hparams: dict[str, Any] | None = None
    _: KW_ONLY
    train_set: Any = None
    test_set: Any = None

    def __post_init__(self) -> None:
        for model in self.model if isinstance(self.model, (list, tuple)) else [self.model]:
            made = not isinstance(model, type) and hasattr(model, "trainable_variables")
            if made or not (model is None or callable(model)):
                raise ArgumentError(
                    f"model={model!r:.80}: pass the class, or a function that makes the model, as each worker makes its own"
                )
        if self.process_data is None:
            return
        if not callable(self.process_data):
            raise ArgumentError(f"process_data={self.process_data!r:.80}: it must be a function")
        if self.dataset is None and self.train_set is None and self.test_set is None:
            raise ArgumentError("process_data has nothing to work on; give dataset=[...], or train_set= and test_set=")
