"""Tests of the engine for standalone Spark: what it reads of the masters' status, and what follows when none answers."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.core import profiles
from hopsml.errors import ArgumentError
from hopsml.service.engine.standalone import StandaloneEngine, seen_workers, status_urls
from hopsml.service.scheduler.resources import Resources

pytestmark = pytest.mark.fast


def worker(host: str, port: int = 1, state: str = "ALIVE", **more: Any) -> dict[str, Any]:
    """Return a worker as a master of Spark 4 reports it."""
    return {
        "id": f"worker-{host}-{port}", "host": host, "port": port, "webuiaddress": f"http://{host}:8081", "cores": 4,
        "coresused": 1, "coresfree": 3, "memory": 2048, "memoryused": 512, "memoryfree": 1536, "resources": {},
        "resourcesused": {}, "resourcesfree": {}, "state": state, "lastheartbeat": 1795997766000, **more,
    }  # fmt: skip


GPUS = {"gpu": {"name": "gpu", "addresses": ["0", "1"]}}


def test_workers_that_are_alive_are_nodes_with_unique_names() -> None:
    found = seen_workers(
        [worker("a"), worker("b", 1), worker("b", 2, resources=GPUS, resourcesused=GPUS), worker("c", state="DEAD")]
    )
    assert [(node.name, node.capacity, node.used) for node in found] == [
        ("a", Resources(0, 4, 2048), Resources(0, 1, 512)),
        ("b:1", Resources(0, 4, 2048), Resources(0, 1, 512)),
        ("b:2", Resources(2, 4, 2048), Resources(2, 1, 512)),
    ]


@pytest.mark.parametrize(
    ("master", "port", "urls"),
    [
        ("spark://a:7077", "", ("http://a:8080/json/",)),
        ("spark://a:7077,b:7078", "8090", ("http://a:8090/json/", "http://b:8090/json/")),
    ],
)
def test_status_is_at_each_master(
    master: str, port: str, urls: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_CONF_DIR", str(tmp_path))
    spark = f"spark: {{spark.master.ui.port: '{port}'}}\n" if port else ""
    (tmp_path / "own.yaml").write_text(f"master: {master}\n{spark}")
    assert status_urls(profiles.load("own")) == urls


@pytest.fixture
def masters() -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield URLs of a standby and an active master, and the answer of the second one."""
    answers: dict[str, Any] = {"/standby/json/": {"status": "STANDBY", "workers": []}}
    answers["/active/json/"] = {"status": "ALIVE", "workers": [worker("a")]}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answers[self.path]).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield [f"http://127.0.0.1:{server.server_address[1]}{path}" for path in answers], answers["/active/json/"]
    server.shutdown()
    thread.join()
    server.server_close()


def test_active_master_is_found_and_its_absence_is_a_problem(
    masters: tuple[list[str], dict[str, Any]], tmp_path: Path
) -> None:
    urls, active = masters
    engine = StandaloneEngine(tmp_path, 2048, urls, tmp_path.as_uri())
    state = engine.poll()
    assert (
        state.nodes is not None and [node.name for node in state.nodes] == ["this-machine", "a"] and not state.problem
    )
    for broken in ({"status": "RECOVERING"}, {"status": "ALIVE"}, {"status": "ALIVE", "workers": [{}]}):
        active.clear()
        active.update(broken)
        state = engine.poll()
        assert state.nodes is None and "no master of http://127.0.0.1" in state.problem
        assert state.sight.applications == {}, "those of this machine are known"
    assert engine.driver() == Resources(memory_mib=1024) and not engine.resizes
    engine.request_end("t-1-1")
    engine.close()
    assert (tmp_path / "Jobs" / "t-1-1.end").exists()


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "answer",
    [
        b"no HTTP\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\n" + DEEP,
        *(
            b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps({"status": "ALIVE", "workers": [found]}).encode()
            for found in (
                worker("a", resources=[1]),
                worker("a", resources={"gpu": 1}),
                worker("a", cores=float("inf")),
                worker("a", cores=10**400),
                worker("a", memory=-1),
                worker("\x1b]0;a\x07"),
                worker("a" * 10_000),
                worker(5),  # type: ignore[arg-type]
            )
        ),
    ],
)
def test_malformed_answer_of_a_master_is_a_problem(answer: bytes, tmp_path: Path) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        engine = StandaloneEngine(tmp_path, 2048, [f"http://127.0.0.1:{server.server_address[1]}/"], tmp_path.as_uri())
        try:
            state = engine.poll()
        finally:
            engine.close()
            server.shutdown()
            thread.join()
    assert state.nodes is None and "answers as one that is ALIVE" in state.problem and len(state.problem) < 1000


def test_service_runs_on_standalone_spark_and_not_where_applications_cannot_be_found_again(tmp_path: Path) -> None:
    from hopsml.service import server

    engine = server._engine(profiles.load("standalone"), "t", tmp_path.as_uri(), tmp_path)
    assert isinstance(engine, StandaloneEngine)
    engine.close()
    with pytest.raises(ArgumentError, match="the service cannot find its applications again"):
        server._engine(profiles.load("yarn"), "t", tmp_path.as_uri(), tmp_path)
