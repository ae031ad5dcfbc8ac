"""Process that writes checkpoints from an agent's memory to disk; the fork server starts it next to the worker.

It reads slot numbers of one byte each and answers each with a frame that holds an error message, empty on success. It
exits when the requesting end of the pipe is closed.
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
from hopsml.training.elastic import commits
from hopsml.training.elastic.commits import Snapshot

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DESCRIPTION, _WRITE, _TEXTS = "description", "write", "texts"
_decoder = msgspec.msgpack.Decoder(Description | FileDescription)
# It computes nothing, so the GPUs are left to the training.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


def pack(arrays: dict[str, NDArray[Any]], description: Description | FileDescription, write: str) -> Snapshot:
    """Return the snapshot to put into a slot, from which the process writes a checkpoint or file.

    Args:
        arrays: the arrays to write, by name; those of text, which have no raw content, are pickled.
        description: the target and its settings.
        write: "module:function", called with the path (or the prefix of paths) and the arrays.
    """
    texts = {name: array for name, array in arrays.items() if array.dtype.hasobject}
    values = {_DESCRIPTION: msgspec.msgpack.encode(description), _WRITE: write.encode(), _TEXTS: pickle.dumps(texts)}
    return Snapshot(0, {name: array for name, array in arrays.items() if name not in texts}, values)


def run(_assignment: str, answers: int, slots: Sequence[int], requests: int) -> int:
    """Serve write requests until the request pipe is closed; return the exit status."""
    os.environ.update(_ENVIRONMENT)
    with contextlib.suppress(OSError):
        os.nice(5)  # training has priority
    held = CommitSlots(slots)
    while slot := os.read(requests, 1):
        answer = memoryview(framed(_write(held, slot[0]).encode()))
        while answer:
            answer = answer[os.write(answers, answer) :]
    return 0


def _write(held: CommitSlots, slot: int) -> str:
    """Write the checkpoint in a slot; return the error message, empty on success."""
    try:
        snapshot = commits.decode(held.read(slot))
        description = _decoder.decode(snapshot.values[_DESCRIPTION])
        module, _, name = snapshot.values[_WRITE].decode().partition(":")
        write = getattr(importlib.import_module(module), name)
        arrays = {**snapshot.arrays, **pickle.loads(snapshot.values[_TEXTS])}
        os.umask(description.umask)
        complete: Any = write_complete if isinstance(description, Description) else write_file
        complete(description, lambda place: write(place, arrays))
    except Exception as error:  # noqa: BLE001 sent to the agent, which reports it
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Run the process in a fresh interpreter, where a fork is not safe."""
    assignment, answers, parent, cwd, requests, *slots = sys.argv[1:]
    processes.die_with_parent(int(parent))
    os.chdir(cwd)
    os._exit(run(assignment, int(answers), tuple(map(int, slots)), int(requests)))


if __name__ == "__main__":
    main()
