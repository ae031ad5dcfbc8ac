"""Tests of runs whose store fails until their end, or for a while: a run that lost what it promised is not FINISHED.

The store is a small disk behind ``local://``, a store of fsspec to which agents mirror as to HDFS.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.cluster.agent.agent import HEARTBEAT_S
from hopsml.cluster.driver.run_state import Change
from hopsml.errors import ResultsNotStored, RunCancelled, RunError
from hopsml.experiment.run import Run
from hopsml.storage import filesystem, left_files
from hopsml.tracking import catalog
from tests.helpers import small_disk
from tests.helpers.clock import END_S
from tests.helpers.local_application import local_application, take_left_files

pytestmark = pytest.mark.local
DISK_KB = 20_000
RETRY_S = "HOPSML_STORAGE_RETRY_S"


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The store of all tests of the module."""
    folder = tmp_path_factory.mktemp("unstored")
    with small_disk.mounted(folder / "disk", DISK_KB) as disk, local_application(folder):
        os.environ["HOPSML_PROJECT_URL"] = f"local://{disk}/project"
        yield disk


@pytest.fixture(autouse=True)
def _clean(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty the store, delete the copies that were left, and end the helper processes of the store."""
    monkeypatch.setenv(RETRY_S, "1")
    yield
    experiment.shutdown()
    small_disk.accept_writes(disk)
    take_left_files()
    for entry in disk.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    filesystem.close_all()


def submit(function: Any, workers: int = 1, **named: Any) -> Run:
    return experiment.submit(function, num_workers=workers, progress=False, **named)


def losing(disk: Path) -> Any:
    """A training function during which the store begins to refuse writes."""

    def train() -> dict[str, float]:
        from tests.helpers import small_disk

        print("trained")
        small_disk.refuse_writes(disk)
        return {"loss": 0.5}

    return train


def copies_of(error: BaseException) -> list[Path]:
    return [Path(path) for path in re.findall(rf"{re.escape(os.uname().nodename)}:(\S+?)(?:,| and)", str(error))]


def test_run_without_a_store_at_its_end_fails_with_its_files_left_on_this_host(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RETRY_S, f"{4 * HEARTBEAT_S:g}")  # the agent sends heartbeats meanwhile
    run = submit(losing(disk))
    with pytest.raises(ResultsNotStored) as raised:
        run.result(END_S)
    text = str(raised.value)
    assert text.startswith("results could not be stored: the result, the final state and 1 log are missing: ")
    assert "read-only" in text and f"Copy them to {run.run_dir} from " in text
    assert raised.value.result.value == {"loss": 0.5} and raised.value.result.state == "FAILED"
    assert run.status()["state"] == "FAILED"
    worker, records = copies_of(raised.value)
    assert (worker / "logs" / "g0-rank0.log").read_text() == "trained\n"
    assert json.loads((records / ".outputs.json").read_text())["loss"] == 0.5
    assert json.loads((records / "status.json").read_text())["local_copies"] == [
        f"{os.uname().nodename}:{path}" for path in (worker, records)
    ]
    stored = catalog.read(run.directory)
    assert stored.state == "FAILED" and stored.cause.startswith("results could not be stored: ")
    shutil.rmtree(records)
    assert catalog.read(run.directory).state in ("RUNNING", "LOST"), "elsewhere nothing is known of its end"


def test_only_what_is_lost_is_named_if_the_store_accepts_records(disk: Path) -> None:
    def train() -> dict[str, float]:
        import hopsml

        folder = Path(hopsml.tensorboard.logdir())
        (folder / "large.bin").write_bytes(bytes(30_000_000))
        return {"loss": 0.5}

    run = submit(train)
    with pytest.raises(ResultsNotStored, match=r"1 file is missing: events/large.bin: .*the quota is full"):
        run.result(END_S)
    status = run.directory.read_status()
    assert status is not None and status["state"] == "FAILED"
    assert status["cause"].startswith("results could not be stored: 1 file is missing")
    (copy,) = status["local_copies"]
    assert (Path(copy.partition(":")[2]) / "events" / "large.bin").stat().st_size == 30_000_000
    assert run.directory.read_json(run.directory.outputs_json)["loss"] == 0.5


def test_store_that_is_back_within_the_retries_costs_nothing(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RETRY_S, "600")

    def repair(change: Change) -> None:
        if change.kind == "note" and "storing is retried for up to 600 s" in change.text:
            small_disk.accept_writes(disk)

    run = submit(losing(disk))
    run.observe(repair)
    result = run.result(END_S)
    assert result.state == "FINISHED" and result.unrecorded == {}
    status = run.directory.read_status()
    assert status is not None and status["state"] == "FINISHED" and status["not_on_shared_storage"] == {}
    assert run.logs(0) == "trained\n" and not list(
        Path(tempfile.gettempdir()).glob(f"{left_files.PREFIX}{run.run_id}*")
    )
    assert run.state.notes[-1] == "mirroring is up to date again"


def test_user_can_cancel_while_storing_is_retried(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RETRY_S, "600")
    run = submit(losing(disk))

    def cancel(change: Change) -> None:
        if change.kind == "note" and "storing is retried" in change.text:
            run.cancel("not today")

    run.observe(cancel)
    with pytest.raises(RunCancelled, match="not today"):
        run.result(END_S)
    assert run.status()["state"] == "CANCELLED"
    (left,) = Path(tempfile.gettempdir()).glob(f"{left_files.PREFIX}{run.run_id}-rank-0-*")
    assert (left / "logs" / "g0-rank0.log").read_text() == "trained\n"


def test_user_can_cancel_while_the_records_are_retried(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run on the local disk has no mirror, so that only its records are missing."""
    monkeypatch.setenv(RETRY_S, "600")
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{disk}/project")

    def train() -> None:
        small_disk.fill(disk)

    run = submit(train)

    def cancel(change: Change) -> None:
        if change.kind == "note" and "the result cannot be written" in change.text:
            run.cancel()

    run.observe(cancel)
    with pytest.raises(
        RunCancelled, match=r"cancelled while storing was being retried: .*the result and the final state"
    ):
        run.result(END_S)
    assert run.status()["state"] == "CANCELLED"


def commit_often(disk: str) -> dict[str, float]:
    import hopsml.elastic
    from tests.helpers import small_disk

    state = hopsml.elastic.State(step=0)
    for step in range(5):
        state.step = step
        state.commit()
    small_disk.refuse_writes(Path(disk))
    return {"loss": 0.5}


def start_search(disk: Path) -> Any:
    from hopsml import Searchspace

    space = Searchspace(rate=("DOUBLE", [0.0, 1.0]))

    def trial(rate: float) -> float:
        from tests.helpers.clock import wait_until

        journals = disk / "project"
        wait_until(lambda: any(b'"begin"' in path.read_bytes() for path in journals.rglob("journal/*")), "its start")
        small_disk.refuse_writes(disk)
        return rate

    return experiment.search(trial, space, "randomsearch", num_trials=1, metric="metric", max_executors=1)


VERBS = {
    "distributed": lambda disk: experiment.distributed(losing(disk), num_workers=2),
    "torch": lambda disk: experiment.torch(losing(disk), num_workers=1),
    "launch": lambda disk: experiment.launch(losing(disk)),
    "combinations": lambda disk: experiment.launch(lambda a: losing(disk)(), {"a": [1]} | {}),
    "elastic": lambda disk: experiment.distributed(
        commit_often, args={"disk": str(disk)}, min_workers=1, max_workers=1
    ),
    "search": start_search,
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_raises_if_its_results_are_not_stored(disk: Path, verb: str) -> None:
    with pytest.raises(ResultsNotStored, match="results could not be stored: ") as raised:
        VERBS[verb](disk)
    assert raised.value.result is not None
    if verb == "elastic":
        (worker, _) = copies_of(raised.value)
        assert (worker / "checkpoints" / "step-000000005" / "state.npz").exists() or list(
            (worker / "checkpoints").iterdir()
        )


PROGRAM = """
import sys
from hopsml import experiment
from tests.integration.experiment.test_unstored import losing
from pathlib import Path
experiment.launch(losing(Path(sys.argv[1])))
"""


def test_exit_status_of_the_program_is_not_zero(disk: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(disk)], capture_output=True, text=True, timeout=END_S, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ResultsNotStored: results could not be stored: " in done.stderr


def test_failure_of_the_function_remains_the_cause(disk: Path) -> None:
    def train() -> None:
        small_disk.refuse_writes(disk)
        raise KeyError("layer")

    run = submit(train)
    with pytest.raises(RunError, match="KeyError"):
        run.result(END_S)
    assert catalog.read(run.directory).state == "FAILED"
    (copy,) = Path(tempfile.gettempdir()).glob(f"{left_files.PREFIX}*-rank-0-*")
    assert any(f"not store are in {os.uname().nodename}:{copy};" in note for note in run.state.notes), run.state.notes
