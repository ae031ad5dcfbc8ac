"""Tests of ``predict`` over pandas with a real scikit-learn estimator, and of its export to the registry."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from hopsml import model
from hopsml.errors import ArgumentError, ArgumentTypeError, ModelNotFound
from hopsml.model import batch, columns
from hopsml.model import version as versions
from hopsml.model.description import Signature, TensorSpec
from hopsml.model.flavors import contract
from hopsml.serving.loaded_versions import warm_up_model
from hopsml.storage.filesystem import for_url

pytestmark = pytest.mark.local


@pytest.fixture
def estimator(project: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fitted estimator, exported as ``lr``, without a loaded copy from an earlier test."""
    monkeypatch.setattr(batch, "_kept", {})
    rows = np.random.default_rng(1).normal(size=(200, 4))
    made = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, (rows[:, 0] > 0).astype(int))
    assert model.export(made, "lr", metrics={"accuracy": 0.9}) is not None
    return made


def test_exported_estimator_is_loaded_with_its_signature(estimator: Any) -> None:
    version = model.find("lr")
    assert version.description.signature == Signature(
        {"X": TensorSpec("float64", (None, 4))},
        {"predict": TensorSpec("int64", (None,)), "predict_proba": TensorSpec("float64", (None, 2))},
    )
    assert version.description.requirements.keys() >= {"python", "sklearn", "numpy"}
    rows = np.ones((3, 4))
    found = contract.load(version.local_files(), version.description).predict({"X": rows})
    np.testing.assert_array_equal(found["predict_proba"], estimator.predict_proba(rows))


class Constant(BaseEstimator):
    """Estimator of a user without any attribute by which scikit-learn could recognise that it is fitted."""

    def fit(self, rows: Any, wanted: Any = None) -> Constant:
        return self

    def predict(self, rows: Any) -> Any:
        return np.ones(len(rows))


@pytest.mark.parametrize("made", [LogisticRegression(), make_pipeline(StandardScaler(), LogisticRegression())])
def test_unfitted_estimator_is_refused(project: str, made: Any) -> None:
    with pytest.raises(ArgumentError, match="LogisticRegression has not been fitted: call fit"):
        model.export(made, "unfitted")
    assert model.models() == []
    for whole in (make_pipeline(FunctionTransformer(), LogisticRegression().fit([[0, 0], [1, 1]], [0, 1])), Constant()):
        assert model.export(whole, "whole", example=np.ones((1, 2))) is not None


@pytest.mark.parametrize("batch_size", [None, 7])
def test_prediction_of_a_pandas_table_appends_output_columns(estimator: Any, batch_size: int | None) -> None:
    rows = np.random.default_rng(2).normal(size=(1000, 4))
    table = pd.DataFrame({"id": range(1000), "features": list(rows)}, index=range(5, 1005))
    found = model.predict(table, "lr", batch_size=batch_size, prefix="p_")
    assert list(found.columns) == ["id", "features", "p_predict", "p_predict_proba"] and found.index.equals(table.index)
    np.testing.assert_array_equal(found["p_predict"], estimator.predict(rows))
    np.testing.assert_allclose(np.stack(list(found["p_predict_proba"])), estimator.predict_proba(rows))


def test_model_with_feature_names_finds_its_columns(project: str, recwarn: pytest.WarningsRecorder) -> None:
    table = pd.DataFrame({"b": [1.0, 2.0, 3.0, 4.0], "a": [0.0, 1.0, 0.0, 1.0]})
    model.export(LogisticRegression().fit(table[["a", "b"]], [0, 1, 0, 1]), "named")
    assert model.predict(table, "named")["predict"].tolist() == [0, 1, 0, 1]
    assert [str(warning.message) for warning in recwarn if "feature names" in str(warning.message)] == []


