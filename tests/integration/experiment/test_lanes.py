"""Tests of lanes on this machine: successive trials in used and fresh processes, and failures of all kinds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import hopsml
from hopsml.errors import TrialStopped
from hopsml.experiment.searches import executors
from hopsml.search.dispatch.events import SlotsChanged, ValuesReported
from hopsml.search.messages import TrialReported
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.integration.experiment.lanes_kit import bench

pytestmark = pytest.mark.local


def test_lane_runs_trials_in_one_process_and_isolated_ones_in_fresh_processes(store: Path) -> None:
    def train(x: int) -> dict[str, Any]:
        print(f"x is {x}")
        os.environ["LEFT"] = "behind"
        value = hopsml.cached(lambda: os.urandom(8).hex())
        return {"score": 2 * x, "pid": os.getpid(), "value": value, "seed": os.environ["HOPSML_SEED"]}

    with bench(train) as found:
        lane = found.joined()
        trials = [
            found.assign_trial(lane, {"x": number}, metric="score", isolated=number in (2, 3)) for number in range(6)
        ]
        ends = [found.ended(trial) for trial in trials]
        assert [end.how for end in ends] == ["finished"] * 6, ends
        assert [end.value for end in ends] == [0, 2, 4, 6, 8, 10]
        outputs = [end.outputs for end in ends]
        for name in ("pid", "value"):
            kinds = [one[name] for one in outputs]
            assert kinds[0] == kinds[1] and kinds[4] == kinds[5] and len(set(kinds)) == 4
        assert len({one["seed"] for one in outputs}) == 6
        folder = found.folder / "trials" / "t3"
        assert (folder / "output.log").read_text() == "x is 3\n"
        assert json.loads((folder / ".hparams.json").read_text()) == {"x": 3}
        written = json.loads((folder / ".outputs.json").read_text())
        assert written["score"] == 6 and written["log"].endswith("trials/t3/output.log")
        assert (folder / ".metric").read_text() == "6.0"
        record = json.loads((folder / "trial.json").read_text())
        assert record["params"] == {"x": 3} and record["status"] == "FINALIZED" and record["final_metric"] == 6
        found.lanes.close({"score": 10})
        assert found.over().error is None
        assert found.lanes.run.result(END_S).metrics["score"] == 10


def misbehave(how: str) -> float:
    print("about to misbehave", flush=True)
    match how:
        case "raises":
            raise KeyError("no such layer")
        case "exits":
            sys.exit(0)
        case "leaves":
            os._exit(3)
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "returns text":
            return "text"  # type: ignore[return-value]
        case "returns nothing":
            return None  # type: ignore[return-value]
        case "leaves a process":
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        case "leaves a thread":
            threading.Thread(target=time.sleep, args=(600,)).start()
        case "returns NaN":
            return float("nan")
    return float(os.getpid())


ENDS = {
    "raises": ("failed", "KeyError: 'no such layer'"),
    "exits": ("failed", "called sys.exit(0)"),
    "leaves": ("died", "exited with status 3 before the training function returned"),
    "is killed": ("died", "signal 9 (SIGKILL)"),
    "returns text": ("failed", "a search needs a number"),
    "returns nothing": ("failed", "returned nothing"),
    "leaves a process": ("finished", ""),
    "leaves a thread": ("finished", ""),
    "returns NaN": ("finished", ""),
}


def test_misbehaving_trial_affects_only_itself_and_its_process(store: Path) -> None:
    with bench(misbehave) as found:
        lane = found.joined()
        before = found.ended(found.assign_trial(lane, {"how": ""}))
        for how, (expected, error) in ENDS.items():
            bad, next_one = found.assign_trial(lane, {"how": how}), found.assign_trial(lane, {"how": ""})
            end, after = found.ended(bad), found.ended(next_one)
            assert (end.how, after.how) == (expected, "finished"), how
            assert error in end.error, how
            assert (after.value == before.value) == (how == "returns NaN"), how  # a number of the process
            if how == "returns NaN":
                assert end.value is None
            if expected == "died":
                assert ("its memory had peaked at" in end.error) == (how == "is killed")
                assert (
                    json.loads((found.folder / "trials" / bad.trial_id / "trial.json").read_text())["status"] == "DIED"
                )
            assert "about to misbehave" in found.log(bad)
            before = after
        host = psutil.Process(int(before.value or 0)).parent()
        assert host is not None
        assert [child.pid for child in host.children(recursive=True)] == [int(before.value or 0)]


def report_until_stopped(folder: str, catch: str, x: int = 0) -> float:
    """Report, with a checkpoint at each step, until the trial is stopped."""
    trial = hopsml.trial()
    assert trial is not None
    begin = 0 if trial.resume_checkpoint is None else int((trial.resume_checkpoint / "state").read_text()) + 1
    Path(folder, f"begin-{trial.number}-{trial.attempt}").write_text(str(begin))
    try:
        for step in range(begin, 100_000):
            with trial.checkpoint(step) as place:
                (place / "state").write_text(str(step))
            try:
                hopsml.report(step=step, metric=float(step))
            except Exception:  # noqa: BLE001 as people write it
                print("swallowed")
            time.sleep(0.002)
    except TrialStopped as told:
        Path(folder, f"saved-{trial.number}").write_text(told.how)
        if catch == "catches":
            return -1.0
        raise
    return 0.0


@pytest.mark.parametrize("catch", ["raises", "catches"])
def test_stopped_trial_ends_at_a_report_and_its_process_is_reused(store: Path, tmp_path: Path, catch: str) -> None:
    with bench(report_until_stopped, folder=str(tmp_path), catch=catch) as found:
        lane = found.joined()
        first, second, third = (found.assign_trial(lane, {"x": number}) for number in range(3))
        found.end(lane, third, "withdraw")
        assert found.ended(third).how == "withdrawn"
        pid = found.wait_for_begin(first)
        assert found.reported(first, step=3).value is not None
        found.end(lane, first)
        end = found.ended(first)
        assert end.how == "stopped" and end.value == (-1.0 if catch == "catches" else None)
        assert (tmp_path / "saved-0").read_text() == "stop"
        assert "swallowed" not in found.log(first)
        assert found.wait_for_begin(second) == pid
        found.end(lane, second, "withdraw")  # it has begun: too late
        found.end(lane, second, "stop")
        assert found.ended(second).how == "stopped"


def test_paused_trial_resumes_from_its_newest_checkpoint_on_another_lane(store: Path, tmp_path: Path) -> None:
    with bench(report_until_stopped, 2, folder=str(tmp_path), catch="raises") as found:
        first, second = found.joined(), found.joined()
        trial = found.assign_trial(first)
        found.reported(trial, step=5)
        found.end(first, trial, "pause")
        assert found.ended(trial).how == "paused" and (tmp_path / "saved-0").read_text() == "pause"
        done = found.seen[-1].message.checkpoint_step  # type: ignore[union-attr]
        again = found.assign_trial(second, number=0, attempt=1, trial_id="t0", resume_from="t0", done_step=done + 20)
        report = found.reported(again)
        assert report.step == done + 21  # values reported before are not sent again
        assert int((tmp_path / "begin-0-1").read_text()) == done + 1
        found.end(second, again)
        assert found.ended(again).how == "stopped"


def flood_reports(times: int) -> float:
    """Send reports without steps from ten threads as fast as possible, then a last one."""

    def speak() -> None:
        for value in range(times):
            hopsml.report(metric=value)

    started = time.monotonic()
    threads = [threading.Thread(target=speak) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hopsml.report(step=1_000_000, metric=42, text="the last")
    return time.monotonic() - started


def test_burst_of_reports_is_thinned_and_the_last_one_arrives(store: Path) -> None:
    with bench(flood_reports, times=1000) as found:
        trial = found.assign_trial(found.joined())
        end = found.ended(trial)
        reports = [news.event for news in found.seen if isinstance(news.event, ValuesReported)]
        assert end.how == "finished" and end.value is not None, end
        assert len(reports) <= 50 + 50 * end.value + 40
        steps = [report.step for report in reports]
        assert steps == sorted(steps) and steps[-1] == 1_000_000 and reports[-1].value == 42


def report_oddly(reporter: Any, hparams: dict[str, Any]) -> float:
    reporter.log("a line of the log", jupyter=True)
    for step, value in enumerate([1, float("nan"), "text", True, None]):
        reporter.broadcast(value, step)
    hopsml.report(step=2, loss=0.5)  # another measure of progress
    reporter.broadcast(3.5)
    if hparams["falls"]:
        reporter.broadcast(4.0, step=1)
    return 1.0


def test_invalid_metric_values_are_ignored_and_falling_steps_are_an_error(store: Path) -> None:
    with bench(report_oddly) as found:
        lane = found.joined()
        good, bad = (found.assign_trial(lane, {"falls": falls}, metric="metric") for falls in (False, True))
        assert found.ended(good).how == "finished"
        mine = [n for n in found.seen if n.message is not None and n.message.number == 0]
        values = [(n.event.step, n.event.value) for n in mine if isinstance(n.event, ValuesReported)]
        assert values == [(0, 1.0), (1, None), (2, None), (3, None), (4, None), (5, 3.5)]
        assert any(n.message.metrics == {"loss": 0.5} for n in mine if isinstance(n.message, TrialReported))
        assert "a line of the log" in found.log(good)
        end = found.ended(bad)
        assert end.how == "failed" and "must not fall" in end.error


def test_fewer_slots_release_idle_lanes_first_and_interrupt_a_long_trial(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "BREAK_OFF_S", 0.1)
    with bench(lambda seconds: time.sleep(seconds) or 1.0, count=3) as found:
        coordinator = found.lanes._coordinator
        three = [found.joined() for _ in range(3)]
        found.wait_for_begin(found.assign_trial(three[0], {"seconds": 600.0}))
        pid = found.wait_for_begin(found.assign_trial(three[1], {"seconds": 600.0}))
        try:
            coordinator.limit_slots(2)
            assert (
                found.wait_for(lambda news: news.event == SlotsChanged(2))
                and found.lost(three[2]) == "no longer needed"
            )
            coordinator.limit_slots(1)
            assert "another job" in found.lost(three[1])
            wait_until(lambda: not psutil.pid_exists(pid), "the end of the trial")
            assert set(found.lanes.joined) == {three[0]}
            wait_until(lambda: coordinator.dismiss_surplus_agents(1) == 1, "its slot")
        finally:
            coordinator.limit_slots(1 << 16)
        found.wait_for(lambda news: news.event == SlotsChanged(3))
