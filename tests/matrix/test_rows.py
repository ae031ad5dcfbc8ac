"""Contract of one combination of versions: rows of DataFrames reach workers, models and predictions."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsml import experiment, model
from hopsml.errors import WorkerFailed
from hopsml.experiment.run import Run
from hopsml.training.data import push
from tests.helpers.clock import END_S
from tests.matrix.conftest import needs

pytestmark = [pytest.mark.matrix, pytest.mark.variant, pytest.mark.spark]

ROWS = 100
IDENTITY = [[1.0, 0.0], [0.0, 1.0]]


@pytest.fixture
def session(spark: Any, store: Path) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def counts(rows: Any) -> list[int]:
    """Return how often each id was read by a worker of the group."""
    import numpy as np

    import hopsml

    mine = [int(one) for batch in rows.batch(8) for one in batch["id"]]
    return [int(one) for one in hopsml.all_reduce(np.bincount(mine, minlength=100), "sum")]


def submit(function: Any, frame: Any) -> Run:
    return experiment.submit(function, data={"rows": frame}, num_workers=2, progress=False)


def sender(run: Run) -> str:
    """Return what has sent the rows, as the run's notes name it."""
    (note,) = [note for note in run.state.notes if "data='rows': " in note]
    return note.partition(", sent by ")[2].partition(" in ")[0]


def test_each_row_of_a_data_frame_is_sent_once_by_the_jvm(session: Any) -> None:
    run = submit(counts, session.range(ROWS))
    assert run.result(END_S).value == [1] * ROWS
    assert sender(run) == "Spark's JVM"


def test_each_row_of_a_data_frame_is_sent_once_by_python(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "JAR", Path("nowhere.jar"))
    run = submit(counts, session.range(ROWS))
    assert run.result(END_S).value == [1] * ROWS
    assert sender(run) == "Python"


def test_plain_types_and_lists_are_sent_by_the_jvm(session: Any, tmp_path: Path) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()

    def train(rows: Any) -> None:
        import json
        import os

        seen = [
            [int(batch["id"][k]), bool(batch["even"][k]), float(batch["half"][k]), str(batch["text"][k]),
             bytes(batch["content"][k]).decode(), str(batch["day"][k])[:10], batch["pair"][k].tolist()]
            for batch in rows.batch(4) for k in range(len(batch["id"]))
        ]  # fmt: skip
        (folder / str(os.getpid())).write_text(json.dumps(seen))

    content = [
        (n, n % 2 == 0, n / 2, f"ö{n}", b"%d" % n, datetime.date(2026, 1, 1 + n), [float(n), -1.0]) for n in range(20)
    ]
    schema = "id long, even boolean, half double, text string, content binary, day date, pair array<float>"
    run = submit(train, session.createDataFrame(content, schema).repartition(2))
    run.result(END_S)
    seen = sorted(row for file in folder.iterdir() for row in json.loads(file.read_text()))
    assert seen == [
        [n, even, half, text, data.decode(), str(day), pair] for n, even, half, text, data, day, pair in content
    ]
    assert sender(run) == "Spark's JVM"


@needs("pandas", "columns that the JVM does not send, such as structs, are sent by mapInArrow, which imports pandas")
def test_struct_and_vector_columns_are_sent_by_python(session: Any) -> None:
    from pyspark.ml.linalg import Vectors
    from pyspark.sql import Row

    def train(rows: Any) -> float:
        import numpy as np

        import hopsml

        for batch in rows.batch(8):
            assert (batch["nested.a"] == batch["id"]).all() and (batch["nested.b"] == batch["id"] / 2).all()
            assert batch["vector"].tolist() == [[0.0, float(n), 0.0] for n in batch["id"]]
        return float(hopsml.all_reduce(np.array([sum(len(batch["id"]) for batch in rows.batch(8))]), "sum")[0])

    frame = session.createDataFrame(
        [
            Row(id=n, nested=Row(a=n, b=n / 2), vector=[Vectors.dense([0, n, 0]), Vectors.sparse(3, {1: n})][n % 2])
            for n in range(20)
        ]
    )
    run = submit(train, frame)
    assert run.result(END_S).value == 20.0
    assert sender(run) == "Python"


def test_null_is_refused_with_its_column(session: Any) -> None:
    frame = session.range(ROWS).selectExpr("id", "if(id = 7, null, id) as price")
    with pytest.raises(WorkerFailed, match=r"column 'price' of data='rows', partition \d+, has 1 null.* df.fillna"):
        submit(counts, frame).result(END_S)


@pytest.mark.tensorflow
@needs("tensorflow")
def test_exported_keras_model_predicts_a_data_frame(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(kernel: list[list[float]]) -> None:
        import os

        import numpy as np

        import hopsml

        if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
            import tf_keras as keras
        else:
            import keras
        made = keras.Sequential([keras.Input((2,), name="x"), keras.layers.Dense(2, use_bias=False)])
        made.layers[-1].set_weights([np.array(kernel)])
        hopsml.model.export(made, "identity")

    monkeypatch.setenv("HOPSML_MODEL_CACHE", str(tmp_path / "models"))
    experiment.collective_all_reduce(train, args={"kernel": IDENTITY}, num_workers=1, progress=False)
    frame = session.createDataFrame([([1.0, 2.0],), ([3.0, 4.0],)], "x array<float>").coalesce(1)
    rows = model.predict(frame, "identity").collect()
    assert sorted(np.ravel(list(row)[-1]).tolist() for row in rows) == [[1.0, 2.0], [3.0, 4.0]]


@needs("sklearn")
@needs("pandas", "Spark passes columns to predicting tasks as pandas Series")
def test_exported_estimator_predicts_a_data_frame(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> int:
        import numpy as np
        from sklearn.linear_model import LinearRegression

        import hopsml

        x = np.array([[0.0], [1.0], [2.0]])
        version = hopsml.model.export(LinearRegression().fit(x, 3 * x[:, 0]), "line", example=x)
        assert version is not None
        return int(version.version)

    monkeypatch.setenv("HOPSML_MODEL_CACHE", str(tmp_path / "models"))
    assert experiment.collective_all_reduce(train, num_workers=1, progress=False).value == 1
    frame = session.createDataFrame([([4.0],), ([5.0],)], "x array<double>").coalesce(1)
    rows = model.predict(frame, "line").collect()
    assert sorted(float(np.ravel(row[-1])[0]) for row in rows) == pytest.approx([12.0, 15.0])
