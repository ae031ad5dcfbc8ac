"""Tests of ``evaluator=True``: the last worker is the evaluator, and the others train together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit

pytestmark = pytest.mark.tensorflow


def test_last_worker_is_the_evaluator_and_the_others_train(store: Path, tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        import json
        import os

        import hopsml

        strategy = hopsml.tensorflow.strategy()
        task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
        (tmp_path / f"{task}-{os.getpid()}").write_text(str(strategy.num_replicas_in_sync))
        if task == "evaluator":
            return {}
        import tensorflow as tf

        total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0)))
        return {"total": float(strategy.experimental_local_results(total)[0])}

    result = submit(train, 3, evaluator=True).result(END_S)
    assert result.value == {"total": 2.0}
    found = sorted((path.name.partition("-")[0], path.read_text()) for path in tmp_path.glob("*-*"))
    assert found == [("chief", "2"), ("evaluator", "1"), ("worker", "2")]
    assert result.in_force["size"] == 2 and "WARNING" not in result.summary()
