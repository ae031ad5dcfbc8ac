"""Names of server processes, from which other servers on the same machine detect that one has ended."""

from __future__ import annotations

import os
import secrets

from hopsml.core.processes import pid_namespace, process_started


def own() -> str:
    """Return the name of this process: its machine, its id, its start time, and a unique suffix."""
    return f"{_machine()}.{os.getpid()}.{process_started(os.getpid())}.{secrets.token_hex(4)}"


def is_gone(holder: str) -> bool:
    """Return True if a process has certainly ended: it belonged to this machine, and does not exist any more."""
    machine, _, rest = holder.partition(".")
    numbers = rest.split(".")
    if machine != _machine() or machine == "-" or len(numbers) != 3 or not (numbers[0] + numbers[1]).isdecimal():
        return False
    pid, started = int(numbers[0]), int(numbers[1])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return started != (process_started(pid) or started)  # None: the start time is not visible to this user


def _machine() -> str:
    """Return the scope in which process ids are unique: the machine's boot and the PID namespace (a container)."""
    boot, _, namespace = pid_namespace().partition("/")
    return f"{boot}-{namespace.removeprefix('pid:[').removesuffix(']')}"