def test_model_is_loaded_once_for_several_predictions(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    load = contract.load
    monkeypatch.setattr(contract, "load", lambda *given: loads.append(given) or load(*given))
    for _ in range(3):
        model.predict(pd.DataFrame({"features": [np.zeros(4)]}), "lr")
    assert len(loads) == 1


def test_invalid_prediction_call_is_refused_before_computing(estimator: Any, tmp_path: Path) -> None:
    table = pd.DataFrame({"features": [np.zeros(4)]})
    with pytest.raises(ModelNotFound, match="did you mean lr"):
        model.predict(table, "Lr_")
    with pytest.raises(
        ArgumentError, match=r"'features' of the table has no common type: .*give numbers, texts, or arrays"
    ):
        model.predict(pd.DataFrame({"features": [1, "one"]}), "lr")
    with pytest.raises(ArgumentError, match="more than one column 'a'; rename one"):
        model.predict(pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), "lr")
    with pytest.raises(ArgumentError, match="no column 'X'"):
        model.predict(pd.DataFrame({"text": ["a"]}), "lr")
    with pytest.raises(ArgumentError, match="batch_size=0: it must be a whole number from 1"):
        model.predict(table, "lr", batch_size=0)
    with pytest.raises(ArgumentTypeError, match="is a list; it must be a DataFrame"):
        model.predict([1], "lr")  # type: ignore[type-var]
    with pytest.raises(ArgumentTypeError, match="is a Series; it must be a DataFrame"):
        model.predict(table["features"], "lr")
    (tmp_path / "notes.txt").write_text("a")
    model.export(tmp_path / "notes.txt", "notes")
    with pytest.raises(ArgumentError, match="version 1 of the model 'notes' has no signature"):
        model.predict(table, "notes")


def test_executor_python_without_hopsml_error_names_the_remedy(estimator: Any) -> None:
    """Read and called as Spark's Python worker does, in one that finds no hopsml."""
    import cloudpickle

    found = model.find("lr")
    work = batch.InferenceParameters(found.url, found.description, (), (), "", None, "")
    program = "import sys, pickle; sys.modules['hopsml'] = None\npickle.load(sys.stdin.buffer)(iter([]))"
    done = subprocess.run(
        [sys.executable, "-c", program], input=cloudpickle.dumps(batch._body(work)), capture_output=True, check=False
    )
    message = done.stderr.decode().splitlines()[-1]
    assert message.startswith("RuntimeError: hopsml.model.predict cannot compute here: ") and sys.executable in message
    assert "set PYSPARK_PYTHON to an environment with them on every node" in message


def test_estimator_that_cannot_be_pickled_is_named_with_its_part(project: str) -> None:
    lock = threading.Lock()
    held = make_pipeline(StandardScaler(), FunctionTransformer(lambda rows: (lock, rows)))
    with pytest.raises(contract.UnsavableModel, match=r"cannot be pickled: the part steps\.functiontransformer\.func"):
        model.export(held, "held")
    with pytest.raises(ModelNotFound):
        model.find("held")


def test_estimator_of_texts_without_example_has_no_signature(project: str) -> None:
    model.export(FunctionTransformer(str), "texts")
    assert model.find("texts").description.signature is None


