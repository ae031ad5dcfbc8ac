"""Tests of a server that is stopped (SIGSTOP) during a poll of its applications, while another one may lead."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hopsml.core import processes
from hopsml.core.states import Lifecycle
from hopsml.service import spec as specs
from hopsml.service.engine import EngineState, SubmitOrder
from hopsml.service.engine.local import LocalEngine
from hopsml.service.lifecycle import EngineSnapshot, SeenApplication
from hopsml.service.manager import Manager
from hopsml.service.manager.manager import LEASE_S
from hopsml.service.scheduler.resources import Resources
from hopsml.service.store import JobStore, NewJob, StaleRecord
from hopsml.service.workspaces import Workspaces

pytestmark = pytest.mark.fast


class SlowEngine(LocalEngine):
    """Engine that reports an application of another server and takes ``poll_s`` for a poll."""

    poll_s, now = 0.0, 1000.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Resources(0, 2, 4096))
        self.killed: list[str] = []
        self.during_poll: Callable[[], object] = lambda: None  # done by another server during this poll

    def poll(self) -> EngineState:
        state = super().poll()
        self.now += self.poll_s
        self.during_poll()
        seen = {"hopsml-job-x-7-1": (SeenApplication("app-7", Lifecycle.RUNNING),)}
        return EngineState(EngineSnapshot(seen, state.sight.submitting), state.nodes)

    def kill(self, application_id: str) -> None:
        self.killed.append(application_id)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    store, engine = JobStore.open(f"sqlite:///{tmp_path}/service.db"), SlowEngine(tmp_path / "applications")
    workspaces = Workspaces(tmp_path, f"file://{tmp_path}", lambda owner, names: {})
    yield Manager(
        store, engine, workspaces, profile="local", prefix="hopsml-job-x", holder="me", clock=lambda: engine.now
    )
    engine.close()
    store.close()


@pytest.mark.parametrize(("poll_s", "killed"), [(0.9 * LEASE_S, ["app-7"]), (1.1 * LEASE_S, [])])
def test_server_kills_no_stray_after_its_lease_has_expired(manager: Manager, poll_s: float, killed: list[str]) -> None:
    engine = manager._engine
    assert isinstance(engine, SlowEngine)
    engine.poll_s = poll_s
    manager.run_pass()
    assert engine.killed == killed
    engine.poll_s = 0.0
    manager.run_pass()
    assert engine.killed[-1] == "app-7"  # no other server has taken the lead: it is a stray


@pytest.mark.parametrize("has_ended", [True, False])
def test_server_kills_no_stray_if_another_led_during_its_poll(manager: Manager, has_ended: bool) -> None:
    store, engine = manager._store, manager._engine
    assert isinstance(engine, SlowEngine)

    def lead() -> None:
        other = store.acquire_lease("other", "there", engine.now + 86_400.0, 30.0)  # its clock is a day ahead
        assert other.holder == "other"
        if has_ended:
            store.resign(other)
        engine.during_poll = lambda: None

    engine.during_poll = lead
    manager.run_pass()
    assert engine.killed == [] and manager.term() == 0
    manager.run_pass()
    assert engine.killed == (["app-7"] if has_ended else [])


def test_former_leader_does_not_submit_an_application_it_placed(manager: Manager, tmp_path: Path) -> None:
    store, engine = manager._store, manager._engine
    assert isinstance(engine, SlowEngine)
    task = "{script: train.py, resources: {cores: 1, memory: 1g}}"
    store.submit(NewJob("one", "ann", "default", 50, specs.loads(f"name: one\ntasks: {{main: {task}}}").model_dump_json(
        by_alias=True, exclude_unset=True), "local"), 1000.0)  # fmt: skip
    orders: list[SubmitOrder] = []
    engine.submit = orders.append  # type: ignore[method-assign]
    manager.run_pass()
    (order,) = orders
    store.acquire_lease("other", "there", engine.now + 86_400.0, 30.0)
    with pytest.raises(StaleRecord):
        order.plan()


def test_living_process_and_one_of_another_machine_are_not_taken_for_ended() -> None:
    own = processes.process_name()
    machine, pid, started, token = own.split(".")
    assert machine.endswith(f"-{os.stat('/proc/self/ns/pid').st_ino}") and len(own) <= 100
    with subprocess.Popen(["true"]) as process:
        process.wait()
    ended = f"{process.pid}.1.{token}"
    assert not processes.has_named_process_ended(own)
    assert processes.has_named_process_ended(f"{machine}.{ended}") and processes.has_named_process_ended(
        f"{machine}.{pid}.{int(started) + 1}.{token}"
    )
    assert not processes.has_named_process_ended(f"{machine.rpartition('-')[0]}-1.{ended}"), "of another PID namespace"
    assert not processes.has_named_process_ended(f"another-boot.{ended}")


@pytest.mark.skipif(os.getuid() != 0, reason="making a PID namespace needs root")
def test_container_on_the_same_host_has_another_machine_name() -> None:
    command = "from hopsml.core import processes; print(processes.process_name())"
    inside = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if inside.returncode and "Operation not permitted" in inside.stderr:
        pytest.skip("this machine makes no PID namespaces")
    assert inside.stdout.count(".") == 3, inside.stderr
    assert inside.stdout.split(".")[0] != processes.process_name().split(".")[0], inside.stderr
    assert not processes.has_named_process_ended(inside.stdout.strip())
