"""Sidecar of a run, one process next to its workers on each agent: ``python -m hopsml.cluster.worker.sidecar MODULE``.

It imports the module, waits for its seat, which may be that of a later run, calls the function that ``RunSpec.sidecar``
names, and ends with its agent. Workers of all generations there find what it has written to ``SidecarSeat.address``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from hopsml.cluster.shared.framing import framed, read_frame
from hopsml.core import processes

PROBLEM = "problem"  # file in its folder: why it ends
ADDRESS = "address"  # file in the folder that successive sidecars of this agent share


class SidecarSeat(msgspec.Struct, frozen=True):
    """Assignment of a sidecar: its function, the run, the agent's address and a private folder on this machine."""

    target: str  # "module:function", called with this and with a function that sends a message to the driver
    run_id: str
    host: str
    folder: str  # private and empty at first; removed with the sidecar
    address: str  # path of a file for the workers, in a folder that outlives the sidecar
    port_range: tuple[int, int] | None = None

    def write_address(self, data: bytes) -> None:
        """Publish the sidecar's address to workers, in place of an earlier sidecar's."""
        part = Path(f"{self.address}.part")
        part.touch(mode=0o600)
        part.write_bytes(data)
        part.replace(self.address)


Tell = Callable[[bytes], None]
_seat = msgspec.msgpack.Decoder(SidecarSeat)


def main() -> None:
    """Read the seat and call its function; the process ends when its input is closed, as its agent has ended."""
    processes.die_with_parent(os.getppid())
    with contextlib.suppress(Exception):  # the second import reports the error
        importlib.import_module(sys.argv[1])
    try:
        seat = _seat.decode(read_frame(sys.stdin.buffer))
    except EOFError:  # no run has needed it
        return
    words = os.dup(1)
    os.dup2(2, 1)  # printed text must not be mixed with messages
    threading.Thread(target=_end_with_agent, name="hopsml-agent-watch", daemon=True).start()
    module, _, name = seat.target.partition(":")
    try:
        getattr(importlib.import_module(module), name)(seat, lambda data: _write(words, framed(data)))
    except Exception as error:
        Path(seat.folder, PROBLEM).write_text(f"{type(error).__name__}: {error}")
        raise


def _write(descriptor: int, data: bytes) -> None:
    """Write all data to a descriptor."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _end_with_agent() -> None:
    """Wait for the end of the input, then exit."""
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
