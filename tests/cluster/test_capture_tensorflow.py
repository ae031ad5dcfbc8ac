"""A function that holds a real TensorFlow tensor is refused at the call, by name; in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow

ROOT = Path(__file__).parents[2]
HOLDS_A_TENSOR = """
import tensorflow as tf
from hopsml.cluster.driver.capture import capture
from hopsml.errors import CaptureError

weights = tf.constant([1.0, 2.0])

def train():
    return weights

try:
    capture(train)
except CaptureError as error:
    print(error)
"""


def test_a_captured_tensor_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOLDS_A_TENSOR], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert "weights" in done.stdout and "Tensor" in done.stdout, done.stdout
