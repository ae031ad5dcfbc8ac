"""Tests of hopsml's clients on a host whose environment names a proxy that never answers, and no exception to it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopsml.errors import HopsmlError
from tests.helpers.clock import END_S
from tests.helpers.lone_host import WIRED, on_lone_host
from tools.shaped_network import hindrance

pytestmark = [pytest.mark.local, pytest.mark.skipif(hindrance() != "", reason=f"no networks of our own: {hindrance()}")]

ROOT = Path(__file__).parents[3]
HERE, OTHER, PROXY = "10.8.8.5", "10.8.8.7", "10.8.8.6"
PORT = 3128
TWO_HOSTS = f"{WIRED} " + "".join(f"ip addr add {one}/24 dev eth0;" for one in (HERE, OTHER, PROXY))
VARIABLES = {
    name: f"http://me:secret@{PROXY}:{PORT}"
    for word in ("http_proxy", "https_proxy", "all_proxy")
    for name in (word, word.upper())
}
ONLY_ALL = {"all_proxy": VARIABLES["all_proxy"]}


def job_service() -> None:
    from hopsml import client, service_connection

    service_connection.TIMEOUT_S = 2.0  # type: ignore[misc]
    client.Client(f"http://{OTHER}:8080", "token").jobs()


def resource_manager() -> None:
    from hopsml.core import hadoop_http

    hadoop_http.request(f"http://{OTHER}:8088/ws/v1/cluster/info", 2.0)


def webhdfs() -> None:
    from hopsml.storage import filesystem

    url = f"webhdfs://{OTHER}:9870/"
    filesystem.for_url(url, 4.0).status(url)


def name_node() -> None:
    from hopsml.storage.remote import hadoop

    hadoop._WEB_TIMEOUT_S = 2.0  # type: ignore[misc]
    hadoop.HadoopStore(f"webhdfs://{OTHER}:9870/", {}).capacity(f"webhdfs://{OTHER}:9870/")  # type: ignore[abstract]


def mlflow() -> None:
    from hopsml.tracking.mlflow import store

    store.limit_request_time(2.0)
    store.Store(f"http://{OTHER}:5000").experiment_id("runs")


def doctor() -> None:
    from hopsml.core import settings
    from hopsml.doctor import facts

    facts.STEP_S = 2.0  # type: ignore[misc]
    settings.yarn_settings = lambda: {"yarn.resourcemanager.hostname": OTHER}  # type: ignore[assignment]
    raise OSError(facts.probe_yarn().problem)


def mlflow_here() -> None:
    """Reach a server on this machine, whose answer is no answer of MLflow's."""
    from hopsml.tracking.mlflow import store

    store.limit_request_time(2.0)
    store.Store("http://127.0.0.1:5").experiment_id("runs")


def webhdfs_here() -> None:
    from hopsml.storage import filesystem

    filesystem.for_url("webhdfs://127.0.0.1:5/", 4.0).status("webhdfs://127.0.0.1:5/")


def serving() -> None:
    """Request a prediction of a server on another host, which refuses connections."""
    from datetime import datetime

    from hopsml.core.newer_python import UTC
    from hopsml.serving import client, server_records

    record = server_records.ServerRecord("digits", OTHER, 5, "node2", "me", "", 1, datetime.now(UTC))
    client.post_json(record, "/v1/models/digits:predict", {}, 4.0)


def stage() -> None:
    """Request rows of a stage on another host, which refuses connections."""
    import pyarrow as pa

    from hopsml.cluster.shared.tls import make_key_pair
    from hopsml.training.data import staged_rows
    from hopsml.training.data.frame_log import StageAddress, StagedShard

    staged_rows._FETCH_S = 4.0  # type: ignore[misc]
    certificate, key = (part.decode() for part in make_key_pair("hopsml-stage"))
    address = StageAddress(f"grpc+tls://{OTHER}:5", certificate, "token", "node2", "", client_key=key)
    try:
        staged_rows.StageClient(address).fetch("data-x/0-0.arrow", StagedShard(0, 1, 1, 1))
    except pa.ArrowException as error:
        raise ConnectionError(str(error)) from error


CALLS: dict[str, Callable[[], None]] = {
    call.__name__: call
    for call in (
        job_service, resource_manager, webhdfs, name_node, mlflow, doctor, mlflow_here, webhdfs_here, serving,
        stage,
    )
}  # fmt: skip


def errors(folder: Path, variables: dict[str, str], names: list[str]) -> dict[str, str]:
    """Return the error of each call on such a host."""
    bare = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    command = on_lone_host(folder, TWO_HOSTS, [sys.executable, "-m", __name__, *names], hosts=f"{HERE} node1\n")
    environment = {**bare, **variables, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=END_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_request_that_a_proxy_does_not_answer_fails_and_names_the_proxy(tmp_path: Path) -> None:
    names = ["job_service", "resource_manager", "webhdfs", "name_node", "mlflow", "doctor"]
    for name, text in errors(tmp_path, VARIABLES, names).items():
        assert f"the request went through the proxy {PROXY}:{PORT} (http_proxy); set no_proxy={OTHER}" in text, (
            name,
            text,
        )
        assert "secret" not in text and "frozen" not in text, (name, text)


def test_all_proxy_is_named_only_by_clients_that_read_it(tmp_path: Path) -> None:
    found = errors(tmp_path, ONLY_ALL, ["resource_manager", "webhdfs", "mlflow"])
    assert "refused" in found["resource_manager"] and "proxy" not in found["resource_manager"]
    for name in ("webhdfs", "mlflow"):
        assert f"the request went through the proxy {PROXY}:{PORT} (all_proxy)" in found[name], found[name]


def test_request_to_this_machine_or_a_serving_bypasses_the_proxy(tmp_path: Path) -> None:
    for name, text in errors(tmp_path, VARIABLES, ["mlflow_here", "webhdfs_here", "serving", "stage"]).items():
        assert "refused" in text.lower() and PROXY not in text, (name, text)


def main(names: list[str]) -> dict[str, Any]:
    """Call the functions beside a proxy that accepts connections and never answers."""
    found = {}
    with socket.create_server((PROXY, PORT), backlog=64):
        for name in names:
            try:
                CALLS[name]()
                found[name] = ""
            except (HopsmlError, OSError) as error:
                found[name] = str(error)
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
