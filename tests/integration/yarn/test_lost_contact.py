"""Tests of submissions whose ResourceManager refuses web requests once the application is submitted.

A proxy in front of the cluster's ResourceManager begins to answer 401, as one behind SPNEGO does to a client without a
ticket. Hadoop's RPC still works.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hopsml.yarn import ResourceManager
from hopsml.yarn.rpc import RpcClient
from tests.helpers.clock import wait_until
from tests.integration.yarn import test_submit
from tests.integration.yarn.conftest import APPLICATION_ID, Hadoop
from tests.integration.yarn.test_submit import GATE, Hopsml, hopsml

pytestmark = pytest.mark.hadoop
__all__ = ["hopsml"]


class RefusingProxy:
    """HTTP proxy of one server that forwards requests until it refuses them."""

    def __init__(self, target: str) -> None:
        self.refuses = threading.Event()
        self.asked: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy.asked.append(self.path)
                if proxy.refuses.is_set():
                    self._answer(401, b"<html>Authentication required</html>", "text/html")
                    return
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else None
                headers = {"Accept": "application/json", "Content-Type": "application/json"}
                request = urllib.request.Request(f"http://{target}{self.path}", body, headers, method=self.command)
                try:
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        self._answer(answer.status, answer.read(), answer.headers.get("Content-Type", ""))
                except urllib.error.HTTPError as refused:
                    self._answer(refused.code, refused.read(), refused.headers.get("Content-Type", ""))

            do_PUT = do_GET

            def _answer(self, status: int, content: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def proxy(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RefusingProxy]:
    """The proxy, whose address commands get as that of the ResourceManager's web service."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    conf = tmp_path / "hadoop-conf"
    shutil.copytree(hadoop.conf_dir, conf)
    (address,) = ResourceManager.from_environment().addresses
    proxy = RefusingProxy(address)
    site = (conf / "yarn-site.xml").read_text()
    assert address in site
    (conf / "yarn-site.xml").write_text(site.replace(address, proxy.address))
    usual = Hadoop.submit_env
    monkeypatch.setattr(Hadoop, "submit_env", lambda self: {**usual(self), "HADOOP_CONF_DIR": str(conf)})
    yield proxy
    proxy.server.shutdown()
    proxy.server.server_close()


@pytest.fixture
def submit(proxy: RefusingProxy, hopsml: Hopsml) -> Hopsml:
    """``hopsml`` of commands that use the proxy."""
    return hopsml


def refuse_after_the_submission(proxy: RefusingProxy, running: test_submit.Running) -> str:
    """Refuse requests from the first look for the application on; return the id that the command prints."""
    wait_until(lambda: "submitting" in running.err or running.process.poll() is not None)
    proxy.refuses.set()
    return running.application()


def test_application_is_followed_over_rpc_and_its_end_is_the_exit_status(
    proxy: RefusingProxy, submit: Hopsml, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    running = submit("submit", str(GATE), str(gate), "ok", "--profile", "small", "--tag", "lost-1")
    known = refuse_after_the_submission(proxy, running)
    running.wait_for("is followed over Hadoop's RPC, without its output (--on-lost-contact follow)")
    assert re.search(
        rf"{known} was submitted, with the tag hopsml-\w+, but YARN's list cannot be read: .*401", running.err
    )
    running.wait_for(f"{known}: RUNNING")
    gate.touch()
    assert running.ended(200) == 0, running.err
    assert f"{known}: SUCCEEDED" in running.err


def test_application_is_killed_over_rpc_if_requested(proxy: RefusingProxy, submit: Hopsml, tmp_path: Path) -> None:
    options = ("--profile", "small", "--on-lost-contact", "kill")
    running = submit("submit", str(GATE), str(tmp_path / "gate"), "ok", *options)
    known = refuse_after_the_submission(proxy, running)
    assert running.ended(200) == 1, running.err
    assert "is ended over Hadoop's RPC (--on-lost-contact kill)" in running.err and f"{known}: KILLED" in running.err
    assert ResourceManager.from_environment().application(known).state == "KILLED"


def test_detached_submission_prints_the_id_that_spark_submit_has_reported(
    hadoop: Hadoop, proxy: RefusingProxy, submit: Hopsml, tmp_path: Path
) -> None:
    running = submit("submit", str(GATE), str(tmp_path / "gate"), "ok", "--profile", "small", "--detach")
    known = refuse_after_the_submission(proxy, running)
    assert running.ended(200) == 0, running.err
    assert running.out.strip() == known and APPLICATION_ID.fullmatch(known)
    ResourceManager.from_environment().kill(known)
    wait_until(lambda: ResourceManager.from_environment().application(known).is_final)
    client = RpcClient(str(Path(sys.executable).with_name("spark-submit")), hadoop.submit_env())
    assert client.application(known).state == "KILLED"


@pytest.mark.variant  # of the tests above, for a driver on this machine
def test_client_mode_continues_and_says_that_the_queue_is_unknown(
    proxy: RefusingProxy, submit: Hopsml, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    proxy.refuses.set()
    running = submit("submit", str(GATE), str(gate), "ok", "--profile", "here")
    running.wait_for("waits for is unknown, and --timeout has no effect: ")
    gate.touch()
    assert running.ended(200) == 0, running.err
    assert running.err.count("is unknown") == 1
