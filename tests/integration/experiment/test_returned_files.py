"""Tests of returned values and files of the worker's folder: text stays text, files arrive with their origin."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.cluster.worker import returned
from hopsml.errors import WorkerFailed
from tests.helpers.clock import END_S
from tests.helpers.cluster import backend_contract

pytestmark = pytest.mark.local

TEXTS = {
    "backbone": "microsoft/resnet-50",
    "device": "/GPU:0",
    "when": "22/11/2026",
    "url": "hdfs://nn/models/m",
    "long": "a/" * 5000,
    "nul": "a/\0",
    "empty": "",
}


def submit(function: Any, workers: int = 1) -> Any:
    return backend_contract.submit(function, workers)


def local_path(url: str) -> Path:
    return Path(url.removeprefix("file://"))


def test_returned_text_is_unchanged(store: Path) -> None:
    assert submit(lambda: TEXTS).result(END_S).value == TEXTS


def with_options() -> list[str]:
    """Parse the command line, as a program that also runs standalone does."""
    import argparse
    import sys

    argparse.ArgumentParser().parse_args()
    return sys.argv


def test_argument_parser_in_a_worker_receives_only_the_function_name(store: Path) -> None:
    assert submit(with_options).result(END_S).value == ["with_options"]


def test_returned_files_arrive_in_the_run_directory_without_overwriting(store: Path) -> None:
    def train() -> dict[str, Any]:
        for folder in ("a", "b"):
            Path(folder).mkdir()
            Path(folder, "plot.png").write_text(folder)
        Path("run.json").write_text("mine")
        return {"text": "a/plot.png", "path": Path("b/plot.png"), "listed": [Path("run.json"), "a/plot.png"]}

    result = submit(train).result(END_S)
    home = f"Experiments/{result.run_id}"
    assert result.value == {
        "text": f"{home}/plot.png",
        "path": f"{result.run_dir}/plot-2.png",
        "listed": [f"{result.run_dir}/run-2.json", "a/plot.png"],
    }
    assert local_path(result.value["path"]).read_text() == "b"
    directory = local_path(result.run_dir)
    assert [(directory / name).read_text() for name in ("plot.png", "plot-2.png", "run-2.json")] == ["a", "b", "mine"]
    assert '"verb"' in (directory / "run.json").read_text()


def test_values_that_cannot_be_sent_are_omitted_with_a_note(store: Path) -> None:
    def train() -> dict[str, Any]:
        import threading

        Path("folder").mkdir()
        value: dict[str, Any] = {
            "accuracy": 0.9,
            "path": Path("missing/plot.png"),
            "folder": Path("folder"),
            "lock": threading.Lock(),
            "deep": {"fine": [1, 2], "generator": (n for n in range(3))},
        }
        value["itself"] = [value]
        value["circle"] = value
        return value

    run = submit(train)
    assert run.result(END_S).value == {"accuracy": 0.9, "deep": {"fine": [1, 2]}}
    assert run.directory.read_status()["state"] == "FINISHED"
    notes = {
        found[1]: note
        for note in run.state.notes
        if (found := re.search(r"the entry (\S+) of the value that the", note))
    }
    assert set(notes) == {"['path']", "['folder']", "['lock']", "['deep']['generator']", "['itself']", "['circle']"}
    assert re.search(r"'missing/plot\.png' is missing; write it before.*worker's folder is /", notes["['path']"])
    assert "'folder' is a folder; save it below" in notes["['folder']"]
    assert re.search(r"a lock, is omitted: it cannot be pickled \(TypeError: .*; return numbers", notes["['lock']"])
    assert "contains itself" in notes["['itself']"] and "contains itself" in notes["['circle']"]


def test_result_without_a_serializable_value_leaves_a_finished_run(store: Path) -> None:
    run = submit(lambda: (n for n in range(3)))
    assert run.result(END_S).value is None
    assert any("returned, a generator, is omitted: it cannot be pickled" in note for note in run.state.notes)


class Opaque:
    """Object whose text is its address only."""


def test_object_without_a_text_of_its_own_is_returned_with_a_note(store: Path) -> None:
    run = submit(lambda: {"accuracy": 0.9, "model": Opaque()})
    result = run.result(END_S)
    assert type(result.value["model"]).__name__ == "Opaque"
    assert any("an object of class Opaque: only this program gets it" in note for note in run.state.notes)
    stored = run.directory.read_json(run.directory.outputs_json)
    assert stored["model"].endswith("Opaque object>") and "0x" not in result.summary()


def test_oversized_value_is_stored_in_the_run_directory(store: Path) -> None:
    def train() -> dict[str, Any]:
        Path("result.pickle").write_text("the function's own")
        return {"large": bytes(returned.MAX_RESULT), "accuracy": 0.9}

    run = submit(train)
    assert run.result(END_S).value == {"accuracy": 0.9}
    (stored_path,) = [
        found[1] for note in run.state.notes if (found := re.search(r"it is stored in (\S+); read", note))
    ]
    assert stored_path == f"{run.run_dir}/artifacts/result-2.pickle"
    value = pickle.loads(local_path(stored_path).read_bytes())
    assert value == {"large": bytes(returned.MAX_RESULT), "accuracy": 0.9}
    assert any("not sent to the driver: 'large' (48 MiB)" in note for note in run.state.notes)


@pytest.mark.variant
def test_unpicklable_trial_output_does_not_fail_the_trial(store: Path) -> None:
    def train(x: int) -> dict[str, Any]:
        return {"loss": x, "odd": (n for n in range(x)), "path": Path("missing")}

    found = experiment.search(train, {"x": ("DISCRETE", [1])}, searcher="grid", progress=False, metric="loss")
    assert found.value == 1.0 and list(found.trials.state) == ["completed"]
    (log,) = local_path(found.run_dir).glob("trials/*/*.log")
    assert (
        "the entry ['odd'] of the value that the training function returned, a generator, is omitted" in log.read_text()
    )


def test_files_in_the_workers_folder_are_stored_as_artifacts(store: Path) -> None:
    def train() -> None:
        from hopsml.cluster.worker.context import current

        context = current()
        assert context is not None
        Path("plots").mkdir()
        Path("plots", "loss.svg").write_text(f"of rank {context.rank}")
        if context.rank == 1:
            Path("only").write_text("there")

    result = submit(train, workers=2).result(END_S)
    prefix = f"{result.run_dir}/artifacts/"
    assert [url.removeprefix(prefix) for url in result.artifacts] == [
        "plots/loss.svg",
        "rank-1/only",
        "rank-1/plots/loss.svg",
    ]
    contents = [local_path(url).read_text() for url in result.artifacts]
    assert contents == ["of rank 0", "there", "of rank 1"]
    assert re.search(r"artifacts +plots/loss\.svg, rank-1/only", result.summary())


def test_files_of_a_failed_function_are_stored_as_artifacts(store: Path) -> None:
    def train() -> None:
        Path("before.txt").write_text("it failed")
        raise SystemExit(3)

    run = submit(train)
    with pytest.raises(WorkerFailed):
        run.result(END_S)
    assert (local_path(run.run_dir) / "artifacts" / "before.txt").read_text() == "it failed"


def test_missing_relative_path_error_names_the_workers_folder(store: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"'data\.csv' \(a relative path refers to the worker's folder /"):
        submit(lambda: Path("data.csv").read_text()).result(END_S)
    with pytest.raises(WorkerFailed) as caught:
        submit(lambda: Path("/data.csv").read_text()).result(END_S)
    assert "is looked up" not in str(caught.value)


def test_trial_stores_only_its_own_artifacts(store: Path) -> None:
    def train(x: int) -> int:
        Path(f"model-{x}").write_text(str(x))
        if x == 2:
            Path("nothing.csv").read_text()
        return x

    found = experiment.search(
        train, experiment.Searchspace(x=("DISCRETE", [0, 1, 2])), searcher="grid", progress=False, retries=0
    )
    stored = {path.parent.parent.name: path.name for path in local_path(found.run_dir).glob("trials/*/artifacts/*")}
    assert sorted(stored.values()) == ["model-0", "model-1", "model-2"] and len(stored) == 3
    (failed,) = found.trials[found.trials.state == "failed"].to_dict("records")
    assert "refers to the worker's folder" in failed["error"]


def test_files_above_the_size_limit_are_omitted_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "cwd"
    (folder / "hopsml-unused-1").mkdir(parents=True)
    (folder / "hopsml-unused-1" / "own").write_text("own")
    (folder / "large").write_bytes(bytes(2000))
    (folder / "small").write_bytes(bytes(20))
    (folder / "dangling").symlink_to("nowhere")
    note = returned.store_files(folder, tmp_path / "kept", limit_bytes=1500)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["small"]
    assert "are not stored, since the limit is 0.0 GB: large; save large files" in note
    assert returned.store_files(folder, tmp_path / "kept") == ""
    assert (tmp_path / "kept" / "large").stat().st_size == 2000


def test_existing_files_are_omitted_unless_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "cwd"
    folder.mkdir()
    (folder / "old").write_text("old")
    (folder / "again").write_text("first")
    before = returned.stamps(folder)
    (folder / "again").write_text("second")
    (folder / "new").write_text("new")
    moment = (folder / "old").stat().st_mtime_ns
    for name in ("again", "new"):  # the clock has not advanced in between
        os.utime(folder / name, ns=(moment, moment))
    assert returned.store_files(folder, tmp_path / "kept", before) == ""
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["again", "new"]


def test_returned_file_name_of_a_launch_becomes_its_project_path(store: Path) -> None:
    def train(number: int) -> dict[str, str]:
        Path("plot.png").write_text(str(number))
        return {"plot": "plot.png"}

    result = experiment.launch(train, {"number": [1, 2]}, progress=False)
    for number, run in enumerate(result.runs, 1):
        assert (store / run.metrics["plot"]).read_text() == str(number)


@pytest.mark.parametrize("inside", [pytest.param(False, marks=pytest.mark.variant), True], ids=["alone", "in a dict"])
def test_returned_model_is_noted_with_a_remedy(store: Path, inside: bool) -> None:
    def train() -> Any:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression()
        return {"loss": 0.5, "model": model} if inside else model

    run = submit(train)
    value = run.result(END_S).value
    assert type(value["model"] if inside else value).__name__ == "LogisticRegression"
    (note,) = [note for note in run.state.notes if "returned a model" in note]
    assert "(sklearn: LogisticRegression)" in note and "hopsml.model.export(model, 'NAME')" in note


def test_models_of_all_frameworks_are_recognised() -> None:
    assert returned._models({"loss": 0.5}) == returned._models(TEXTS) == returned._models([1, 2]) == []

    class Module:
        """Stand-in for torch's class, whose import takes seconds."""

    Module.__module__ = "torch.nn.modules.module"

    class Net(Module):
        """A model class of a user."""

    assert returned._models((1, Net())) == ["tests: Net"]
