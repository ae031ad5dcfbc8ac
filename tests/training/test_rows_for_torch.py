"""``rows.torch()`` in PyTorch's own loader: each row once a pass, each pass in an order of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopsml
from hopsml.errors import ArgumentError

pytestmark = pytest.mark.torch


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    pq.write_table(pa.table({"id": np.arange(100), "text": ["a"] * 100}), tmp_path / "rows.parquet", row_group_size=30)
    return hopsml.data.parquet(str(tmp_path)).batch(16).shuffle(seed=1)


def loader(rows: Any, **more: Any) -> Any:
    import torch

    return torch.utils.data.DataLoader(rows.torch(), batch_size=None, **more)


def ids(batches: Any) -> list[int]:
    return [int(one) for batch in batches for one in batch["id"]]


def test_each_pass_is_a_new_epoch_with_an_order_of_its_own(rows: Any) -> None:
    batches = loader(rows)
    passes = [ids(batches) for _ in range(3)]
    assert len(batches) == len(rows) == 7
    assert all(sorted(one) == list(range(100)) for one in passes)
    assert [*passes[0], *passes[1], *passes[2]] == ids(rows.repeat(3))


def test_a_data_set_that_repeats_goes_on_behind_what_it_has_repeated(rows: Any) -> None:
    batches = loader(rows.repeat(2))
    assert [*ids(batches), *ids(batches)] == ids(rows.repeat(4))


def test_processes_of_the_loader_are_refused_as_each_would_read_all_rows(rows: Any) -> None:
    for processes in (1, 2):
        with pytest.raises(ArgumentError, match=rf"num_workers={processes}\): each .*leave it at num_workers=0"):
            ids(loader(rows, num_workers=processes))
