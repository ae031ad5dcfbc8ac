"""Settings with which pip's pyspark starts quickly on the local Hadoop cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.hadoop.settings import LOOPBACK

ROOT = Path(__file__).resolve().parents[2]
DISCOVERY_SCRIPT = ROOT / "conf" / "discover_gpus.py"
UNVERIFIED = (
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"  # Spark's own classes; a seventh of a start
)
QUICK_JVM = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData {UNVERIFIED}"
# Variables of the caller that would select another Spark, Python or Hadoop.
DROPPED = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "CLASSPATH")


def pyspark_home() -> Path:
    """Return the folder of the installed pyspark package, without importing it."""
    from importlib.util import find_spec

    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("pyspark is not installed; run `make setup`")
    return Path(found.origin).parent


def spark_conf(
    *,
    executors: int = 2,
    cores: int = 1,
    memory: str = "512m",
    gpus: int = 0,
    python_path: str = str(ROOT),
    python: str = sys.executable,
) -> dict[str, str]:
    """Return settings of a small, quick application on YARN; ``gpus`` is the number of each executor.

    Measured in seconds from getOrCreate to the first task, two executors, two busy cores: 26 with Spark's
    defaults, 15 with jars read in place; the reduced waiting times below save most of the rest.
    """
    conf = {
        "spark.master": "yarn",
        "spark.yarn.jars": f"local:{pyspark_home()}/jars/*",  # otherwise 460 MB are packed and uploaded each time
        "spark.executor.instances": str(executors),
        "spark.executor.cores": str(cores),
        "spark.executor.memory": memory,
        "spark.driver.memory": memory,
        "spark.yarn.am.memory": memory,
        "spark.ui.enabled": "false",
        "spark.yarn.maxAppAttempts": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "0",  # do not wait for 80 % of the executors
        "spark.yarn.scheduler.initial-allocation.interval": "100ms",
        "spark.yarn.scheduler.heartbeat.interval-ms": "500",
        "spark.yarn.report.interval": "200ms",
        # with loopback NodeManagers an executor listens at its node's address, the driver at 127.0.0.1
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": LOOPBACK,
    }
    for role in ("spark.driver", "spark.executor", "spark.yarn.am"):
        conf[f"{role}.extraJavaOptions"] = QUICK_JVM
    for role in ("spark.yarn.appMasterEnv", "spark.executorEnv"):
        conf[f"{role}.PYSPARK_PYTHON"] = python
        conf[f"{role}.PYTHONPATH"] = python_path
    if gpus:
        conf |= gpu_conf(gpus)
    return conf


def gpu_conf(gpus: int) -> dict[str, str]:
    """Return settings by which every executor has ``gpus`` GPUs exclusively on its host."""
    return {
        "spark.executor.resource.gpu.amount": str(gpus),
        "spark.executor.resource.gpu.discoveryScript": str(DISCOVERY_SCRIPT),
        "spark.executorEnv.HOPSML_GPUS_PER_EXECUTOR": str(gpus),
    }


def submit_env(conf_dir: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for spark-submit, or for a driver in client mode; ``conf_dir`` is the cluster's."""
    kept = {key: value for key, value in environment.items() if not key.startswith(DROPPED)}
    return kept | {
        "HADOOP_CONF_DIR": str(conf_dir),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_SUBMIT_OPTS": QUICK_JVM,
        "SPARK_LAUNCHER_OPTS": QUICK_JVM,
    }


def submit_command(
    script: Path | str, *arguments: str, conf: Mapping[str, str], deploy_mode: str = "cluster"
) -> list[str]:
    """Return the spark-submit command line that runs ``script`` with these settings."""
    command = [str(pyspark_home() / "bin" / "spark-submit"), "--deploy-mode", deploy_mode]
    for key, value in conf.items():
        command += ["--conf", f"{key}={value}"]
    return [*command, str(script), *arguments]
