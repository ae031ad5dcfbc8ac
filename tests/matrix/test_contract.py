"""Contract of one combination of versions: what users call first, on two executors of a real Spark (local-cluster)."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hopsml
from hopsml import experiment
from hopsml.errors import RunCancelled, WorkerFailed
from hopsml.experiment.run import Run
from hopsml.storage import checkpoints
from tests.helpers.clock import END_S, wait_until
from tests.helpers.cluster.finding import agent_of
from tests.integration.spark.conftest import ROOT, spark_environment
from tests.matrix.conftest import needs

pytestmark = [pytest.mark.matrix, pytest.mark.variant, pytest.mark.spark]


def run_module(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a module of this environment as a program."""
    with spark_environment() as environment:
        environment.setenv("HOPSML_PROJECT_URL", f"file://{folder}/project")
        environment.setenv("SPARK_WORKER_DIR", str(folder))
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=folder, capture_output=True, text=True, timeout=END_S,
        )  # fmt: skip


def record(run_dir: str, name: str) -> dict[str, Any]:
    """Read a record of a run's directory."""
    found: dict[str, Any] = json.loads(Path(run_dir.removeprefix("file://"), name).read_text())
    return found


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
    def train() -> None:
        raise ValueError("seventeen rows are missing")

    with pytest.raises(WorkerFailed, match="seventeen rows are missing"):
        experiment.collective_all_reduce(train, num_workers=2, progress=False)


