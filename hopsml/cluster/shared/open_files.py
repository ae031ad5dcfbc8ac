"""Limit of open files per process (``ulimit -n``) and hopsml's requirements, checked before operations fail."""

from __future__ import annotations

import resource

LEAST = 64  # for an agent, or a driver with few agents: connections, pipes, logs, reserved sockets
_OF_DRIVER = 24  # for a driver without agents
_KEPT = 24, 256  # bounds of the part, an eighth of the limit, that is reserved for files


def limit() -> int:
    """Return the number of files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def kept(open_files: int) -> int:
    """Return the number of descriptors that are reserved for files, out of a limit of ``open_files``."""
    least, most = _KEPT
    return max(least, min(most, open_files // 8))


def needed(agents: int) -> int:
    """Return the smallest limit with which a driver can have a connection to each of its agents."""
    least = max(LEAST, _OF_DRIVER + agents)
    return next(
        number for number in range(least, 2 * least + sum(_KEPT)) if number - kept(number) >= _OF_DRIVER + agents
    )


def problem(agents: int = 0) -> str:
    """Return the error text, with a remedy, if this process's limit is too low, else "".

    Args:
        agents: number of agents if this process is a driver, else 0.
    """
    found, least = limit(), needed(agents)
    if found >= least:
        return ""
    whose = f"a driver of {agents} workers" if agents else "hopsml"
    return (
        f"this process may open {found} files (ulimit -n), and {whose} needs {least}: raise it (ulimit -n, LimitNOFILE)"
    )
