"""Tests of the ResourceManager's REST answers; tests/integration/yarn/test_submit.py uses a real one.

A standby ResourceManager, a proxy's error page and a server that stalls are simulated by small servers on loopback.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hopsml.core import hadoop_http
from hopsml.core.hadoop_http import AccessError, NoAnswer
from hopsml.errors import ApplicationNotFound, ArgumentError, ClusterError, ClusterUnavailable
from hopsml.yarn import ResourceManager, rm_web_addresses
from tests.helpers import clock
from tools.hadoop.ports import free_ports

pytestmark = pytest.mark.fast

ID = "application_1763690000000_0001"
APP = {
    "id": ID,
    "name": "digits",
    "state": "FINISHED",
    "finalStatus": "SUCCEEDED",
    "queue": "root.default",
    "progress": 100.0,
    "applicationTags": "one,hopsml-abc",
    "startedTime": 1763690001500,
}
Reply = tuple[int, str, bytes, dict[str, str]]  # status, type, body, further headers


def as_json(content: object, status: int = 200) -> Reply:
    return status, "application/json;charset=utf-8", json.dumps(content).encode(), {}


Serve = Callable[[Callable[[str, str], Reply]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(reply)`` opens a server on loopback and returns its address; ``reply(method, path)`` answers."""
    with ExitStack() as stack:

        def start(reply: Callable[[str, str], Reply]) -> str:
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    self.rfile.read(int(self.headers.get("Content-Length") or 0))
                    status, kind, body, headers = reply(self.command, self.path)
                    self.send_response(status)
                    for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)

                do_PUT = do_GET

                def log_message(self, format: str, *args: object) -> None:
                    pass

            server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            server.daemon_threads = False
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"127.0.0.1:{server.server_port}"

        yield start


def standby(method: str, path: str) -> Reply:
    return 200, "text/plain;charset=utf-8", b"There is currently no active RM", {"Refresh": "3; url=/"}


def active(method: str, path: str) -> Reply:
    return as_json({"app": APP})


RM = "yarn.resourcemanager."


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, ("http", ())),
        ({RM + "hostname": "rm1"}, ("http", ("rm1:8088",))),
        (
            {RM + "hostname": "rm1", RM + "webapp.address": "${yarn.resourcemanager.hostname}:9000"},
            ("http", ("rm1:9000",)),
        ),
        (
            {
                RM + "ha.rm-ids": "a,b",
                RM + "hostname.a": "rm1",
                RM + "hostname.b": "rm2",
                RM + "webapp.https.address.a": "${yarn.resourcemanager.hostname.a}:9090",
                RM + "webapp.https.address.b": "${yarn.resourcemanager.hostname}:${port}",
                "port": "9091",
                "yarn.http.policy": "HTTPS_ONLY",
            },
            ("https", ("rm1:9090", "rm2:9091")),
        ),
        ({RM + "hostname": "rm1", RM + "webapp.address": "0.0.0.0:9000"}, ("http", ("rm1:9000",))),
        ({RM + "webapp.address": "rm2:1234"}, ("http", ("rm2:1234",))),
        ({RM + "hostname": "rm1", "yarn.http.policy": "HTTPS_ONLY"}, ("https", ("rm1:8090",))),
        (
            {RM + "hostname": "rm1", "yarn.http.policy": "https_only"},
            ("https", ("rm1:8090",)),
        ),  # Hadoop ignores the case
        (
            {RM + "ha.rm-ids": "a, b", RM + "hostname.a": "rm1", RM + "webapp.address.b": "rm2:80"},
            ("http", ("rm1:8088", "rm2:80")),
        ),
    ],
)
def test_addresses_are_derived_from_the_yarn_configuration(
    known: dict[str, str], expected: tuple[str, tuple[str, ...]]
) -> None:
    assert rm_web_addresses(known) == expected