@pytest.mark.tensorflow
@needs("tensorflow")
@pytest.mark.parametrize("over", ["tensorflow", "hopsml"])
def test_keras_trains_over_each_implementation(store: Path, over: str) -> None:

    def train(over: str) -> float:
        import os

        import numpy as np

        import hopsml

        if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
            import tf_keras as keras
        else:
            import keras
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
    wait_until(lambda: all((tmp_path / f"paused-{rank}").exists() for rank in (0, 1)), "two workers that wait", END_S)
    os.kill(agent_of(run, 1).pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    seen, generation = run.result(END_S).value
    assert seen == 20 and generation > 0


def test_elastic_group_grows_during_its_training(store: Path, tmp_path: Path) -> None:
    def train(folder: str) -> tuple[int, int]:
        import time
        from pathlib import Path

        import hopsml

        state = hopsml.elastic.State(seen=0)
        for _ in state.resume(hopsml.elastic.Sampler(8000, global_batch_size=20, seed=1, epochs=1)):
            state.seen += 1
            Path(folder, "began").touch()
            if hopsml.distributed.world_size() == 1:
                time.sleep(0.5)  # 200 s for the second worker; with it the steps that remain take no time
            state.commit(every=1)
        return state.seen, hopsml.distributed.world_size()

    run: Run = experiment.submit(
        train, args={"folder": str(tmp_path)}, min_workers=1, max_workers=2, first_workers=1, progress=False
    )
    wait_until((tmp_path / "began").exists, "the first step", END_S)
    run.resize(2)
    assert tuple(run.result(END_S).value) == (400, 2)


def test_failed_run_is_resumed_from_its_checkpoint(store: Path, tmp_path: Path) -> None:
    def train(folder: str) -> tuple[int, int]:
        import time
        from pathlib import Path

        import hopsml

        state = hopsml.elastic.State(processes=[])
        first = 0
        for _ in state.resume(hopsml.elastic.Sampler(400, global_batch_size=20, seed=1, epochs=1)):
            first = first or state.batches
            state.commit(every=1)
            time.sleep(0.05)  # a checkpoint begins with a commit 0.1 s after the one before
            if state.batches == 10 and not Path(folder, "resumed").exists():
                while not Path(folder, "stored").exists():
                    time.sleep(0.01)
                raise ValueError("it breaks off")
        return first, state.batches

    run: Run = experiment.submit(
        train, args={"folder": str(tmp_path)}, min_workers=1, max_workers=1, reset_limit=0, checkpoint_every_s=0.1,
        progress=False,
    )  # fmt: skip
    stored = f"{run.run_dir}/checkpoints"
    wait_until(lambda: checkpoints.latest_complete(stored), "a checkpoint", END_S)
    (tmp_path / "stored").touch()
    with pytest.raises(WorkerFailed, match="it breaks off"):
        run.result(END_S)
    (tmp_path / "resumed").touch()
    first, last = experiment.resume(run.run_dir, progress=False).value
    assert first > 1 and last == 20


def test_driver_and_workers_exchange_values(store: Path) -> None:
    def train() -> str:
        import hopsml

        hopsml.send("ready")
        return str(hopsml.receive(timeout=600))

    run: Run = experiment.submit(train, num_workers=1, progress=False)
    run.on_message(lambda rank, value: run.send(f"{value} {rank}"))
    assert run.result(END_S).value == "ready 0"


def test_cancelled_run_ends_as_cancelled(store: Path, tmp_path: Path) -> None:
    def train(folder: str) -> None:
        import time
        from pathlib import Path

        Path(folder, "began").touch()
        time.sleep(600)

    run: Run = experiment.submit(train, args={"folder": str(tmp_path)}, num_workers=2, progress=False)
    wait_until((tmp_path / "began").exists, "a worker that has begun", END_S)
    run.cancel()
    with pytest.raises(RunCancelled):
        run.result(END_S)
    assert record(run.run_dir, "status.json")["state"] == "CANCELLED"


def test_output_and_environment_of_a_run_are_recorded(store: Path, tmp_path: Path) -> None:
    def train() -> dict[str, float]:
        import hopsml

        print("forty-two steps")
        hopsml.report(step=1, accuracy=0.5)
        return {"accuracy": 0.75}

    run: Run = experiment.submit(train, name="logged", num_workers=2, progress=False)
    assert run.result(END_S).value == {"accuracy": 0.75}
    assert "forty-two steps" in run.logs(1)
    assert record(run.run_dir, "status.json")["state"] == "FINISHED"
    assert record(run.run_dir, "environment.json")["packages"]["pyspark"] == importlib.metadata.version("pyspark")
    shown = run_module("hopsml", "runs", "logs", run.run_dir, folder=tmp_path)
    assert shown.returncode == 0 and "forty-two steps" in shown.stdout, shown.stderr
    listed = run_module("hopsml", "runs", "ls", "--project", f"file://{store}", folder=tmp_path)
    assert listed.returncode == 0 and "logged" in listed.stdout, listed.stderr


def test_last_of_three_workers_is_the_evaluator(store: Path, tmp_path: Path) -> None:
    def train(folder: str) -> None:
        import json
        import os
        from pathlib import Path

        task = json.loads(os.environ["TF_CONFIG"])["task"]
        Path(folder, f"{task['type']}-{task['index']}").touch()

    experiment.collective_all_reduce(
        train, args={"folder": str(tmp_path)}, num_workers=3, evaluator=True, progress=False
    )
    assert {one.name for one in tmp_path.glob("*-?")} == {"chief-0", "worker-0", "evaluator-0"}


def test_model_of_the_registry_is_found_and_loaded(store: Path, tmp_path: Path) -> None:
    def train() -> None:
        from pathlib import Path

        import hopsml

        Path("weights.bin").write_bytes(b"0123")
        hopsml.model.export("weights.bin", "digits", metrics={"accuracy": 0.75})

    run = experiment.collective_all_reduce(train, num_workers=1, progress=False)
    found = hopsml.model.get_best_model("digits", "accuracy", "MAX")
    assert found is not None and found.description.lineage.run_url == run.run_dir
    (tmp_path / "cache").mkdir(mode=0o700)
    assert (found.local_files(tmp_path / "cache") / "weights.bin").read_bytes() == b"0123"


def test_search_finds_the_best_configuration(store: Path) -> None:
    def train(a: int) -> dict[str, Any]:
        return {"accuracy": float(-((a - 2) ** 2))}

    _, config, outputs = experiment.grid_search(
        train, {"a": [1, 2, 3]}, direction="max", optimization_key="accuracy", progress=False
    )
    assert config == {"a": 2} and outputs["accuracy"] == 0.0


def test_random_search_runs_its_trials(store: Path) -> None:
    def train(rate: float, kind: str) -> float:
        assert kind in ("a", "b")
        return rate

    result = experiment.search(
        train, {"rate": ("DOUBLE", [0.0, 1.0]), "kind": ("CATEGORICAL", ["a", "b"])}, searcher="random", num_trials=6,
        progress=False,
    )  # fmt: skip
    assert result.counts["completed"] == 6
    assert result.value == max(row["value"] for row in result.rows) and 0 <= result.value <= 1


def test_asha_stops_bad_trials_early(store: Path) -> None:
    def train(level: int) -> None:
        import time

        import hopsml

        for step in range(1, 9):
            time.sleep(0.1)  # a report waits for the stopper's answer, at most a tenth of the time between two
            hopsml.report(step=step, accuracy=float(level))

    result = experiment.search(
        train, {"level": ("DISCRETE", [8, 7, 6, 5, 4, 3, 2, 1])}, searcher="grid", num_trials=None, stopper="asha",
        stopper_args={"reduction_factor": 2, "mode": "stop"}, metric="accuracy", progress=False,
    )  # fmt: skip
    assert result.value == 8.0 and result.counts["stopped"] >= 1
    assert max(len(curve) for curve in result.curves.values()) == 8


def test_trials_can_be_distributed_trainings(store: Path) -> None:
    def train(x: int) -> float:
        import numpy as np

        import hopsml

        return float(hopsml.all_reduce(np.array([x]), "sum")[0])

    result = experiment.search(
        train, {"x": ("DISCRETE", [1, 2])}, searcher="grid", num_trials=None, workers_per_trial=2, progress=False
    )
    assert result.counts["completed"] == 2 and result.value == 4.0


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
