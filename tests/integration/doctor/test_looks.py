"""Tests of the doctor's inspections of this machine and of unavailable, frozen or odd services, with time limits."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hopsml.core import processes
from hopsml.doctor import examination, facts
from hopsml.doctor.checks import Needs, Status
from hopsml.storage import filesystem
from hopsml.submission import spark_start
from hopsml.tracking import provenance
from tests.helpers import clock
from tests.helpers.storage.fixtures import full_disk

pytestmark = pytest.mark.local
__all__ = ["full_disk"]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME", "HOPSML_PORT_RANGE", "JAVA_HOME", "PYSPARK_PYTHON", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    yield
    filesystem.close_all()


@pytest.fixture
def frozen_port() -> Iterator[int]:
    """Yield a port that accepts connections and never answers, like a frozen server."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_java_is_found_by_java_home_or_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "home" / "bin" / "java", "#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    found = spark_start.find_java()
    assert (found.source, found.problem) == ("JAVA_HOME", "") and "11.0.2" in found.output
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert "No such file" in spark_start.find_java().problem
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert spark_start.find_java() == spark_start.JavaFacts("", "PATH")


def test_hanging_program_is_killed_at_its_deadline(tmp_path: Path) -> None:
    start_s = clock.awake()
    output, problem = processes.run_with_deadline([str(program(tmp_path / "java", "#!/bin/sh\nexec sleep 600\n"))], 0.5)
    assert (output, problem) == ("", "it did not end within 0.5 s") and clock.awake() - start_s < 5


def test_versions_of_spark_and_its_hadoop_client_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = facts.find_spark(provenance.packages())
    assert found.pyspark and found.hadoop_client.count(".") == 2
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in ("spark-core_2.12-3.5.1.jar", "hadoop-client-api-3.3.4.jar"):
        (jars / name).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    found = facts.find_spark({"pyspark": "4.3.0"})
    assert found == facts.SparkFacts("4.3.0", "3.3.4", str(tmp_path), "3.5.1")


def test_executors_python_is_run_for_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import platform
    import sys

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    found = facts.probe_executors_python("")
    assert (found.source, found.version, found.problem) == ("PYSPARK_PYTHON", platform.python_version(), "")
    monkeypatch.setenv("PYSPARK_PYTHON", str(program(tmp_path / "python", "#!/bin/sh\necho broken; exit 3\n")))
    assert "status 3" in facts.probe_executors_python("").problem
    assert facts.probe_executors_python("/nowhere/python").problem == "this program does not exist on this machine"


def test_ports_of_a_range_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts.probe_ports() == facts.PortFacts("", 1, 1)
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("HOPSML_PORT_RANGE", f"{port}-{port}")
        found = facts.probe_ports()
        assert (found.tried, found.free) == (1, 0) and "in use" in found.problem
    for text in ("40000", "x-y", "5-4", "1-70000"):
        monkeypatch.setenv("HOPSML_PORT_RANGE", text)
        assert facts.probe_ports().tried == 0 and text in facts.probe_ports().problem


def test_announced_address_follows_from_settings_and_host_name() -> None:
    assert facts.find_addresses("127.0.0.1", "10.9.9.9").announced == "127.0.0.1"
    assert facts.find_addresses("", "127.0.0.2").source == "SPARK_LOCAL_IP"
    assert "no-such-host.invalid" in facts.find_addresses("no-such-host.invalid", "").problem
    assert "127.0.0.1" in facts.find_addresses("", "").local


def test_limits_and_scratch_space_of_this_machine_are_measured(
    monkeypatch: pytest.MonkeyPatch, full_disk: Path
) -> None:
    import resource
    import tempfile

    assert facts.limits().open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    monkeypatch.setattr(tempfile, "tempdir", str(full_disk))
    found = facts.probe_scratch()
    assert (found.folder, found.problem) == (str(full_disk), "") and 0 < found.free_bytes <= 1 << 20
    with pytest.raises(OSError, match="No space left"):
        (full_disk / "rest").write_bytes(bytes(2 << 20))
    assert "No space left" in facts.probe_scratch().problem or facts.probe_scratch().free_bytes == 0
    assert os.listdir(full_disk) == ["rest"]


