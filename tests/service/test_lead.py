"""A server that stands still, as by SIGSTOP, while it looks at its applications: another one may lead by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.service.engine import Look
from hopsml.service.engine.local import LocalEngine
from hopsml.service.lifecycle import SeenApplication, Sight
from hopsml.service.manager import Manager
from hopsml.service.manager.manager import LEASE_S
from hopsml.service.scheduler.resources import Resources
from hopsml.service.store import JobStore
from hopsml.service.workspaces import Workspaces
from hopsml.states import Lifecycle

pytestmark = pytest.mark.fast


class SlowEngine(LocalEngine):
    """Sees an application of another server's, and takes ``look_s`` for it."""

    look_s, now = 0.0, 1000.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Resources(0, 2, 4096))
        self.killed: list[str] = []

    def look(self) -> Look:
        look = super().look()
        self.now += self.look_s
        seen = {"hopsml-job-x-7-1": (SeenApplication("app-7", Lifecycle.RUNNING),)}
        return Look(Sight(seen, look.sight.submitting), look.nodes)

    def kill(self, application_id: str) -> None:
        self.killed.append(application_id)


@pytest.mark.parametrize(("look_s", "killed"), [(0.9 * LEASE_S, ["app-7"]), (1.1 * LEASE_S, [])])
def test_it_kills_no_stray_once_another_one_may_lead(tmp_path: Path, look_s: float, killed: list[str]) -> None:
    store, engine = JobStore.open(f"sqlite:///{tmp_path}/service.db"), SlowEngine(tmp_path / "applications")
    workspaces = Workspaces(tmp_path, f"file://{tmp_path}", lambda owner, names: {})
    manager = Manager(
        store, engine, workspaces, profile="local", prefix="hopsml-job-x", holder="me", clock=lambda: engine.now
    )
    engine.look_s = look_s
    manager.turn()
    assert engine.killed == killed
    engine.look_s = 0.0
    manager.turn()
    assert engine.killed[-1] == "app-7"  # nobody has taken the lead: it is a stray
    engine.close()
    store.close()
