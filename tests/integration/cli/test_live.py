"""``hopsml runs status|cancel|metrics|follow`` over a running run, from outside its driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.errors import RunCancelled
from hopsml.experiment.run import Run
from hopsml.experiment.search import submit_continued
from hopsml.storage import mailbox
from hopsml.storage.run_dir import RunDir
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.command_line import Cli
from tests.helpers.local_application import local_application

pytestmark = pytest.mark.local

WAIT_S = 60.0
COMMAND = str(Path(sys.executable).with_name("hopsml"))


def steps(until: int, go_on: str) -> dict[str, float]:
    import os
    import time

    import hopsml

    for step in range(until):
        hopsml.report(step=step, loss=1.0 / (step + 1))
        print(f"step {step} is done", flush=True)
    while not os.path.exists(go_on):
        time.sleep(0.02)
    return {"loss": 0.25}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    with local_application(tmp_path) as made:
        yield made


@pytest.fixture
def run(project: Path, tmp_path: Path) -> Run:
    """Return a run with three reports that waits for the file ``go-on``."""
    arguments = {"until": 3, "go_on": str(tmp_path / "go-on")}
    made = experiment.submit(steps, args=arguments, name="watched", num_workers=1, progress=False)
    metrics = Path(made.directory.metrics.removeprefix("file://"))
    log = Path(made.directory.log_url(0, 0).removeprefix("file://"))
    wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") == 3, "the reports")
    wait_until(lambda: log.exists() and "step 2 is done" in log.read_text(), "the log")
    return made


def test_status_of_a_running_and_an_ended_run(run: Run, tmp_path: Path, cli: Cli) -> None:
    shown = cli("runs", "status", run.run_id)
    for words in ("watched", "RUNNING", "step", "loss=0.33", f"pid {os.getpid()}", "alive", run.run_dir):
        assert words in shown.out, shown.out + shown.err
    facts = json.loads(cli("runs", "status", run.run_dir, "--json").out)
    assert (facts["state"], facts["step"], facts["workers"]) == ("RUNNING", 2, 1)
    (tmp_path / "go-on").touch()
    run.result(END_S)
    facts = json.loads(cli("runs", "status", run.run_id, "--json").out)
    assert (facts["state"], facts["outputs"], facts["driver"]) == ("FINISHED", {"loss": 0.25}, None)


def test_cancel_request_reaches_the_driver(run: Run, cli: Cli) -> None:
    shown = cli("runs", "cancel", run.run_id, "--reason", "a wrong rate")
    assert (shown.status, shown.out) == (0, f"{run.run_id}: CANCELLED\n"), shown.err
    with pytest.raises(RunCancelled, match=r"a wrong rate \(hopsml runs cancel, "):
        run.result(END_S)
    assert run.directory.read_status()["state"] == "CANCELLED"  # type: ignore[index]
    again = cli("runs", "cancel", run.run_id)
    assert (again.status, again.out) == (0, f"{run.run_id}: CANCELLED already\n")


def test_cancel_of_an_ended_or_unreachable_run_is_explained(run: Run, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "go-on").touch()
    run.result(END_S)
    over = cli("runs", "cancel", run.run_id)
    assert (over.status, over.out) == (1, f"{run.run_id}: FINISHED already\n")
    with experiment.recorded("by the driver") as recorded:
        refused = cli("runs", "cancel", recorded.run_id)
    assert refused.status == 1 and "end that program" in refused.err
    Path(run.directory.status_json.removeprefix("file://")).unlink()
    record = {**run.directory.read_run(), "driver_process": {}}
    run.directory.write_run(record)
    silent = cli("runs", "cancel", run.run_id, "--timeout", "0.1")
    assert silent.status == 1 and "has not ended within 0.1 s" in silent.err


def test_metrics_are_printed_as_a_table_or_json_and_followed(run: Run, tmp_path: Path, cli: Cli) -> None:
    head, *rows = cli("runs", "metrics", run.run_id).out.splitlines()
    assert head.split() == ["time", "step", "loss"] and [row.split()[2] for row in rows] == ["0", "1", "2"]
    lines = cli("runs", "metrics", run.run_id, "--json", "--last", "1").out.splitlines()
    assert [(row["step"], round(row["loss"], 2)) for row in map(json.loads, lines)] == [(2, 0.33)]
    with followed("runs", "metrics", run.run_id, "--follow") as follower:
        assert follower.stdout is not None
        assert [follower.stdout.readline().split()[-1] for _ in range(4)][-1].startswith("0.33")
        (tmp_path / "go-on").touch()
        assert follower.wait(WAIT_S) == 0


@pytest.mark.parametrize("command", ["metrics --follow", "follow"])
def test_interrupted_follower_states_that_the_run_continues(run: Run, command: str) -> None:
    verb, *options = command.split()
    with followed("runs", verb, run.run_id, *options) as follower:
        assert follower.stdout is not None and follower.stderr is not None
        assert follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        assert follower.wait(WAIT_S) == 128 + signal.SIGINT
        assert f"the run continues; `hopsml runs cancel {run.run_id}` ends it\n" in follower.stderr.read()
    assert run.directory.read_status() is None


def test_metrics_of_a_run_without_reports_are_explained(project: Path, cli: Cli) -> None:
    run = experiment.submit(lambda: 1, num_workers=1, progress=False)
    run.result(END_S)
    shown = cli("runs", "metrics", run.run_id)
    assert (shown.status, shown.out) == (0, "") and "has reported no metrics" in shown.err


def test_follow_prints_new_output_and_the_final_state(run: Run, tmp_path: Path) -> None:
    with followed("runs", "follow", run.run_id) as follower:
        assert follower.stdout is not None and follower.stderr is not None
        assert [follower.stdout.readline() for _ in range(3)][-1] == "step 2 is done\n"
        (tmp_path / "go-on").touch()
        assert follower.wait(WAIT_S) == 0
        shown = follower.stderr.read()
    assert f"{run.run_id}: RUNNING" in shown and f"{run.run_id}: FINISHED" in shown


def followed(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_cancelled_search_can_be_continued(project: Path, cli: Cli) -> None:
    def train(x: int) -> float:
        time.sleep(0.05)
        return float(x)

    space = {"x": ("INTEGER", [1, 1000])}
    search = experiment.submit_search(train, space, num_trials=100_000, searcher="random", progress=False)
    shown = cli("runs", "cancel", search.run_id)
    assert (shown.status, shown.out) == (0, f"{search.run_id}: CANCELLED\n"), shown.err
    with pytest.raises(RunCancelled, match="cancelled from the command line"):
        search.result(END_S)
    ended = RunDir(search.run_dir).read_status()
    assert ended is not None and ended["state"] == "CANCELLED"
    assert mailbox.read_cancel_request(search.directory)
    on = submit_continued(search.run_id, num_trials=0, progress=False)
    assert not mailbox.read_cancel_request(search.directory)
    on.cancel()
    on.exception(WAIT_S)


def test_polling_of_an_unreadable_request_backs_off(tmp_path: Path) -> None:
    directory = RunDir(f"file://{tmp_path}")
    polling = mailbox.Polling.for_url(directory.url)
    assert (polling.pause_s, mailbox.Polling.for_url("hdfs://ns1/run").pause_s) == (1.0, 5.0)
    (tmp_path / "cancel.json").write_text("half a wi")
    for pause in (2.0, 4.0, 8.0):
        assert polling.poll(lambda: mailbox.read_cancel_request(directory)) is None and polling.pause_s == pause
    mailbox.write_cancel_request(directory, "enough")
    found = polling.poll(lambda: mailbox.read_cancel_request(directory))
    assert found is not None and found.startswith("enough (hopsml runs cancel, ") and polling.pause_s == 1.0
    mailbox.delete_cancel_request(directory)
    assert polling.poll(lambda: mailbox.read_cancel_request(directory)) == ""