def test_pickle_of_another_user_is_not_loaded(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hopsml.storage import trust

    monkeypatch.setattr(trust, "own_owner_names", lambda url: frozenset({"somebody"}))
    with pytest.raises(ArgumentError, match="loading a model executes its content"):
        model.find("lr").local_files()


def test_owners_trusted_by_the_driver_are_trusted_by_executors(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is set on the driver only."""
    from hopsml.storage import trust

    version = model.find("lr")
    owner = for_url(version.url).status(version.url).owner
    monkeypatch.setattr(trust, "own_owner_names", lambda url: frozenset({"somebody"}))
    monkeypatch.setenv("HOPSML_TRUSTED_OWNERS", owner)
    schema = pa.schema([("X", pa.list_(pa.float64(), 4))])
    signature = version.description.signature
    assert signature is not None
    work = batch._work(version, signature, schema, None, "", None)
    monkeypatch.delenv("HOPSML_TRUSTED_OWNERS")
    monkeypatch.setattr(batch, "_kept", {})
    assert batch._loaded(pickle.loads(pickle.dumps(work)), 0).model is not None
    with pytest.raises(ArgumentError, match="belongs to"):
        version.local_files()


def test_interrupted_copy_is_removed_and_long_model_names_work(
    estimator: Any, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(url: str, folder: Path, **how: Any) -> None:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    cache = tmp_path / "cache"
    with monkeypatch.context() as patched:
        patched.setattr(versions, "download_tree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.find("lr").local_files(cache)
    assert list(cache.iterdir()) == []
    left = cache / ".tmp-dead"
    left.mkdir()
    os.utime(left, (1.0, 1.0))
    assert model.export(estimator, "m" * 240) is not None
    assert model.find("m" * 240).local_files(cache).is_dir() and not left.exists()


def test_integers_out_of_the_range_of_the_model_are_refused() -> None:
    bindings = columns.bind_inputs(
        Signature({"x": TensorSpec("uint8", (None,))}, {}), pa.schema([("x", pa.int64())]), None
    )
    for value in (300, -1):
        with pytest.raises(ArgumentError, match=f"'x' contains {value}, but the model takes .*0 to 255"):
            columns.model_inputs(bindings, pa.record_batch({"x": [7, value]}))
    assert columns.model_inputs(bindings, pa.record_batch({"x": [7, 255]}))["x"].tolist() == [7, 255]


def test_nan_is_passed_to_a_model_that_accepts_it(project: str) -> None:
    rows = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, np.nan, 3.0]})
    filled = make_pipeline(SimpleImputer(), LinearRegression()).fit(rows, [1.0, 2.0, 3.0])
    model.export(filled, "filled")
    np.testing.assert_allclose(model.predict(rows, "filled")["predict"], filled.predict(rows))
    together = pd.DataFrame({"X": rows.to_numpy().tolist()})
    np.testing.assert_allclose(model.predict(together, "filled")["predict"], filled.predict(rows))


def test_empty_table_gets_empty_output_columns(estimator: Any) -> None:
    table = pd.DataFrame({"id": [1], "features": [[0.0] * 4]})
    found = model.predict(table[table["id"] > 1], "lr")
    assert list(found) == ["id", "features", "predict", "predict_proba"] and len(found) == 0
    assert found["predict"].dtype == np.int64
    assert list(model.predict(pd.DataFrame({"features": []}), "lr")) == ["features", "predict", "predict_proba"]


def test_pandas_columns_may_have_numbers_as_names(estimator: Any) -> None:
    rows = np.random.default_rng(2).normal(size=(5, 4))
    found = model.predict(pd.DataFrame(rows), "lr", inputs=[0, 1, 2, 3])  # type: ignore[list-item]
    assert found["predict"].tolist() == estimator.predict(rows).tolist()


def test_multidimensional_arrays_become_nested_lists() -> None:
    pictures = [np.arange(6.0).reshape(2, 3), np.ones((2, 3))]
    table = batch.arrow_of(pd.DataFrame({"picture": pictures}))
    assert table["picture"].to_pylist() == [one.tolist() for one in pictures]
    with pytest.raises(
        ArgumentError, match=r"'picture' of the table has arrays of different shapes \(\(1, 3\), \(2, 3\)"
    ):
        batch.arrow_of(pd.DataFrame({"picture": [pictures[0], np.ones((1, 3))]}))


PEOPLE = pd.DataFrame({"town": ["Bonn", "Rome", "Bonn", "Rome"], "age": [20.0, 30.0, 40.0, 50.0]})


def model_of_people() -> Any:
    parts = ColumnTransformer(
        [("town", OneHotEncoder(handle_unknown="ignore"), ["town"]), ("age", "passthrough", ["age"])]
    )
    return make_pipeline(parts, LogisticRegression()).fit(PEOPLE, [0, 1, 0, 1])


@pytest.mark.parametrize("example", [PEOPLE[:2], {"age": [1.0, 2.0], "town": ["Bonn", "Oslo"]}])
def test_each_column_of_a_mixed_table_is_an_input(project: str, example: Any) -> None:
    people = model_of_people()
    version = model.export(people, "people", example=example)
    assert version is not None and version.description.signature == Signature(
        {"town": TensorSpec("str", (None,)), "age": TensorSpec("float64", (None,))},
        {"predict": TensorSpec("int64", (None,)), "predict_proba": TensorSpec("float64", (None, 2))},
    )
    found = model.predict(PEOPLE, "people")
    assert found["predict"].tolist() == people.predict(PEOPLE).tolist() == [0, 1, 0, 1]
    loaded = contract.load(version.local_files(), version.description)
    assert warm_up_model(loaded) == ""


def test_example_that_does_not_fit_the_model_is_refused(project: str) -> None:
    with pytest.raises(
        ArgumentError, match="example= has no column 'town', with which the model was fitted; it has age"
    ):
        model.export(model_of_people(), "people", example={"age": [1.0]})
    with pytest.raises(ArgumentError, match=r"the column 'age' is datetime64.*a request can contain only numbers"):
        model.export(model_of_people(), "people", example=PEOPLE.assign(age=pd.Timestamp(0)))
    with pytest.raises(ArgumentError, match="must be rows of numbers, or of texts; for a table with both"):
        model.export(model_of_people(), "people", example=PEOPLE.to_numpy())
    with pytest.raises(ArgumentError, match="StandardScaler has neither predict nor predict_proba"):
        model.export(StandardScaler().fit([[1.0], [2.0]]), "scaler", example=[[1.0]])
    assert model.models() == []


def test_example_of_texts_is_a_text_column(project: str) -> None:
    texts = ["good day", "bad day", "good night", "bad night"]
    made = make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, [1, 0, 1, 0])
    model.export(made, "texts", example=texts[:1])
    assert model.predict(pd.DataFrame({"said": texts}), "texts")["predict"].tolist() == [1, 0, 1, 0]


def test_object_labels_of_pandas_are_texts(project: str) -> None:
    labels = pd.Series(["low", "high"], dtype=object)
    model.export(LogisticRegression().fit([[0.0], [9.0]], labels), "labels")
    assert model.predict(pd.DataFrame({"x": [0.0, 9.0]}), "labels")["predict"].tolist() == ["low", "high"]


@pytest.mark.parametrize("rows", [2, 20])
def test_each_target_has_its_own_probabilities(project: str, rows: int) -> None:
    drawn = np.random.default_rng(0)
    x, y = drawn.normal(size=(20, 3)), drawn.integers(0, 2, (20, 2))
    made = DecisionTreeClassifier(max_depth=2).fit(x, y)
    model.export(made, "several", example=x[:2])
    found = model.predict(pd.DataFrame({"X": list(x[:rows])}), "several")["predict_proba"]
    wanted = np.stack(made.predict_proba(x[:rows]), axis=1)
    np.testing.assert_allclose(np.array([[list(one) for one in row] for row in found]), wanted)
    uneven = DecisionTreeClassifier().fit(x, np.stack([y[:, 0], np.arange(20) % 3], axis=1))
    model.export(uneven, "uneven", example=x[:2])
    signature = model.find("uneven").description.signature
    assert signature is not None and list(signature.outputs) == ["predict"]


# ---------------------------------------------------------------------------------------------- values that are missing

MISSING = pd.DataFrame(
    {
        "age": [20.0, None, 40.0, 60.0],
        "city": ["oslo", "rome", "oslo", "rome"],
        "rank": [1, 2, 3, 1],
        "is_new": [True, False] * 2,
    }
)


def model_with_imputers(table: Any, *, fill_text: bool = True) -> Any:
    """A pipeline that knows what to do with values that are missing."""
    texts = [SimpleImputer(strategy="most_frequent", missing_values=np.nan)] if fill_text else []
    parts = [
        ("numbers", SimpleImputer(), ["age", "rank"]),
        ("texts", make_pipeline(*texts, OneHotEncoder(handle_unknown="ignore")), ["city"]),
        ("flags", OneHotEncoder(handle_unknown="ignore"), ["is_new"]),
    ]
    return make_pipeline(ColumnTransformer(parts), LogisticRegression()).fit(table, [0, 1, 0, 1])


def with_text(*texts: Any) -> pd.DataFrame:
    return MISSING.assign(city=pd.Series(list(texts), dtype=object))


TABLES = {
    "NaN": MISSING,
    "convert_dtypes": MISSING.convert_dtypes(),
    "pyarrow": MISSING.convert_dtypes(dtype_backend="pyarrow"),
    "objects": MISSING.astype(object).where(MISSING.notna(), None),
    "no text": with_text("oslo", None, "oslo", "rome"),
    "NaN in text": with_text("oslo", np.nan, "oslo", "rome"),
    "no text at all": with_text(None, None, None, None),
    "category": MISSING.assign(city=MISSING.city.astype("category"), rank=MISSING["rank"].astype("category")),
    "NaN in category": with_text("oslo", None, "oslo", "rome").astype({"city": "category"}),
    "NaN in integers": MISSING.assign(rank=[1, np.nan, 3, 1]),
    "NA in integers": MISSING.assign(rank=pd.array([1, None, 3, 1], "Int64")),
    "no integers at all": MISSING.assign(rank=[None] * 4),
    "missing boolean": MISSING.assign(is_new=pd.Series([True, None, True, False], dtype=object)),
    "NaN in boolean": MISSING.assign(is_new=pd.Series([True, np.nan, True, False], dtype=object)),
    "category not seen": with_text("oslo", "paris", "oslo", "rome"),
    "one row": MISSING[1:2],
    "another column": MISSING.assign(more=1.0)[["more", "is_new", "rank", "city", "age"]],
    "float32": MISSING.astype({"age": "float32"}),
    "sparse": MISSING.assign(rank=pd.arrays.SparseArray([1, 0, 3, 1])),
}


@pytest.mark.parametrize("fill_text", [True, pytest.param(False, marks=pytest.mark.variant)])
@pytest.mark.parametrize("trained_on", ["NaN", "no text", "NaN in text"])
def test_predictions_with_missing_values_equal_those_of_the_estimator(
    project: str, trained_on: str, fill_text: bool
) -> None:
    trained = model_with_imputers(TABLES[trained_on], fill_text=fill_text)
    version = model.export(trained, "people", example=TABLES[trained_on])
    assert version is not None and version.description.signature is not None
    kinds = {name: spec.dtype for name, spec in version.description.signature.inputs.items()}
    assert kinds == {"age": "float64", "city": "str", "rank": "int64", "is_new": "bool"}
    for name, table in TABLES.items():
        plain = table.assign(**{one: table[one].astype(object) for one in table if table[one].dtype == "category"})
        for one in plain:
            if pd.api.types.is_extension_array_dtype(plain[one]):  # scikit-learn does not take all of them
                plain[one] = plain[one].astype(object).where(plain[one].notna(), None).infer_objects()
        found = model.predict(table, "people")
        np.testing.assert_array_equal(np.stack(list(found["predict_proba"])), trained.predict_proba(plain), name)


OFTEN = ("NaN", "convert_dtypes", "objects", "NaN in text", "category", "one row")


@pytest.mark.parametrize(
    "example", [pytest.param(one, marks=[] if one in OFTEN else [pytest.mark.variant]) for one in TABLES]
)
def test_table_used_as_export_example_can_be_predicted(project: str, example: str) -> None:
    table, trained = TABLES[example], model_with_imputers(MISSING)
    model.export(trained, "people", example=table)
    assert len(model.predict(table, "people")) == len(table)


def test_numeric_table_may_have_missing_values(project: str) -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, np.nan, 3.0]})
    filled = make_pipeline(SimpleImputer(), LinearRegression()).fit(table, [1.0, 2.0, 3.0])
    for example in (table, table.convert_dtypes(), table.astype("Float32"), table.astype("double[pyarrow]")):
        model.export(filled, "filled", example=example)
        np.testing.assert_allclose(model.predict(example, "filled")["predict"], filled.predict(table), rtol=1e-6)
    together = pa.table({"X": [[1.0, 1.0], [2.0, None], [3.0, 3.0]]}).to_pandas(types_mapper=pd.ArrowDtype)
    np.testing.assert_allclose(model.predict(together, "filled")["predict"], filled.predict(table))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"town": [None, "Rome"]}, "input 'town' has a missing or infinite value in row 0"),
        ({"age": [np.nan, 1.0]}, "input 'age' has a missing or infinite value in row 0"),
        ({"age": [1.0, np.inf]}, "input 'age' has a missing or infinite value in row 1"),
        ({"town": ["Bonn", "Paris"]}, r"does not accept the values of the input 'town': ValueError: .*'Paris'"),
    ],
)
def test_values_refused_by_the_estimator_are_named_with_their_input(
    project: str, change: dict[str, Any], words: str
) -> None:
    parts = ColumnTransformer([("town", OneHotEncoder(), ["town"]), ("age", "passthrough", ["age"])])
    model.export(make_pipeline(parts, LogisticRegression()).fit(PEOPLE, [0, 1, 0, 1]), "people", example=PEOPLE)
    with pytest.raises(ArgumentError, match=words):
        model.predict(PEOPLE[:2].assign(**change), "people")


def test_fractional_value_for_an_integer_input_is_refused(project: str) -> None:
    model.export(LogisticRegression().fit(MISSING[["rank"]], [0, 1, 1, 0]), "ranks", example=MISSING[["rank"]])
    with pytest.raises(ArgumentError, match=r"the column 'rank' contains 1\.5, but the model takes int64"):
        model.predict(pd.DataFrame({"rank": [1.0, 1.5]}), "ranks")
    assert model.predict(pd.DataFrame({"rank": [1.0, 3.0]}), "ranks")["predict"].tolist() == [0, 1]


def test_missing_column_is_named_even_for_an_empty_table(project: str) -> None:
    model.export(model_with_imputers(MISSING), "people", example=MISSING)
    with pytest.raises(ArgumentError, match="no column 'city'"):
        model.predict(MISSING.drop(columns="city"), "people")
    with pytest.raises(ArgumentError, match="no column 'city'"):
        model.predict(MISSING[:0].drop(columns="city"), "people")
    assert len(model.predict(MISSING[:0].astype(object), "people")) == 0
