"""Program that reads a data set by a PyTorch loader with spawned processes, and prints the batches."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import hopsml


def loader(rows: Any, **more: Any) -> Any:
    """PyTorch's, of a data set of hopsml's."""
    import torch

    return torch.utils.data.DataLoader(rows.torch(), batch_size=None, **more)


def ids(batches: Any) -> list[int]:
    """Of all rows, in order."""
    return [int(one) for batch in batches for one in batch["id"]]


def with_pid(batch: dict[str, Any]) -> dict[str, Any]:
    """A ``collate_fn`` that notes where it is called."""
    return {**batch, "pid": os.getpid()}


def main(path: str, method: str) -> None:
    """Two passes by new processes, and two by ones that stay."""
    rows = hopsml.data.parquet(path).batch(16).shuffle(seed=1, window=40)
    passing = loader(rows, num_workers=2, multiprocessing_context=method, collate_fn=with_pid)
    staying = loader(rows, num_workers=2, multiprocessing_context=method, persistent_workers=True)
    found = {"passes": [*ids(passing), *ids(passing)], "staying": [*ids(staying), *ids(staying)]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
