"""Contract of one combination of versions: what users call first, on two executors of a real Spark (local-cluster)."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsml import experiment, model
from hopsml.experiment.run import Run
from tests.helpers.clock import END_S, wait_until
from tests.helpers.cluster.finding import agent_of
from tests.integration.spark.conftest import ROOT, spark_environment

pytestmark = [pytest.mark.matrix, pytest.mark.variant, pytest.mark.spark]

ROWS = 100
IDENTITY = [[1.0, 0.0], [0.0, 1.0]]


def needs(framework: str) -> pytest.MarkDecorator:
    """Skip a test in a cell without this framework, which is not imported here."""
    return pytest.mark.skipif(importlib.util.find_spec(framework) is None, reason=f"this cell has no {framework}")


def run_module(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a module of this environment as a program."""
    with spark_environment() as environment:
        environment.setenv("HOPSML_PROJECT_URL", f"file://{folder}/project")
        environment.setenv("SPARK_WORKER_DIR", str(folder))
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=folder, capture_output=True, text=True, timeout=END_S,
        )  # fmt: skip


def test_each_worker_contributes_and_the_chief_returns_a_value(store: Path) -> None:
    def train(factor: int) -> int:
        import numpy as np

        import hopsml
        from hopsml.cluster.worker.context import current

        context = current()
        assert context is not None
        return int(hopsml.all_reduce(np.array([factor * (context.rank + 1)]), "sum")[0])

    run = experiment.collective_all_reduce(train, args={"factor": 3}, num_workers=2, progress=False)
    assert run.value == 9


def test_error_of_a_worker_is_raised_with_its_text(store: Path) -> None:
    from hopsml.errors import WorkerFailed

    def train() -> None:
        raise ValueError("seventeen rows are missing")

    with pytest.raises(WorkerFailed, match="seventeen rows are missing"):
        experiment.collective_all_reduce(train, num_workers=2, progress=False)


def test_arrays_are_reduced_over_the_group(store: Path) -> None:
    def train() -> float:
        import numpy as np

        import hopsml

        return float(hopsml.all_reduce(np.ones(1000, np.float32), "sum").sum())

    assert experiment.collective_all_reduce(train, num_workers=2, progress=False).value == 2000.0


@pytest.mark.tensorflow
@needs("tensorflow")
@pytest.mark.parametrize("over", ["tensorflow", "hopsml"])
def test_keras_trains_over_each_implementation(store: Path, over: str) -> None:

    def train(over: str) -> float:
        import keras
        import numpy as np

        import hopsml

        x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(-1, 1)
        with hopsml.tensorflow.strategy(implementation=over).scope():
            made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            made.compile(keras.optimizers.SGD(0.5), "mse")  # a rate of one oscillates, and ends anywhere near
        made.fit(x, 2 * x, batch_size=32, epochs=16, verbose=0)
        return float(made.layers[-1].kernel.numpy()[0, 0])

    run = experiment.collective_all_reduce(train, args={"over": over}, num_workers=2, progress=False)
    assert run.value == pytest.approx(2.0, abs=0.1)


