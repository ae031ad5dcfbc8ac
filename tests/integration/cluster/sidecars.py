"""Functions that a sidecar of a test runs."""

from __future__ import annotations

import os
import threading

from hopsml.cluster.worker.sidecar import SidecarSeat, Tell


def stay(seat: SidecarSeat, tell: Tell) -> None:
    """Write an address, report the pid, and stay."""
    print("what is printed goes elsewhere")
    seat.write_address(str(os.getpid()).encode())
    tell(str(os.getpid()).encode())
    threading.Event().wait()


def fail(seat: SidecarSeat, tell: Tell) -> None:
    """Have a reason."""
    raise OSError("no port is free")
