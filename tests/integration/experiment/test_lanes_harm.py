"""Tests of processes, lanes and agents that are killed or hang, and of searches that end during trials."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest

import hopsml
from hopsml.search.dispatch.events import AttemptBegan
from tests.helpers.cluster.workloads import wait_for_files, wait_until
from tests.integration.experiment.lanes_kit import bench

pytestmark = pytest.mark.chaos


def never_reports(folder: str) -> float:
    """Leave a child process and a checkpoint behind, and never report."""
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    trial = hopsml.trial()
    assert trial is not None
    with trial.checkpoint(7) as place:
        (place / "state").write_text("7")
    wait_for_files(folder, "go")
    return 1.0


@pytest.mark.parametrize("how", ["stop", pytest.param("pause", marks=pytest.mark.variant)])
def test_unresponsive_trial_is_killed_at_its_deadline_with_all_descendants(
    store: Path, tmp_path: Path, how: str
) -> None:
    with bench(never_reports, folder=str(tmp_path)) as found:
        lane = found.joined()
        trial = found.assign_trial(lane)
        runner = psutil.Process(found.wait_for_begin(trial))
        host = runner.parent()
        assert host is not None
        wait_until(lambda: runner.children() and (found.folder / "trials/t0/checkpoints/step-000000007").exists(), "it")
        if how == "stop":
            runner.suspend()
        found.end(lane, trial, how, deadline_s=0.05)
        end = found.ended(trial)
        assert end.how == {"stop": "stopped", "pause": "paused"}[how] and "did not end within 0.05 s" in end.error
        assert found.seen[-1].message.checkpoint_step == 7  # type: ignore[union-attr]
        assert host.children(recursive=True) == []
        (tmp_path / "go").touch()
        assert found.ended(found.assign_trial(lane)).how == "finished"


def leaves_a_child_process(folder: str) -> float:
    """Leave a child process with its own session, which the trial slot's process inherits when the parent exits."""
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    wait_for_files(folder, "go")
    return 1.0


@pytest.mark.parametrize("harm", ["none", "killed"])
def test_prepared_runner_survives_leftover_processes_and_is_replaced_if_killed(
    store: Path, tmp_path: Path, harm: str
) -> None:
    """A prepared runner outlives the processes of the trial before; if it is killed, another runner is prepared."""
    with bench(leaves_a_child_process, folder=str(tmp_path)) as found:
        lane = found.joined()
        first = found.assign_trial(lane, isolated=True)
        runner = psutil.Process(found.wait_for_begin(first))
        host = runner.parent()
        assert host is not None
        (waiting,) = wait_until(lambda: [one for one in host.children() if one != runner], "the next one")
        wait_until(runner.children, "what is left behind")
        (left,) = runner.children()
        if harm == "killed":
            waiting.kill()
        second = found.assign_trial(lane, isolated=True)
        (tmp_path / "go").touch()
        assert found.ended(first).how == "finished"
        assert (found.wait_for_begin(second) == waiting.pid) == (harm == "none")
        assert not left.is_running()
        assert found.ended(second).how == "finished"


def wait_for_go(folder: str) -> float:
    wait_for_files(folder, "go")
    return 1.0


@pytest.mark.parametrize(
    "victim",
    [
        "host",
        pytest.param("host that hangs", marks=pytest.mark.variant),
        "agent",
        pytest.param("fork server", marks=pytest.mark.variant),
    ],
)
def test_lane_with_a_killed_process_or_agent_is_lost_and_replaced(store: Path, tmp_path: Path, victim: str) -> None:
    with bench(wait_for_go, folder=str(tmp_path)) as found:
        lane = found.joined()
        trial = found.assign_trial(lane)
        runner = psutil.Process(found.wait_for_begin(trial))
        chain = runner.parents()  # host, fork server, agent
        place = {"host": 0, "host that hangs": 0, "fork server": 1, "agent": 2}[victim]
        (chain[place].suspend if victim == "host that hangs" else chain[place].kill)()
        words = {"host": "SIGKILL", "host that hangs": "SIGSTOP", "fork server": "was killed", "agent": "was lost"}
        assert words[victim] in found.lost(lane)
        wait_until(lambda: not runner.is_running() or runner.status() == psutil.STATUS_ZOMBIE, "the runner's end")
        other = found.joined()
        assert other > lane
        (tmp_path / "go").touch()
        assert found.ended(found.assign_trial(other, number=0, attempt=1, trial_id="t0")).how == "finished"