def test_application_is_parsed_from_the_answer(serve: Serve) -> None:
    app = ResourceManager((serve(active),)).application(ID)
    assert (app.id, app.state, app.final_status, app.queue) == (ID, "FINISHED", "SUCCEEDED", "root.default")
    assert app.tags == ("one", "hopsml-abc") and app.started_s == 1763690001.5 and app.finished_s == 0
    assert app.is_final and app.succeeded and app.diagnostics == ""


@pytest.mark.parametrize("first", ["standby", "closed", "proxy"])
def test_next_address_is_used_if_the_first_is_no_active_resource_manager(serve: Serve, first: str) -> None:
    def proxy(method: str, path: str) -> Reply:
        return 502, "text/html", b"<html>Bad gateway</html>", {}

    address = (
        f"127.0.0.1:{free_ports(1, '127.0.0.1')[0]}"
        if first == "closed"
        else serve(standby if first == "standby" else proxy)
    )
    assert ResourceManager((address, serve(active))).application(ID).name == "digits"


def test_kill_request_is_forwarded_by_a_standby_to_the_active_one(serve: Serve) -> None:
    killed = []

    def only_active(method: str, path: str) -> Reply:
        killed.append((method, path))
        return as_json({"state": "KILLED"}, 202)

    def redirects(method: str, path: str) -> Reply:
        return 307, "text/plain", b"This is standby RM", {"Location": "http://127.0.0.1:1/"}

    ResourceManager((serve(redirects), serve(only_active)), user="alice").kill(ID)
    assert killed == [("PUT", f"/ws/v1/cluster/apps/{ID}/state?user.name=alice")]


def test_unreachable_and_standby_addresses_are_reported(serve: Serve) -> None:
    closed = f"127.0.0.1:{free_ports(1, '127.0.0.1')[0]}"
    with pytest.raises(ClusterUnavailable, match=rf"{closed}.*refused.*no active RM.*yarn-site.xml"):
        ResourceManager((closed, serve(standby))).application(ID)


def test_silent_server_is_abandoned_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        started_s = clock.awake()
        with pytest.raises(ClusterUnavailable, match=rf"{address}.*timed out"):
            ResourceManager((address,), timeout_s=0.2).find_by_tag("tag")
        assert clock.awake() - started_s < 2


def test_interrupted_answer_is_an_error(serve: Serve) -> None:
    def half(method: str, path: str) -> Reply:
        return 200, "application/json", b'{"app": ', {"Content-Length": "4000", "Connection": "close"}

    with pytest.raises(ClusterUnavailable, match="broke 3992 bytes before the end of the answer"):
        ResourceManager((serve(half),), timeout_s=2).application(ID)


SKEW = b"<h1>HTTP ERROR 403 GSSException: No valid credentials (Mechanism level: Clock skew too great (37))</h1>"
KEYTAB = (
    b"<h1>HTTP ERROR 403 GSSException: Failure unspecified at GSS-API level (Mechanism level: Checksum failed)</h1>"
)


@pytest.mark.parametrize(("page", "remedy"), [(SKEW, "synchronise the clocks"), (KEYTAB, "keytab")])
def test_filter_that_refuses_a_ticket_has_its_own_remedy(serve: Serve, page: bytes, remedy: str) -> None:
    def refusing(method: str, path: str) -> Reply:
        return 403, "text/html", page, {}

    address = serve(refusing)
    with pytest.raises(ClusterError, match=rf"403.*; .*{remedy}") as failed:
        ResourceManager((address,)).application(ID)
    assert "as the owner" not in str(failed.value)
    with pytest.raises(AccessError, match=rf"HTTP 403 .*; .*{remedy}"):
        hadoop_http.opened(f"http://{address}/logs", 30)
    assert ResourceManager((address, serve(active))).application(ID).name == "digits", "the other one is asked"


def test_refusal_of_yarn_itself_is_final(serve: Serve) -> None:
    with pytest.raises(ClusterError, match="403 not yours"):
        ResourceManager(
            (serve(lambda *_: as_json({"RemoteException": {"message": "not yours"}}, 403)), serve(active))
        ).application(ID)


