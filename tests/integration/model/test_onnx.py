"""Tests of ONNX graphs in the registry: converted from other frameworks, called and served without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.clock import END_S

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]
MAKES = """
import numpy as np
import pandas as pd
import onnx
import torch
from onnx import TensorProto, helper
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from hopsml import model

rows = np.random.default_rng(1).normal(size=(300, 4)).astype("float32")
labels = (rows[:, 0] > 0).astype(int)
estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, labels)
version = model.export(model.to_onnx(estimator, rows), "logistic")
assert version.description.flavor == "onnx" and set(version.description.artifacts) == {"onnx"}
assert {name: (one.dtype, one.shape) for name, one in version.description.signature.outputs.items()} == {
    "label": ("int64", (None,)), "probabilities": ("float32", (None, 2)),
}
found = model.predict(pd.DataFrame({"x": list(rows)}), "logistic", batch_size=128)
assert (found["label"].to_numpy() == estimator.predict(rows)).all()
np.testing.assert_allclose(np.stack(list(found["probabilities"])), estimator.predict_proba(rows), atol=1e-5)
np.save("rows.npy", rows)
np.save("labels.npy", estimator.predict(rows))

class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout = torch.nn.Linear(4, 3), torch.nn.Dropout(0.5)

    def forward(self, image, weight):
        scores = self.dropout(self.linear(image.flatten(1)))
        return {"scores": scores, "total": scores.sum(1) * weight}

made = Two().train()
graph = model.to_onnx(made, {"weight": np.ones(1, "float32"), "image": np.zeros((1, 2, 2), "float32")})
assert made.training
signature = model.export(graph, "two").description.signature
assert {name: one.shape for name, one in signature.inputs.items()} == {"image": (None, 2, 2), "weight": (None,)}
found = model.predict(pd.DataFrame({"image": list(rows), "weight": 2.0}), "two")
wanted = made.eval()(torch.from_numpy(rows.reshape(300, 2, 2)), torch.full((300,), 2.0))
np.testing.assert_allclose(found["total"], wanted["total"].detach().numpy(), rtol=1e-4, atol=1e-5)

onnx.save_model(graph, "kept.onnx")
assert model.export("kept.onnx", "file").description.artifacts == {"onnx": "kept.onnx"}
assert len(model.predict(pd.DataFrame({"image": list(rows), "weight": 2.0}), "file")) == 300

def of(rows, operator="Identity"):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "small", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

for call, words in (
    (lambda: model.export(of(1), "one"), "input 'x' has the shape [1, 4]: its first dimension must be free"),
    (lambda: model.export(of("rows", "NoSuch"), "no"), "'small' cannot be computed by ONNX Runtime"),
    (lambda: model.to_onnx(made, None), "example= must have at least one row"),
    (lambda: model.to_onnx(graph, rows), "only PyTorch modules and scikit-learn estimators can be converted"),
):
    try:
        call()
    except (ValueError, TypeError) as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
assert model.models() == ["file", "logistic", "two"]
print("as it should be")
"""
SERVES = """
import sys
import numpy as np
from hopsml import serving

serving.start("logistic")
try:
    found = serving.predict("logistic", np.load("rows.npy")[:20])
    assert list(found["label"]) == np.load("labels.npy")[:20].tolist(), found
finally:
    serving.stop("logistic")
assert not {"torch", "sklearn"} & sys.modules.keys()
print("as it should be")
"""


@pytest.mark.variant  # of tests/integration/model/test_exporters.py and tests/integration/serving, with ONNX
def test_onnx_graphs_are_predicted_and_served_without_their_framework(tmp_path: Path) -> None:
    """Export and serving run in subprocesses: PyTorch and ONNX Runtime leave threads where they are imported."""
    environment = os.environ | {
        "HOPSML_PROJECT_URL": f"file://{tmp_path}/project",
        "HOPSML_SERVING_FOLDER": str(tmp_path / "machine"),
        "HOPSML_MLFLOW": "0",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path / "temporary"),
    }
    (tmp_path / "temporary").mkdir()
    for script in (MAKES, SERVES):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=END_S
        )
        assert done.stdout.splitlines()[-1:] == ["as it should be"], done.stderr[-4000:]
    assert not list(tmp_path.glob("temporary/.ses")), "ONNX Runtime would tell of its use"


ESTIMATORS = """
import sys
import warnings

import numpy as np
import pandas as pd
from hopsml import model
from sklearn.compose import ColumnTransformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    AdaBoostRegressor, ExtraTreesClassifier, GradientBoostingClassifier, IsolationForest, RandomForestRegressor
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

warnings.simplefilter("ignore")
drawn = np.random.default_rng(0)
X = drawn.normal(size=(60, 3))
y, numbers = (X[:, 0] > 0).astype(int), X @ [1.0, 2.0, 3.0] + 5
table = pd.DataFrame(X, columns=list("abc"))
mixed = table.assign(n=drawn.integers(0, 4, 60), city=drawn.choice(["oslo", "rome"], 60), flag=drawn.random(60) > 0.5)
holes = table.mask(drawn.random(table.shape) < 0.1)
scaled = ("s", StandardScaler(), ["a", "b"])


