"""Data sets on shared storage, divided among the workers of a run: ``parquet``, ``tfrecords`` and ``files``.

rows = hopsml.data.parquet("hdfs:///data/clicks").batch(1024).shuffle(seed=1).repeat(10)
for batch in state.resume(rows):
    step(batch["features"], batch["label"])
"""

from __future__ import annotations

from hopsml.training.data.batch_reader import Batch
from hopsml.training.data.dataset import Dataset, files, parquet, tfrecords
from hopsml.training.data.scoring import evaluate

__all__ = ["Batch", "Dataset", "evaluate", "files", "parquet", "tfrecords"]


def __dir__() -> list[str]:
    return list(__all__)
