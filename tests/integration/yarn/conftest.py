"""Fixtures for the real HDFS and YARN of tools/hadoop; tests/conftest.py starts them once a session, on first use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hopsml.storage import filesystem
from tests.helpers import leaks
from tests.helpers.session_cluster import SessionCluster
from tools.hadoop import spark
from tools.hadoop.jars import CACHE, ensure_jars
from tools.hadoop.rest import ApplicationState

APPLICATION_ID = re.compile(r"application_\d+_\d+")


@dataclass(frozen=True)
class Submitted:
    """Result of an ended spark-submit."""

    returncode: int
    output: str
    app_id: str
    state: ApplicationState


class Hadoop(SessionCluster):
    """The session's cluster, with what submits applications to it."""

    def spark_conf(self, **options: object) -> dict[str, str]:
        """Return settings for a small application on this YARN; ``options`` are those of tools.hadoop.spark.spark_conf."""
        return spark.spark_conf(**options)  # type: ignore[arg-type]

    def submit_env(self) -> dict[str, str]:
        """Return the environment for spark-submit, or for a driver in client mode."""
        return spark.submit_env(self.conf_dir)

    def submit(
        self,
        script: Path | str,
        *arguments: str,
        conf: Mapping[str, str],
        deploy_mode: str = "cluster",
        timeout_s: float = 200,
    ) -> Submitted:
        """Run spark-submit to its end; the state is that of the ResourceManager's REST API afterwards."""
        command = spark.submit_command(script, *arguments, conf=conf, deploy_mode=deploy_mode)
        done = subprocess.run(
            command,
            env=self.submit_env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        found = APPLICATION_ID.search(done.stdout)
        assert found, f"spark-submit named no application (exit status {done.returncode}):\n{done.stdout[-4000:]}"
        state = self.wait_application(found[0], 30)
        return Submitted(done.returncode, done.stdout, found[0], state)


HADOOP = pytest.StashKey[Hadoop]()


def running(request: pytest.FixtureRequest) -> Iterator[Hadoop]:
    """Start the cluster of the fixture ``hadoop``, which tests/chaos uses as well."""
    cluster = Hadoop(CACHE / f"tests-{os.getpid()}")
    with leaks.not_of_this_test():  # if it is first requested within a test
        cluster.start(ensure_jars(), guarded=True)
    request.config.stash[HADOOP] = cluster
    yield cluster
    end(request.session)


def end(session: pytest.Session) -> None:
    """Stop the session's Hadoop if it runs, and delete its files; its logs are retained if a test failed."""
    cluster = session.config.stash.get(HADOOP, None)
    if cluster is not None:
        del session.config.stash[HADOOP]
        if session.testsfailed:
            keep_logs(cluster.home)
        cluster.stop(now=True, remove=True)


def keep_logs(home: Path) -> None:
    """Copy the daemons' logs to .cache/hadoop/failed, in the place of those of an earlier session."""
    target = CACHE / "failed"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for log in home.glob("*/log"):
        shutil.copy(log, target / f"{log.parent.name}.log")


@pytest.fixture(autouse=True)
def whole_hadoop(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test, restart killed daemons, resume frozen ones, and remove added nodes and applications."""
    yield
    cluster = request.config.stash.get(HADOOP, None)
    if cluster is not None and cluster.started:
        cluster.make_whole()


@pytest.fixture
def no_helpers_left() -> Iterator[None]:
    """End the helper processes for HDFS with the test."""
    yield
    filesystem.close_all()
