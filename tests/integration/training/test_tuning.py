"""Tests of tuning on a real training: gradients found, every candidate reduces them, the choice is used."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.tuning.choice import list_candidates
from tests.helpers.clock import END_S

pytestmark = pytest.mark.tensorflow
SCRIPT = '''
"""A training as a user has it; it must not come to its end."""
import sys
from hopsml import experiment

def train(units):
    import keras
    import numpy as np
    import hopsml

    with hopsml.tensorflow.strategy().scope():
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(units), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.zeros((64, 16), "float32"), np.zeros((64, 1), "float32"), epochs=1000, verbose=0)
    raise SystemExit("it has trained")

experiment.collective_all_reduce(train, args={"units": int(sys.argv[1])}, num_workers=2, progress=False)
raise SystemExit("the script went on")
'''


@pytest.mark.variant  # of integration/experiment/test_tuning.py, whose measurement is not a group's
def test_tune_communication_measures_a_script(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "hopsml",
        "tune-communication",
        str(script),
        "--json",
        "--lossy",
        "fp16",
        "--",
        "8",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["function"], found["workers"]) == ("train", 2)
    assert (found["gradients"], found["gradient_bytes"]) == (4, 4 * (16 * 8 + 8 + 8 + 1))
    taken = found["choice"]["medians_ms"]
    assert set(taken) == {one.name for one in list_candidates(["fp16"])}
    assert all(math.isfinite(value) and value > 0 for value in taken.values())
    record = json.loads((store / "Communication" / "train-2.json").read_text())
    assert record["settings"] == found["settings"] and record["step_ms"] == taken
