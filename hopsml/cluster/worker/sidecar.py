"""A process of a run's own beside its workers on one agent: ``python -m hopsml.cluster.worker.sidecar MODULE``.

It imports the module, waits for its seat, which may be that of a run still to come, calls the function that
``RunSpec.sidecar`` names, and ends with its agent. Workers of all generations there find what it has written to
``SidecarSeat.address``.
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

from hopsml.cluster.shared import processes
from hopsml.cluster.shared.framing import framed, read_frame

PROBLEM = "problem"  # a file in its folder: why it ends
ADDRESS = "address"  # in the folder that all processes in this place have had


class SidecarSeat(msgspec.Struct, frozen=True):
    """Where it sits: the run, the agent's address, a folder of its own on this machine."""

    target: str  # "module:function", called with this and with what tells the driver a word
    run_id: str
    host: str
    folder: str  # its own, empty; gone with it
    address: str  # path of a file for the workers, in a folder that outlives it
    port_range: tuple[int, int] | None = None

    def write_address(self, data: bytes) -> None:
        """Let workers find it; in the place of whoever was there before."""
        part = Path(f"{self.address}.part")
        part.touch(mode=0o600)
        part.write_bytes(data)
        part.replace(self.address)


Tell = Callable[[bytes], None]
_seat = msgspec.msgpack.Decoder(SidecarSeat)


def main() -> None:
    """Read the seat, call its function with it; the end of the input is the agent's death."""
    processes.die_with_parent(os.getppid())
    with contextlib.suppress(Exception):  # it is said where somebody waits for it
        importlib.import_module(sys.argv[1])
    try:
        seat = _seat.decode(read_frame(sys.stdin.buffer))
    except EOFError:  # no run has wanted it
        return
    words = os.dup(1)
    os.dup2(2, 1)  # what is printed must not come between
    threading.Thread(target=_end_with_agent, name="hopsml-agent-watch", daemon=True).start()
    module, _, name = seat.target.partition(":")
    try:
        getattr(importlib.import_module(module), name)(seat, lambda data: _write(words, framed(data)))
    except Exception as error:
        Path(seat.folder, PROBLEM).write_text(f"{type(error).__name__}: {error}")
        raise


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _end_with_agent() -> None:
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
