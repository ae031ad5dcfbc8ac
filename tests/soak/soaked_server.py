"""Program that runs ``hopsml server`` with frequent sweeps, and prints its address.

    python -m tests.soak.soaked_server STATE PROJECT KEEP_S PLANT

Files of jobs are retained for KEEP_S seconds. PLANT: a resource that grows with each submission, to test the soak: "-" for
none, "objects", "descriptors", "threads" or "files".
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from hopsml.service import retention, server
from hopsml.service.browse import project
from hopsml.service.engine.local import LocalEngine
from hopsml.service.rest import feeds
from hopsml.service.scheduler import scheduler
from hopsml.service.scheduler.resources import Resources

_planted: list[Any] = []


def plant(kind: str, state: Path) -> None:
    """Make a resource grow by each submission."""
    submit = LocalEngine.submit

    def leaking(self: LocalEngine, order: Any) -> None:
        if kind == "objects":
            _planted.append(bytearray(42_000))
        elif kind == "descriptors":
            _planted.append(open("/dev/null"))  # noqa: SIM115
        elif kind == "threads":
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        elif kind == "files":
            (state / "jobs" / f"left-{len(_planted)}.txt").touch()
            _planted.append(None)
        submit(self, order)

    LocalEngine.submit = leaking  # type: ignore[method-assign]


def main() -> None:
    """Run the server until it is ended."""
    state, project_url, keep_s, planted = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]
    retention.SWEEP_S = retention.UPLOADED_S = keep_s
    project.KEPT_CHANGES = feeds.KEPT_CHANGES = 50  # events: as many as there ever are before the warm-up is over
    scheduler.DROP_AT = 8
    server.machine_resources = lambda gpus: Resources(gpus, 64, 65_536)  # type: ignore[assignment]  # jobs are small
    if planted != "-":
        plant(planted, state)
    wanted = server.ServerSettings(
        state, profile="local", project_url=project_url, keep_days=keep_s / retention.DAY_S, port=0, changes_per_s=0
    )
    server.run_server(wanted, lambda address: print(address, flush=True))


if __name__ == "__main__":
    main()
