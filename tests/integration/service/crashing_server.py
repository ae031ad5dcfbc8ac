"""Program: a local job service that kills itself by -9 at one of its actions.

    python -m tests.integration.service.crashing_server STATE CORES ACT DATABASE [LEASE_S]

ACT is the number of an action: a write to the database, a submission or a kill, each counted before and after it;
"-" for no crash.
DATABASE: a URL, "" for SQLite. LEASE_S: the leader's lease in seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopsml.service import server
from hopsml.service.engine.local import LocalEngine
from hopsml.service.scheduler.resources import Resources
from hopsml.service.store import JobStore


class Acts:
    """Counter of actions that kills the process at the last one."""

    def __init__(self, last: int | None) -> None:
        self._last, self._count, self._lock = last, 0, threading.Lock()

    def count(self) -> None:
        """Count one action."""
        with self._lock:
            if self._count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
            self._count += 1

    def around(self, of: type, name: str) -> None:
        """Count before and after each call of a method."""
        method: Callable[..., Any] = getattr(of, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self.count()
            result = method(*arguments, **named)
            self.count()
            return result

        setattr(of, name, counted)


def main() -> None:
    """Serve."""
    state, cores = Path(sys.argv[1]), int(sys.argv[2])
    act, database, *lease = sys.argv[3:]
    acts = Acts(int(act) if act != "-" else None)
    for of, name in ((JobStore, "save"), (LocalEngine, "submit"), (LocalEngine, "_start"), (LocalEngine, "kill")):
        acts.around(of, name)
    server.machine_resources = lambda gpus: Resources(gpus, cores, 65_536)  # independent of this machine
    url = f"file://{state}/project"
    wanted = server.ServerSettings(state, database=database, profile="local", project_url=url, port=None)
    wanted = replace(wanted, lease_s=float(lease[0])) if lease else wanted
    server.run_server(wanted, lambda address: print(address, flush=True))


if __name__ == "__main__":
    main()
