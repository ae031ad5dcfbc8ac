"""Tests of the run directory: names, records, and assignment of numbers."""

from __future__ import annotations

import json
import math
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hopsml.errors import ArgumentError, ArgumentTypeError, PathExists, PathNotFound, StorageError
from hopsml.storage import run_dir, segments, trust
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir, create_run_dir, parse_step_name, step_name
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast


def test_run_dir_has_all_documented_names() -> None:
    run = RunDir("hdfs://nn:8020/Projects/p/Experiments/app_1_2/")
    root = "hdfs://nn:8020/Projects/p/Experiments/app_1_2"
    assert run.run_id == "app_1_2"
    assert [
        run.run_json,
        run.status_json,
        run.code,
        run.events,
        run.checkpoints,
        run.logs,
        run.log_url(0, 3),
        run.metrics,
        run.export,
        run.outputs_json,
        run.hparams_json,
        run.trials,
    ] == [
        f"{root}/{name}"
        for name in (
            "run.json",
            "status.json",
            "code",
            "events",
            "checkpoints",
            "logs",
            "logs/g0-rank3.log",
            "metrics.jsonl",
            "export",
            ".outputs.json",
            ".hparams.json",
            "trials",
        )
    ]


def test_step_names_sort_as_numbers() -> None:
    assert sorted(map(step_name, (5, 1000, 90))) == [step_name(5), step_name(90), step_name(1000)]
    assert parse_step_name(step_name(120)) == 120
    assert parse_step_name(step_name(12_345_678_901)) == 12_345_678_901
    assert [parse_step_name(name) for name in ("step-12", "step-000000012.tmp", ".tmp-ab", "step-")] == [None] * 4
    for wrong in (-1, 1.5, True):
        with pytest.raises(ArgumentError, match="whole number"):
            step_name(wrong)  # type: ignore[arg-type]


def test_run_records_round_trip_and_invalid_ones_are_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path)

    @dataclass
    class Slot:
        gpu: int

    assert run.read_status() is None
    with pytest.raises(PathNotFound):
        run.read_run()
    run.write_run(
        {
            "lr": np.float32(0.5),
            "shape": np.arange(3),
            "path": Path("/x"),
            "slot": Slot(1),
            "set": {7},
            "name": "ü",
        }
    )
    assert run.read_run() == {
        "lr": 0.5,
        "shape": [0, 1, 2],
        "path": "/x",
        "slot": {"gpu": 1},
        "set": [7],
        "name": "ü",
    }
    run.write_status({"state": "FINISHED", "loss": math.nan})
    status = run.read_status()
    assert status is not None
    assert math.isnan(status["loss"])
    with pytest.raises(ArgumentTypeError, match="socket"):
        run.write_status({"x": __import__("socket").socket})
    assert run.read_status() is not None  # the old one is whole
    Path(run.run_json).write_text("[1]")
    with pytest.raises(StorageError, match="JSON object"):
        run.read_run()
    for content in (b"{", b"[" * 100_000, b'{"a": "\xff"}'):
        Path(run.run_json).write_bytes(content)
        with pytest.raises(StorageError, match="not JSON"):
            run.read_run()
        with pytest.raises(StorageError, match="not JSON"):
            run_dir.read_job_record(run.run_json)


@pytest.mark.parametrize(
    "read",
    [
        lambda folder: RunDir(folder).read_run(),
        lambda folder: RunDir(folder).read_json_lines(f"{folder}/run.json"),
        lambda folder: trust.read_bytes(f"{folder}/run.json", "it is run"),
        lambda folder: run_dir.read_job_record(f"{folder}/run.json"),
        lambda folder: segments.SegmentReader(folder).read_new_lines(),
    ],
    ids=["record", "lines", "trusted", "job", "journal"],
)
def test_oversized_records_are_refused_unread(tmp_path: Path, read: Callable[[str], object]) -> None:
    """Sparse files as large as a disk, which cost whoever makes them nothing."""
    for name in ("run.json", "0001-000001.jsonl"):
        with (tmp_path / name).open("wb") as sparse:
            sparse.truncate(1 << 42)
    with pytest.raises(StorageError, match=r"it has more than the 67108864 bytes that a record"):
        read(str(tmp_path))


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_run_numbers_count_from_one_per_application(kind: str, tmp_path: Path) -> None:
    project = str(tmp_path) if kind == "file" else f"memory://b/{secrets.token_hex(8)}"
    assert create_run_dir(project, "app_1").run_id == "app_1_1"
    assert create_run_dir(project, "app_1", {"name": "x"}).read_run() == {"name": "x"}
    assert create_run_dir(project, "app_1").run_id == "app_1_3"
    assert create_run_dir(project, "app").run_id == "app_1"  # a name that is the prefix of another
    assert create_run_dir(project, "app_11").run_id == "app_11_1"
    for_url(project).make_dirs(f"{project}/Experiments/app_2_9")  # no record in it: the number counts all the same
    for_url(project).write_bytes(f"{project}/Experiments/app_2_9/x", b"")
    assert create_run_dir(project, "app_2").run_id == "app_2_10"
    for wrong in ("", "a/b"):
        with pytest.raises(ArgumentError, match="app_id"):
            create_run_dir(project, wrong)


def test_concurrent_processes_create_different_runs(tmp_path: Path) -> None:
    script = f"""
import sys
from hopsml.storage.run_dir import create_run_dir
sys.stdin.readline()
print([create_run_dir({str(tmp_path)!r}, "app").run_id for _ in range(25)])
"""
    claimers = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for claimer in claimers:
        assert claimer.stdin is not None
        claimer.stdin.write("go\n")
        claimer.stdin.flush()
    answers = [claimer.communicate(timeout=END_S)[0] for claimer in claimers]
    ids = [name for answer in answers for name in json.loads(answer.replace("'", '"'))]
    assert sorted(ids) == sorted(f"app_{number}" for number in range(1, 51))


def test_file_in_place_of_the_project_or_its_runs_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(PathExists, match="is a file; set HOPSML_PROJECT_URL to a folder"):
        create_run_dir(f"file://{tmp_path}/file", "app_1")
    (tmp_path / "Experiments").write_text("x")
    with pytest.raises(StorageError, match="Experiments"):
        create_run_dir(f"file://{tmp_path}", "app_1")


def test_relative_run_path_is_resolved_against_the_drivers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run_dir.create_run_dir(f"file://{tmp_path}", "app_1", {"name": "x"})
    monkeypatch.chdir(tmp_path)
    found = run_dir.find_run_dir(f"Experiments/{made.run_id}", "file:///nowhere")
    assert found.url == f"{tmp_path}/Experiments/{made.run_id}" and found.read_run()["name"] == "x"


def test_run_within_a_run_is_found_by_its_id(tmp_path: Path) -> None:
    project = f"file://{tmp_path}"
    whole = create_run_dir(project, "app-1", {})
    for number, name in enumerate(("lr=0.1&layers=2", "lr=0.2&layers=3")):
        nested = RunDir(f"{whole.url}/{name}")
        nested.write_run({})
        nested.write_status({"run_id": f"{whole.run_id}-{number}", "state": "FINISHED"})
    assert run_dir.find_run_dir(f"{whole.run_id}-1", project).url == f"{whole.url}/lr=0.2&layers=3"
    for unknown in (f"{whole.run_id}-2", "app-2_1-0", "app-2"):
        with pytest.raises(ArgumentError, match=rf"run '{unknown}': there is no file "):
            run_dir.find_run_dir(unknown, project)
