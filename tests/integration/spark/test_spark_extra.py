"""Test of the wheel installed with the extra ``spark`` alone: rows with structs reach workers by Python, models predict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import wheels
from tests.helpers.clock import END_S

pytestmark = [pytest.mark.spark, pytest.mark.variant, pytest.mark.timeout(2400)]  # an installation takes minutes

PROGRAM = """
import importlib.util
import json

from hopsml import experiment, model


def train(rows):
    import numpy as np

    import hopsml

    batches = list(rows.batch(4))
    columns = sorted({name for batch in batches for name in batch})
    total = float(sum(batch["place.x"].sum() for batch in batches))
    return {"columns": ",".join(columns), "total": float(hopsml.all_reduce(np.array([total]), "sum")[0])}


if __name__ == "__main__":
    spark = experiment.spark("local-cluster")
    frame = spark.range(0, 40, 1, 4).selectExpr(
        "named_struct('x', cast(id as double), 'name', cast(id as string)) as place", "array(id, id + 1) as pair"
    )
    result = experiment.collective_all_reduce(train, data={"rows": frame}, num_workers=2, progress=False)
    from hopsml.training.data.push import check_pandas

    check_pandas()
    doubled = frame.mapInArrow(lambda batches: batches, frame.schema).count()  # what predict calls
    absent = [name for name in ("tensorflow", "torch", "sklearn", "optuna") if importlib.util.find_spec(name) is None]
    print("FOUND " + json.dumps({**result.metrics, "count": doubled, "absent": absent}))
    experiment.shutdown(spark=True)
"""


def test_rows_with_structs_reach_workers_with_the_extra_spark_alone(tmp_path: Path) -> None:
    wheel, folder = wheels.build_wheel(tmp_path), tmp_path / "environment"
    python = folder / "bin" / "python"
    subprocess.run([*wheels.UV, "venv", "--python", sys.executable, folder], check=True)
    subprocess.run([*wheels.UV, "pip", "install", "--python", python, f"{wheel}[spark]"], check=True)
    (tmp_path / "program.py").write_text(PROGRAM)
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "HOPSML"))}
    environment = usual | {"HOPSML_PROJECT_URL": f"file://{tmp_path}/project", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": str(python)}
    done = subprocess.run(
        [python, tmp_path / "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=END_S
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found = json.loads(line.removeprefix("FOUND "))
    assert found["absent"] == ["tensorflow", "torch", "sklearn", "optuna"]
    assert (found["columns"], found["total"], found["count"]) == ("pair,place.name,place.x", 780.0, 40)
