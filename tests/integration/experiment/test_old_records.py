"""Runs and a search that were recorded at ffbbf7f6 are repeated and continued by this version."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest

from hopsml import experiment
from hopsml.errors import ArgumentError
from hopsml.experiment.searches import recorded
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import record

ARCHIVE = Path(__file__).parents[2] / "data" / "records_of_ffbbf7f6.tar.gz"
PYTHON = (3, 11)  # functions are pickled as bytecode of one minor version
pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(sys.version_info[:2] != PYTHON, reason="the archive's functions are of another Python"),
]


@pytest.fixture
def records(store: Path) -> Path:
    """The folder of runs of a project with the archive's content."""
    folder = store / "Experiments"
    folder.mkdir(parents=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def run_named(records: Path, number: int) -> str:
    (found,) = records.glob(f"local-*_{number}")
    return found.name


def test_finished_run_is_repeated_with_the_same_result(records: Path) -> None:
    again = experiment.rerun(run_named(records, 1), progress=False)
    assert again.verdict.same and 2.0 <= again.result.value["value"] <= 3.0


def test_record_of_a_newer_format_is_refused(records: Path) -> None:
    name = run_named(records, 1)
    file = records / name / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": record.FORMAT + 1}))
    with pytest.raises(ArgumentError, match="newer hopsml"):
        experiment.rerun(name, progress=False)


@pytest.mark.tensorflow
def test_run_continues_from_its_checkpoint(records: Path) -> None:
    result = experiment.resume(run_named(records, 2), progress=False)
    assert result.value["begun"] == 2 and result.value["weight"] == 6.0


def test_elastic_run_continues_from_its_checkpoint(records: Path) -> None:
    result = experiment.resume(run_named(records, 3), progress=False)
    assert result.value["begun"] == 5 and result.value["steps"] == 6 and result.value["total"] == 26.0


@pytest.mark.variant
@pytest.mark.torch
def test_torch_run_continues_from_its_checkpoint(records: Path) -> None:
    result = experiment.resume(run_named(records, 4), progress=False)
    assert result.value["begun"] == 5 and result.value["steps"] == 6


def test_fields_of_recorded_specifications_have_their_places(records: Path) -> None:
    """The records have them in the order of their class, without names."""
    (directory,) = records.glob("local-*_5")
    spec = recorded.load_call(RunDir(str(directory))).run
    assert msgspec.convert(msgspec.to_builtins(spec), type(spec)) == spec
    assert (spec.preflight, spec.keep_warm_s, spec.environment, spec.ring_order) == ("warn", 10.0, {}, ())


def test_interrupted_search_continues(records: Path) -> None:
    name = run_named(records, 5)
    with pytest.raises(ArgumentError, match="is a search"):
        experiment.rerun(name, progress=False)
    result = experiment.continue_search(name, progress=False)
    assert result.counts["completed"] == 6
    assert [row["value"] for row in result.rows][:2] == [0.051182162470025674, 0.014415961271963373]
