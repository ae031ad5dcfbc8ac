"""Contract of a chief and its servers on all backends, without a framework: lost ones return at their address.

``PLAYS`` are functions of a folder that the tests of every backend call: locally, on Spark's executors, as a driver on YARN.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hopsml.cluster.shared.spec import Roles, ServerGroup
from hopsml.core import processes
from hopsml.errors import WorkerFailed
from hopsml.experiment import collective, plan
from hopsml.experiment.options import RunOptions
from hopsml.experiment.run import Run
from tests.helpers.clock import END_S
from tests.helpers.cluster import server_body
from tests.helpers.cluster.finding import agent_of
from tests.helpers.cluster.server_run import noted, process_of
from tests.helpers.cluster.workloads import WAIT_S, wait_until

ROLES = Roles(1, evaluator=True)
RANKS = {"worker0": 1, "ps0": 2, "evaluator": 3}


def submit(end_file: Path, roles: Roles = ROLES, **group: Any) -> Run:
    made = collective.build(
        RunOptions(server_body.ask_until, args={"end_file": str(end_file)}, progress=False, keep_warm=60.0)
    )
    spec = msgspec.structs.replace(
        made.spec, group=ServerGroup(**{"size": 4, **group}), roles=roles, framework="none", body=server_body.BODY
    )
    return plan.start(dataclasses.replace(made, spec=spec))


def answers(run: Run, **starts: int) -> None:
    """Wait until these starts answer the chief."""

    def found() -> bool:
        assert not run.state.is_over, run.state.error
        metrics = run.state.members[0].metrics if 0 in run.state.members else {}
        return all(metrics.get(name) == start for name, start in starts.items())

    wait_until(found, f"answers of {starts}", WAIT_S)


def each_role_receives_the_cluster_and_its_own_task(folder: Path) -> None:
    run = submit(folder / "told")
    answers(run, worker0=0, ps0=0)
    (folder / "told").touch()
    run.result(END_S)
    logs = Path(run.run_dir.removeprefix("file://"), "logs")
    configs = [json.loads((logs / f"g0-rank{rank}.log").read_text().partition("\n")[0]) for rank in range(4)]
    tasks = [(one["task"]["type"], one["task"]["index"]) for one in configs]
    assert tasks == [("chief", 0), ("worker", 0), ("ps", 0), ("evaluator", 0)]
    clusters = [one["cluster"] for one in configs[:3]]
    assert clusters[0] == clusters[1] == clusters[2] and sorted(clusters[0]) == ["chief", "ps", "worker"]


def killed_or_stopped_server_returns_with_its_address_and_rank(folder: Path) -> None:
    run = submit(folder / "told", stopped_s=1.0, fruitless_limit=9)
    answers(run, worker0=0, ps0=0)
    for number, name in enumerate(("worker0", "ps0"), 1):
        os.kill(process_of(run, RANKS[name]), signal.SIGKILL)
        answers(run, **{name: number})
    os.kill(process_of(run, RANKS["evaluator"]), signal.SIGKILL)
    noted(run, "rank 3 (evaluator) is running again")
    os.kill(process_of(run, RANKS["worker0"]), signal.SIGSTOP)
    answers(run, worker0=4, ps0=2)
    noted(run, "rank 1 (worker) was lost (its process has been stopped (SIGSTOP) for 1 s)")
    for name in ("ps0", "worker0"):
        os.kill(process_of(run, RANKS[name]), signal.SIGKILL)
    noted(run, "rank 2 (ps) is running again", 2)
    noted(run, "rank 1 (worker) is running again", 3)
    assert run.state.generation == 0
    (folder / "told").touch()
    result = run.result(END_S)
    assert result.value["roles"] == ["chief", "ps", "worker"]
    assert [member["state"] for member in result.workers] == ["FINISHED"] * 4
    logs = {path.name for path in Path(run.run_dir.removeprefix("file://"), "logs").glob("*.log")}
    assert {"g0-rank0.log", "g0-rank1.log", "g1-rank1.log", "g2-rank2.log", "g3-rank3.log", "g4-rank1.log"} <= logs


def lost_worker_agent_is_tolerated_and_lost_server_agent_ends_the_run(folder: Path) -> None:
    run = submit(folder / "told", Roles(1))
    answers(run, worker0=0, worker1=0, ps0=0)
    agent_of(run, 1).kill()
    noted(run, "the run continues with 1 worker: rank 1 (worker) was lost and is not restarted: the agent on")
    answers(run, worker0=-1, worker1=0)
    agent_of(run, 3).kill()
    with pytest.raises(WorkerFailed, match=r"rank 3 \(ps\) was lost: the agent on .*experiment.resume continues"):
        run.result(END_S)


def lost_chief_ends_the_run_and_all_servers(folder: Path) -> None:
    run = submit(folder / "told")
    answers(run, worker0=0, ps0=0)
    others = [process_of(run, rank) for rank in (1, 2, 3)]
    os.kill(process_of(run, 0), signal.SIGKILL)
    with pytest.raises(WorkerFailed, match=r"rank 0 of 4 on host .* killed by signal 9"):
        run.result(END_S)
    wait_until(lambda: all(processes.has_ended(pid) for pid in others), "the end of the servers")


PLAYS: tuple[Callable[[Path], None], ...] = (
    each_role_receives_the_cluster_and_its_own_task,
    killed_or_stopped_server_returns_with_its_address_and_rank,
    lost_worker_agent_is_tolerated_and_lost_server_agent_ends_the_run,
    lost_chief_ends_the_run_and_all_servers,
)