def test_probe_of_the_store_leaves_no_file(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/Projects/anna"
    found = facts.probe_store(url)
    assert (found.problem, found.probed, found.skew_s) == ("", f"file://{tmp_path}", None)
    assert os.listdir(tmp_path) == []


def test_store_on_a_full_disk_is_reported(full_disk: Path) -> None:
    try:
        (full_disk / "rest").write_bytes(bytes(2 << 20))
    except OSError:
        pass
    found = facts.probe_store(f"file://{full_disk}")
    assert found.kind and "No space left" in found.problem
    assert os.listdir(full_disk) == ["rest"]


def hadoop_conf(folder: Path, namenode: int, web: int) -> Path:
    files = {
        "core-site.xml": {"fs.defaultFS": f"hdfs://127.0.0.1:{namenode}"},
        "yarn-site.xml": {"yarn.resourcemanager.webapp.address": f"127.0.0.1:{web}"},
    }
    for name, entries in files.items():
        rows = "".join(
            f"<property><name>{key}</name><value>{value}</value></property>" for key, value in entries.items()
        )
        (folder / name).write_text(f"<configuration>{rows}</configuration>")
    return folder


def test_services_that_refuse_connections_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop_conf(tmp_path, 1, 1)))
    assert facts.probe_hdfs().kind == "StorageUnavailable"
    assert "refused" in facts.probe_yarn().problem
    assert "refused" in spark_start.probe_spark_master("spark://127.0.0.1:1,localhost:1").problems[1]


def test_frozen_services_are_abandoned_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, frozen_port: int
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop_conf(tmp_path, frozen_port, frozen_port)))
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"hdfs://127.0.0.1:{frozen_port}/Projects/p")
    monkeypatch.setattr(facts, "STEP_S", 1.0)
    start_s = clock.awake()
    report = examination.examine("local")
    assert clock.awake() - start_s < 15
    found = {finding.name: finding for finding in report.findings}
    assert found["hdfs"].status is Status.FAIL and found["project store"].status is Status.FAIL
    assert found["yarn"].status is Status.WARN and "timed out" in found["yarn"].summary
    assert report.status is Status.FAIL


def test_inspection_that_never_ends_is_reported_at_the_deadline() -> None:
    gate = threading.Event()
    try:
        start_s = clock.awake()
        inspections = examination.gather({"slow": gate.wait, "quick": lambda: 1, "broken": lambda: 1 / 0}, 0.5)
        assert clock.awake() - start_s < 5
    finally:
        gate.set()
    assert inspections["quick"].facts == 1
    assert inspections["slow"].problem == "no answer within 0.5 s" and "division" in inspections["broken"].problem
    finding = examination.unanswered_finding("java", inspections["slow"], Needs(spark=True))
    assert finding.status is Status.FAIL and finding.remedy


class ResourceManager(BaseHTTPRequestHandler):
    """Answers as the REST interface of YARN 3.5 does; five minutes ahead."""

    def do_GET(self) -> None:
        info = {"clusterInfo": {"resourceManagerVersion": "3.5.0"}}
        metrics = {"clusterMetrics": {"activeNodes": 2, "totalMB": 4096, "totalVirtualCores": 8, "appsPending": 1}}
        body = json.dumps(info if self.path.endswith("/info") else metrics).encode()
        self.send_response_only(200 if self.path.startswith("/ws/v1/cluster/") else 404)
        self.send_header("Date", formatdate(time.time() + 300, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Not to the test's output."""


def test_resource_manager_facts_are_read_over_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), ResourceManager) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop_conf(tmp_path, 1, server.server_port)))
            found = facts.probe_yarn()
            (tmp_path / "yarn-site.xml").write_text("<configuration>")
            inspection = examination.gather({"yarn": facts.probe_yarn}, 5)["yarn"]
        finally:
            server.shutdown()
            thread.join()
    assert (found.version, found.nodes, found.memory_mb, found.cores, found.pending) == ("3.5.0", 2, 4096, 8, 1)
    assert found.skew_s is not None and 295 < found.skew_s < 305
    assert "yarn-site.xml" in inspection.problem and "the Hadoop configuration cannot be read" in inspection.problem
