"""Tests of reruns: bit-identical if seeded, reported if not, refused if impossible."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hopsml import experiment
from hopsml.cluster.shared.plain import argument_as_json, as_json
from hopsml.errors import ArgumentError, WorkerFailed
from hopsml.experiment import repeat
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import catalog
from tests.helpers.clock import END_S
from tests.helpers.local_application import local_application
from tests.helpers.tracking import jobs

pytestmark = pytest.mark.local

ROOT = Path(__file__).parents[3]
WAIT_S = 60.0


def run_once(function: Callable[..., Any], **options: Any) -> experiment.Run:
    run = experiment.submit(function, progress=False, **{"num_workers": 2, **options})
    run.result(END_S)
    return run


def folder_of(run: experiment.Run) -> Path:
    return Path(run.run_dir.removeprefix("file://"))


def change(directory: RunDir, **entries: Any) -> None:
    directory.write_run({**directory.read_run(), **entries})


def test_rerun_of_a_seeded_training_has_bit_identical_weights(store: Path) -> None:
    first = run_once(jobs.descend, args={"lr": 0.03}, name="descent", merge_scope="all", environment={"MODE": "x"})
    again = repeat.rerun(first, progress=False)
    assert again.verdict.same and set(again.verdict.compared) == {"loss", "weights"}
    assert again.verdict.causes == (), "nothing may differ in how they were made"
    assert first.result().metrics["weights"] == again.result.metrics["weights"]
    one, other = catalog.read(RunDir(first.run_dir)), catalog.read(RunDir(again.result.run_dir))
    assert other.run["rerun_of"] == first.run_dir
    compared = (
        "verb",
        "name",
        "arguments",
        "workers",
        "seed",
        "source",
        "code_sha256",
        "payload_sha256",
        "spec",
    )
    assert {name: one.run[name] for name in compared} == {name: other.run[name] for name in compared}
    # A rerun can be repeated itself.
    assert repeat.rerun(again.result, progress=False).verdict.same


@pytest.mark.variant
def test_runs_with_different_seeds_have_different_weights(store: Path) -> None:
    results = [run_once(jobs.descend, num_workers=1).result().metrics["weights"] for _ in range(2)]
    assert len(set(results)) == 2


def test_rerun_of_an_unseeded_function_reports_the_difference(store: Path) -> None:
    again = repeat.rerun(run_once(jobs.unseeded, num_workers=1), progress=False)
    assert not again.verdict.same
    assert [found.name for found in again.verdict.differing] == ["metric"]
    ignoring = repeat.rerun(again.original.url, progress=False, ignore=["metric"])
    assert ignoring.verdict.same


def test_rerun_of_a_failed_run_fails_again(store: Path) -> None:
    def fails() -> None:
        raise ValueError("as before")

    run = experiment.submit(fails, progress=False, num_workers=1)
    with pytest.raises(WorkerFailed):
        run.result(END_S)
    with pytest.raises(WorkerFailed, match="as before"):
        repeat.rerun(run.run_dir, progress=False)


def test_rerun_uses_the_recorded_function_after_its_file_changed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "own_module.py").write_text("def train():\n    return 1\n")
    code = (
        "import own_module, hopsml\n"
        "print(hopsml.experiment.submit(own_module.train, progress=False, num_workers=1).result().run_dir)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "own_module.py").write_text("def train():\n    return 2\n")
    again = repeat.rerun(done.stdout.strip(), progress=False)
    assert again.verdict.same and again.result.metrics["metric"] == 1
    assert "return 1" in catalog.read(RunDir(again.result.run_dir)).run["source"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of one run, made for all tests of what is refused."""
    with local_application(tmp_path_factory.mktemp("recorded")):
        run = run_once(jobs.unseeded, num_workers=1, environment={"HOPSML_TEST_TOKEN": "geheim"})
    return folder_of(run)


