"""Tests of the log directory inside a training function, and of related names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hopsml import tensorboard
from hopsml.cluster.worker import context
from hopsml.cluster.worker.context import WorkerContext
from hopsml.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.fast


@pytest.fixture
def mirrored(tmp_path: Path) -> Iterator[WorkerContext]:
    """A worker whose run directory lies elsewhere."""
    url = "hdfs://nn:8020/Projects/p/Experiments/app_1"
    logdir = f"{tmp_path}/mirror/{url}/events"
    Path(logdir).mkdir(parents=True)
    (tmp_path / "cwd").mkdir()
    here = Path(logdir)
    found = WorkerContext("r", 0, 0, 1, 0, "chief", url, tmp_path / "cwd", here, here, here, logdir=logdir)
    context.set_current(found)
    yield found
    context.set_current(None)


def test_mirrored_log_directory_contains_the_url_of_its_target(mirrored: WorkerContext) -> None:
    assert tensorboard.logdir().endswith("/mirror/hdfs://nn:8020/Projects/p/Experiments/app_1/events")
    assert os.path.isdir(tensorboard.logdir()) and tensorboard.local_logdir_bool is False


def test_local_log_directory_is_linked_to_the_mirrored_one(
    mirrored: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_LOCAL_LOGDIR", "1")
    path = tensorboard.logdir()
    assert tensorboard.local_logdir_bool is True and tensorboard.logdir() == path
    assert os.path.isdir(path) and "hdfs:" not in path and os.listdir(path) == []
    Path(path, "model").mkdir()
    Path(path, "model", "f").write_text("x")
    assert (mirrored.events_dir / "model" / "f").read_text() == "x"  # from where it is brought to the run directory
    assert os.listdir(mirrored.work_dir) == []  # which holds the user's files


def test_tensorboard_functions_raise_outside_a_training_function() -> None:
    with pytest.raises(ArgumentError, match=r"result\.logdir"):
        tensorboard.logdir()
    assert tensorboard.local_logdir_bool is False
    for name in ("interactive_debugger", "non_interactive_debugger"):
        with pytest.raises(AttributeError, match="enable_dump_debug_info"):
            getattr(tensorboard, name)()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tensorboard.nothing  # noqa: B018
    with pytest.raises(ArgumentError, match=r"no .*run\.json"):
        tensorboard.visualize("/no/such/run")


@pytest.mark.parametrize(
    "below", ["", "/events", "/trials", "/generation.2", "/a=1&b=5/events", "/generation.2/a=1&b=5/events"]
)
def test_visualize_finds_the_run_of_a_log_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    from hopsml.notebook import display, magics

    (tmp_path / "app_1").mkdir()
    (tmp_path / "app_1" / "run.json").write_text("{}")
    shown: list[str] = []
    monkeypatch.setattr(display, "is_live", lambda: True)
    monkeypatch.setattr(magics, "tensorboard_run", shown.append)
    tensorboard.visualize(f"file://{tmp_path}/app_1{below}/")
    assert shown == [f"file://{tmp_path}/app_1"]


@pytest.mark.parametrize("kind", ["SparkSession", "SparkContext"])
def test_visualize_ignores_a_session_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    from hopsml.notebook import display, magics

    (tmp_path / "app_1").mkdir()
    (tmp_path / "app_1" / "run.json").write_text("{}")
    session = type(kind, (), {"__module__": "pyspark.sql.session"})()
    shown: list[str] = []
    monkeypatch.setattr(display, "is_live", lambda: True)
    monkeypatch.setattr(magics, "tensorboard_run", shown.append)
    logdir = f"file://{tmp_path}/app_1/events"
    tensorboard.visualize(session, logdir)
    tensorboard.visualize(session, hdfs_root_logdir=logdir)
    tensorboard.visualize((logdir, {"metric": 1}))  # what a verb returns
    assert shown == [f"file://{tmp_path}/app_1"] * 3
    for wrong in ((), (session,), (session, session, logdir), (1,)):
        with pytest.raises(ArgumentTypeError, match=r"visualize\(\) was given .*pass the directory of a run"):
            tensorboard.visualize(*wrong)


def test_trials_with_similar_names_have_separate_log_directories(
    mirrored: WorkerContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_LOCAL_LOGDIR", "1")
    for number, trial in enumerate(("a=1&b=2", "a=1-b=2", "a=1%b=2")):
        logdir = tmp_path / "mirror" / "hdfs://nn:8020/Projects/p" / str(number)
        logdir.mkdir(parents=True)
        context.set_current(replace(mirrored, logdir=str(logdir), trial=SimpleNamespace(trial_id=trial)))
        Path(tensorboard.logdir(), "f").write_text(trial)
        assert (logdir / "f").read_text() == trial
