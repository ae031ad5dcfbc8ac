"""Same order of a ``PyDataset``'s batches on all workers of a group, for ``fit`` of Keras 3.

Keras shuffles the batches by Python's random numbers, independently in each process: a global batch would consist of
shares of different batches, and rows would be used twice or never.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import threading
from collections.abc import Iterator
from typing import Any

from hopsml.training.tensorflow.file_exchange import broadcast_bytes


class _Thread(threading.local):
    """Random source of one thread."""

    source: random.Random | None = None  # random numbers for shuffles in this thread; None: Python's own


_thread = _Thread()


class _Shuffling:
    """Replacement of the module ``random`` in Keras's adapter of a ``PyDataset``."""

    @staticmethod
    def shuffle(values: list[Any]) -> None:
        """Shuffle a list in place, by the source of this thread."""
        (_thread.source or random).shuffle(values)


def install() -> None:
    """Patch Keras's adapter of a ``PyDataset`` to draw orders from the source that ``share`` sets."""
    from keras.src.trainers.data_adapters import py_dataset_adapter

    adapter, enqueuer = py_dataset_adapter.PyDatasetAdapter, py_dataset_adapter.OrderedEnqueuer
    generate, run = adapter._finite_generator, enqueuer._run

    def finite_generator(self: Any) -> Iterator[Any]:
        batches = generate(self)
        with _drawing_from(self):  # the order is drawn before the first batch
            first = next(batches, None)
        if first is not None:
            yield first
            yield from batches

    def run_in_order(self: Any) -> None:
        with _drawing_from(self):
            run(self)

    py_dataset_adapter.random = _Shuffling
    adapter._finite_generator, enqueuer._run = finite_generator, run_in_order


def share(adapter: Any, strategy: Any) -> None:
    """Make a ``PyDataset``'s adapter draw the chief's batch orders on every worker; all workers call it."""
    if not hasattr(adapter, "py_dataset"):
        return
    source = random.Random()
    source.setstate(pickle.loads(broadcast_bytes(strategy, pickle.dumps(random.getstate()))))
    random.random()  # so that the next fit() draws other orders
    for one in (adapter, adapter.enqueuer):
        if one is not None:
            one._hopsml_source = source


@contextlib.contextmanager
def _drawing_from(owner: Any) -> Iterator[None]:
    """Use the source of ``owner`` for shuffles of this thread inside the block."""
    _thread.source = getattr(owner, "_hopsml_source", None)
    try:
        yield
    finally:
        _thread.source = None
