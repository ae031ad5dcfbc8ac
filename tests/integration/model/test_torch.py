"""Tests of PyTorch modules in the registry: exported for any number of rows, called again without their code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.clock import END_S

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]
JOB = """
import numpy as np
import pandas as pd
import torch
from hopsml import model
from hopsml.model.flavors.contract import UnsavableModel

class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, image, weight):
        scores = self.dropout(self.linear(image.flatten(1)))
        return {"scores": scores, "total": scores.sum(1) * weight}

torch.manual_seed(1)
made = Two().train()
example = {"weight": np.ones(1, "float32"), "image": np.zeros((1, 2, 2), "float32")}
version = model.export(made, "two", example=example)
assert made.training and version.description.flavor == "torch"
signature = version.description.signature
assert {name: spec.shape for name, spec in signature.inputs.items()} == {"image": (None, 2, 2), "weight": (None,)}
assert {name: (spec.dtype, spec.shape) for name, spec in signature.outputs.items()} == {
    "scores": ("float32", (None, 3)), "total": ("float32", (None,)),
}
rows = np.random.default_rng(1).normal(size=(700, 4)).astype("float32")
found = model.predict(pd.DataFrame({"image": list(rows), "weight": 2.0}), "two", batch_size=256)
made.eval()
wanted = made(torch.from_numpy(rows.reshape(700, 2, 2)), torch.full((700,), 2.0))
np.testing.assert_allclose(np.stack(list(found["scores"])), wanted["scores"].detach().numpy(), rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(found["total"], wanted["total"].detach().numpy(), rtol=1e-4, atol=1e-5)

scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 1)))
assert set(model.export(scripted, "scripted", example=rows[:2]).description.artifacts) == {"torchscript"}
assert model.predict(pd.DataFrame({"pixels": list(rows[:3])}), "scripted")["output_0"].map(len).tolist() == [1, 1, 1]

halves = torch.nn.Linear(4, 1).bfloat16()
model.export(halves, "halves", example=np.zeros((2, 4)))
found = model.predict(pd.DataFrame({"input": list(rows[:3])}), "halves")["output_0"]
wanted = halves(torch.from_numpy(rows[:3]).bfloat16()).float().detach().numpy()
np.testing.assert_allclose(np.stack(list(found)), wanted, rtol=0.02, atol=0.01)

linear = torch.nn.Linear(4, 1)
for given in ([[0.0] * 4], np.zeros((2, 4)), [torch.zeros(1, 4)], (np.zeros((1, 4)),)):  # doubles, of a model of floats
    version = model.export(linear, "doubles", example=given, metrics={"loss": linear.bias.sum()})
    assert version.description.signature.inputs["input"].dtype == "float32", version.description.signature
    assert version.metrics["loss"] == linear.bias.item()

class Peeking(torch.nn.Module):
    def forward(self, rows):
        return rows if rows.sum().item() > 0 else -rows

for given, words in (
    ((torch.nn.Sequential(torch.nn.Linear(4, 4), Peeking()), "peeking", rows[:2]), "the layer '1' (Peeking)"),
    ((made, "silent", None), "are unknown; pass at least one row of them: export(..., example=)"),
    ((made, "wrong", {"imag": rows[:2]}), "forward() has no argument 'imag'; it has image, weight"),
    ((linear, "wrong", rows[:2, :3]), "the model does not accept the example (input: float32 [2, 3]): RuntimeError"),
    ((linear, "wrong", torch.zeros(4)), "(input: float32 [4]) the model returns 'output_0': [1]; the first dimension"),
    ((linear, "wrong", 3.0), "input=3.0 is a single number"),
):
    try:
        model.export(given[0], given[1], example=given[2])
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
assert model.models() == ["doubles", "halves", "scripted", "two"]
print("as it should be")
"""

BESIDE_TENSORFLOW = """
import tensorflow as tf
import pandas as pd
import torch
from hopsml import model

model.export(torch.nn.Linear(2, 1), "line", example=torch.zeros(1, 2), metrics={"loss": tf.constant(0.5)})
found = model.predict(pd.DataFrame({"input": [[1.0, 2.0]]}), "line")
print(len(found["output_0"][0]), model.find("line").metrics)
"""


@pytest.mark.variant
def test_torch_module_is_exported_and_predicted_after_tensorflow_was_imported(project: str) -> None:
    """Triton's library, loaded behind TensorFlow's, ends the process by a segmentation fault."""
    done = subprocess.run(
        [sys.executable, "-c", BESIDE_TENSORFLOW], cwd=ROOT, capture_output=True, text=True, timeout=END_S, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["1 {'loss': 0.5}"], (done.returncode, done.stderr[-4000:])


def test_torch_modules_predict_after_export_and_unsuitable_ones_are_named(project: str) -> None:
    """The job runs in a subprocess: PyTorch leaves threads where it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", JOB], cwd=ROOT, capture_output=True, text=True, timeout=END_S, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["as it should be"], done.stderr[-4000:]
