"""Tests that a profile defines store and variables from the first call of a session on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.core import settings
from hopsml.errors import ArgumentError
from hopsml.experiment import applications
from hopsml.storage.run_dir import RunDir

pytestmark = pytest.mark.local


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the profiles ``mine`` and ``other``, which have different stores."""
    folder = tmp_path / "conf"
    folder.mkdir()
    for name in ("mine", "other"):
        lines = ("master: none", "local_slots: 2", f"store: {tmp_path / name}", "environment:", f"  MY_NAME: {name}")
        (folder / f"{name}.yaml").write_text("\n".join(lines))
    monkeypatch.setenv("HOPSML_CONF_DIR", str(folder))
    for name in ("HOPSML_PROJECT_URL", "HOPSML_PROFILE", "MY_NAME"):
        monkeypatch.setenv(name, "")  # so that the variable is restored, even if other code sets it
        monkeypatch.delenv(name)
    yield tmp_path
    experiment.shutdown()
    applications._profiles_variables.clear()


def test_run_is_stored_in_the_project_of_its_profile(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "other"):
        result = experiment.launch(lambda: os.environ["MY_NAME"], progress=False, profile=name)
        assert Path(result.run_dir.removeprefix("file://")).parents[1] == conf / name
        assert result.value == os.environ["MY_NAME"] == name
        experiment.shutdown()
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{conf / 'own'}")
    monkeypatch.setenv("MY_NAME", "own")
    result = experiment.launch(os.getpid, progress=False, profile="mine")
    assert result.run_dir.startswith(f"file://{conf / 'own'}/") and os.environ["MY_NAME"] == "own"


@pytest.mark.variant
def test_profile_variables_apply_to_the_first_call_of_a_process(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables hold for a process's first call, too, before an application exists."""
    for name in ("HOPSML_DRAIN_S", "HOPSML_SEED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with (conf / "conf" / "mine.yaml").open("a") as file:
        file.write('\n  HOPSML_DRAIN_S: "7"\n  HOPSML_SEED: "5"\n')
    options = {"progress": False, "profile": "mine"}
    first = experiment.distributed(os.getpid, min_workers=1, max_workers=1, **options)
    assert RunDir(first.run_dir).read_run()["spec"]["group"]["drain_s"] == 7.0
    experiment.shutdown()
    applications._profiles_variables.clear()
    for name in ("HOPSML_DRAIN_S", "HOPSML_SEED", "HOPSML_PROJECT_URL", "MY_NAME"):
        monkeypatch.delenv(name, raising=False)
    found = experiment.search(lambda x: x, {"x": ("DISCRETE", [1, 2])}, searcher="random", num_trials=1, **options)
    assert RunDir(found.run_dir).read_run()["spec"]["seed"] == 5


def test_misspelt_profile_is_refused_in_a_running_session(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = experiment.launch(os.getpid, progress=False, profile="mine")
    with pytest.raises(
        ArgumentError, match=r"profile 'mime' is unknown; the known profiles are mine, other .*did you mean mine\?"
    ):
        experiment.launch(os.getpid, progress=False, profile="mime")
    with pytest.raises(
        ArgumentError, match=r"profile 'remote' is unknown; the known profiles are mine, other \([^;]*$"
    ):
        experiment.submit(os.getpid, num_workers=1, progress=False, profile="remote")
    runs = Path(first.run_dir.removeprefix("file://")).parent
    assert len([entry for entry in runs.iterdir() if entry.is_dir()]) == 1, "nothing was begun"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # a cluster may lack the profiles of the submitting host
    applications.set_profile_variables("remote")
    with pytest.raises(ArgumentError, match="did you mean other"):
        applications.set_profile_variables("otther")


def named(x: float) -> dict[str, object]:
    return {"metric": x, "name": os.environ["MY_NAME"]}


def test_repeated_run_and_continued_search_use_the_given_profile(conf: Path) -> None:
    run = experiment.collective_all_reduce(named, args={"x": 1.0}, num_workers=1, progress=False, profile="mine")
    search = experiment.search(named, {"x": ("DOUBLE", [0.0, 1.0])}, num_trials=1, progress=False, profile="mine")
    experiment.shutdown()
    again = experiment.rerun(run.run_dir, progress=False, profile="other").result
    assert again.run_dir.startswith(f"file://{conf / 'other'}/") and again.value["name"] == "other"
    more = experiment.continue_search(search.run_dir, num_trials=1, progress=False, profile="other")
    assert more.run_dir == search.run_dir
    assert [row["outputs"]["name"] for row in more.rows] == ["mine", "other"]


def test_project_url_follows_the_profile_of_the_environment(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROFILE", "other")
    assert settings.project_url() == f"file://{conf / 'other'}"
    with experiment.recorded("etl") as run:
        assert run.run_dir.startswith(f"file://{conf / 'other'}/")
    monkeypatch.setenv("HOPSML_PROFILE", "othr")
    with pytest.raises(ArgumentError, match="did you mean other"):
        settings.project_url()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert settings.project_url().endswith("/.hopsml"), "under spark-submit there is no profile's file"
