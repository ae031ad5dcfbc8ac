"""Tests of autoscaling with a real manager and store: jobs wait, nodes come, jobs run, nodes go."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hopsml.core.states import Lifecycle
from hopsml.service import spec as specs
from hopsml.service.autoscaler import NodeGroup, ScalingView
from hopsml.service.engine import EngineState
from hopsml.service.engine.base import NodeSeen
from hopsml.service.manager import Manager
from hopsml.service.providers.command import CommandProvider, YarnExclusion
from hopsml.service.scaler import Scaler
from hopsml.service.scheduler.resources import Resources
from hopsml.service.store import JobRow, JobStore, NewJob, RequestKind
from hopsml.service.workspaces import Workspaces
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.service import hook
from tests.integration.service.staged_server import StagedEngine

pytestmark = pytest.mark.local
EACH = Resources(0, 4, 8 << 10)


class GrowingEngine(StagedEngine):
    """Engine with one fixed node, and those of the hook's files that the test marked as up."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "stage", "hopsml-job-x")
        self.folder, self.up = folder, set[str]()

    def poll(self) -> EngineState:
        there = [path.stem for path in self.folder.glob("*.json")]
        listed = [NodeSeen(f"{name}:8041", EACH, Resources()) for name in sorted(there) if name in self.up]
        return replace(super().poll(), nodes=(NodeSeen("fixed:8041", Resources(0, 1, 2048), Resources()), *listed))


