"""Where runs are kept, and the driver's variables, as a profile says: from the first call of a session on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml import experiment, settings
from hopsml.errors import ArgumentError
from hopsml.experiment import applications

pytestmark = pytest.mark.local


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the profiles ``mine`` and ``other``, each with a store of its own."""
    folder = tmp_path / "conf"
    folder.mkdir()
    for name in ("mine", "other"):
        lines = ("master: none", "local_slots: 2", f"store: {tmp_path / name}", "environment:", f"  MY_NAME: {name}")
        (folder / f"{name}.yaml").write_text("\n".join(lines))
    monkeypatch.setenv("HOPSML_CONF_DIR", str(folder))
    for name in ("HOPSML_PROJECT_URL", "HOPSML_PROFILE", "MY_NAME"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards, whoever sets it
        monkeypatch.delenv(name)
    yield tmp_path
    experiment.shutdown()
    applications._profiles_variables.clear()


def test_a_run_is_kept_where_its_profile_says(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "other"):
        result = experiment.launch(lambda: os.environ["MY_NAME"], progress=False, profile=name)
        assert Path(result.run_dir.removeprefix("file://")).parents[1] == conf / name
        assert result.value == os.environ["MY_NAME"] == name
        experiment.shutdown()
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{conf / 'own'}")
    monkeypatch.setenv("MY_NAME", "own")
    result = experiment.launch(os.getpid, progress=False, profile="mine")
    assert result.run_dir.startswith(f"file://{conf / 'own'}/") and os.environ["MY_NAME"] == "own"


def test_whoever_asks_where_runs_are_is_told_of_the_store_of_the_environments_profile(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_PROFILE", "other")
    assert settings.project_url() == f"file://{conf / 'other'}"
    with experiment.recorded("etl") as run:
        assert run.run_dir.startswith(f"file://{conf / 'other'}/")
    monkeypatch.setenv("HOPSML_PROFILE", "othr")
    with pytest.raises(ArgumentError, match="did you mean other"):
        settings.project_url()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert settings.project_url().endswith("/.hopsml"), "under spark-submit there is no profile's file"
