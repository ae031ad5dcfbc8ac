"""Tests of recorded inputs: facts on a file or folder, in a worker and on the driver."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from hopsml import tracking
from hopsml.core.variables import LARGEST_SEED
from hopsml.errors import ArgumentError
from hopsml.tracking import inputs


def test_seed_argument_takes_precedence_over_the_environment() -> None:
    assert inputs.choose_seed({"HOPSML_SEED": "7"}, {"HOPSML_SEED": "8"}) == 7
    assert inputs.choose_seed({}, {"HOPSML_SEED": "8"}) == 8


def test_drawn_seeds_differ() -> None:
    drawn = {inputs.choose_seed({}, {}) for _ in range(20)}
    assert len(drawn) > 15
    assert all(0 <= seed <= LARGEST_SEED for seed in drawn)


@pytest.mark.parametrize("text", ["-1", "1.5", "abc", str(2**32), "²", " 1"])
def test_invalid_seed_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"HOPSML_SEED=.*whole number from 0 to 4294967295"):
        inputs.choose_seed({"HOPSML_SEED": text}, {})


def test_program_without_a_run_has_seed_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOPSML_SEED", raising=False)
    assert tracking.seed() == 0
    monkeypatch.setenv("HOPSML_SEED", "12")
    assert tracking.seed() == 12


pytestmark = pytest.mark.fast


@dataclass
class Worker:
    rank: int
    events_dir: Path


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_write", None)
    monkeypatch.setattr(inputs, "_of_driver", {})


def test_file_input_is_identified_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "train.csv"
    file.write_bytes(b"1,2\n")
    found = inputs.describe(str(file))
    assert (found["bytes"], found["files"], found["checksum_of"]) == (4, 1, "content")
    assert found["checksum"] == "sha256:" + hashlib.sha256(b"1,2\n").hexdigest()
    assert inputs.describe(f"file://{file}")["checksum"] == found["checksum"]


def test_folder_input_is_identified_by_names_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "part").mkdir(parents=True)
    (folder / "part" / "a").write_bytes(b"a")
    (folder / "b").write_bytes(b"bb")
    before = inputs.describe(str(folder))
    assert (before["bytes"], before["files"]) == (3, 2)
    assert inputs.describe(f"{folder}/")["checksum"] == before["checksum"]
    (folder / "b").rename(folder / "c")
    renamed = inputs.describe(str(folder))
    (folder / "c").write_bytes(b"cc")
    assert len({before["checksum"], renamed["checksum"], inputs.describe(str(folder))["checksum"]}) == 3


def test_large_input_is_identified_by_size_and_time(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"12345")
    found = inputs.describe(str(file), limit_bytes=4)
    assert found["checksum_of"] == "names, sizes and times"
    file.write_bytes(b"123456")
    assert inputs.describe(str(file), limit_bytes=4)["checksum"] != found["checksum"]


def test_inputs_declared_on_the_driver_belong_to_later_runs(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("x")
    assert tracking.data(file) is file
    tracking.data(str(file))
    assert [entry["url"] for entry in inputs.recorded_inputs()] == [str(file)]


def test_chief_records_inputs_in_the_run_directory(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("x")
    inputs.start_recording(Worker(1, tmp_path / "events"))
    assert tracking.data(str(file)) == str(file)
    assert not (tmp_path / "inputs.jsonl").exists()
    inputs.start_recording(Worker(0, tmp_path / "events"))
    tracking.data(str(file))
    tracking.data(str(tmp_path / "missing"))
    noted = [json.loads(line) for line in (tmp_path / "inputs.jsonl").read_text().splitlines()]
    assert noted[0]["bytes"] == 1
    assert "missing" in noted[1]["problem"]
    assert not inputs.recorded_inputs()


def test_input_with_unsupported_scheme_is_recorded_with_its_problem() -> None:
    assert tracking.data("nonsense://x/y") == "nonsense://x/y"
    assert "nonsense" in inputs.recorded_inputs()[0]["problem"]
