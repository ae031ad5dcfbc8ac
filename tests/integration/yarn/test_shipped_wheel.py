"""Tests of the wheel in environments of other Pythons, which YARN ships to driver and executors of their Sparks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from hopsml.storage import filesystem
from tests.helpers.clock import END_S
from tests.integration.yarn.conftest import Hadoop
from tools.version_matrix import UV, Unavailable, interpreter

pytestmark = [
    pytest.mark.hadoop,
    pytest.mark.variant,  # some minutes: environments are installed and packed
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("no_helpers_left"),
]

ROOT = Path(__file__).parents[3]
SOURCES = ("hopsml", "conf", "native", "tools", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
JOB = """
import json
import sys

import numpy as np
from pyspark.sql import SparkSession

import hopsml
from hopsml import experiment, model


def train(rows):
    import sys

    from sklearn.linear_model import LinearRegression

    batches = [{name: np.array(column) for name, column in batch.items()} for batch in rows.batch(8)]
    x = np.concatenate([batch["x"] for batch in batches]).astype(np.float64)
    seen = float(hopsml.all_reduce(np.array([x.sum(), len(x)]), "sum")[0])
    line = LinearRegression().fit(x.reshape(-1, 1), 2 * x)
    if hopsml.distributed.rank() == 0:
        model.export(line, "line", example=x[:2].reshape(-1, 1))
    return {"seen": seen, "json": hopsml.distributed.exchange([sys.prefix, sys.version_info[1]])}


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    frame = spark.range(64).selectExpr("cast(id as double) x")
    run = experiment.distributed(train, data={"rows": frame}, num_workers=2, progress=False)
    predicted = model.predict(frame, "line").collect()
    print(json.dumps({
        "seen": run.metrics["seen"],
        "places": run.metrics["json"],
        "executors": len({worker["executor"] for worker in run.workers}),
        "predicted": [float(np.ravel(row[-1])[0]) for row in sorted(predicted)],
        "library": hopsml.__file__,
        "spark": spark.version,
        "driver": sys.prefix,
    }), flush=True)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this tree."""
    folder = tmp_path_factory.mktemp("built")
    for name in SOURCES:
        whole = ROOT / name
        if whole.is_dir():
            shutil.copytree(whole, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(whole, folder / "source" / name)
    command = [UV, "--quiet", "--offline", "build", "--wheel", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*command, "--out-dir", folder / "dist", folder / "source"], check=True)
    (found,) = (folder / "dist").glob("*.whl")
    return found


def environment_with(wheel: Path, folder: Path, python: str, pyspark: str) -> Path:
    """Create an environment with the wheel, a pyspark and scikit-learn; skip if this is impossible here."""
    try:
        subprocess.run([UV, "--quiet", "venv", "--python", interpreter(python), folder], check=True)
    except Unavailable as reason:
        pytest.skip(str(reason))
    wanted = [wheel, f"pyspark=={pyspark}", "scikit-learn", "pandas<3", "venv-pack", "setuptools<81"]
    subprocess.run([UV, "--quiet", "pip", "install", "--python", folder / "bin" / "python", *wanted], check=True)
    return folder


def packed_by_venv_pack(folder: Path, store: str) -> str:
    """Pack an environment by venv-pack, store it on HDFS and return its URL."""
    archive = folder.with_suffix(".tar.gz")
    command = [
        folder / "bin" / "venv-pack",
        "--quiet",
        "--prefix",
        folder,
        "--output",
        archive,
        "--exclude",
        "*/pyspark/*",
    ]
    subprocess.run(command, check=True)
    url = f"{store}/packed.tar.gz"
    files = filesystem.for_url(url)
    files.make_dirs(store)
    files.upload(archive, url)
    return url


def profile(hadoop: Hadoop, pyspark: Path) -> dict[str, object]:
    """Return a profile whose JVMs use the Spark of the environment: executors of two workers, and one that computes rows."""
    settings = hadoop.spark_conf(executors=3)
    settings = {key: value for key, value in settings.items() if not key.endswith(("PYSPARK_PYTHON", "PYTHONPATH"))}
    settings["spark.yarn.jars"] = f"local:{pyspark}/jars/*"
    store = f"{hadoop.namenode_url}/Projects/{time.monotonic_ns()}"
    return {"master": "yarn", "deploy_mode": "cluster", "store": store, "spark": settings}


@pytest.mark.parametrize(
    ("python", "pyspark", "packed"),
    [("3.12", "3.5.9", "auto"), ("3.13", "4.3.0", "auto"), ("3.12", "3.5.9", "venv-pack")],
)
def test_wheel_on_yarn_trains_feeds_and_predicts_in_the_shipped_environment(
    hadoop: Hadoop, wheel: Path, tmp_path: Path, python: str, pyspark: str, packed: str
) -> None:
    folder = environment_with(wheel, tmp_path / "venv", python, pyspark)
    library = folder / "lib" / f"python{python}" / "site-packages"
    made = profile(hadoop, library / "pyspark")
    made["ship_environment"] = packed if packed == "auto" else packed_by_venv_pack(folder, str(made["store"]))
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(made))
    (tmp_path / "job.py").write_text(JOB)
    kept = {name: value for name, value in hadoop.submit_env().items() if name != "PYTHONPATH"}
    environment = {**kept, "HOPSML_CONF_DIR": str(tmp_path), "PATH": f"{folder / 'bin'}{os.pathsep}{kept['PATH']}"}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment[name] = str(folder / "bin" / "python")
    done = subprocess.run(
        [folder / "bin" / "hopsml", "submit", "job.py", "--profile", "small"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=4 * END_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["seen"], found["executors"], found["spark"]) == (sum(range(64)), 2, pyspark)
    assert found["predicted"] == pytest.approx([2.0 * x for x in range(64)])
    for prefix, minor in [*found["places"], (found["driver"], int(python.partition(".")[2]))]:
        assert "/environment" in prefix and str(tmp_path) not in prefix and minor == int(python.partition(".")[2])
    assert "/environment/" in found["library"]
    assert filesystem.exists(f"{made['store']}/environments") == (packed == "auto")
