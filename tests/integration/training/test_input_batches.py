"""Tests of data sets in TensorFlow: each row at one worker, an order per epoch, equal batches in ``fit``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.training.group import run_group

pytestmark = pytest.mark.tensorflow
ROWS = 97  # of the last batch of 16 one worker has a row, the other none


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    folder.mkdir()
    ids = np.arange(ROWS)
    features = list(np.stack([ids, ids * 2], 1).astype(np.float32))
    columns = {"id": ids, "features": features, "label": ids * 3.0, "weight": np.ones(ROWS), "text": ids.astype(str)}
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=17)
    return folder


@pytest.mark.variant
@pytest.mark.parametrize("kind", ["hopsml", pytest.param("tensorflow", marks=pytest.mark.variant)])
def test_two_workers_share_the_rows_of_a_tensorflow_data_set(folder: Path, tmp_path: Path, kind: str) -> None:
    first, second = run_group("data:read_and_fit", tmp_path / "run", path=str(folder), kind=kind)
    for one, other in zip(first["iterations"], second["iterations"], strict=True):
        assert sorted(one + other) == list(range(ROWS)) and abs(len(one) - len(other)) <= 1
    assert first["iterations"][0] != first["iterations"][1]
    assert first["weights"] == second["weights"]
    assert (first["losses"], first["steps"]) == (2, 14)
    assert first["finite"] and second["finite"]


def test_absent_column_and_empty_data_are_named(folder: Path, tmp_path: Path) -> None:
    none = tmp_path / "none.parquet"
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), none)
    (found,) = run_group("data:refusals", tmp_path / "run", workers=1, path=str(folder), none=str(none))
    assert found["said"] == [
        "the data has no column nothing; its columns are id, features, label, weight, text",
        "the data has no rows, so nobody can tell the shapes of its batches",
    ]
