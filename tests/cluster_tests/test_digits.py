"""The digits job on a real Spark: the same accuracy on 1, 2 and 4 executors' slots, the same weights on every rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]

ROOT = Path(__file__).parents[2]


def digits_with_digest(epochs: int) -> dict[str, Any]:
    """The job of spark_jobs/, which also tells a digest of every rank's final weights."""
    import hashlib

    import keras

    import hopsml
    from spark_jobs import train_digits

    kept: list[Any] = []
    build = train_digits.build_model

    def build_and_keep(lr: float) -> Any:
        kept.append(build(lr))
        return kept[-1]

    train_digits.build_model = build_and_keep
    result = train_digits.train(epochs=epochs)
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in kept[0].get_weights())).hexdigest()
    hopsml.report(digest=digest, keras=keras.__version__)
    return {**result, "digest": digest}


@pytest.mark.timeout(400)
def test_the_number_of_workers_changes_neither_accuracy_nor_agreement(local_cluster, monkeypatch):
    import hopsml

    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    accuracies = {}
    for workers in (1, 2, 4):
        run = hopsml.experiment.submit(digits_with_digest, args={"epochs": 12}, num_workers=workers, progress=False)
        result = run.result(timeout=180)
        digests = {member["metrics"]["digest"] for member in run.status()["members"]}
        assert digests == {result.metrics["digest"]}, f"{workers} workers ended with different weights"
        assert len(run.status()["members"]) == workers
        accuracies[workers] = result.metrics["accuracy"]
    print(accuracies)
    assert min(accuracies.values()) >= 0.97
    assert max(accuracies.values()) - min(accuracies.values()) <= 0.01