@pytest.mark.parametrize(("status", "kind"), [(401, AccessError), (403, AccessError), (500, NoAnswer)])
def test_refusal_of_a_stream_is_known_by_its_class(serve: Serve, status: int, kind: type[NoAnswer]) -> None:
    address = serve(lambda *_: (status, "text/plain", b"of bob", {}))
    with pytest.raises(NoAnswer, match=f"HTTP {status}.*of bob") as failed:
        hadoop_http.opened(f"http://{address}/logs?a=b", 30)
    assert type(failed.value) is kind and "a=b" not in str(failed.value)


def test_refused_requests_are_explained(serve: Serve) -> None:
    def reply(method: str, path: str) -> Reply:
        if method == "PUT":
            return 403, "text/plain", b"user bob may not", {}
        if "applicationTags" in path:
            return 401, "text/html", b"<h1>Authentication required</h1>", {}
        return as_json({"RemoteException": {"message": f"app with id: {ID} not found"}}, 404)

    yarn = ResourceManager((serve(reply),))
    with pytest.raises(ApplicationNotFound, match=f"has no record of {ID} .*not found.*deletes"):
        yarn.application(ID)
    with pytest.raises(ClusterError, match="403 user bob may not; send the request as the owner"):
        yarn.kill(ID)
    with pytest.raises(ClusterError, match="HTTP 401 Authentication required; send the request"):
        yarn.find_by_tag("tag")


def test_invalid_application_id_is_refused_without_a_request() -> None:
    with pytest.raises(ArgumentError, match=r"'\.\./info' is not the id"):
        ResourceManager(("127.0.0.1:1",)).application("../info")


def test_find_returns_applications_with_the_exact_tag_newest_first(serve: Serve) -> None:
    def reply(method: str, path: str) -> Reply:
        assert path.endswith("apps?applicationTags=hopsml-abc")
        older = {**APP, "id": ID[:-1] + "0", "startedTime": 5}
        other = {**APP, "id": ID[:-1] + "9", "applicationTags": "hopsml-abcd"}
        return as_json({"apps": {"app": [older, APP, other]}})

    assert [app.id for app in ResourceManager((serve(reply),)).find_by_tag("hopsml-ABC")] == [ID, ID[:-1] + "0"]
    assert ResourceManager((serve(lambda *_: as_json({"apps": None})),)).find_by_tag("hopsml-abc") == []


def test_resource_manager_is_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"no ResourceManager is configured.*HADOOP_CONF_DIR"):
        ResourceManager.from_environment()
    for folder, host in (("hadoop", "rm1"), ("yarn", "rm2")):
        (tmp_path / folder).mkdir()
        entry = f"<property><name>yarn.resourcemanager.hostname</name><value>{host}</value></property>"
        (tmp_path / folder / "yarn-site.xml").write_text(f"<configuration>{entry}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "hadoop"))
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    assert ResourceManager.from_environment(3.0) == ResourceManager(("rm1:8088",), "http", 3.0, "alice")
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path / "yarn"))
    assert ResourceManager.from_environment().addresses == ("rm2:8088",)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"[]",
        b"{",
        b'{"apps": [], "app": 1, "nodes": 5}',
        b'{"apps": {"app": {}}, "app": {"id": 1}, "nodes": {"node": {"a": 1}}}',
        b'{"apps": {"app": [3]}, "app": {"id": 1, "state": "RUNNING", "startedTime": "x"}, "nodes": {"node": [{}]}}',
        b'{"apps": {"app": 7}, "app": {"id": 1, "state": "R", "runningContainers": 1e999}, "nodes": {"node": 7}}',
    ],
)
def test_malformed_answer_is_a_cluster_error(serve: Serve, body: bytes) -> None:
    """The job service continues only after errors of this type."""
    manager = ResourceManager((serve(lambda method, path: (200, "application/json", body, {})),))
    for ask in (lambda: manager.application(ID), lambda: manager.find_by_tag("abc"), manager.nodes):
        with contextlib.suppress(ClusterError):
            assert ask() == []
    with pytest.raises(ClusterError):
        manager.application(ID)
