"""Present strategy of this process, the worker that leads its group, and transfers from that worker to the others.

Workers need not share a disk, and copies found by each one may differ; what the chief sends by the strategy's own
collectives is the same. All workers of the strategy must call the functions that send at the same place of the program.
"""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.training import collective

_latest: weakref.ref[Any] | None = None


def remember_strategy(strategy: Any) -> None:
    """Store a weak reference to a strategy that was just built, for ``latest_strategy``."""
    global _latest
    _latest = weakref.ref(strategy)


def latest_strategy() -> Any:
    """Return the newest MultiWorkerMirroredStrategy of this process that is in use; None if there is none."""
    return _latest() if _latest is not None else None


def spans_workers(strategy: Any) -> bool:
    """Return True if ``strategy`` trains with several workers through collectives; False for None."""
    import tensorflow as tf

    return (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and strategy.extended._in_multi_worker_mode()
        and (getattr(strategy.extended, "spans_group", False) or strategy.extended._num_workers > 1)
    )


def is_leader(strategy: Any) -> bool:
    """Return True if this worker's files are retained: it is the chief of the strategy's group, or of the run."""
    if spans_workers(strategy):
        return bool(strategy.extended._is_chief)
    context = current()
    return context is None or context.is_chief


CHUNK_BYTES = 16 * 2**20


def broadcast_bytes(strategy: Any, data: bytes | None) -> bytes:
    """Return the chief's ``data`` on every worker; a joining worker returns its own until it is admitted.

    Args:
        strategy: the strategy of the group.
        data: the bytes to send; ignored on workers other than the chief.
    """
    if collective.is_catching_up():
        return data or b""
    sends = is_leader(strategy)
    mine = (data or b"") if sends else b""
    size = int(_sum(strategy, [len(mine)], "int64")[0])
    received = bytearray()
    for start in range(0, size, CHUNK_BYTES):
        length = min(CHUNK_BYTES, size - start)
        received += _broadcast_chunk(strategy, mine[start : start + length] if sends else None, length)
    return bytes(received)


def _broadcast_chunk(strategy: Any, chunk: bytes | None, length: int) -> bytes:
    """Add the chief's bytes, taken as integers, to the zeros of the others."""
    import numpy as np

    words = -(-length // 4)
    padded = np.zeros(4 * words, np.uint8)
    if chunk is not None:
        padded[:length] = np.frombuffer(chunk, np.uint8)
    summed = _sum(strategy, padded.view(np.int32), "int32")
    return np.ascontiguousarray(summed).view(np.uint8)[:length].tobytes()


def _sum(strategy: Any, values: Any, dtype: str) -> Any:
    """Return the sum over the workers (not over their devices), on the host."""
    import tensorflow as tf

    extended = strategy.extended
    with tf.device(extended._worker_device):
        tensor = tf.identity(tf.constant(values, dtype))
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    reduced = extended._host_cross_device_ops.reduce(tf.distribute.ReduceOp.SUM, tensor, tensor, options=options)
    return strategy.experimental_local_results(reduced)[0].numpy()


def broadcast_folder(strategy: Any, folder: Path) -> bool:
    """Make ``folder`` on every worker hold what it holds on the chief; return False if the chief has no such folder.

    Files are sent one after another, ``CHUNK_BYTES`` at a time. Each worker must pass its own folder: on a shared
    disk, a worker with the chief's path would write to the files that the chief reads.
    """
    sends = is_leader(strategy)
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if sends and folder.is_dir() else []
    table = [str(path.relative_to(folder)) for path in files] if sends and folder.is_dir() else None
    names = json.loads(broadcast_bytes(strategy, json.dumps(table).encode()))
    if names is None:
        return False
    if not sends:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for name in names:
        content = broadcast_bytes(strategy, (folder / name).read_bytes() if sends else None)
        if not sends:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    return True


def all_agree(strategy: Any, agreed: bool) -> bool:
    """Return True if every worker of the group passed True; a collective, which all must call."""
    if collective.is_catching_up():
        return agreed
    return int(_sum(strategy, [int(agreed)], "int32")[0]) == strategy.extended._num_workers
