"""Tests of the wheel, installed beside other versions of Spark and Python, on a real YARN."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helpers import wheels
from tests.helpers.clock import END_S
from tests.integration.yarn.conftest import Hadoop
from tools.version_matrix import Unavailable, interpreter

# An installation takes minutes where uv's cache is empty.
pytestmark = [pytest.mark.hadoop, pytest.mark.variant, pytest.mark.timeout(2400)]

JOB = Path(__file__).parent / "jobs" / "trains_feeds_predicts.py"
SETTINGS = (
    "from tools.hadoop.spark import spark_conf; import json; print(json.dumps(spark_conf(executors=3, python_path='')))"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.build_wheel(tmp_path_factory.mktemp("built"))


def installed(wheel: Path, folder: Path, python: str, spark: str) -> Path:
    """Return the interpreter of a new environment with the wheel and this Spark; skip if it cannot be had here."""
    try:
        found = interpreter(python)
    except Unavailable as reason:
        pytest.skip(str(reason))
    subprocess.run([*wheels.UV, "venv", "--python", found, folder], check=True)
    wanted = [f"{wheel}[tensorflow-cpu]", f"pyspark=={spark}", "tensorflow-cpu==2.21.*", "numpy==2.3.*", "pandas==2.*"]
    place = folder / "bin" / "python"
    subprocess.run([*wheels.UV, "pip", "install", "--python", place, *wanted], check=True)
    return place


@pytest.mark.parametrize(("python", "spark"), [("3.11", "3.5.9"), ("3.13", "4.3.0")])
def test_wheel_trains_feeds_and_predicts_on_yarn(
    wheel: Path, hadoop: Hadoop, tmp_path: Path, python: str, spark: str
) -> None:
    place = installed(wheel, tmp_path / "environment", python, spark)
    root = str(wheels.ROOT)
    asked = subprocess.run([place, "-c", SETTINGS], cwd=root, capture_output=True, text=True, check=True)
    store = f"{hadoop.namenode_url}/Projects/{tmp_path.name}"
    settings = {**json.loads(asked.stdout), "spark.executor.memory": "1g", "spark.driver.memory": "1g"}
    for role in ("spark.yarn.appMasterEnv", "spark.executorEnv"):
        settings[f"{role}.HOPSML_MODEL_CACHE"] = str(tmp_path / "models")
    settings = {name: value for name, value in settings.items() if not name.endswith(".PYTHONPATH")}
    profile = {"master": "yarn", "deploy_mode": "cluster", "store": store, "spark": settings}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(profile))
    environment = {name: value for name, value in hadoop.submit_env().items() if name != "PYTHONPATH"}
    environment |= {"HOPSML_CONF_DIR": str(tmp_path), "PYSPARK_PYTHON": str(place), "PYSPARK_DRIVER_PYTHON": str(place)}
    submitted = [place.with_name("hopsml"), "submit", JOB, "--profile", "small"]
    done = subprocess.run(submitted, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    run, values = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert Path(run["library"]).is_relative_to(tmp_path / "environment"), "not the working tree"
    assert (run["spark"], run["python"].rpartition(".")[0]) == (spark, python)
    assert run["executors"] == 2 and run["predicted"][0] == 100
    assert run["predicted"][1] == pytest.approx(2 * 49.5, abs=1)
    assert (values["rows"], values["sum"], values["replicas"]) == (100, 4950.0, 2)
    assert values["kernel"] == pytest.approx(2.0, abs=0.1)
