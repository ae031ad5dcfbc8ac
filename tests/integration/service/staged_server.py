"""Program: a job service on a simulated cluster of two nodes; no job is a process.

    python -m tests.integration.service.staged_server FOLDER PORT

<folder>/stage/<serial>.log     output of a job's drivers
<folder>/stage/<serial>.end     end of its applications: state and reason
<folder>/project/, queues.yaml  its runs, its queues
<folder>/sign-in.yaml           its OpenID provider, if any

Prints one line of JSON: the address, and a token of each user.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hopsml.core.states import Lifecycle
from hopsml.service import server
from hopsml.service.engine import Engine, EngineState, SubmitOrder
from hopsml.service.engine.base import LogPiece, NodeSeen
from hopsml.service.engine.local import read_log_piece
from hopsml.service.lifecycle.record import EngineSnapshot, SeenApplication, SlotsAnswer
from hopsml.service.scheduler.resources import Resources
from hopsml.service.store import JobStore
from hopsml.service.store.accounts import Role, Tokens

EACH = Resources(8, 32, 128 << 10)
NODES = tuple(NodeSeen(name, EACH, Resources()) for name in ("node1", "node2"))
HOSTILE_OWNER = '"><img src=x onerror=window.hit=1>'
CALLERS = {
    "ana": Role.USER,
    "ben": Role.USER,
    HOSTILE_OWNER: Role.USER,
    "vera": Role.VIEWER,
    "olga": Role.OPERATOR,
    "adam": Role.ADMIN,
}


class StagedEngine:
    """Engine that runs every application at once, until its file gives its end, or its end is requested.

    Drivers use their granted slots, and release revoked ones, at the next poll.
    """

    resizes = True

    def __init__(self, stage: Path, prefix: str) -> None:
        self._stage, self._prefix = stage, prefix
        self._seen: dict[str, SeenApplication] = {}
        stage.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # of the server before
            for tag in (stage / "tags").read_text().split():
                self._run(tag)

    def _run(self, tag: str) -> None:
        number = len(self._seen) + 1
        self._seen[tag] = SeenApplication(f"application_1795767000000_{number:04}", Lifecycle.RUNNING)

    def _file(self, tag: str, kind: str) -> Path:
        return self._stage / f"{tag[len(self._prefix) + 1 :].partition('-')[0]}.{kind}"

    def poll(self) -> EngineState:
        """Read the states of applications from their files."""
        for tag, seen in list(self._seen.items()):
            if not seen.state.is_final:
                with contextlib.suppress(FileNotFoundError):
                    state, _, why = self._file(tag, "end").read_text().partition(" ")
                    self._seen[tag] = SeenApplication(seen.id, Lifecycle(state), why)
        return EngineState(EngineSnapshot({tag: (seen,) for tag, seen in list(self._seen.items())}), NODES)

    def submit(self, order: SubmitOrder) -> None:
        """Run an application at once with all its slots."""
        with open(self._stage / "tags", "a") as file:
            file.write(f"{order.tag}\n")
        self._run(order.tag)

    def withdraw(self, tag: str) -> None:
        """No submission is pending, so there is nothing to withdraw."""

    def request_end(self, application_id: str) -> None:
        """End an application at once."""
        for tag, seen in list(self._seen.items()):
            if seen.id == application_id:
                self._seen[tag] = SeenApplication(seen.id, Lifecycle.STOPPED, "it was asked to end")

    kill = request_end

    def grant_slots(self, application_id: str, slots: int) -> None:
        """Record that an application holds the granted slots."""
        for tag, seen in list(self._seen.items()):
            if seen.id == application_id:
                self._seen[tag] = replace(seen, answer=SlotsAnswer(slots, slots))

    def forget_granted_slots(self) -> None:
        """No grants are stored."""

    def forget(self, tag: str) -> None:
        """Logs are read by application id, so nothing is removed."""

    def remove(self, before_s: float, may: Callable[[str], bool]) -> int:
        """Nothing."""
        return 0

    def worker(self, each: Resources) -> Resources:
        """Return the requested size of a worker."""
        return each

    def driver(self) -> Resources:
        """Return a small size of a driver."""
        return Resources(0, 1, 1024)

    def log(self, application_id: str, offset: int, limit: int) -> LogPiece | None:
        """Return a piece of the job's log file."""
        tags = [tag for tag, seen in list(self._seen.items()) if seen.id == application_id]
        return read_log_piece(self._file(tags[0], "log"), offset, limit) if tags else None

    def close(self) -> None:
        """Nothing to end."""


def main() -> None:
    """Serve."""
    folder = Path(sys.argv[1])

    def engine(profile: object, prefix: str, project_url: str, state: Path) -> Engine:
        return StagedEngine(folder / "stage", prefix)

    def ready(address: str) -> None:
        store = JobStore.open(f"sqlite:///{folder.absolute()}/state/service.db")
        made = {user: Tokens(store).create(user, role, time.time()) for user, role in CALLERS.items()}
        store.close()
        print(json.dumps({"address": address.partition("?")[0], "tokens": made}), flush=True)

    server._engine = engine
    sign_in = folder / "sign-in.yaml"
    wanted = server.ServerSettings(
        folder / "state",
        profile="local",
        project_url=f"file://{folder.absolute()}/project",
        port=int(sys.argv[2]),
        queues=folder / "queues.yaml",
        sign_in=sign_in if sign_in.exists() else None,
    )
    server.run_server(wanted, ready)


if __name__ == "__main__":
    main()
