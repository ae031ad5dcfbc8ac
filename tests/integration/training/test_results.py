"""Tests of complete and equal checkpoints on every rank; and of reports and exports of the chief."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hopsml.storage.checkpoints import read_retention
from hopsml.training.checkpoint_files import complete_checkpoints
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.training.group import group, run_group

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Two workers that saved, restored and exported, in a directory with something half-written."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "checkpoints" / ".step-000000099.tmp").mkdir(parents=True)
    (folder / "checkpoints" / "step-000000098").mkdir()
    return folder, run_group("results:save_and_restore", folder)


def test_restored_weights_equal_the_saved_ones_on_all_ranks(saved: tuple[Path, list[dict[str, Any]]]) -> None:
    _, (first, second) = saved
    assert (first["nothing"], first["restored"]) == (0, 30)
    assert first["notes"] == {"note": "at 30"}
    before, spoiled, after, fresh = first["weights"]
    assert before == after == fresh != spoiled
    assert first["iterations"] == 3
    assert first["weights"] == second["weights"]
    assert first["restored"] == second["restored"]


def test_only_the_requested_number_of_complete_checkpoints_is_retained(
    saved: tuple[Path, list[dict[str, Any]]],
) -> None:
    folder, _ = saved
    assert [one.step for one in complete_checkpoints(folder / "checkpoints")] == [20, 30]
    assert sorted(os.listdir(folder / "checkpoints")) == [
        ".keep",
        "step-000000020",
        "step-000000030",
        "step-000000098",  # not ours to remove, and never taken
    ]
    assert read_retention(folder / "checkpoints") == 2, "the mirror keeps as many"
    assert not list(folder.glob("work-*/hopsml-unused-*"))


def test_chief_sends_folders_of_any_size(saved: tuple[Path, list[dict[str, Any]]]) -> None:
    _, (first, second) = saved
    assert first["sent_folder"] == second["sent_folder"]
    assert [name for name, _ in first["sent_folder"]] == ["below/empty", "large"]


def test_exported_model_predicts_and_foreign_checkpoint_is_refused(
    saved: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, (first, second) = saved
    assert first["export"] == second["export"] == str(folder / "export" / "digits")
    assert os.listdir(folder / "export") == ["digits"]
    (result,) = run_group(
        "results:read_alone", tmp_path, workers=1, directory=str(tmp_path / "c"), export=first["export"]
    )
    assert result["export"] == {"shape": [5, 3], "finite": True}
    assert "lacks variables of what is to be restored" in result["error"]


@pytest.mark.variant  # of a model with one
def test_model_with_two_optimizers_resumes_with_both(tmp_path: Path) -> None:
    run_group("results:fit_two_optimizers", tmp_path / "a", workers=1, epochs=2)
    steps = [one.step for one in complete_checkpoints(tmp_path / "a" / "checkpoints")]
    (longer,) = run_group("results:fit_two_optimizers", tmp_path / "a", workers=1, epochs=3)
    (undisturbed,) = run_group("results:fit_two_optimizers", tmp_path / "b", workers=1, epochs=3)
    assert steps == [2, 4, 6] and longer["begun"] == [2] and undisturbed["begun"] == [0, 1, 2]
    assert longer["counts"] == undisturbed["counts"] == [9, 9]
    assert longer["weights"] == undisturbed["weights"]


def test_fit_reports_from_the_chief_and_resumes_from_the_last_complete_checkpoint(tmp_path: Path) -> None:
    first, second = run_group("results:fit_with_callbacks", tmp_path / "a", epochs=5, every=2, stop_at=4)
    assert (first["begun"], first["iterations"]) == ([0, 1], 4)
    last = complete_checkpoints(tmp_path / "a" / "checkpoints")[-1]
    assert (last.step, last.notes["epoch"]) == (4, 1)
    assert second["sent"] == []
    assert [message["step"] for message in first["sent"]] == [1, 2, 3, 3, 4, 4]
    assert all(message["kind"] == "report" for message in first["sent"])
    names = [set(message["metrics"]) for message in first["sent"]]
    within, ends = {"batch_loss", "batch_accuracy"}, {"loss", "accuracy"}
    assert names == [within, within, within, ends, within, ends]
    # Another run with an empty directory and the option to resume.
    third, fourth = run_group(
        "results:fit_with_callbacks",
        tmp_path / "b",
        epochs=3,
        every="epoch",
        context={"resume_checkpoint": str(last.folder)},
    )
    assert third["begun"] == fourth["begun"] == [1, 2]
    assert third["iterations"] == 4 + 2 * 3
    sent = [message["metrics"] for message in third["sent"] if "loss" in message["metrics"]]
    assert [one["loss"] for one in sent] == third["losses"] == fourth["losses"], "as Keras has it of the epoch"
    assert third["weights"] == fourth["weights"] != first["weights"] == second["weights"]
    assert complete_checkpoints(tmp_path / "b" / "checkpoints")[-1].notes["epoch"] == 3


@pytest.mark.variant  # of integration/experiment/test_resume_fits.py
def test_each_fit_of_a_function_has_separate_checkpoints(tmp_path: Path) -> None:
    """Three models one after another."""
    undisturbed, other = run_group("results:several_fits", tmp_path / "whole", reuse=True)
    assert undisturbed["begun"] == other["begun"] == [[0, 1], [0, 1, 2], [0, 1, 2]]
    assert undisturbed["histories"] == [2, 3, 3]
    places = [tmp_path / "whole" / name for name in ("checkpoints", "fit-2/checkpoints", "fit-3/checkpoints")]
    assert [complete_checkpoints(place)[-1].notes["epoch"] for place in places] == [2, 3, 3]


@pytest.mark.variant  # of tests/integration/experiment/test_resume_fits.py, to the last bit of the weights
def test_run_interrupted_in_its_second_fit_ends_with_undisturbed_weights(
    tmp_path: Path,
) -> None:
    undisturbed, _ = run_group("results:several_fits", tmp_path / "whole", reuse=True)
    first, _ = run_group("results:several_fits", tmp_path / "first", broken_off=True)
    assert first["begun"] == [[0, 1], [0, 1]]
    last = complete_checkpoints(tmp_path / "first" / "checkpoints")[-1].folder
    shutil.copytree(
        complete_checkpoints(tmp_path / "first" / "fit-2" / "checkpoints")[-1].folder,
        tmp_path / "fits" / "fit-2" / "step-000000002",
    )
    resume = {"resume_checkpoint": str(last), "resume_fits": str(tmp_path / "fits")}
    second, peer = run_group("results:several_fits", tmp_path / "second", context=resume)
    assert second["begun"] == peer["begun"] == [[], [1, 2], [0, 1, 2]], (
        "the first was over, though it had stopped early"
    )
    assert second["histories"] == [2, 3, 3]
    assert second["weights"] == peer["weights"]
    assert (
        second["weights"][::2] == undisturbed["weights"][::2]
    )  # the order of the data within a fit is not part of a checkpoint


@pytest.mark.variant
def test_elastic_group_resumes_each_fit_of_a_fixed_size_run(tmp_path: Path) -> None:
    run_group("results:several_fits", tmp_path / "first", workers=1, broken_off=True)
    resume = {"resume_checkpoint": str(complete_checkpoints(tmp_path / "first" / "checkpoints")[-1].folder)}
    last = complete_checkpoints(tmp_path / "first" / "fit-2" / "checkpoints")[-1].folder
    shutil.copytree(last, tmp_path / "fits" / "fit-2" / last.name)
    resume["resume_fits"] = str(tmp_path / "fits")
    slots = str(tmp_path / "slots")
    (again,) = run_group("results:several_fits", tmp_path / "second", workers=1, context=resume, slots=slots)
    assert again["begun"] == [[], [1, 2], [0, 1, 2]] and again["histories"] == [2, 3, 3]


@pytest.mark.variant
def test_larger_epoch_count_continues_the_first_fit_and_restarts_later_ones(tmp_path: Path) -> None:
    run_group("results:several_fits", tmp_path / "first", workers=1)
    resume = {"resume_checkpoint": str(complete_checkpoints(tmp_path / "first" / "checkpoints")[-1].folder)}
    for number in (2, 3):
        last = complete_checkpoints(tmp_path / "first" / f"fit-{number}" / "checkpoints")[-1].folder
        shutil.copytree(last, tmp_path / "fits" / f"fit-{number}" / last.name)
    resume["resume_fits"] = str(tmp_path / "fits")
    (again,) = run_group("results:several_fits", tmp_path / "second", workers=1, context=resume, epochs=4)
    assert again["begun"] == [[3], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_kill_while_saving_leaves_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    with group("results:save_for_ever", tmp_path / "saver", workers=1, directory=str(directory)) as saver:
        deadline = clock.awake() + 60
        while not (complete_checkpoints(directory) and list(directory.glob(".step-*.tmp"))):
            assert clock.awake() < deadline, saver.log(0)
            assert saver.processes[0].poll() is None, saver.log(0)
            time.sleep(0.001)
        saver.processes[0].send_signal(signal.SIGKILL)
        saver.processes[0].wait(END_S)
    newest = complete_checkpoints(directory)[-1].step
    result = run_group("results:restore_number", tmp_path / "reader", workers=1, directory=str(directory))[0]
    assert (result["step"], result["values"]) == (newest, [float(newest)])
    assert not list(directory.glob(".step-*"))  # swept up by the save that followed
