"""Test of the digits job on a real Spark: equal accuracy on 1, 2 and 4 slots, equal weights on all ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.clock import END_S

# Of the one in tests/integration/training; and on Spark test_notebooks.py trains the same network.
pytestmark = [pytest.mark.spark, pytest.mark.tensorflow, pytest.mark.variant]

ROOT = Path(__file__).parents[3]


def test_accuracy_and_equal_weights_do_not_depend_on_the_number_of_workers(tmp_path):
    environment = {
        **os.environ,
        "HOPSML_PROFILE": "local-cluster",
        "HOPSML_PROJECT_URL": f"file://{tmp_path}",
        "PYTHONPATH": str(ROOT),
    }
    job = subprocess.run(
        [sys.executable, "-m", "tests.integration.spark.jobs.digits", "15", "1", "2", "4"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert job.returncode == 0, job.stderr[-6000:]
    rows = [json.loads(line) for line in job.stdout.splitlines() if line.startswith("{")]
    assert [row["workers"] for row in rows] == [1, 2, 4]
    for row in rows:
        assert len(row["digests"]) == row["workers"]
        assert len(set(row["digests"])) == 1, f"{row['workers']} workers ended with different weights"
        assert list(Path(row["run_dir"][len("file://") :]).glob("checkpoints/step-*/*"))
    accuracies = [row["accuracy"] for row in rows]
    assert min(accuracies) >= 0.97, accuracies
    assert max(accuracies) - min(accuracies) <= 0.01, accuracies
