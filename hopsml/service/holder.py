"""Which server process leads: a name by which others on the same machine see whether it still lives."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from hopsml.service.engine.local_application import start_ticks


def own() -> str:
    """Of this process: machine since its last start, number, when it was started, and something that nobody else has."""
    return f"{_machine()}.{os.getpid()}.{start_ticks(os.getpid())}.{secrets.token_hex(4)}"


def is_gone(holder: str) -> bool:
    """Whether the process is surely gone: it was one of this machine, and is not there any more."""
    machine, _, rest = holder.partition(".")
    numbers = rest.split(".")
    if machine != _machine() or len(numbers) != 3 or not (numbers[0] + numbers[1]).isdecimal():
        return False
    return start_ticks(int(numbers[0])) != int(numbers[1])


def _machine() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
