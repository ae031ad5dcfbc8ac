"""Tests of elastic groups with real agents and workers on this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopsml import experiment
from hopsml.errors import ArgumentError, RunCancelled, RunError, WorkerFailed
from hopsml.experiment import applications, plan, repeat, takeover
from hopsml.experiment.run import Run
from hopsml.experiment.takeover import EarlierRuns
from hopsml.storage.checkpoints import steps
from tests.chaos.history import generations, steps_lost
from tests.helpers.clock import END_S
from tests.helpers.cluster import elastic_workload
from tests.helpers.cluster.elastic_workload import check_history, expected_weight
from tests.helpers.cluster.finding import agent_of
from tests.helpers.cluster.workloads import wait_until

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.chaos


def submit(folder: Path, least: int = 2, most: int = 2, *, args: dict[str, Any] | None = None, **named: Any) -> Run:
    arguments = {"folder": str(folder), **(args or {})}
    return experiment.submit(
        elastic_workload.train, args=arguments, min_workers=least, max_workers=most, progress=False, **named
    )


def pid_of(folder: Path, rank: int, generation: int = 0) -> int:
    path = folder / f"pid-{rank}-{generation}"
    wait_until(path.exists, f"rank {rank} of generation {generation}")
    return int(path.read_text())


def await_step(folder: Path, step: int, rank: int = 0) -> None:
    path = folder / f"step-{rank}"
    wait_until(lambda: path.exists() and int(path.read_text()) >= step, f"step {step}")


def check_result(run: Run, generation: int | None) -> dict[str, Any]:
    """Return the value of a run that has trained on each sample once, and ended in this generation (None: in any)."""
    value: dict[str, Any] = run.result(END_S).value
    check_history(value)
    assert value["weight"] == pytest.approx(expected_weight(), rel=1e-12)
    assert generation in (None, value["generation"])
    return value


def notes(run: Run) -> str:
    return "\n".join(run.state.notes)


def test_undisturbed_group_finishes_in_its_first_generation(store: Path, tmp_path: Path) -> None:
    assert check_result(submit(tmp_path), 0)["world_size"] == 2


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.variant)])
def test_killed_worker_costs_the_steps_since_the_last_commit(store: Path, tmp_path: Path, rank: int) -> None:
    run = submit(tmp_path)
    await_step(tmp_path, 7)
    os.kill(pid_of(tmp_path, rank), signal.SIGKILL)
    check_result(run, 1)
    assert "SIGKILL" in notes(run) and f"rank {rank}" in notes(run)
    first, second = generations(tmp_path)  # the training's own commits are two steps apart
    assert second.first > 1 and steps_lost([first, second]) <= 3, (first, second)


def test_group_continues_from_its_agents_commits_after_all_workers_are_killed(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path)
    await_step(tmp_path, 7)
    for rank in (0, 1):
        os.kill(pid_of(tmp_path, rank), signal.SIGKILL)
    check_result(run, 1)


def test_lost_agent_is_replaced_and_fetches_the_state_from_the_other(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path)
    await_step(tmp_path, 7)
    agent = agent_of(run, 1)
    agent.kill()
    check_result(run, 1)


def test_group_continues_with_fewer_members_and_grows_again(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, least=1, most=2, args={"step_s": 0.1})
    await_step(tmp_path, 5, rank=1)
    agent_of(run, 1).kill()
    worlds = check_result(run, None)["worlds"]
    assert re.fullmatch("1*2+1+2+", "".join(map(str, worlds))), "on a slow machine, the first begins alone"


def test_run_that_has_ended_is_not_resized(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, least=1, most=2, args={"commit": 1000, "step_s": 0.03, "patience_s": 1.0})
    await_step(tmp_path, 1)
    run.cancel()
    assert isinstance(run.exception(END_S), RunCancelled)
    with pytest.raises(ArgumentError, match=r"has ended \(CANCELLED\) and cannot be resized"):
        run.resize(1)


def test_group_is_resized_without_losing_a_step(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, least=1, most=3, args={"commit": 1000, "step_s": 0.03, "patience_s": 1.0})
    await_step(tmp_path, 3)
    run.resize(1)
    wait_until(lambda: run.status()["generation"] == 1, "the smaller group")
    await_step(tmp_path, 12)
    run.resize(3)
    wait_until(lambda: run.status()["generation"] == 2, "the larger group")
    (tmp_path / "disturbed").touch()
    worlds = check_result(run, 2)["worlds"]
    assert worlds == sorted(worlds[: worlds.index(1)], reverse=True) + worlds[worlds.index(1) :]
    assert set(worlds) == {1, 3} and worlds[-1] == 3


def test_group_begins_with_first_workers_and_grows_by_resize(store: Path, tmp_path: Path) -> None:
    args = {"commit": 1000, "step_s": 0.03, "patience_s": 1.0}
    run = submit(tmp_path, least=2, most=3, first_workers=2, args=args)
    await_step(tmp_path, 12)
    assert run.status()["generation"] == 0
    run.resize(3)
    wait_until(lambda: run.status()["generation"] == 1, "the larger group")
    (tmp_path / "disturbed").touch()
    worlds = check_result(run, 1)["worlds"]
    assert worlds == sorted(worlds) and set(worlds) == {2, 3} and worlds[11] == 2


def test_user_error_ends_the_run(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, args={"raise_at": 5})
    with pytest.raises(WorkerFailed, match="a bug in the user's code"):
        run.result(END_S)


def test_stopped_worker_is_named_and_replaced(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, progress_timeout=3)
    await_step(tmp_path, 7)
    os.kill(pid_of(tmp_path, 1), signal.SIGSTOP)
    check_result(run, 1)
    assert "rank 1" in notes(run) and "stopped" in notes(run)


def test_reset_limit_ends_a_run_with_too_many_losses(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, reset_limit=1, args={"step_s": 0.05})
    await_step(tmp_path, 4)
    os.kill(pid_of(tmp_path, 1), signal.SIGKILL)
    os.kill(pid_of(tmp_path, 0, 1), signal.SIGKILL)
    with pytest.raises(WorkerFailed, match="reset limit of 1"):
        run.result(END_S)


def test_fixed_run_cannot_be_resized(store: Path, tmp_path: Path) -> None:
    run = experiment.submit(lambda: None, num_workers=1, progress=False)
    with pytest.raises(ArgumentError, match="fixed size"):
        run.resize(2)
    run.result(END_S)


def test_run_of_a_killed_driver_is_resumed_from_its_newest_checkpoint(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        "import sys\nfrom hopsml import experiment\nfrom tests.helpers.cluster import elastic_workload\n"
        "args = {'folder': sys.argv[1], 'step_s': 0.05}\n"
        "experiment.collective_all_reduce(elastic_workload.train, args=args, min_workers=1, max_workers=2,\n"
        "                                 checkpoint_every_s=0.1, progress=False, profile='local')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen([sys.executable, str(script), str(tmp_path)], cwd=ROOT, env=environment)
    try:
        found = wait_until(lambda: list(store.glob("Experiments/*/checkpoints/step-*/manifest.json")), "a checkpoint")
        workers = [pid_of(tmp_path, 0)]
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in workers), "the end of its workers")
    directory = found[0].parents[2]
    saved = max(int(path.name[5:]) for path in directory.glob("checkpoints/step-*"))
    value = experiment.resume(str(directory), progress=False).value
    check_history(value)
    assert value["weight"] == pytest.approx(expected_weight(), rel=1e-12)
    steps = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("0-*-0.npy"))
    assert saved >= 1 and steps[0] == 1  # the first run's; the second started after its checkpoint


def begin_second_attempt(run: Run) -> None:
    """As if YARN had started this driver once more: what there is of the application is its predecessor's."""
    applications.get_or_start().earlier_runs = EarlierRuns(run.directory.read_run()["application"], 2)


