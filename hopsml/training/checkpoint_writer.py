"""The process that writes checkpoints out of an agent's memory: forked by the fork server beside the worker.

It reads the number of a slot, one byte, and answers with a frame that says what went wrong, or nothing; it ends when nobody
can ask any more.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.cluster.shared import processes
from hopsml.cluster.shared.commit_slots import CommitSlots
from hopsml.cluster.shared.framing import framed
from hopsml.training.checkpoint_files import Description, FileDescription, write_complete, write_file
from hopsml.training.elastic import commit_format
from hopsml.training.elastic.commit_format import Snapshot

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DESCRIPTION, _WRITE, _TEXTS = "description", "write", "texts"
_decoder = msgspec.msgpack.Decoder(Description | FileDescription)
# It computes nothing; GPUs are the training's.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


def pack(arrays: dict[str, NDArray[Any]], description: Description | FileDescription, write: str) -> Snapshot:
    """What lies in the slot. ``write``: "module:function", called with the file, or the prefix of files, and the arrays.

    Arrays of text, which have no raw content, are pickled.
    """
    texts = {name: array for name, array in arrays.items() if array.dtype.hasobject}
    values = {_DESCRIPTION: msgspec.msgpack.encode(description), _WRITE: write.encode(), _TEXTS: pickle.dumps(texts)}
    return Snapshot(0, {name: array for name, array in arrays.items() if name not in texts}, values)


def run(_assignment: str, answers: int, slots: Sequence[int], requests: int) -> int:
    """The process's life; returns its exit status."""
    os.environ.update(_ENVIRONMENT)
    with contextlib.suppress(OSError):
        os.nice(5)  # training comes first
    held = CommitSlots(slots)
    while slot := os.read(requests, 1):
        answer = memoryview(framed(_write(held, slot[0]).encode()))
        while answer:
            answer = answer[os.write(answers, answer) :]
    return 0


def _write(held: CommitSlots, slot: int) -> str:
    """What went wrong, or nothing."""
    try:
        snapshot = commit_format.decode(held.read(slot))
        description = _decoder.decode(snapshot.values[_DESCRIPTION])
        module, _, name = snapshot.values[_WRITE].decode().partition(":")
        write = getattr(importlib.import_module(module), name)
        arrays = {**snapshot.arrays, **pickle.loads(snapshot.values[_TEXTS])}
        os.umask(description.umask)
        complete: Any = write_complete if isinstance(description, Description) else write_file
        complete(description, lambda place: write(place, arrays))
    except Exception as error:  # noqa: BLE001 the agent tells it
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Entry point where a fork is not safe: a fresh interpreter."""
    assignment, answers, parent, cwd, requests, *slots = sys.argv[1:]
    processes.die_with_parent(int(parent))
    os.chdir(cwd)
    os._exit(run(assignment, int(answers), tuple(map(int, slots)), int(requests)))


if __name__ == "__main__":
    main()
