"""Tests that workers continue in place when members are lost: real agents and workers on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import WorkerFailed
from hopsml.experiment.run import Run
from tests.helpers.clock import END_S
from tests.helpers.cluster import mending_workload
from tests.helpers.cluster.finding import agent_of
from tests.helpers.cluster.mending_workload import BATCH, N_SAMPLES, STEPS, Step, pids, steps_of
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.chaos


def submit(folder: Path, workers: int, function: Callable[..., Any] = mending_workload.arrays, **named: Any) -> Run:
    arguments = {"folder": str(folder), **named.pop("args", {})}
    return experiment.submit(
        function,
        args=arguments,
        min_workers=named.pop("least", 1),
        max_workers=workers,
        implementation="hopsml",
        progress=False,
        **named,
    )


def pid_of(folder: Path, rank: int, generation: int = 0) -> int:
    path = folder / f"pid-{rank}-{generation}"
    wait_until(path.exists, f"rank {rank} of a process of generation {generation}")
    return int(path.read_text())


def await_step(folder: Path, step: int, pid: int) -> None:
    wait_until(lambda: any(one.number >= step for one in steps_of(folder, pid)), f"step {step} of process {pid}")


def await_smaller(folder: Path, pid: int, world: int) -> list[Step]:
    """Return the steps of a process that continues in a smaller group."""
    wait_until(
        lambda: sum(one.world == world for one in steps_of(folder, pid)) >= 2, f"{world} of a group in process {pid}"
    )
    return steps_of(folder, pid)


def notes(run: Run) -> str:
    return "\n".join(run.state.notes)


def check_end(run: Run, folder: Path) -> dict[str, Any]:
    """All ranks end with the same weights; no step was made twice, by whomever, and none left out."""
    (folder / "hurry").touch()
    value: dict[str, Any] = run.result(END_S).value
    assert all(weights == value["weights"][0] for weights in value["weights"])
    of_each = {pid: [one.number for one in steps_of(folder, pid)] for pid in pids(folder)}
    for numbers in of_each.values():
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
    chiefs = sorted(of_each[int(path.read_text())] for path in folder.glob("pid-0-*"))
    assert [number for numbers in chiefs for number in numbers] == list(range(1, STEPS + 1))
    return value


@pytest.mark.parametrize(("workers", "lost"), [pytest.param(2, 1, marks=pytest.mark.variant), (4, 2)])
def test_survivors_continue_in_place_after_a_worker_is_killed(
    store: Path, tmp_path: Path, workers: int, lost: int
) -> None:
    run = submit(tmp_path, workers)
    staying = [pid_of(tmp_path, rank) for rank in range(workers) if rank != lost]
    await_step(tmp_path, 7, staying[0])
    os.kill(pid_of(tmp_path, lost), signal.SIGKILL)
    for pid in staying:
        steps = await_smaller(tmp_path, pid, workers - 1)
        assert {one.generation for one in steps if one.world < workers} == {1}
    seen = check_end(run, tmp_path)["seen"]
    assert all(steps_of(tmp_path, pid)[-1].number == STEPS for pid in staying)
    assert f"rank {lost} was lost" in notes(run) and "SIGKILL" in notes(run) and "went on at step" in notes(run)
    (loss,) = run.result().losses
    assert loss["rank"] == lost and "SIGKILL" in loss["cause"] and loss["step"] >= 7
    assert (
        not loss["replaced"] or loss["replaced_at"] >= loss["step"]
    )  # its agent has time to start another worker, or not
    assert run.directory.read_status()["losses"] == [loss] and f"rank {lost} was lost at step" in run.result().summary()
    missing = [sorted(set(range(N_SAMPLES)) - set(ids)) for ids in _epochs(seen)]
    assert all(len(ids) == len(set(ids)) for ids in _epochs(seen))  # none was trained on twice
    assert sum(bool(one) for one in missing) <= 2 and sum(map(len, missing)) <= 2 * -(-BATCH // workers)


def _epochs(seen: list[list[int]]) -> list[list[int]]:
    each = len(seen) // mending_workload.EPOCHS
    return [[one for step in seen[begin : begin + each] for one in step] for begin in range(0, len(seen), each)]


def test_survivors_continue_in_place_after_two_consecutive_losses(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, 4)
    chief = pid_of(tmp_path, 0)
    await_step(tmp_path, 7, chief)
    agent_of(run, 3).kill()  # its worker with it
    os.kill(pid_of(tmp_path, 1), signal.SIGKILL)
    await_smaller(tmp_path, chief, 2)
    check_end(run, tmp_path)
    assert "rank 1 was lost" in notes(run)


def test_stopped_worker_is_killed_and_the_others_continue_in_place(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, 2)
    chief = pid_of(tmp_path, 0)
    await_step(tmp_path, 7, chief)
    os.kill(pid_of(tmp_path, 1), signal.SIGSTOP)
    await_smaller(tmp_path, chief, 1)
    check_end(run, tmp_path)
    assert "the chief alone went on" in notes(run) and "stopped" in notes(run)


def test_loss_of_the_chief_restarts_the_group_from_the_newest_commit(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, 2)
    await_step(tmp_path, 7, pid_of(tmp_path, 0))
    os.kill(pid_of(tmp_path, 0), signal.SIGKILL)
    wait_until(lambda: run.status()["generation"] == 1, "another generation")
    (tmp_path / "hurry").touch()
    value = run.result(END_S).value
    assert len(value["seen"]) == STEPS and "went on at" not in notes(run)
    assert all(sorted(ids) == list(range(N_SAMPLES)) for ids in _epochs(value["seen"]))


@pytest.mark.variant
def test_user_error_ends_the_run(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, 2, args={"raise_at": 5})
    with pytest.raises(WorkerFailed, match="a bug in the user's code"):
        run.result(END_S)


@pytest.mark.tensorflow
@pytest.mark.variant  # of chaos/test_fit_mends.py, and of the loss in test_growing.py
@pytest.mark.parametrize("function", [mending_workload.loop, mending_workload.fit])
def test_traced_training_continues_in_place_without_retracing(
    store: Path, tmp_path: Path, function: Callable[..., Any]
) -> None:
    run = submit(tmp_path, 2, function)
    chief = pid_of(tmp_path, 0)
    await_step(tmp_path, 7, chief)
    os.kill(pid_of(tmp_path, 1), signal.SIGKILL)
    assert {one.traces for one in await_smaller(tmp_path, chief, 1)} == {1}
    value = check_end(run, tmp_path)
    assert value.get("epochs", mending_workload.EPOCHS) == mending_workload.EPOCHS
    assert "the chief alone went on" in notes(run)


@pytest.mark.tensorflow
@pytest.mark.variant
def test_dataset_is_redistributed_after_a_loss(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, 2, mending_workload.fit, args={"as_dataset": True})
    chief = pid_of(tmp_path, 0)
    await_step(tmp_path, 7, chief)
    os.kill(pid_of(tmp_path, 1), signal.SIGKILL)
    await_smaller(tmp_path, chief, 1)
    assert check_end(run, tmp_path)["epochs"] == mending_workload.EPOCHS