def test_second_attempt_does_not_repeat_a_finished_training(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, args={"by_run": True})
    first = check_result(run, 0)
    begin_second_attempt(run)
    again = submit(tmp_path, args={"by_run": True})
    assert check_result(again, 0) == first
    assert again.run_id != run.run_id and "from the checkpoint of step 39" in notes(again)
    assert not list((tmp_path / again.run_id).glob("*.npy"))  # no step was done
    assert again.directory.read_run()["continues"] == run.run_dir
    third = submit(tmp_path, args={"by_run": True})  # the script makes the same call once more: that one is new
    assert check_result(third, 0) and list((tmp_path / third.run_id).glob("*.npy"))


def test_second_attempt_reports_an_earlier_user_error_and_starts_nothing(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, args={"raise_at": 5})
    with pytest.raises(WorkerFailed):
        run.result(END_S)
    begin_second_attempt(run)
    with pytest.raises(RunError, match=r"not started again(.|\n)*a bug in the user's code") as caught:
        submit(tmp_path, args={"raise_at": 5})
    assert caught.value.run_dir == run.run_dir
    assert len(list(store.glob("Experiments/*"))) == 1


def test_superseded_driver_ends_its_run_and_stores_nothing_more(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "BEAT_S", 0.5)
    run = submit(tmp_path, args={"step_s": 0.1, "by_run": True}, checkpoint_every_s=0.1)
    with pytest.raises(ArgumentError, match="is still running; cancel it first"):
        experiment.resume(run)
    wait_until(lambda: list(store.glob("Experiments/*/checkpoints/step-*/manifest.json")), "a checkpoint")
    monkeypatch.setattr(takeover, "driver_lives", lambda directory: False)  # as after a long outage of its store
    again = plan.start(repeat.continuation_plan(repeat.build(run, progress=False), run.directory))
    with pytest.raises(ArgumentError, match=f"was already continued in .*{again.run_id}"):
        experiment.resume(run)
    with pytest.raises(RunCancelled, match=f"another driver has continued it in .*{again.run_id}"):
        run.result(END_S)
    check_result(again, 0)
    status = run.directory.read_status()
    assert status is not None and (status["state"], status["continued_by"]) == ("LOST", again.run_dir)
    assert max(steps(run.directory.checkpoints)) < 39 == max(steps(again.directory.checkpoints))


