"""Tests of the capture of torch tensors, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.clock import END_S

CODE = """
import torch
from hopsml.cluster.driver.capture import capture
from hopsml.errors import CaptureError
weights = torch.zeros(3 << 18)
def train():
    return weights.sum()
capture(train)
try:
    capture(train, limit_bytes=1 << 20)
except CaptureError as error:
    print(error)
"""


@pytest.mark.torch
def test_capture_of_a_large_tensor_has_no_warning_and_names_it() -> None:
    done = subprocess.run([sys.executable, "-W", "always", "-c", CODE], capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0 and "captured_objects" not in done.stderr, done.stderr
    assert "`weights` (global), a torch.Tensor, 3.0 MiB. Put arrays and tensors on shared storage" in done.stdout
