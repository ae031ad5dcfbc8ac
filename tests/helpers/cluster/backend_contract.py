"""Contract of all backends, tested through the public verbs with two workers and no framework.

A subclass's module has a fixture ``store`` (the project's folder) that closes the application after each test.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsml import experiment
from hopsml.cluster.driver.run_state import Change
from hopsml.errors import NotEnoughSlots, RunCancelled, StartTimeout, WorkerFailed
from hopsml.experiment.run import Run
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.cluster import workloads
from tests.helpers.cluster.workloads import WAIT_S, Trap, living, traces, wait_until

GONE_S = 10.0  # promised limit for the end of a failed run's workers

CAUSES = {
    "exception": "KeyError: 'no such layer'",
    "sys.exit(3)": "called sys.exit(3)",
    "os._exit(1)": "exited with status 1 before the training function returned",
    "segmentation fault": "signal 11 (SIGSEGV)",
    "kill -9": "signal 9 (SIGKILL)",
}


def local_path(url: str) -> Path:
    assert url.startswith("file://"), url
    return Path(url.removeprefix("file://"))


def submit(function: Any, workers: int = 2, **named: Any) -> Run:
    args = named.pop("args", {})
    return experiment.submit(function, args=args, num_workers=workers, progress=False, **named)


def read_json(run: Run, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((local_path(run.run_dir) / name).read_text())
    return content


def check_run_dir(run: Run, state: str, ranks: tuple[int, ...] = (0, 1)) -> None:
    """Check that the run directory is complete for this final state."""
    status = read_json(run, "status.json")
    assert read_json(run, "run.json")["workers"] == 2
    assert status["state"] == state and status["run_id"] == run.run_id
    assert bool(status["error"]) == (state != "FINISHED")
    assert {member["rank"] for member in status["workers"]} == set(ranks)
    for rank in ranks:
        assert (local_path(run.run_dir) / "logs" / f"g0-rank{rank}.log").is_file()
    assert (local_path(run.run_dir) / ".outputs.json").exists() == (state == "FINISHED")


class BackendContract:
    """Contract of a backend. ``slots`` is the number of workers that the subclass's backend can hold."""

    slots = 4

    # -------------------------------------------------------------------------------------- results

    def test_result_values_are_returned_and_recorded(self, store: Path) -> None:
        values: list[tuple[Any, Any]] = [
            (3.5, {"metric": 3.5}),
            ({"accuracy": 0.97, "name": "cnn"}, {"accuracy": 0.97, "name": "cnn"}),
            (None, {"metric": None}),
            (np.float32(0.5), {"metric": 0.5}),
            ({"confusion": np.eye(2)}, {"confusion": [[1.0, 0.0], [0.0, 1.0]]}),
            ("text", {"metric": "text"}),
            ({"name": "caf\u00e9 \udcff"}, {"name": "caf\u00e9 ?"}),
        ]
        for value, recorded in values:
            run = submit(lambda value=value: value)
            logdir, metrics = run.result(END_S)
            assert logdir == f"{run.run_dir}/events" and set(metrics) == {*recorded, "log"}
            assert set(run.result().metrics) == set(recorded) and run.result().log == metrics["log"]
            outputs = read_json(run, ".outputs.json")
            assert {name: outputs[name] for name in recorded} == recorded
            assert repr(run.result().value) == repr(value)
            check_run_dir(run, "FINISHED")

    @pytest.mark.variant
    def test_nan_is_recorded_as_nan(self, store: Path) -> None:
        run = submit(lambda: math.nan)
        assert math.isnan(run.result(END_S).metrics["metric"])
        assert math.isnan(read_json(run, ".outputs.json")["metric"])
        check_run_dir(run, "FINISHED")

    @pytest.mark.variant
    def test_returned_file_is_stored_in_the_run_directory(self, store: Path) -> None:
        def draw() -> dict[str, str]:
            Path("diagram.txt").write_text("a picture")
            return {"picture": "diagram.txt"}

        run = submit(draw)
        recorded = run.result(END_S).metrics["picture"]
        assert recorded == f"Experiments/{run.run_id}/diagram.txt"
        assert (store / recorded).read_text() == "a picture"

    @pytest.mark.variant
    def test_unpicklable_entry_is_omitted_with_a_note(self, store: Path) -> None:
        def returns_a_lock() -> Any:
            import threading

            return {"lock": threading.Lock(), "loss": 0.5}

        run = submit(returns_a_lock)
        assert run.result(END_S).value == {"loss": 0.5}
        (note,) = [note for note in run.state.notes if "is omitted" in note]
        assert note.startswith("rank 0: the entry ['lock']") and "return numbers" in note
        check_run_dir(run, "FINISHED")

    # -------------------------------------------------------------------------------------- failures

    @pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.variant)])
    @pytest.mark.parametrize(
        "ending",
        [
            pytest.param(one, marks=[pytest.mark.variant] if "exit" in one else [])  # as by an exception or a signal
            for one in workloads.ENDINGS
        ],
    )
    def test_failed_worker_is_named_and_the_others_are_ended(
        self, store: Path, tmp_path: Path, ending: str, rank: int
    ) -> None:
        run = submit(workloads.end_badly, args={"folder": str(tmp_path), "rank": rank, "ending": ending})
        with pytest.raises(WorkerFailed) as caught:
            run.result(WAIT_S + GONE_S)
        late = time.time() - float((tmp_path / "failed-at").read_text())
        pids = [pid for trace in traces(tmp_path) for pid in (trace.worker, trace.child)]
        assert not living(pids) and late < GONE_S
        error = caught.value
        assert (error.rank, error.host) == (rank, run.status()["members"][rank]["host"])
        assert CAUSES[ending] in error.cause and CAUSES[ending] in str(error)
        assert f"rank {rank} of 2 on host {error.host}" in str(error)
        assert error.log in str(error) and f"rank {rank} is there" in local_path(error.log).read_text()
        assert error.run_dir == run.run_dir and run.run_dir in str(error)
        assert ("workloads.py" in error.remote_traceback) == (ending in ("exception", "sys.exit(3)"))
        check_run_dir(run, "FAILED")

    def check_loss(self, cause: str, agent: int) -> None:
        """Check the backend's cause for an agent that got SIGKILL."""

    def test_killed_agent_ends_the_run_and_the_next_run_works(self, store: Path, tmp_path: Path) -> None:
        run = submit(workloads.sleep_with_trace, args={"folder": str(tmp_path)}, keep_warm=60)
        found = traces(tmp_path)
        start_s = clock.awake()
        os.kill(found[1].agent, 9)
        with pytest.raises(WorkerFailed) as caught:
            run.result(END_S)
        assert caught.value.rank == 1 and "the agent" in caught.value.cause and "was lost" in caught.value.cause
        self.check_loss(caught.value.cause, found[1].agent)
        pids = [pid for trace in found for pid in (trace.worker, trace.child)]
        wait_until(lambda: not living([*pids, found[1].server]), "end of the workers", GONE_S)
        assert clock.awake() - start_s < GONE_S
        check_run_dir(run, "FAILED")
        assert submit(lambda: "works", keep_warm=60).result(END_S).value == "works"

    def test_killed_fork_server_ends_the_run_and_the_next_run_works(self, store: Path, tmp_path: Path) -> None:
        run = submit(workloads.sleep_with_trace, args={"folder": str(tmp_path)}, keep_warm=60)
        found = traces(tmp_path)
        os.kill(found[0].server, 9)
        with pytest.raises(WorkerFailed, match="process that starts workers on this host was killed") as caught:
            run.result(END_S)
        assert caught.value.rank == 0
        assert not living([pid for trace in found for pid in (trace.worker, trace.child)])
        check_run_dir(run, "FAILED")
        assert submit(lambda: "works", keep_warm=60).result(END_S).value == "works"

    @pytest.mark.parametrize("action", ["stop", pytest.param("hang", marks=pytest.mark.variant)])
    def test_worker_that_does_not_start_its_function_is_named_at_the_deadline(self, store: Path, action: str) -> None:
        submit(lambda: None, keep_warm=60).result(END_S)  # agents are there: the deadline is the workers' alone
        trap = Trap(action, rank=1)
        start_s = clock.awake()
        run = submit(lambda: trap, start_timeout=3, keep_warm=60)
        with pytest.raises(StartTimeout) as caught:
            run.result(END_S)
        assert clock.awake() - start_s < 3 + GONE_S
        assert "after 3 s" in str(caught.value) and "start_timeout=" in str(caught.value)
        host = run.status()["members"][1]["host"]
        assert f"rank 1 on {host} has not started the training function" in str(caught.value) and "rank 0" not in str(
            caught.value
        )
        check_run_dir(run, "FAILED")

    def test_more_workers_than_slots_are_refused_at_once(self, store: Path) -> None:
        start_s = clock.awake()
        with pytest.raises(NotEnoughSlots, match=f"num_workers={self.slots + 1}.*at most {self.slots} slots"):
            submit(lambda: None, self.slots + 1)
        assert clock.awake() - start_s < GONE_S
        assert not list(store.glob("Experiments/*"))

    # -------------------------------------------------------------------------------------- successive and concurrent runs

    def test_two_runs_execute_concurrently(self, store: Path, tmp_path: Path) -> None:
        first = submit(workloads.meet, args={"folder": str(tmp_path), "own": "a", "other": "b"})
        second = submit(workloads.meet, args={"folder": str(tmp_path), "own": "b", "other": "a"})
        assert (first.result(END_S).value, second.result(END_S).value) == ("a", "b")
        assert first.run_dir != second.run_dir
        check_run_dir(first, "FINISHED")
        check_run_dir(second, "FINISHED")

    def test_failed_run_does_not_affect_a_concurrent_one(self, store: Path, tmp_path: Path) -> None:
        good = submit(workloads.report_steps, args={"folder": str(tmp_path)})
        bad = submit(lambda: {}["missing"])
        with pytest.raises(WorkerFailed, match="KeyError: 'missing'"):
            bad.result(END_S)
        assert good.running()
        (tmp_path / "go-on").touch()
        assert good.result(END_S).value == 5

    def test_failed_run_leaves_no_state_for_the_next(self, store: Path) -> None:
        def dirty() -> None:
            import math

            os.environ["HOPSML_LEFT_BEHIND"] = "1"
            math.left_behind = True  # type: ignore[attr-defined]
            os.chdir("/")
            raise RuntimeError("first")

        def look() -> dict[str, Any]:
            import math

            return {
                "variable": os.environ.get("HOPSML_LEFT_BEHIND"),
                "module": hasattr(math, "left_behind"),
                "folder": os.getcwd().split("/"),
                "config": json.loads(os.environ["TF_CONFIG"]),
            }

        with pytest.raises(WorkerFailed, match="first"):
            submit(dirty, keep_warm=60).result(END_S)
        run = submit(look, keep_warm=60)
        seen = run.result(END_S).value
        assert (seen["variable"], seen["module"]) == (None, False)
        assert f"{run.run_id}-g0" in seen["folder"]
        assert seen["config"]["task"] == {"type": "chief", "index": 0}
        assert [len(seen["config"]["cluster"][role]) for role in ("chief", "worker")] == [1, 1]

    def test_idle_agents_are_released(self, store: Path, tmp_path: Path) -> None:
        def work(folder: str) -> None:
            workloads.leave_trace(folder)

        submit(work, args={"folder": str(tmp_path)}, keep_warm=0.2).result(END_S)
        servers = [trace.server for trace in traces(tmp_path)]
        wait_until(lambda: not living(servers), "idle agents to end", GONE_S)

    def test_warm_agents_serve_the_next_run(self, store: Path, tmp_path: Path) -> None:
        found = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            submit(workloads.leave_trace, args={"folder": str(tmp_path / name)}, keep_warm=60).result(END_S)
            found.append(traces(tmp_path / name))
        assert {trace.agent for trace in found[0]} == {trace.agent for trace in found[1]}
        assert not {trace.worker for trace in found[0]} & {trace.worker for trace in found[1]}

    # -------------------------------------------------------------------------------------- the handle

    def test_cancel_ends_a_run(self, store: Path, tmp_path: Path) -> None:
        run = submit(workloads.sleep_with_trace, args={"folder": str(tmp_path)})
        found = traces(tmp_path)
        assert run.cancel("changed my mind")
        with pytest.raises(RunCancelled, match="changed my mind"):
            run.result(GONE_S)
        assert not living([pid for trace in found for pid in (trace.worker, trace.child)])
        check_run_dir(run, "CANCELLED")
        assert run.done() and not run.cancel()

    def test_run_that_waits_for_slots_can_be_cancelled(self, store: Path, tmp_path: Path) -> None:
        args = {"folder": str(tmp_path)}
        holds_all = submit(workloads.report_steps, self.slots, args=args)
        wait_until(lambda: holds_all.status()["phase"] == "running", "the first run")
        waits = submit(lambda: None)
        assert waits.status()["phase"] == "waiting for executors"
        waits.cancel()
        with pytest.raises(RunCancelled):
            waits.result(GONE_S)
        check_run_dir(waits, "CANCELLED", ranks=())
        (tmp_path / "go-on").touch()
        assert holds_all.result(END_S).value == 5

    def test_result_with_a_timeout_does_not_affect_the_run(self, store: Path, tmp_path: Path) -> None:
        run = submit(workloads.report_steps, args={"folder": str(tmp_path)})
        with pytest.raises(TimeoutError):
            run.result(timeout=0.05)
        assert run.running()
        (tmp_path / "go-on").touch()
        assert run.result(END_S).value == 5 and run.exception() is None

    @pytest.mark.variant
    def test_status_logs_and_reports_of_a_run_are_available(self, store: Path, tmp_path: Path) -> None:
        changes: list[Change] = []
        run = submit(workloads.report_steps, args={"folder": str(tmp_path)})
        run.observe(changes.append)
        wait_until(lambda: "rank 0 step 4" in run.logs(), "the chief's log")
        wait_until(lambda: _steps(run) == [4, 4], "reports of both ranks")
        status = run.status()
        assert status["run_id"] == run.run_id and status["phase"] == "running" and status["seconds"] > 0
        assert [member["state"] for member in status["members"]] == ["RUNNING", "RUNNING"]
        assert status["members"][1]["metrics"] == {"loss": 0.2}
        assert run.logs(1).splitlines() == [f"rank 1 step {step}" for step in range(5)]
        (tmp_path / "go-on").touch()
        run.result(END_S)
        for rank in (0, 1):
            steps = [change.step for change in changes if change.kind == "report" and change.rank == rank]
            assert steps == sorted(steps) and len(set(steps)) == len(steps)
        recorded = (local_path(run.run_dir) / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in recorded] == [0, 1, 2, 3, 4]


def _steps(run: Run) -> list[int | None]:
    return [member["step"] for member in run.status()["members"]]