def test_finished_run_is_not_resumed(store: Path, tmp_path: Path) -> None:
    run = experiment.submit(lambda: None, num_workers=1, progress=False)
    run.result(END_S)
    with pytest.raises(ArgumentError, match="has finished"):
        experiment.resume(run)


def drain_agents(run: Run, folder: Path, *ranks: int) -> list[psutil.Process]:
    """Send SIGTERM to these ranks' agents during the training, and let it finish when they have left."""
    await_step(folder, 5)
    agents = [agent_of(run, rank) for rank in ranks]
    for agent in agents:
        agent.terminate()
    wait_until(lambda: not any(map(lives, agents)), "the end of the agents that were warned")
    elastic_workload.announce(folder / "disturbed", "")
    return agents


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


PATIENT = {"commit": 1000, "step_s": 0.05, "patience_s": 1.0}


@pytest.mark.parametrize("ranks", [pytest.param((1,), marks=pytest.mark.variant), (0, 1)], ids=["some", "all"])
def test_draining_agents_continue_until_their_successors_are_ready(
    store: Path, tmp_path: Path, ranks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit(tmp_path, args=PATIENT)
    backend = applications.get_or_start().backend
    start = backend.submit

    def start_later(*request: Any) -> None:
        wait_until(
            lambda: int((tmp_path / "step-0").read_text()) >= 8 or not any(map(lives, agents)),
            "step 8, or on a slow disk the end of the agents",
        )
        start(*request)

    await_step(tmp_path, 5)
    agents = [agent_of(run, rank) for rank in ranks]
    monkeypatch.setattr(backend, "submit", lambda *one: threading.Thread(target=start_later, args=one).start())
    drain_agents(run, tmp_path, *ranks)
    assert set(check_result(run, 1)["worlds"]) == {2}  # no member has trained alone
    assert f"rank {ranks[0]} is about to leave (its agent was sent SIGTERM)" in notes(run)
    found = generations(tmp_path)
    assert len(found) == 2 and steps_lost(found) == 0
    assert found[0].last > 6, "nobody went on after the warning"
    assert "is lost" not in notes(run)


def test_last_commit_is_stored_before_all_draining_agents_leave(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Successors connect after the draining agents have ended, as on a cluster that counts their slots until then."""
    backend = applications.get_or_start().backend
    held: list[Any] = []
    start = backend.submit
    run = submit(tmp_path, args=PATIENT)
    await_step(tmp_path, 1)
    monkeypatch.setattr(backend, "submit", lambda *requested: held.append(requested))
    drain_agents(run, tmp_path, 0, 1)
    (last,) = generations(tmp_path)
    assert max(steps(run.directory.checkpoints)) == last.last
    for requested in held:
        start(*requested)
    check_result(run, 1)
    assert steps_lost(generations(tmp_path)) == 0 and "is lost" not in notes(run)


def block_folder(place: Path, aside: Path) -> None:
    """Make a folder unwritable; its former content is moved to ``aside``."""
    place.rename(aside)
    while True:
        try:
            place.write_text("in the way")
            return
        except IsADirectoryError:  # of a checkpoint that was just being written
            shutil.rmtree(place, ignore_errors=True)


def test_unavailable_store_is_noted_at_both_ends_and_checkpoints_continue(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, args={"commit": 1, "step_s": 0.05}, checkpoint_every_s=0.01)
    await_step(tmp_path, 3)
    place, aside = Path(run.directory.checkpoints.removeprefix("file://")), tmp_path / "aside"
    wait_until(lambda: place.exists() and steps(str(place)), "a checkpoint")
    block_folder(place, aside)
    wait_until(lambda: run.state.notes, "the note that it fails")
    await_step(tmp_path, 25)
    assert max(steps(str(aside))) < 25
    place.unlink()
    aside.rename(place)
    check_result(run, 0)
    first, second = [note for note in run.state.notes if "checkpoints" in note]
    assert "cannot be written" in first and second.startswith("checkpoints are written again; ")
    assert max(steps(run.directory.checkpoints)) == 39
    assert "is no checkpoint" not in notes(run)


def test_another_agent_stores_the_last_commit_if_the_chiefs_agent_is_lost(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path, checkpoint_every_s=0.01)
    await_step(tmp_path, 3)
    agent, place = agent_of(run, 0), Path(run.directory.checkpoints.removeprefix("file://"))
    block_folder(place, tmp_path / "aside")
    wait_until(lambda: {one["state"] for one in run.status()["members"]} == {"FINISHED"}, "the end of the training")
    agent.kill()
    place.unlink()
    check_result(run, 0)
    assert steps(run.directory.checkpoints) == [39] and "is no checkpoint" not in notes(run)


def test_loop_that_is_left_early_stores_its_last_commit(store: Path) -> None:
    def stops_at_step_5() -> None:
        import time

        import hopsml

        state = hopsml.elastic.State(total=0)
        write = state._writer._write

        def writes_slowly(snapshot: Any) -> None:
            time.sleep(0.5)
            write(snapshot)

        state._writer._write = writes_slowly
        for _ in state.resume(hopsml.elastic.Sampler(100, 10)):
            if state.batches == 5:
                state.commit()
                break

    run = experiment.submit(stops_at_step_5, min_workers=1, max_workers=1, progress=False)
    run.result(END_S)
    assert steps(run.directory.checkpoints) == [5] and not notes(run)


def test_fixed_run_notes_a_draining_member(store: Path, tmp_path: Path) -> None:
    args = {"folder": str(tmp_path), "commit": 1, "step_s": 0.05}
    run = experiment.submit(elastic_workload.train, args=args, num_workers=2, progress=False)
    await_step(tmp_path, 3)
    agent_of(run, 1).terminate()
    assert run.result(END_S).value["world_size"] == 2  # it had time enough
    assert "rank 1 is about to be lost (its agent was sent SIGTERM)" in notes(run)
