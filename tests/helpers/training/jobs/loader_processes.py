"""Program that reads a data set by a PyTorch loader with spawned processes, and prints the batches."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import hopsml


def loader(rows: Any, **more: Any) -> Any:
    """Return a PyTorch loader of a data set of hopsml."""
    import torch

    return torch.utils.data.DataLoader(rows.torch(), batch_size=None, **more)


def ids(batches: Any) -> list[int]:
    """Return the ids of all rows, in order."""
    return [int(one) for batch in batches for one in batch["id"]]


def with_pid(batch: dict[str, Any]) -> dict[str, Any]:
    """``collate_fn`` that records its process."""
    return {**batch, "pid": os.getpid()}


def main(path: str, method: str) -> None:
    """Make two passes with new processes, and two with persistent ones."""
    rows = hopsml.data.parquet(path).batch(16).shuffle(seed=1, window=40)
    passing = loader(rows, num_workers=2, multiprocessing_context=method, collate_fn=with_pid)
    staying = loader(rows, num_workers=2, multiprocessing_context=method, persistent_workers=True)
    found = {"passes": [*ids(passing), *ids(passing)], "staying": [*ids(staying), *ids(staying)]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