class Service:
    """Successive managers over the same store and nodes."""

    def __init__(self, folder: Path, **group: float) -> None:
        self.folder, self.group = folder, NodeGroup("cpu", EACH, 3, idle_s=0.1, **group)  # type: ignore[arg-type]
        self.store = JobStore.open(f"sqlite:///{folder}/service.db")
        self.engine = GrowingEngine(folder)
        self.exclude = folder / "exclude"
        self.begin()

    def begin(self) -> None:
        self.manager = Manager(
            self.store,
            self.engine,
            Workspaces(self.folder, f"file://{self.folder}", lambda owner, names: {}),
            profile="local",
            prefix="hopsml-job-x",
            holder="me",
        )
        provider = CommandProvider((sys.executable, hook.__file__, str(self.folder)), 30.0)
        exclusion = YarnExclusion(self.exclude, ("true",), 30.0)
        self.scaler = Scaler(self.manager, provider, (self.group,), exclusion)

    def run_pass(self) -> None:
        self.manager.run_pass()
        self.scaler.run_pass()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Run passes until a condition holds."""
        wait_until(lambda: (self.run_pass(), condition())[1], what, 30.0)

    def submit(self, name: str, workers: int) -> JobRow:
        task = f"{{script: train.py, count: {workers}, resources: {{cores: 1, memory: 1g}}}}"
        job = specs.loads(f"name: {name}\ntasks: {{main: {task}}}\n")
        text = job.model_dump_json(by_alias=True, exclude_unset=True)
        return self.store.submit(NewJob(name, "ana", "default", 50, text, "local", "", 0), time.time())

    def state(self, job: JobRow) -> Lifecycle:
        return self.store.job(job.serial).state

    def nodes(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def grown(self, name: str, workers: int) -> JobRow:
        """Return a job that runs on nodes added for it."""
        job = self.submit(name, workers)
        self.until(self.nodes, "nodes")
        self.engine.up |= set(self.nodes())
        self.until(lambda: self.state(job) == Lifecycle.RUNNING, "the job to run")
        return job

    def ends(self, job: JobRow) -> None:
        (self.folder / "stage" / f"{job.serial}.end").write_text("FINISHED")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.store.close()


def test_gang_that_does_not_fit_gets_nodes_which_are_removed_after_it(service: Service) -> None:
    job = service.submit("one", 6)
    service.run_pass()
    assert "waits for 2 more nodes of group 'cpu', about 10 min" in service.manager.why(job)
    service.run_pass()
    assert len(service.nodes()) == 2 and service.calls() == ["launch"]
    assert "2 nodes of 'cpu' are booting (since 0 s, at most 10 min)" in service.manager.why(job)
    service.engine.up |= set(service.nodes())
    service.until(lambda: service.state(job) == Lifecycle.RUNNING, "the job to run")
    assert service.calls() == ["launch"] and service.manager.why(job) == ""
    service.ends(job)
    service.until(lambda: not service.nodes(), "the nodes to go")
    assert service.state(job) == Lifecycle.FINISHED
    assert sorted(service.calls()) == ["drain", "drain", "launch", "terminate", "terminate"]
    service.run_pass()
    assert service.exclude.read_text() == ""  # and another may have their names


def test_warned_node_is_excluded_but_retains_its_job(service: Service) -> None:
    job = service.grown("one", 2)
    (name,) = service.nodes()
    warned = json.loads((service.folder / f"{name}.json").read_text()) | {"warned": True}
    hook.write(service.folder, warned)
    service.until(lambda: "drain" in service.calls(), "the drain")
    assert service.exclude.read_text() == f"{name}\n"
    other = service.submit("two", 1)
    service.until(lambda: len(service.nodes()) == 2, "another node")
    assert service.state(other) == Lifecycle.WAITING and service.state(job) == Lifecycle.RUNNING
    service.ends(job)
    service.until(lambda: name not in service.nodes(), "its end")
    service.engine.up |= set(service.nodes())
    service.until(lambda: service.state(other) == Lifecycle.RUNNING, "the other job")


def test_restarted_service_finds_booting_and_drained_nodes(service: Service) -> None:
    job = service.submit("one", 6)
    service.until(lambda: len(service.nodes()) == 2, "nodes")
    service.begin()
    service.until(lambda: "booting" in service.manager.why(job), "the nodes of the life before")
    assert service.calls() == ["launch"]
    service.engine.up |= set(service.nodes())
    service.until(lambda: service.state(job) == Lifecycle.RUNNING, "the job to run")
    name = service.nodes()[0]
    hook.write(service.folder, json.loads((service.folder / f"{name}.json").read_text()) | {"state": "draining"})
    service.begin()
    service.until(lambda: f"{name}:8041" in service.scaler._view.closed, "the drained one")
    assert service.state(job) == Lifecycle.RUNNING and len(service.nodes()) == 2
    service.store.add_request(job.serial, RequestKind.CANCEL, "", "ana", time.time())
    service.until(lambda: not service.nodes(), "their end")


def test_failing_provider_is_logged_once_shown_and_queried_again(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    job = service.submit("one", 6)
    (service.folder / "broken-list").write_text("no quota")
    with caplog.at_level(logging.WARNING, "hopsml.service"):
        service.run_pass(), service.run_pass()
    assert [record.getMessage() for record in caplog.records].count(caplog.records[-1].getMessage()) == 1
    assert "nodes cannot be added or ended" in service.manager.why(job) and "no quota" in service.manager.why(job)
    (service.folder / "broken-list").unlink()
    service.until(service.nodes, "nodes")


def test_refused_launch_is_not_repeated_at_once(service: Service) -> None:
    job = service.submit("one", 6)
    (service.folder / "broken-launch").write_text("no quota")
    for _ in range(3):
        service.run_pass()
    assert service.calls() == ["launch"]
    assert "requested nodes of 'cpu' did not start; they are requested again in" in service.manager.why(job)


def test_job_placed_just_before_its_node_closes_retains_the_node(service: Service) -> None:
    first = service.grown("one", 2)
    service.ends(first)
    service.until(lambda: service.state(first) == Lifecycle.FINISHED, "its end")
    scaled, jobs = service.manager.scaled, []

    def after_another(view: ScalingView) -> frozenset[str]:
        if view.closed and not jobs:
            jobs.append(service.submit("two", 2))
            service.manager.run_pass()
        return scaled(view)

    service.manager.scaled = after_another  # type: ignore[method-assign]
    service.until(lambda: jobs and service.state(jobs[0]) == Lifecycle.RUNNING, "the other job")
    for _ in range(3):
        service.run_pass()
    assert service.calls() == ["launch"] and len(service.nodes()) == 1


def test_server_that_does_not_lead_scales_nothing(service: Service) -> None:
    service.submit("one", 6)
    service.store.acquire_lease("other", "elsewhere", time.time(), 1e6)
    (service.folder / "broken-list").write_text("not even asked")
    service.run_pass(), service.run_pass()
    assert not service.calls() and not service.scaler._problem
    assert not service.manager.leads


def test_suspended_former_leader_takes_no_scaling_decision(service: Service) -> None:
    service.submit("one", 6)
    decided = service.manager.scaled

    def after_another_leader(view: ScalingView) -> frozenset[str]:
        """Let another server lead and resign before the decision."""
        for holder in ("me", "other"):
            lead = (
                service.manager.leader
                if holder == "me"
                else service.store.acquire_lease("other", "there", time.time(), 30.0)
            )
            assert lead is not None
            service.store.resign(lead)
        return decided(view)

    service.manager.scaled = after_another_leader  # type: ignore[method-assign]
    service.run_pass()
    assert not service.calls()
    service.manager.scaled = decided  # type: ignore[method-assign]
    service.until(lambda: service.calls() == ["launch"], "its next term")


def test_job_for_nodes_not_yet_added_is_accepted_and_described(service: Service) -> None:
    def job(workers: int) -> specs.JobSpec:
        task = f"{{script: a.py, count: {workers}, resources: {{cores: 1, memory: 1g}}}}"
        return specs.loads(f"name: one\ntasks: {{main: {task}}}\n")

    service.run_pass()
    assert service.manager.refusal(job(12)) == ""
    assert service.manager.growth(job(12)) == "waits for 3 more nodes of group 'cpu', about 10 min"
    assert service.manager.growth(job(1)).startswith("waits for 1 more node ")  # its driver has the core that there is
    assert "room for 13 such slots at most" in service.manager.refusal(job(14))