@pytest.mark.torch
@needs("torch")
@pytest.mark.parametrize("over", ["hopsml", "gloo"])
def test_torch_trains_with_data_parallelism(store: Path, over: str) -> None:

    def train() -> float:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.all_reduce(half := torch.ones(3, dtype=torch.bfloat16))
        assert half.tolist() == [2.0, 2.0, 2.0]
        torch.manual_seed(1)
        made = DistributedDataParallel(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(made.parameters(), 1.0)
        x = torch.linspace(-1, 1, 64).reshape(-1, 1)
        for _ in range(10):
            optimizer.zero_grad()
            ((made(x) - 2 * x) ** 2).mean().backward()
            optimizer.step()
        return float(made.module.weight)

    run = experiment.torch(train, num_workers=2, backend=over, progress=False)
    assert run.value == pytest.approx(2.0, abs=0.1)


@pytest.mark.torch
@needs("jax")
def test_jax_sums_over_the_devices_of_all_workers(store: Path) -> None:

    def train() -> float:
        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        split = NamedSharding(Mesh(np.array(jax.devices()), ("workers",)), PartitionSpec("workers"))
        own = np.full(2, 1.0 + jax.process_index(), np.float32)
        return float(jax.jit(jnp.sum)(jax.make_array_from_process_local_data(split, own)))

    assert experiment.jax(train, num_workers=2, progress=False).value == 6.0


def test_each_row_of_a_data_frame_is_trained_on_once(spark: Any, store: Path) -> None:
    from pyspark.sql import SparkSession

    def train(rows: Any) -> list[int]:
        import numpy as np

        import hopsml

        mine = [int(one) for batch in rows.batch(8) for one in batch["id"]]
        return [int(one) for one in hopsml.all_reduce(np.bincount(mine, minlength=100), "sum")]

    frame = SparkSession.builder.getOrCreate().range(ROWS)
    run = experiment.submit(train, data={"rows": frame}, num_workers=2, progress=False).result(END_S)
    assert run.value == [1] * ROWS


@pytest.mark.tensorflow
@needs("tensorflow")
def test_exported_model_predicts_a_data_frame(
    spark: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import SparkSession

    def train(kernel: list[list[float]]) -> None:
        import keras
        import numpy as np

        import hopsml

        made = keras.Sequential([keras.Input((2,), name="x"), keras.layers.Dense(2, use_bias=False)])
        made.layers[-1].set_weights([np.array(kernel)])
        hopsml.model.export(made, "identity")

    monkeypatch.setenv("HOPSML_MODEL_CACHE", str(tmp_path / "models"))
    experiment.collective_all_reduce(train, args={"kernel": IDENTITY}, num_workers=1, progress=False)
    frame = SparkSession.builder.getOrCreate().createDataFrame([([1.0, 2.0],), ([3.0, 4.0],)], "x array<float>")
    rows = model.predict(frame, "identity").collect()
    assert sorted(np.ravel(list(row)[-1]).tolist() for row in rows) == [[1.0, 2.0], [3.0, 4.0]]


def test_elastic_group_continues_after_a_worker_is_killed(store: Path, tmp_path: Path) -> None:
    def train(folder: str) -> tuple[int, int]:
        import time
        from pathlib import Path

        import hopsml
        from hopsml.cluster.worker.context import current

        context = current()
        assert context is not None
        state = hopsml.elastic.State(seen=0)
        for _ in state.resume(hopsml.elastic.Sampler(400, global_batch_size=20, seed=1, epochs=1)):
            state.seen += 1
            state.commit(every=1)
            if state.batches == 5 and context.generation == 0:
                Path(folder, f"paused-{context.rank}").touch()
                while not Path(folder, "go").exists():
                    time.sleep(0.01)
        return state.seen, context.generation

    run: Run = experiment.submit(train, args={"folder": str(tmp_path)}, min_workers=1, max_workers=2, progress=False)
    wait_until(lambda: all((tmp_path / f"paused-{rank}").exists() for rank in (0, 1)), "two workers that wait")
    os.kill(agent_of(run, 1).pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    seen, generation = run.result(END_S).value
    assert seen == 20 and generation > 0


def test_search_finds_the_best_configuration(store: Path) -> None:
    def train(a: int) -> dict[str, Any]:
        return {"accuracy": float(-((a - 2) ** 2))}

    _, config, outputs = experiment.grid_search(
        train, {"a": [1, 2, 3]}, direction="max", optimization_key="accuracy", progress=False
    )
    assert config == {"a": 2} and outputs["accuracy"] == 0.0


def test_submitted_script_trains(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import hopsml\n\ndef train():\n    return 21\n\n"
        "print('value', 2 * hopsml.experiment.collective_all_reduce(train, num_workers=1).value)\n"
    )
    done = run_module("hopsml", "submit", "job.py", "--profile", "local-cluster", folder=tmp_path)
    assert done.returncode == 0 and "value 42" in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_notebook_trains_and_lists_its_run(tmp_path: Path) -> None:
    source = (
        "%load_ext hopsml\nimport hopsml\n\ndef train():\n    return 21\n\n"
        "run = hopsml.experiment.collective_all_reduce(train, name='cell', num_workers=1, profile='local')\n"
        "print('value', 2 * run.value)\n%runs"
    )
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "one.ipynb").write_text(json.dumps(notebook))
    done = run_module(
        "nbconvert", "--execute", "--to", "notebook", "--output", "played.ipynb", "one.ipynb", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    played = (tmp_path / "played.ipynb").read_text()
    assert "value 42" in played and "FINISHED" in played


def test_doctor_finds_no_failure(tmp_path: Path) -> None:
    done = run_module("hopsml", "doctor", "--profile", "local-cluster", "--json", folder=tmp_path)
    findings = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    for name in ("python", "java", "spark", "frameworks"):
        assert findings[name]["status"] != "fail", findings[name]
    assert findings["python"]["status"] == "ok"


def test_command_line_prints_its_help(tmp_path: Path) -> None:
    for arguments in ((), ("runs",), ("submit",)):
        done = run_module("hopsml", *arguments, "--help", folder=tmp_path)
        assert done.returncode == 0 and "Usage" in done.stdout, done.stderr


def test_imported_hopsml_is_the_working_tree() -> None:
    import hopsml

    assert Path(hopsml.__file__).is_relative_to(ROOT)