def of_columns(*parts, last=None):
    return make_pipeline(ColumnTransformer(list(parts)), LogisticRegression() if last is None else last)


CASES = {
    "tree": (DecisionTreeClassifier(), X, y),
    "text labels": (ExtraTreesClassifier(5), X, np.where(y > 0, "yes", "no")),
    "forest": (RandomForestRegressor(5), X, numbers),
    "boosting": (GradientBoostingClassifier(n_estimators=5), X, y),
    "float32": (GradientBoostingClassifier(n_estimators=5), X.astype("float32"), y),
    "AdaBoost": (AdaBoostRegressor(n_estimators=5), X, numbers),
    "imputer": (make_pipeline(SimpleImputer(), LogisticRegression()), holes.to_numpy(), y),
    "polynomials": (make_pipeline(PolynomialFeatures(), Ridge()), X, numbers),
    "large numbers": (LinearRegression(), X + 1e7, numbers),
    "LinearSVC": (LinearSVC(), X, y),
    "LinearSVC in a pipeline": (make_pipeline(StandardScaler(), LinearSVC()), X, y),
    "IsolationForest": (IsolationForest(n_estimators=5, random_state=0), X, None),
    "several targets": (MultiOutputClassifier(LogisticRegression()), X, np.stack([y, mixed["n"] > 1], 1)),
    "integers": (LogisticRegression(), drawn.integers(0, 9, (60, 3)), y),
    "booleans": (LogisticRegression(), X > 0, y),
    "lists": (LogisticRegression(), X.tolist(), y),
    "a table of numbers": (make_pipeline(StandardScaler(), LogisticRegression()), table, y),
    "columns by name": (of_columns(scaled), table, y),
    "columns by position": (of_columns(("s", StandardScaler(), [0, 1])), X, y),
    "missing values by name": (of_columns(("i", SimpleImputer(), ["a", "b"])), holes, y),
    "columns of several kinds": (
        of_columns(scaled, ("n", "passthrough", ["n"]), ("c", OneHotEncoder(handle_unknown="ignore"), ["city"])),
        mixed, y,
    ),
    "encoded booleans": (of_columns(scaled, ("f", OneHotEncoder(), ["flag"])), mixed, y),
    "ordinals": (of_columns(scaled, ("o", OrdinalEncoder(), ["city"]), last=RandomForestRegressor(5)), mixed, numbers),
    "names with blanks, dots and other letters": (
        of_columns(("s", StandardScaler(), ["sepal length (cm)", "größe.b"])),
        table.rename(columns={"a": "sepal length (cm)", "b": "größe.b"}), y,
    ),
    "a dict of columns": (of_columns(scaled), {name: table[name].to_numpy() for name in table}, y),
}
for name, (made, rows, wanted) in CASES.items():
    fitted = pd.DataFrame(rows) if isinstance(rows, dict) else rows
    made.fit(fitted, wanted)
    version = model.export(model.to_onnx(made, example=rows), "onnx")
    inputs = version.description.signature.inputs
    if list(inputs) == ["X"]:
        given = pd.DataFrame({"X": list(np.asarray(fitted))})
    else:
        assert list(inputs) == list(fitted), (name, inputs)
        given = fitted
    output = next(iter(version.description.signature.outputs))
    found = np.array(model.predict(given, "onnx")[output].tolist())
    expected = made.predict(fitted)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4, err_msg=name)
    else:
        assert (found.reshape(expected.shape).astype(str) == expected.astype(str)).all(), name
    alone = model.to_onnx(made, example=fitted[:1])  # one row is an example, too
    assert len(alone.graph.input) == len(inputs), name

for made, words in (
    (LinearDiscriminantAnalysis(), "with float32 and int64: its output predict_proba differs for"),
    (DummyClassifier(), "DummyClassifier cannot be converted to an ONNX graph with the same predictions; with float32"),
):
    try:
        model.to_onnx(made.fit(X, y), example=X)
    except ValueError as error:
        assert words in str(error) and "Export the estimator itself" in str(error), error
    else:
        raise AssertionError(words)
print("as it should be")
"""


@pytest.mark.variant
def test_onnx_graphs_of_estimators_predict_equally_or_are_refused(tmp_path: Path) -> None:
    environment = os.environ | {
        "HOPSML_PROJECT_URL": f"file://{tmp_path}/project",
        "HOPSML_MODEL_CACHE": str(tmp_path / "models"),
        "HOPSML_MLFLOW": "0",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", ESTIMATORS], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=END_S
    )
    assert done.stdout.splitlines()[-1:] == ["as it should be"], done.stderr[-4000:]
