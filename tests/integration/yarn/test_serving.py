"""Tests of a serving in YARN containers with its project on HDFS: driver here, and in a container."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from hopsml import model, serving
from hopsml.core import processes
from hopsml.storage import filesystem
from hopsml.yarn import ResourceManager
from tests.integration.serving.test_serving import Load, answered
from tests.integration.yarn.conftest import Hadoop
from tests.integration.yarn.test_submit import ROOT, wait_until

pytestmark = [pytest.mark.hadoop, pytest.mark.variant]


@pytest.fixture
def project(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Profiles ``here`` (client mode) and ``there`` (cluster mode); two versions of ``digits`` on HDFS."""
    from sklearn.dummy import DummyRegressor

    (tmp_path / "conf").mkdir()
    settings = hadoop.spark_conf(executors=1) | {"spark.executorEnv.HOPSML_SERVING_FOLDER": str(tmp_path / "nodes")}
    for name, mode in (("here", "client"), ("there", "cluster")):
        content = {"master": "yarn", "deploy_mode": mode, "spark": settings}
        (tmp_path / "conf" / f"{name}.yaml").write_text(yaml.safe_dump(content))
    for name, value in {
        **hadoop.submit_env(),
        "PYTHONPATH": str(ROOT),
        "HOPSML_CONF_DIR": str(tmp_path / "conf"),
        "HOPSML_SERVING_FOLDER": str(tmp_path / "machine"),
        "HOPSML_PROJECT_URL": f"{hadoop.namenode_url}/Projects/{time.monotonic_ns()}",
        "HOPSML_MLFLOW": "0",
    }.items():
        monkeypatch.setenv(name, value)
    for number in (1, 2):
        constant = DummyRegressor(strategy="constant", constant=float(number))
        model.export(constant.fit(np.zeros((2, 4)), np.zeros(2)), "digits", metrics={"accuracy": number / 10})
    yield
    filesystem.close_all()


@pytest.mark.parametrize("profile", ["here", "there"])
def test_serving_in_yarn_containers_replaces_replicas_and_rolls(project: None, profile: str) -> None:
    status = serving.start("digits", version=1, replicas=2, profile=profile)
    yarn = ResourceManager.from_environment()
    try:
        assert (status.version, status.ready) == (1, 2) and not yarn.application(status.application).is_final
        with Load() as load:
            os.kill(status.pids[0], signal.SIGKILL)
            wait_until(lambda: (now := serving.status("digits")).restarts == 1 and now.ready == 2)
            (container,) = _executors_of(serving.status("digits").pids[1])
            os.kill(container, signal.SIGKILL)  # an executor's JVM: Spark requests another one from YARN
            wait_until(lambda: (now := serving.status("digits")).restarts == 2 and now.ready == 2)
            load.more(20)
            serving.roll("digits", 2)
        assert not load.errors and answered() == 2.0
        assert serving.status("digits").url == status.url and "version 2 was loaded" in serving.logs("digits")
    finally:
        serving.stop("digits")
    assert yarn.application(status.application).final_status == "SUCCEEDED"
    assert serving.status("digits").state == "Stopped"


@pytest.mark.parametrize("profile", ["here", "there"])
def test_serving_on_yarn_ends_when_its_driver_dies(project: None, profile: str) -> None:
    status = serving.start("digits", version=1, replicas=1, profile=profile)
    try:
        os.kill(status.supervisor, signal.SIGKILL)
        wait_until(lambda: serving.status("digits").state == "Stopped")
        wait_until(lambda: all(processes.has_ended(pid) for pid in status.pids))
        wait_until(lambda: ResourceManager.from_environment().application(status.application).is_final)
    finally:
        serving.stop("digits")


def _executors_of(replica: int) -> list[int]:
    """Return the executor JVM of a replica, whose ancestors are the agent, Spark's Python daemon, and the JVM."""
    pid = replica
    for _ in range(3):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return [pid] if "CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_text() else []
