"""Test that a rerun of the digits job on two TensorFlow workers ends with bit-identical weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.experiment import repeat
from tests.helpers.clock import END_S
from tests.helpers.tracking import jobs

ROOT = Path(__file__).parents[3]


@pytest.mark.tensorflow
@pytest.mark.variant  # of tests/integration/tracking/test_rerun.py, and of the demo's job in tests/integration/notebook
def test_rerun_on_local_workers_has_bit_identical_weights(store: Path) -> None:
    first = experiment.submit(jobs.train_digits, num_workers=2, progress=False, keep_warm=60).result(END_S)
    again = repeat.rerun(first, progress=False)
    assert again.verdict.same, again.verdict.differing
    assert first.metrics["weights"] == again.result.metrics["weights"]
    assert {"weights", "accuracy", "checkpoint step-000000024/variables.index"} <= set(again.verdict.compared)


@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.variant  # of the one above, and of the command that tests/integration/tracking/test_rerun.py gives
def test_rerun_command_on_spark_has_bit_identical_weights(tmp_path: Path) -> None:
    """Two processes, two Spark applications; the second knows nothing of the first but its run directory."""
    environment = {
        **os.environ,
        "HOPSML_PROFILE": "local-cluster",
        "HOPSML_PROJECT_URL": f"file://{tmp_path}",
        "PYTHONPATH": str(ROOT),
    }
    code = (
        "import hopsml; from tests.helpers.tracking import jobs\n"
        "run = hopsml.experiment.submit(jobs.train_digits, num_workers=2, progress=False)\n"
        "print('RUN ' + run.result().run_dir)"
    )
    first = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=END_S
    )
    assert first.returncode == 0, first.stderr[-4000:]
    run_dir = next(line for line in first.stdout.splitlines() if line.startswith("RUN "))[len("RUN ") :]
    command = [sys.executable, "-c", "from hopsml.cli import main; main()", "runs", "rerun", run_dir, "--json"]
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=END_S)
    assert again.returncode == 0, again.stdout + again.stderr[-4000:]
    verdict = json.loads(again.stdout.splitlines()[-1])
    assert verdict["same"] and {"weights", "accuracy"} <= set(verdict["compared"])
    settings = json.loads(Path(run_dir.removeprefix("file://"), "environment.json").read_text())["spark"]["settings"]
    assert settings["spark.master"].startswith("local-cluster")
