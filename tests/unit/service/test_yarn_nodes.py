"""Tests of the service's view of YARN's nodes, and of a ResourceManager that refuses."""

from __future__ import annotations

import importlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hopsml.service import spec as specs
from hopsml.service.engine import SubmitOrder
from hopsml.service.engine.yarn import YarnEngine, seen_nodes
from hopsml.service.manager import Manager
from hopsml.service.store import JobStore, NewJob
from hopsml.service.workspaces import Workspaces
from hopsml.yarn import YarnNode

pytestmark = pytest.mark.fast


def named(*nodes: tuple[str, str]) -> list[tuple[str, bool]]:
    return [(node.name, node.is_open) for node in seen_nodes(YarnNode(name, state, 8, 8192) for name, state in nodes)]


def test_node_is_named_by_its_host_and_open_while_running() -> None:
    assert named(("node1:8041", "RUNNING"), ("node2:8041", "DECOMMISSIONING")) == [("node1", True), ("node2", False)]


def test_node_restarted_at_another_port_is_the_same() -> None:
    assert named(("node1:40001", "LOST"), ("node1:40007", "RUNNING")) == [("node1", True)]


def test_two_nodes_on_one_host_are_named_with_their_ports() -> None:
    found = named(("node1:8041", "RUNNING"), ("node1:8042", "RUNNING"), ("node2:8041", "RUNNING"))
    assert found == [("node1:8041", True), ("node1:8042", True), ("node2", True)]


NODE = {"id": "node1:8041", "state": "RUNNING", "availMemoryMB": 8192, "availableVirtualCores": 8}


@pytest.fixture
def resource_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A server that answers as a ResourceManager with one node, and refuses once the event is set."""
    refuses = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = {"nodes": {"node": [NODE]}} if "/nodes" in self.path else {"apps": None}
            body = b"<html>Unauthorized</html>" if refuses.is_set() else json.dumps(found).encode()
            self.send_response(401 if refuses.is_set() else 200)
            self.send_header("Content-Type", "text/html" if refuses.is_set() else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"127.0.0.1:{server.server_port}"
        setting = f"<property><name>yarn.resourcemanager.webapp.address</name><value>{address}</value></property>"
        (tmp_path / "yarn-site.xml").write_text(f"<configuration>{setting}</configuration>")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        yield refuses
        server.shutdown()
        thread.join()


def test_jobs_of_a_cluster_that_refuses_wait_with_the_reason_and_not_for_ever(
    resource_manager: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, engine = JobStore.open(f"sqlite:///{tmp_path}/service.db"), YarnEngine("hopsml-job-x", f"file://{tmp_path}")
    submitted: list[SubmitOrder] = []
    monkeypatch.setattr(engine, "submit", submitted.append)
    workspaces = Workspaces(tmp_path, f"file://{tmp_path}", lambda owner, names: {})
    try:
        manager = Manager(store, engine, workspaces, profile="yarn", prefix="hopsml-job-x", holder="me")
        manager.run_pass()
        resource_manager.set()
        task = "{script: train.py, resources: {cores: 1, memory: 1g}}"
        content = specs.loads(f"name: one\ntasks: {{main: {task}}}").model_dump_json(by_alias=True, exclude_unset=True)
        serial = store.submit(NewJob("one", "ann", "default", 50, content, "yarn"), time.time()).serial
        manager.run_pass()
        row = next(job.row for job in manager._jobs.values() if job.row.serial == serial)
        assert row.state == "WAITING" and not submitted
        assert "the cluster cannot be asked: " in manager.why(row) and "401" in manager.why(row)
        monkeypatch.setattr(importlib.import_module("hopsml.service.lifecycle.step"), "UNREADABLE_S", 0.0)
        manager.run_pass()
        ended = store.job(serial)
        assert ended.state == "FAILED" and "401" in ended.cause
    finally:
        engine.close()
        store.close()