def test_trial_with_a_stopped_process_is_ended_and_its_lane_continues(store: Path, tmp_path: Path) -> None:
    with bench(wait_for_go, folder=str(tmp_path)) as found:
        lane = found.joined()
        trial = found.assign_trial(lane)
        psutil.Process(found.wait_for_begin(trial)).suspend()
        end = found.ended(trial)
        assert end.how == "died" and "its process was stopped (SIGSTOP) for 3 s" in end.error
        (tmp_path / "go").touch()
        assert found.ended(found.assign_trial(lane, number=0, attempt=1, trial_id="t0")).how == "finished"


def test_reduced_slots_release_idle_lanes_first(store: Path, tmp_path: Path) -> None:
    with bench(wait_for_go, 2, folder=str(tmp_path)) as found:
        lanes = [found.joined(), found.joined()]
        trial = found.assign_trial(lanes[1])
        found.wait_for_begin(trial)
        found.lanes.hold_slots(1)
        assert found.lost(lanes[0]) == "no longer needed"
        found.assign_trial(lanes[0])  # goes nowhere
        found.lanes.hold_slots(2)
        third = found.joined()
        assert third == 2
        found.lanes.hold_slots(0)
        found.lost(third)
        (tmp_path / "go").touch()
        assert found.ended(trial).how == "finished"
        found.lost(lanes[1])
        found.lanes.close()
        assert found.over().error is None


def test_cancelled_search_ends_its_running_trials(store: Path, tmp_path: Path) -> None:
    with bench(never_reports, folder=str(tmp_path)) as found:
        trial = found.assign_trial(found.joined())
        runner = psutil.Process(found.wait_for_begin(trial))
        wait_until(runner.children, "its child")
        below = [runner, *runner.children(recursive=True)]
        found.lanes.run.cancel("enough")
        assert "enough" in str(found.over().error)
        assert not [process for process in below if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_drained_lane_finishes_its_trial_and_starts_no_other(store: Path, tmp_path: Path) -> None:
    with bench(wait_for_go, folder=str(tmp_path)) as found:
        lane = found.joined()
        first, second = found.assign_trial(lane), found.assign_trial(lane)
        host = psutil.Process(found.wait_for_begin(first)).parent()
        assert host is not None
        initial_pipes = shared_pipes(host)
        found.lanes._coordinator.release(found.lanes.run.run_id, lane)  # as a drain does, without a node that goes away
        wait_until(lambda: shared_pipes(host) < initial_pipes, "that nothing more will be told")
        turns = host.num_ctx_switches().voluntary
        wait_until(lambda: host.num_ctx_switches().voluntary > turns, "that it has slept since, and so knows")
        (tmp_path / "go").touch()
        assert found.ended(first).how == "finished"
        assert found.lost(lane)
        assert not [
            news for news in found.seen if isinstance(news.event, AttemptBegan) and news.event.number == second.number
        ]


def shared_pipes(process: psutil.Process) -> set[tuple[int, str]]:
    """Pipes of a process that its ancestors hold as well, with the ancestors' numbers. Its children come and go."""
    own = {link for link in links(process.pid) if link.startswith("pipe:")}
    return {(one.pid, link) for one in process.parents() for link in links(one.pid) if link in own}


def links(pid: int) -> list[str]:
    """Return the targets of the process's file descriptors, or none if it has exited."""
    try:
        folder = Path(f"/proc/{pid}/fd")
        return [os.readlink(folder / name) for name in os.listdir(folder)]
    except OSError:
        return []
