"""Tests that tuning measures on the workers of a training, records its choice, and that a run uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.cluster.shared.spec import Communication
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError, PathNotFound, StorageError
from hopsml.experiment import tuned
from tests.helpers.clock import END_S

pytestmark = pytest.mark.local
RECORD = {
    "chosen": "hopsml", "ratio": 0.4, "settings": {"implementation": "hopsml"},
}  # fmt: skip


def communication() -> dict[str, Any]:
    context = current()
    assert context is not None
    return {"implementation": context.spec.communication.implementation}


def test_run_uses_its_tuned_settings(store: Path) -> None:
    tuned.write_record(tuned.record_url("communication", 2), RECORD)
    run = experiment.submit(communication, num_workers=2, tuned=True, progress=False)
    assert run.result(END_S).metrics["implementation"] == "hopsml"
    assert run.result().implementation == "hopsml" and run.result().tuned is True
    assert "tuned communication: hopsml, 0.40 of the time with the default settings" in run.state.notes


def test_tuned_without_a_record_is_noted_and_has_no_effect(store: Path) -> None:
    given = Communication(tuned=True)
    assert tuned.with_tuned_settings(given, "train", 3) == (
        given,
        f"tuned=True has no effect: train() was not tuned for 3 workers (file://{store}/Communication/train-3.json)",
    )
    assert tuned.with_tuned_settings(Communication(), "train", 3) == (Communication(), "")


def test_named_tuning_record_must_exist_and_be_valid(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    with pytest.raises(PathNotFound):
        tuned.with_tuned_settings(Communication(tuned=str(file)), "train", 2)
    file.write_text('{"settings": {"implementation": "hopsml"}}')
    with pytest.raises(
        StorageError, match=r"record.json is not a record of hopsml runs tune-communication \(KeyError: 'chosen'\)"
    ):
        tuned.with_tuned_settings(Communication(tuned=str(file)), "train", 2)


def test_named_arguments_override_the_tuned_settings(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    chosen = {"implementation": "tensorflow", "merge_scope": "all", "scoped_allocator": False}
    file.write_text(json.dumps({**RECORD, "settings": chosen}))
    found, _ = tuned.with_tuned_settings(Communication(tuned=str(file), merge_scope=8), "train", 2)
    assert (found.implementation, found.merge_scope, found.scoped_allocator) == ("tensorflow", 8, False)


@pytest.mark.parametrize(
    ("given", "chosen", "message"),
    [
        (
            {"merge_scope": 8},
            {"implementation": "hopsml"},
            "tuning chose it, and implementation='hopsml' with merge_scope: ",
        ),
        (
            {"implementation": "hopsml"},
            {"implementation": "tensorflow", "merge_scope": 1},
            "the run sets hopsml, and tuning chose it",
        ),
    ],
)
def test_contradiction_to_the_tuning_record_is_noted(
    given: dict[str, Any], chosen: Any, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"chosen": "it", "ratio": 0.5, "settings": chosen}))
    requested = Communication(tuned=str(file), **given)
    found, why = tuned.with_tuned_settings(requested, "train", 2)
    assert found == requested
    assert why.startswith(f"tuned has no effect: {message}")


def test_tuning_record_name_is_a_valid_file_name(store: Path) -> None:
    assert tuned.record_url("<lambda>", 2) == f"file://{store}/Communication/_lambda_-2.json"


def test_function_without_gradients_cannot_be_tuned(store: Path) -> None:
    with pytest.raises(ArgumentError, match=r"communication\(\) has not computed gradients of several weights"):
        experiment.tune_communication(communication, num_workers=2)
