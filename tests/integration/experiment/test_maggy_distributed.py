"""Tests of Maggy's distributed training: on all workers, within one strategy, with divided data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hopsml.maggy import experiment
from hopsml.maggy.config import TfDistributedConfig

pytestmark = pytest.mark.tensorflow

QUIET: dict[str, Any] = {"progress": False, "keep_warm": 60.0, "max_executors": 2}
ROWS = 101


def make_model(width: int) -> Any:
    import tensorflow as tf

    return tf.keras.Sequential(
        [tf.keras.Input((4,)), tf.keras.layers.Dense(width, activation="tanh"), tf.keras.layers.Dense(1)]
    )


def process_data(train_set: int, test_set: int) -> Any:
    import numpy as np

    draw = np.random.default_rng(0)
    x = draw.normal(size=(train_set + test_set, 4)).astype("float32")
    x[:, 0] = np.arange(len(x)) / len(x)  # by which a row is known again
    y = x.sum(1, keepdims=True)
    return (x[:train_set], y[:train_set]), (x[train_set:], y[train_set:])


def write_observation(folder: str, model: Any, **more: Any) -> None:
    """Store what this rank observed, for the test."""
    import hashlib

    from hopsml.cluster.worker.context import current

    rank = current().rank  # type: ignore[union-attr]
    digest = hashlib.sha256(b"".join(value.tobytes() for value in model.get_weights())).hexdigest()
    strategy = type(model.distribute_strategy).__name__
    Path(folder, f"{rank}.json").write_text(json.dumps({"weights": digest, "strategy": strategy, **more}))


def observations(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.variant  # of test_maggy.py; weights: tests/integration/training/test_strategy_contract.py
def test_maggy_distributed_training_shards_data_and_ends_with_equal_weights(store: Path, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def train(model: Any, train_set: Any, test_set: Any, hparams: dict[str, Any], reporter: Any) -> Any:
        import tensorflow as tf

        net = model(hparams["width"])
        before = net.get_weights()
        net.compile(tf.keras.optimizers.Adam(0.05), "mse")
        history = net.fit(train_set, epochs=3, verbose=0)
        rows = [round(float(x[0]) * (ROWS + 20)) for batch, _ in train_set.as_numpy_iterator() for x in batch]
        tests = sum(len(batch) for batch, _ in test_set.as_numpy_iterator())
        reporter.log("trained")
        moved = any((one != other).any() for one, other in zip(before, net.get_weights(), strict=True))
        write_observation(folder, net, rows=rows, tests=tests, losses=history.history["loss"], moved=moved)
        return net.evaluate(test_set, verbose=0)

    config = TfDistributedConfig(
        name="sharded", model=make_model, train_set=ROWS, test_set=20, process_data=process_data,
        hparams={"train_batch_size": 10, "test_batch_size": 4, "width": 8}, hb_interval=3,
    )  # fmt: skip
    result = experiment.lagom(train, config, **QUIET)
    first, second = observations(tmp_path)
    assert first["strategy"] == second["strategy"] == "CollectiveStrategy"
    assert first["weights"] == second["weights"] and first["losses"] == second["losses"] and first["moved"]
    assert first["losses"][-1] < first["losses"][0]
    assert not set(first["rows"]) & set(second["rows"]) and len(first["rows"]) == len(second["rows"]) == ROWS // 2
    assert first["tests"] == second["tests"] == 10
    assert result["num_workers"] == 2 and result["metric"] >= 0
    (run,) = (store / "Experiments").iterdir()
    about = json.loads((run / "maggy.json").read_text())
    assert (about["name"], about["experiment_type"], about["executors"]) == ("sharded", "distributed", 2)
    assert json.loads((run / "result.json").read_text()) == result
    assert "1 of 101 rows are left out" in (run / "logs" / "g0-rank0.log").read_text()


@pytest.mark.variant
def test_maggy_distributed_training_supports_lists_of_data_and_mixed_precision(store: Path, tmp_path: Path) -> None:
    folder = str(tmp_path)

    class Net:  # Maggy takes a class as well as a function
        def __new__(cls, width: int) -> Any:
            return make_model(width)

    def process(dataset: list[int]) -> Any:
        return process_data(*dataset)

    def train(model: Any, dataset: Any, hparams: dict[str, Any]) -> dict[str, float]:
        import tensorflow as tf

        (x, y), (x_test, y_test) = dataset
        net = model(width=4)
        net.compile(tf.keras.optimizers.SGD(0.05), "mse")
        net.fit(x, y, batch_size=8, epochs=2, verbose=0)
        policy = net.layers[0].dtype_policy.name
        write_observation(folder, net, policy=policy, variable=str(net.layers[0].kernel.dtype))
        return {"loss": float(net.evaluate(x_test, y_test, verbose=0)), "rank_is": 1.0}

    config = TfDistributedConfig(Net, [64, 16], process, True, hparams={"lr": 1})
    result = experiment.lagom(train, config, **QUIET)
    first, second = observations(tmp_path)
    assert first["weights"] == second["weights"]
    assert first["policy"] == "mixed_bfloat16" and "float32" in first["variable"]
    assert set(result) == {"loss", "rank_is", "num_workers"} and result["rank_is"] == 1.0
