"""Tests of the data that a worker of Maggy's distributed training gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopsml.maggy.distributed import data_of_worker

pytestmark = pytest.mark.fast
ARRAY = np.arange(4.0)


class Dataset:
    """Stand-in with the description of a ``tf.data.Dataset``."""

    element_spec = "float32"


def doubled(*parts: Any) -> list[Any]:
    return [part * 2 for part in parts]


@pytest.mark.parametrize("part", [ARRAY, (ARRAY, ARRAY), [ARRAY, ARRAY], Dataset()])
def test_data_that_is_ready_is_passed_to_the_worker_unchanged(part: Any) -> None:
    given = {"process_data": doubled, "dataset": None, "train_set": part, "test_set": part, "hparams": None}
    found = data_of_worker(given)
    assert found["train_set"] is part and found["test_set"] is part and found["dataset"] == [part, part]


@pytest.mark.parametrize(("train", "test"), [("train/", "test/"), (3, 2)])
def test_process_data_makes_data_of_paths_and_other_arguments(train: Any, test: Any) -> None:
    given = {"process_data": doubled, "dataset": None, "train_set": train, "test_set": test, "hparams": None}
    assert data_of_worker(given)["dataset"] == [train * 2, test * 2]


def test_process_data_is_applied_to_a_list_of_data() -> None:
    given = {
        "process_data": lambda dataset: [part * 2 for part in dataset], "dataset": [ARRAY, ARRAY], "train_set": None,
        "test_set": None, "hparams": None,
    }  # fmt: skip
    assert data_of_worker(given)["train_set"].tolist() == [0, 2, 4, 6]
