"""Tests that joining workers reach workers that continue in place: real agents and workers on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopsml.experiment.run import Run
from tests.helpers.clock import END_S
from tests.helpers.cluster import mending_workload
from tests.helpers.cluster.mending_workload import STEPS, Step, steps_of
from tests.helpers.cluster.workloads import wait_until
from tests.integration.cluster.test_mending import await_smaller, await_step, check_end, notes, pid_of, submit

pytestmark = pytest.mark.chaos


def await_full_group(folder: Path, pid: int, world: int) -> list[Step]:
    """The steps of a process in whose group there are as many as before, after fewer."""

    def is_whole() -> bool:
        worlds = [one.world for one in steps_of(folder, pid)]
        return min(worlds) < world and worlds[-1] == world

    wait_until(is_whole, f"{world} of a group in process {pid}, again")
    return steps_of(folder, pid)


def test_successor_joins_the_process_that_continued_in_place(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, 2)
    chief = pid_of(tmp_path, 0)
    await_step(tmp_path, 7, chief)
    os.kill(pid_of(tmp_path, 1), signal.SIGKILL)
    await_smaller(tmp_path, chief, 1)
    await_full_group(tmp_path, chief, 2)
    value = check_end(run, tmp_path)
    assert "1 more joined at step" in notes(run) and "processes restart" not in notes(run)
    assert len(value["weights"]) == 2


@pytest.mark.parametrize("harm", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.variant)])
def test_newcomer_that_never_becomes_ready_delays_no_member(store: Path, tmp_path: Path, harm: signal.Signals) -> None:
    (tmp_path / "hold").touch()
    run = submit(tmp_path, 2)
    chief = pid_of(tmp_path, 0)
    await_step(tmp_path, 7, chief)
    os.kill(pid_of(tmp_path, 1), signal.SIGKILL)
    newcomer = pid_of(tmp_path, 1, 2)
    os.kill(newcomer, harm)
    alone = await_smaller(tmp_path, chief, 1)[-1].number
    await_step(tmp_path, alone + 5, chief)
    check_end(run, tmp_path)
    assert steps_of(tmp_path, chief)[-1].generation == 1 and "processes restart" not in notes(run)
    assert ("could not be prepared" in notes(run)) == (harm is signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(newcomer), "the end of the newcomer")


def test_members_continue_if_one_is_lost_while_a_newcomer_prepares(store: Path, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    run = submit(tmp_path, 3)
    chief, other = pid_of(tmp_path, 0), pid_of(tmp_path, 1)
    await_step(tmp_path, 7, chief)
    os.kill(pid_of(tmp_path, 2), signal.SIGKILL)
    pid_of(tmp_path, 2, 2)
    os.kill(other, signal.SIGKILL)
    await_smaller(tmp_path, chief, 1)
    (tmp_path / "hold").unlink()
    await_full_group(tmp_path, chief, 3)
    check_end(run, tmp_path)
    assert "processes restart" not in notes(run)


def start_two_of_three(folder: Path, function: Callable[..., Any], **options: Any) -> tuple[Run, list[int]]:
    """A group of two, which may have three; and its processes."""
    args = {"step_s": 0.4, **options.pop("args", {})}  # until a newcomer is there, which imports TensorFlow
    run = submit(folder, 3, function, args=args, **options)
    run.resize(2)
    return run, [pid_of(folder, rank) for rank in range(2)]


HELD_BACK = {"compression": "powersgd", "double_buffering": True, "accumulate": 2}
IN_ORDER = {"args": {"as_dataset": True, "shuffles": False}}


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("function", "options"),
    [
        pytest.param(mending_workload.loop, {}, marks=pytest.mark.variant),  # of fit, which makes such a loop
        (mending_workload.fit, {}),
        pytest.param(mending_workload.fit, HELD_BACK, marks=pytest.mark.variant),
        pytest.param(mending_workload.fit, IN_ORDER, marks=pytest.mark.variant),
    ],
)
@pytest.mark.variant  # of test_successor_joins above, and of `make chaos`
def test_newcomer_joins_a_traced_training_in_place(
    store: Path, tmp_path: Path, function: Callable[..., Any], options: dict[str, Any]
) -> None:
    run, staying = start_two_of_three(tmp_path, function, **options)
    await_step(tmp_path, 6, staying[0])  # there is a commit
    run.resize(3)
    for pid in staying:
        await_full_group(tmp_path, pid, 3)
    value = check_end(run, tmp_path)
    newcomer = pid_of(tmp_path, 2, 1)
    for pid in (*staying, newcomer):
        assert {one.traces for one in steps_of(tmp_path, pid)} == {1} and steps_of(tmp_path, pid)[-1].world == 3
    assert len(value["weights"]) == 3 and "1 more joined at step" in notes(run)
    assert all(set(counts) == {mending_workload.EPOCHS} for counts in value.get("counts", ())), "each once an epoch"
    assert value.get("epochs", mending_workload.EPOCHS) == mending_workload.EPOCHS


@pytest.mark.tensorflow
@pytest.mark.variant
def test_shuffled_dataset_makes_all_processes_restart_for_a_newcomer(store: Path, tmp_path: Path) -> None:
    run, (chief, _) = start_two_of_three(tmp_path, mending_workload.fit, args={"as_dataset": True})
    await_step(tmp_path, 6, chief)
    run.resize(3)
    wait_until(lambda: run.status()["generation"] >= 1, "a generation of new processes")
    value = check_end(run, tmp_path)
    assert len(
        value["weights"]
    ) == 3 and "processes restart for them: fit() was given a dataset that is shuffled" in notes(run)


@pytest.mark.tensorflow
@pytest.mark.variant
def test_newcomer_prepared_for_one_fit_joins_a_later_one(store: Path, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    run, staying = start_two_of_three(tmp_path, mending_workload.fit, args={"calls": 2, "step_s": 0.2})
    await_step(tmp_path, 6, staying[0])
    run.resize(3)
    newcomer = pid_of(tmp_path, 2, 1)
    await_step(tmp_path, STEPS // 2 + 3, staying[0])
    (tmp_path / "hold").unlink()
    await_full_group(tmp_path, staying[0], 3)
    value = check_end(run, tmp_path)
    assert len(value["weights"]) == 3 and "processes restart" not in notes(run) and steps_of(tmp_path, newcomer)
    assert all(set(counts) == {mending_workload.EPOCHS} for counts in value["counts"]), "each once an epoch"
    assert value["epochs"] == mending_workload.EPOCHS


@pytest.mark.tensorflow
@pytest.mark.parametrize("lost", ["newcomer", "member"])
@pytest.mark.variant
def test_fit_continues_in_place_if_a_newcomer_or_member_is_lost(store: Path, tmp_path: Path, lost: str) -> None:
    (tmp_path / "hold-first").touch()
    run, (chief, other) = start_two_of_three(tmp_path, mending_workload.fit)
    await_step(tmp_path, 6, chief)
    run.resize(3)
    wait_until((tmp_path / "held").exists, "a newcomer that has been let in, and has made no step")
    newcomer = int((tmp_path / "held").read_text())
    before = steps_of(tmp_path, chief)[-1].number
    os.kill(newcomer if lost == "newcomer" else other, signal.SIGKILL)
    (tmp_path / "hold-first").unlink()
    await_step(tmp_path, before + 2, chief)
    value = check_end(run, tmp_path)
    assert {one.traces for one in steps_of(tmp_path, chief)} == {1} and "went on at step" in notes(run)
    assert value["epochs"] == mending_workload.EPOCHS
    assert bool(steps_of(tmp_path, newcomer)) == (lost == "member")


@pytest.mark.variant  # of the gang's rule; all processes restart after ten seconds alone
def test_code_that_cannot_prepare_alone_makes_all_processes_restart(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, 2, args={"counts_rows": True, "step_s": 0.3})
    chief = pid_of(tmp_path, 0)
    await_step(tmp_path, 7, chief)
    os.kill(pid_of(tmp_path, 1), signal.SIGKILL)
    await_smaller(tmp_path, chief, 1)
    wait_until(lambda: run.status()["generation"] >= 3, "a generation of new processes")
    (tmp_path / "hurry").touch()
    value = run.result(END_S).value
    assert len(value["seen"]) == STEPS and len(value["weights"]) == 2
    assert "processes restart for them: AssertionError: one row of each of 2" in notes(run)