class TestRefused:
    """Refused reruns: no process is started, and the message names the remedy."""

    @pytest.fixture
    def run(self, recorded: Path, store: Path) -> Iterator[RunDir]:
        """A copy of it in a project of the test's own; no other run may come of the test."""
        copy = store / "Experiments" / recorded.name
        shutil.copytree(recorded, copy)
        yield RunDir(f"file://{copy}")
        assert list((store / "Experiments").iterdir()) == [copy]

    def test_changed_payload_is_refused(self, run: RunDir) -> None:
        Path(run.function.removeprefix("file://")).write_bytes(b"cos\nsystem\n(S'true'\ntR.")
        with pytest.raises(
            ArgumentError, match=r"function\.pickle differs from the record of run .*changed or damaged"
        ):
            repeat.build(run.url)

    def test_missing_payload_is_refused(self, run: RunDir) -> None:
        Path(run.function.removeprefix("file://")).unlink()
        with pytest.raises(ArgumentError, match=r"there is no .*function\.pickle.*[Ss]tart its script again"):
            repeat.build(run.url)

    def test_record_of_another_python_minor_version_is_refused(self, run: RunDir) -> None:
        change(run, python="3.9.18")
        with pytest.raises(ArgumentError, match=r"recorded with Python 3\.9\.18.*repeat the run with Python 3\.9"):
            repeat.build(run.url)

    def test_record_of_an_older_hopsml_is_refused(self, run: RunDir) -> None:
        change(run, spec=None)
        with pytest.raises(ArgumentError, match="made by an older or newer one"):
            repeat.build(run.url)

    @pytest.mark.parametrize("damaged", ["function", "own_imports", "source", "arguments", "python"])
    def test_record_without_an_entry_is_refused(
        self, run: RunDir, damaged: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOPSML_TEST_TOKEN", "geheim")
        run.write_run({name: value for name, value in run.read_run().items() if name != damaged})
        with pytest.raises(ArgumentError, match=r"start its script again|repeat the run with"):
            repeat.build(run.url)

    @pytest.mark.parametrize("entry", ["own_imports", "secrets", "format"])
    def test_record_with_a_number_as_an_entry_is_refused(
        self, run: RunDir, entry: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOPSML_TEST_TOKEN", "geheim")
        change(run, **{entry: 7e300 if entry == "format" else 7})
        with pytest.raises(ArgumentError, match=r"not as hopsml writes them|by a newer hopsml"):
            repeat.build(run.url)

    def test_unset_secret_variable_is_refused(self, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ArgumentError, match=r"HOPSML_TEST_TOKEN.*secret and were not recorded"):
            repeat.build(run.url)
        monkeypatch.setenv("HOPSML_TEST_TOKEN", "geheim")
        assert repeat.build(run.url).spec.environment["HOPSML_TEST_TOKEN"] == "geheim"

    def test_unknown_run_is_refused(self, run: RunDir) -> None:
        with pytest.raises(ArgumentError, match="'app_99'"):
            repeat.build("app_99")


def hopsml(*arguments: str, store: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a subprocess."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    return subprocess.run(
        [sys.executable, "-c", "from hopsml.cli import main; main()", *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


@pytest.mark.variant
def test_rerun_command_sets_the_recorded_hash_seed(store: Path) -> None:
    code = (
        "import hopsml; from tests.helpers.tracking import jobs\n"
        "print(hopsml.experiment.submit(jobs.order_of_a_set, progress=False, num_workers=1).result().run_dir)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    run_dir = done.stdout.strip()
    again = hopsml("runs", "rerun", run_dir, "--json", store=store)
    assert again.returncode == 0, again.stdout + again.stderr
    verdict = json.loads(again.stdout)
    assert verdict["same"] and verdict["original"] == run_dir and verdict["compared"] == ["metric"]


def test_rerun_command_exits_with_status_3_if_the_result_differs(store: Path) -> None:
    run = run_once(jobs.unseeded, num_workers=1)
    again = hopsml("runs", "rerun", run.run_id, store=store)
    assert again.returncode == 3, again.stdout + again.stderr
    assert "the results differ" in again.stdout and "result: metric" in again.stdout


def test_rerun_requests_secrets_again_and_passes_them_to_workers(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(api_key: str, url: str) -> dict[str, Any]:
        import os

        return {"length": len(api_key), "url": len(url), "of_a_variable": len(os.environ["UPLOAD_TOKEN"])}

    arguments = {"api_key": "s3cr3t-31415", "url": "https://anna:s3cr3t-url@host/x"}
    variables = {"UPLOAD_TOKEN": "s3cr3t-upload"}
    first = run_once(train, num_workers=1, args=arguments, environment=variables)
    with pytest.raises(ArgumentError, match="UPLOAD_TOKEN"):
        repeat.rerun(first, progress=False)
    monkeypatch.setenv("UPLOAD_TOKEN", "s3cr3t-upload")
    with pytest.raises(
        ArgumentError, match=r"received secrets.*: API_KEY, SECRET; set HOPSML_SECRET_API_KEY, HOPSML_SECRET_S"
    ):
        repeat.rerun(first, progress=False)
    monkeypatch.setenv("HOPSML_SECRET_SECRET", "s3cr3t-url")
    again = repeat.rerun(first, progress=False, secrets={"API_KEY": "s3cr3t-31415"})
    assert again.verdict.same and again.result.metrics["url"] == len(arguments["url"])
    for run in (first.run_dir, again.result.run_dir):
        for path in Path(run.removeprefix("file://")).rglob("*"):
            assert path.is_dir() or b"s3cr3t" not in path.read_bytes(), path


def test_argument_that_contains_a_secret_is_not_recorded_and_noted(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAREHOUSE_PASSWORD", "tr0ub4dor")
    first = run_once(lambda table: len(table), num_workers=1, args={"table": np.array([b"tr0ub4dor"])})
    assert any("cannot be repeated" in note and "WAREHOUSE_PASSWORD" in note for note in first.state.notes)
    for path in folder_of(first).rglob("*"):
        assert path.is_dir() or b"tr0ub4dor" not in path.read_bytes(), path
    with pytest.raises(ArgumentError, match=r"cannot be repeated.*WAREHOUSE_PASSWORD"):
        repeat.rerun(first, progress=False)


# ------------------------------------------------------------------------------------------------ large arguments


def total(x: Any, tables: Any, few: Any) -> float:
    return float(x.sum() + tables["frame"]["a"].sum() + sum(part.sum() for part in tables["parts"]) + sum(few))


def test_large_arguments_are_recorded_by_shape_type_and_digest(store: Path) -> None:
    x = np.arange(78_400, dtype=np.float32).reshape(280, 280)
    frame = pd.DataFrame({"a": np.ones(5_000), "b": ["text"] * 5_000})
    args = {"x": x, "tables": {"frame": frame, "parts": [x[:100], x[100:]]}, "few": np.array([1.5, 2.5])}
    run = run_once(total, num_workers=1, args=args)
    record = RunDir(run.run_dir).read_run()
    assert (folder_of(run) / "run.json").stat().st_size < 60_000
    assert record["arguments"]["few"] == [1.5, 2.5]
    assert record["arguments"]["x"] == {
        "type": "numpy.ndarray", "shape": [280, 280], "dtype": "float32", "bytes": 4 * 78_400,
        "sha256": hashlib.sha256(x.tobytes()).hexdigest(),
    }  # fmt: skip
    tables = record["arguments"]["tables"]
    assert tables["frame"]["shape"] == [5000, 2] and tables["frame"]["dtype"]["a"] == "float64"
    assert [part["shape"] for part in tables["parts"]] == [[100, 280], [180, 280]]
    assert repeat.rerun(run, progress=False).verdict.same
    # As they were recorded before: element by element.
    change(RunDir(run.run_dir), arguments={"x": x.tolist(), "tables": {"frame": str(frame)}, "few": [1.5, 2.5]})
    again = repeat.rerun(run, progress=False)
    assert again.verdict.same and again.result.value == run.result().value


@pytest.mark.fast
def test_recorded_argument_is_its_value_or_its_description() -> None:
    x = np.random.default_rng(1).random((40, 50))
    described = argument_as_json({"x": x, "y": {"z": [x.T]}})
    assert described["x"]["sha256"] == hashlib.sha256(x.tobytes()).hexdigest()
    assert described["y"]["z"][0]["sha256"] == hashlib.sha256(np.ascontiguousarray(x.T).tobytes()).hexdigest()
    assert (
        argument_as_json(x) == argument_as_json(x.copy())
        and argument_as_json(x)["sha256"] != argument_as_json(x + 1)["sha256"]
    )
    small = {
        "a": np.float32(0.5),
        "b": np.arange(3),
        "c": "text",
        "d": None,
        "e": (1, [2.0]),
        "f": Path("/x"),
        "g": True,
    }
    assert argument_as_json(small) == as_json(small)
    pixels = x.tolist()
    assert argument_as_json(pixels)["shape"] == [40] and argument_as_json(pixels)["type"] == "list"
    assert argument_as_json([1] * 1000) == [1] * 1000 and argument_as_json([1] * 1001)["shape"] == [1001]
    assert argument_as_json("a" * 30_000)["bytes"] == argument_as_json(b"a" * 30_000)["bytes"] == 30_000
    series, dates = pd.Series(range(2000)), pd.date_range("2026-01-01", periods=2000)
    assert argument_as_json(series)["shape"] == [2000] and argument_as_json(series)["dtype"] == "int64"
    assert argument_as_json(dates)["dtype"].startswith("datetime64")
    objects = np.array([{"a": 1}] * 2000, dtype=object)
    assert argument_as_json(objects)["dtype"] == "object" and len(argument_as_json(objects)["sha256"]) == 64
    assert argument_as_json(np.zeros((0, 5))) == [] and isinstance(argument_as_json(np.ndarray), str)
    assert json.loads(json.dumps(argument_as_json({"frame": pd.DataFrame({"a": range(2000)})})))["frame"]["shape"] == [
        2000,
        1,
    ]


@pytest.mark.torch
def test_recorded_tensor_is_described_by_shape_type_and_digest() -> None:
    import torch

    x = torch.arange(4000, dtype=torch.float32).reshape(40, 100)
    expected = hashlib.sha256(x.numpy().tobytes()).hexdigest()
    assert argument_as_json(x) == {
        "type": "torch.Tensor", "shape": [40, 100], "dtype": "torch.float32", "bytes": 16_000, "sha256": expected,
    }  # fmt: skip
    assert argument_as_json(x.to(torch.bfloat16))["bytes"] == 8_000
    weights = torch.nn.Parameter(x)
    assert argument_as_json({"weights": weights})["weights"]["sha256"] == expected
    assert argument_as_json(x.to_sparse())["shape"] == [40, 100]
    assert argument_as_json(torch.tensor(0.5)) == 0.5
