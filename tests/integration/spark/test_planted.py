"""Tests that an application on Spark executors shows planted secrets to nobody: files, output, logs, command lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.core.delegation_tokens import HDFS_KIND, Credentials, Token, write
from tests.helpers.clock import END_S, wait_until
from tests.helpers.secrets_found import core_files_allowed, could_dump_core, of_processes, of_store, secrets_found
from tests.integration.spark.conftest import spark_environment

pytestmark = pytest.mark.spark

SECRETS = (
    "planted-aws-Hush93",
    "planted-ssl-Hush93",
    "planted-conf-Hush93",
    "planted-url-Hush93",
    "planted-token-Hush93",
)
JOB = """
import os, sys, time
from hopsml import experiment

def train(ready, end, key):
    import hopsml
    open(ready, "w").close()
    while not os.path.exists(end):
        time.sleep(0.02)
    hopsml.report(step=1, loss=0.5, said="used " + key)
    raise RuntimeError(f"cannot log in with {key} at {os.environ['REDIS_URL']}")

args = {"ready": sys.argv[1], "end": sys.argv[2], "key": os.environ["AWS_SECRET_ACCESS_KEY"]}
passed = {name: os.environ[name] for name in ("REDIS_URL", "AWS_SECRET_ACCESS_KEY")}
experiment.submit(train, args=args, num_workers=1, environment=passed, progress=False).result()
"""


def test_application_on_executors_shows_no_planted_secret(tmp_path: Path) -> None:
    for name in ("conf", "executors", "project"):
        (tmp_path / name).mkdir()
    (tmp_path / "conf" / "planted.yaml").write_text(
        'master: "local-cluster[1,1,1024]"\nspark: {spark.ui.enabled: false, spark.ssl.keyPassword: planted-ssl-Hush93, '
        "spark.executor.memory: 512m, spark.hadoop.fs.s3a.secret.key: planted-conf-Hush93}\n"
    )
    (tmp_path / "job.py").write_text(JOB)
    token = Token("a", b"\0\4anna", b"planted-token-Hush93", HDFS_KIND, "127.0.0.1:9")
    write(tmp_path / "tokens", Credentials((token,)))
    ready, end = tmp_path / "ready", tmp_path / "end"
    with spark_environment() as environment, core_files_allowed():
        environment.setenv("HOPSML_CONF_DIR", str(tmp_path / "conf"))
        environment.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
        environment.setenv("SPARK_WORKER_DIR", str(tmp_path / "executors"))
        environment.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executors"))
        environment.setenv("AWS_SECRET_ACCESS_KEY", "planted-aws-Hush93")
        environment.setenv("REDIS_URL", "redis://anna:planted-url-Hush93@host:6379/0")
        environment.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "tokens"))
        hopsml = str(Path(sys.executable).with_name("hopsml"))
        job = subprocess.Popen(
            [hopsml, "submit", "--profile", "planted", "job.py", str(ready), str(end)],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    with job:
        wait_until(lambda: ready.exists() or job.poll() is not None, "the worker", END_S)
        shown, dumps = of_processes(), could_dump_core(job.pid)
        end.touch()
        assert job.stdout is not None
        output = job.stdout.read()
    assert ready.exists() and job.returncode == 1, output.decode()
    assert b"cannot log in with (redacted)" in output, output.decode()
    stored = {**of_store(str(tmp_path / "project")), **of_store(str(tmp_path / "executors"))}
    assert {"environment.json", "worker.json"} <= {name.rpartition("/")[2] for name in stored}
    assert secrets_found(shown, {"output": output}, stored, secrets=SECRETS) == {}
    assert not [line for line in dumps if "hopsml." in line and "submit" not in line], dumps
