"""Tests of run directories on a real HDFS: complete after success, an error with the path otherwise.

Agents are local processes here: the run and its files are tested, not the source of agents.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import PermissionRefused, QuotaExceeded, StorageTimeout, StorageUnavailable, WorkerFailed
from hopsml.storage import checkpoints, filesystem
from tests.helpers import clock
from tests.helpers.clock import END_S, wait_until
from tests.integration.yarn.conftest import Hadoop

pytestmark = pytest.mark.hadoop


@pytest.fixture
def project(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of a project in HDFS."""
    url = f"{hadoop.namenode_url}/Projects/{time.monotonic_ns()}"
    monkeypatch.setenv("HOPSML_PROJECT_URL", url)
    monkeypatch.setenv("HOPSML_PROFILE", "local")
    yield url
    experiment.shutdown()


@pytest.fixture
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the storage deadline for tests with a NameNode that does not answer."""
    monkeypatch.setenv("HOPSML_STORAGE_TIMEOUT_S", "5")


def names(url: str) -> set[str]:
    return {file.url[len(url) + 1 :] for file in filesystem.walk(url) if not file.is_dir}


def read(url: str) -> Any:
    return json.loads(filesystem.for_url(url).read_bytes(url))


def train_with_files(step: int) -> dict[str, Any]:
    """Write the files of a training: events, a checkpoint by rename, an export, a plot, a report."""
    from pathlib import Path

    import hopsml
    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    Path(hopsml.tensorboard.logdir(), f"events.rank{context.rank}").write_bytes(b"event" * 1000)
    if context.is_chief:
        unfinished = context.checkpoint_dir / ".step.tmp"
        unfinished.mkdir()
        (unfinished / "weights").write_bytes(bytes(100_000))
        unfinished.rename(context.checkpoint_dir / f"step-{step:09d}")
        (context.export_dir / "model.txt").write_text("model")
    Path("plot.txt").write_text("plot")
    hopsml.report(step=step, loss=0.5)
    hopsml.hdfs.mkdir(hopsml.tensorboard.logdir() + "/model")
    resumed = context.resume_checkpoint
    return {"plot": "plot.txt", "logdir": hopsml.tensorboard.logdir(), "resumed": resumed.name if resumed else ""}


def test_run_stores_all_files_on_hdfs_and_another_resumes_from_it(project):
    result = experiment.collective_all_reduce(train_with_files, args={"step": 7}, num_workers=2, progress=False)
    run = result.run_dir
    assert run.startswith(project)
    assert names(run) >= {
        "run.json", "status.json", ".outputs.json", "metrics.jsonl", "plot.txt", "export/model.txt",
        "events/events.rank0", "events/events.rank1", "logs/g0-rank0.log", "logs/g0-rank1.log",
        "checkpoints/step-000000007/weights",
    }  # fmt: skip
    assert read(f"{run}/status.json")["state"] == "FINISHED"
    assert read(f"{run}/status.json")["not_on_shared_storage"] == {}
    assert read(f"{run}/.outputs.json")["plot"] == f"Experiments/{result.run_id}/plot.txt"
    assert "hdfs://" in result.metrics["logdir"]
    assert filesystem.exists(f"{run}/events/model"), "hdfs.mkdir(logdir() + ...) reaches HDFS"
    assert checkpoints.latest_complete(f"{run}/checkpoints") == 7
    again = experiment.collective_all_reduce(
        train_with_files, args={"step": 8}, num_workers=2, progress=False, resume=result.run_id
    )
    assert again.metrics["resumed"] == "step-000000007"


def look_at_logdir(source: str) -> dict[str, Any]:
    """Use the log directory as published code does before it has written anything there."""
    from pathlib import Path

    from hopsml import hdfs, tensorboard

    folder = tensorboard.logdir()
    found: dict[str, Any] = {"folder": folder, "local": tensorboard.local_logdir_bool, "is_dir": Path(folder).is_dir()}
    if not found["local"]:
        found |= {"exists": hdfs.isdir(folder), "listed": hdfs.ls(folder)}
        hdfs.copy_to_hdfs(source, folder)
    Path(folder, "written").write_text("x")
    return found


@pytest.mark.variant
def test_log_directory_exists_during_and_after_the_function(project, tmp_path):
    source = tmp_path / "copied"
    source.write_text("y")
    result = experiment.collective_all_reduce(
        look_at_logdir, args={"source": str(source)}, num_workers=1, progress=False
    )
    assert result.value["exists"] and result.value["listed"] == [] and result.value["is_dir"]
    assert names(result.logdir) == {"copied", "written"}
    local = experiment.collective_all_reduce(
        look_at_logdir, args={"source": str(source)}, num_workers=1, local_logdir=True, progress=False
    )
    assert local.value["local"] and local.value["is_dir"] and "hdfs:" not in local.value["folder"]
    assert names(local.logdir) == {"written"}
    nothing = experiment.collective_all_reduce(lambda: 1, num_workers=1, progress=False)
    assert filesystem.exists(nothing.logdir) and names(nothing.logdir) == set()
    trial = experiment.grid_search(
        lambda x: float(look_at_logdir(str(source))["exists"]) * x, {"x": [1]}, progress=False
    )
    assert trial.value == 1.0 and names(trial[0]) == {"copied", "written"}


@pytest.mark.variant
def test_incomplete_checkpoint_is_not_resumed_from(project):
    first = experiment.collective_all_reduce(train_with_files, args={"step": 7}, num_workers=1, progress=False)
    half = f"{first.run_dir}/checkpoints/step-000000009"
    filesystem.for_url(half).make_dirs(half)
    filesystem.for_url(half).write_bytes(f"{half}/weights", b"half")
    again = experiment.collective_all_reduce(
        train_with_files, args={"step": 8}, num_workers=1, progress=False, resume=first.run_dir
    )
    assert again.metrics["resumed"] == "step-000000007"


@pytest.mark.variant  # of one that is frozen
def test_namenode_that_is_down_at_the_start_is_an_error_with_the_path(hadoop, short_deadline, project):
    hadoop.kill("nn")
    started_s = clock.awake()
    with pytest.raises((StorageUnavailable, StorageTimeout), match="Projects"):
        experiment.collective_all_reduce(train_with_files, args={"step": 1}, num_workers=1, progress=False)
    assert clock.awake() - started_s < 20


def test_namenode_that_is_frozen_at_the_start_is_an_error_with_the_path(hadoop, short_deadline, project):
    hadoop.kill("nn", signal_number=signal.SIGSTOP)
    started_s = clock.awake()
    with pytest.raises(StorageTimeout, match="Projects"):
        experiment.collective_all_reduce(train_with_files, args={"step": 1}, num_workers=1, progress=False)
    assert clock.awake() - started_s < 20


def test_missing_permission_is_an_error_with_the_path(hadoop, project, monkeypatch):
    filesystem.for_url(project).make_dirs(project)
    filesystem.for_url(project).set_permission(project, 0o755)
    filesystem.close_all()
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    with pytest.raises(PermissionRefused, match="Projects"):
        experiment.collective_all_reduce(train_with_files, args={"step": 1}, num_workers=1, progress=False)


def test_exceeded_quota_is_an_error_with_the_path(hadoop, project):
    filesystem.for_url(project).make_dirs(project)
    path = project[len(hadoop.namenode_url) :]
    hadoop.dfsadmin("-setQuota", "1", path)
    with pytest.raises(QuotaExceeded, match="Projects"):
        experiment.collective_all_reduce(train_with_files, args={"step": 1}, num_workers=1, progress=False)


def long_training(stop_file: str) -> str:
    """Write an event every 50 ms until the file exists."""
    import time
    from pathlib import Path

    import hopsml

    events, step = Path(hopsml.tensorboard.logdir(), "events.out.tfevents.1"), 0
    while not Path(stop_file).exists():
        step += 1
        with events.open("ab") as file:
            file.write(b"%08d" % step)
        hopsml.report(step=step)
        time.sleep(0.05)
    return f"{step:08d}"


def steps_of(run: experiment.Run) -> int:
    return max((member["step"] or 0 for member in run.status()["members"]), default=0)


@pytest.mark.parametrize("daemon", [pytest.param("dn1", marks=pytest.mark.variant), "nn"])
def test_training_continues_during_a_daemon_outage_and_the_mirror_catches_up(
    hadoop, short_deadline, project, tmp_path, daemon
):
    stop = tmp_path / "stop"
    run = experiment.submit(long_training, args={"stop_file": str(stop)}, num_workers=1, progress=False)
    events = f"{run.run_dir}/events/events.out.tfevents.1"
    wait_until(lambda: filesystem.exists(events))
    hadoop.kill(daemon)
    before = steps_of(run)
    wait_until(lambda: steps_of(run) > before + 40)
    hadoop.revive(daemon)
    Path(stop).touch()
    result = run.result(timeout=END_S)
    content = filesystem.for_url(events).read_bytes(events)
    assert content[-8:].decode() == result.value, "the last event is in HDFS"
    assert read(f"{run.run_dir}/status.json")["not_on_shared_storage"] == {}


def save_and_wait(marks: str) -> dict[str, Any]:
    """Save one checkpoint, and another while the NameNode is frozen: a short wait for it fails, a long one succeeds."""
    import time
    from pathlib import Path

    import numpy as np

    from hopsml.cluster.worker.context import current
    from hopsml.errors import StorageTimeout
    from hopsml.training.checkpoint_files import CheckpointDescription
    from hopsml.training.checkpoint_writer import HeldCheckpoint, checkpoint_sender, pack

    context = current()
    assert context is not None and context.checkpoints is not None
    handover, directory = checkpoint_sender(context.checkpoints), context.checkpoint_dir

    def save(step: int) -> tuple[HeldCheckpoint | None, str]:
        target = str(directory / f"step-{step:09d}")
        description = CheckpointDescription(target, b"{}", step, 3, False, 0o077)
        return handover.send_snapshot(pack({"state": np.full(9, step)}, description, "numpy:savez"), target), target

    handover.wait_stored(*save(1), None)
    Path(marks, "stored").touch()
    while not Path(marks, "frozen").exists():
        time.sleep(0.01)
    held, target = save(2)
    handover.wait_written()
    timed_out = False
    try:
        handover.wait_stored(held, target, 0.5)
    except StorageTimeout:
        timed_out = True
    Path(marks, "late").touch()
    handover.wait_stored(held, target, None)
    Path(marks, "second").touch()
    while not Path(marks, "seen").exists():
        time.sleep(0.01)
    return {"timed out": timed_out}


def test_waited_for_checkpoint_is_stored_after_an_outage_of_any_length(hadoop, short_deadline, project, tmp_path):
    run = experiment.submit(save_and_wait, args={"marks": str(tmp_path)}, num_workers=1, progress=False)
    wait_until((tmp_path / "stored").exists)
    assert checkpoints.latest_complete(f"{run.run_dir}/checkpoints") == 1
    hadoop.kill("nn", signal_number=signal.SIGSTOP)
    (tmp_path / "frozen").touch()
    wait_until((tmp_path / "late").exists)
    hadoop.revive("nn")
    wait_until((tmp_path / "second").exists)
    assert checkpoints.latest_complete(f"{run.run_dir}/checkpoints") == 2
    (tmp_path / "seen").touch()
    assert run.result(timeout=END_S).value == {"timed out": True}
    assert read(f"{run.run_dir}/status.json")["not_on_shared_storage"] == {}


def test_failed_run_stores_its_log_and_state(project):
    def fail() -> None:
        print("about to fail")
        raise ValueError("bad data")

    with pytest.raises(WorkerFailed, match="bad data") as caught:
        experiment.collective_all_reduce(fail, num_workers=2, progress=False)
    run = caught.value.run_dir
    assert read(f"{run}/status.json")["state"] == "FAILED"
    log = caught.value.log
    assert b"about to fail" in filesystem.for_url(log).read_bytes(log)
