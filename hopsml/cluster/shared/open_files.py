"""How many files a process may open (``ulimit -n``), and how many hopsml needs: said before something fails for it."""

from __future__ import annotations

import resource

LEAST = 64  # of an agent, and of a driver with few agents: connections, pipes, logs, sockets that are held
_OF_DRIVER = 24  # without agents
_KEPT = 24, 256  # at least, and at most, of an eighth of the limit: for files, which connections must not take


def limit() -> int:
    """How many this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def kept(open_files: int) -> int:
    """How many of so many are not for connections."""
    least, most = _KEPT
    return max(least, min(most, open_files // 8))


def needed(agents: int) -> int:
    """The smallest limit with which a driver has a connection of each agent."""
    least = max(LEAST, _OF_DRIVER + agents)
    return next(
        number for number in range(least, 2 * least + sum(_KEPT)) if number - kept(number) >= _OF_DRIVER + agents
    )


def problem(agents: int = 0) -> str:
    """Why this process cannot do with its limit, and the remedy; "" where it can. ``agents``: of a driver's run."""
    found, least = limit(), needed(agents)
    if found >= least:
        return ""
    whose = f"a driver of {agents} workers" if agents else "hopsml"
    return (
        f"this process may open {found} files (ulimit -n), and {whose} needs {least}: raise it (ulimit -n, LimitNOFILE)"
    )
