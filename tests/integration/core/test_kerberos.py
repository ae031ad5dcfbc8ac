"""Tests of requests to servers that verify Kerberos tickets as Hadoop's do, with a real KDC and libgssapi."""

from __future__ import annotations

import ctypes
import http.client
import json
import threading
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hdfs import HdfsError

from hopsml.core import delegation_tokens as tokens
from hopsml.core import gssapi, hadoop_http, krb5, settings, spnego
from hopsml.core.hadoop_http import AccessError, NoAnswer
from hopsml.errors import ClusterError, ClusterUnavailable
from hopsml.storage.remote import webhdfs
from hopsml.yarn import ResourceManager, YarnApplication, logs
from tests.helpers import clock
from tests.helpers.kerberos import use_ticket
from tests.helpers.spnego_server import PAGE, Headers, spnego_server
from tools.hadoop.kdc import Kdc
from tools.hadoop.ports import free_ports

pytestmark = pytest.mark.local

ALICE = "alice@LAB.TEST"
ID = "application_1763690000000_0001"


@pytest.fixture(autouse=True)
def ticket(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh ticket cache of alice, without tickets of services; the servers have the keytab of HTTP."""
    try:
        ctypes.CDLL(gssapi.LIBRARY)
    except OSError as error:  # unpacked packages: a running process does not find their libraries
        pytest.skip(f"no Kerberos in this process: {error}")
    use_ticket(monkeypatch, kdc, "alice")
    cache = kdc.kinit("alice", tmp_path / "alice.cc", life_s=600, renewable_s=3600)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
    monkeypatch.setenv("KRB5_KTNAME", f"FILE:{kdc.keytab('HTTP')}")
    monkeypatch.setenv("KRB5RCACHENAME", f"file2:{tmp_path}/replays")
    monkeypatch.setattr(spnego, "_cookies", {})
    return cache


def fine(method: str, path: str) -> tuple[int, Headers, bytes]:
    return 200, {"Content-Type": "application/json"}, b"{}"


def test_first_request_gets_a_cookie_that_later_ones_use_until_it_is_refused() -> None:
    with spnego_server(fine) as server:
        url = f"http://{server.address}/ws"
        for _ in range(3):
            assert hadoop_http.request(url, 30).status == 200
        assert server.clients == [ALICE] and len(server.seen) == 4  # 401, ticket, cookie, cookie
        server.cookies.clear()
        assert hadoop_http.request(url, 30).status == 200
        with hadoop_http.opened(url, 30) as answer:
            assert answer.read() == b"{}"
        assert server.clients == [ALICE, ALICE]
        assert not any("Authorization" in headers and "Cookie" in headers for _, _, headers in server.seen)


def test_each_request_to_a_server_without_cookies_has_a_fresh_token() -> None:
    with spnego_server(fine, sets_cookie=False) as server:
        for _ in range(3):
            assert hadoop_http.request(f"http://{server.address}/ws", 30).status == 200
        assert server.clients == [ALICE] * 3  # the server refuses a token that it has seen


def test_body_is_sent_again_with_the_ticket() -> None:
    with spnego_server(fine) as server:
        assert hadoop_http.request(f"http://{server.address}/state", 30, method="PUT", body=b"{1}").status == 200
        assert server.bodies == [b"{1}"] and [method for method, _, _ in server.seen] == ["PUT", "PUT"]


@pytest.mark.parametrize(("proof", "reason"), [("none", "it sent no token"), ("wrong", r"[Tt]oken")])
def test_answer_of_a_server_without_proof_of_its_identity_is_discarded(proof: str, reason: str) -> None:
    with spnego_server(fine, proof=proof) as server:
        with pytest.raises(AccessError, match=rf"{server.address} did not prove its identity by Kerberos \(.*{reason}"):
            hadoop_http.request(f"http://{server.address}/ws", 30)
        assert not spnego._cookies


def test_cookie_is_not_used_with_the_ticket_of_another_user_or_without_one(kdc: Kdc, ticket: Path) -> None:
    with spnego_server(fine) as server:
        url = f"http://{server.address}/ws"
        assert hadoop_http.request(url, 30).status == 200
        kdc.kinit("alice", ticket)
        assert hadoop_http.request(url, 30).status == 200
        assert server.clients == [ALICE], "a new ticket of the same user needs no new cookie"
        kdc.kinit("bob", ticket)
        assert hadoop_http.request(url, 30).status == 200
        assert server.clients == [ALICE, "bob@LAB.TEST"]
        ticket.unlink()  # kdestroy
        with pytest.raises(AccessError, match="run `kinit`"):
            hadoop_http.request(url, 30)


def test_cookie_of_a_client_keytab_is_used_from_the_first_request(
    kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/new.cc")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{kdc.keytab('alice')}")
    with spnego_server(fine) as server:
        for _ in range(3):
            assert hadoop_http.request(f"http://{server.address}/ws", 30).status == 200
        assert server.clients == [ALICE]


def test_cookie_of_a_refusal_without_proof_is_discarded() -> None:
    def refused(method: str, path: str) -> tuple[int, Headers, bytes]:
        return 403, {"Content-Type": "application/json"}, b"{}"

    with spnego_server(refused, proof="none") as server:
        assert hadoop_http.request(f"http://{server.address}/ws", 30).status == 403
        assert not spnego._cookies
    with spnego_server(refused) as server:
        assert hadoop_http.request(f"http://{server.address}/ws", 30).status == 403
        assert spnego._cookies, "the service itself has refused it"


def test_redirect_to_another_server_carries_nothing_of_the_first() -> None:
    def elsewhere(method: str, path: str) -> tuple[int, Headers, bytes]:
        place = other.address if path == "/other" else plain
        return 307, {"Location": f"http://{place}/end?delegation=abc"}, b""

    with (
        spnego_server(fine, host="127.0.0.1") as other,
        spnego_server(elsewhere) as server,
        plain_server() as (
            plain,
            plain_saw,
        ),
    ):
        for _ in range(2):
            assert hadoop_http.request(f"http://{server.address}/other", 30).status == 200
            assert hadoop_http.request(f"http://{server.address}/plain", 30).status == 200
        assert server.clients == other.clients == [ALICE]
        assert len(plain_saw) == 2 and not any({"Authorization", "Cookie"} & set(each) for each in plain_saw)
        sent = {headers["Authorization"] for _, _, headers in [*server.seen, *other.seen] if "Authorization" in headers}
        assert len(sent) == 2
        for each in (server, other):
            sent = {headers["Cookie"] for _, _, headers in each.seen if "Cookie" in headers}
            assert sent == {f'hadoop.auth="{cookie}"' for cookie in each.cookies}


class plain_server:
    """A server without Kerberos: its address and the headers that it receives."""

    def __enter__(self) -> tuple[str, list[Headers]]:
        seen: list[Headers] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(dict(self.headers))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("localhost", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return f"localhost:{self._server.server_port}", seen

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_missing_expired_and_foreign_tickets_are_explained(
    kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with spnego_server(fine) as server, spnego_server(fine, host="127.0.0.2") as unknown:
        url = f"http://{server.address}/ws"
        for host in (unknown.address,):
            with pytest.raises(
                AccessError, match=r"HTTP/127\.0\.0\.2@LAB\.TEST not found.*; use the service's full host"
            ):
                hadoop_http.request(f"http://{host}/ws", 30)
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
        with pytest.raises(AccessError, match=r"requires Kerberos: No Kerberos credentials available.*; run `kinit`"):
            hadoop_http.request(url, 30)
        brief = kdc.kinit("alice", tmp_path / "brief.cc", life_s=1)
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{brief}")
        clock.wait_until(lambda: "xpired" in refusal(url))
        assert "run `kinit`" in refusal(url) and "<" not in refusal(url)


def refusal(url: str) -> str:
    """Return the text of the error of a request without a cookie; empty without an error."""
    spnego._cookies.clear()
    try:
        hadoop_http.request(url, 30)
    except AccessError as error:
        return str(error)
    return ""


def test_client_keytab_replaces_an_expired_ticket(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a service that runs for weeks."""
    with spnego_server(fine, sets_cookie=False) as server:
        url = f"http://{server.address}/ws"
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.kinit('alice', tmp_path / 'brief.cc', life_s=1)}")
        clock.wait_until(lambda: "xpired" in refusal(url))
        monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{kdc.keytab('alice')}")
        assert refusal(url) == "" and hadoop_http.request(url, 30).status == 200


def test_user_of_a_client_keytab_is_its_principal_before_and_after_the_first_ticket(
    kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service begins without a ticket cache; whatever it asks first would else be asked for another user."""
    conf = "<property><name>hadoop.security.authentication</name><value>kerberos</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{conf}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    for name in ("HADOOP_PROXY_USER", tokens.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'new.cc'}")
    nobody = settings.user_name()
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{kdc.keytab('bob')}")
    assert settings.user_name() == settings.login_name() == "bob" != nobody
    with spnego_server(fine, sets_cookie=False) as server:
        assert hadoop_http.request(f"http://{server.address}/ws", 30).status == 200
        assert server.clients == ["bob@LAB.TEST"]
    assert settings.user_name() == "bob" and krb5.ticket().principal == "bob@LAB.TEST"
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.kinit('alice', tmp_path / 'alice-2.cc')}")
    assert settings.user_name() == "alice", "a ticket comes before the keytab"
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'none.cc'}")
    (tmp_path / "empty.keytab").write_bytes(b"\5\2")
    for broken in (tmp_path / "empty.keytab", tmp_path / "no.keytab", tmp_path):
        monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{broken}")
        assert settings.user_name() == nobody


def test_outage_of_the_kdc_passes(kdc: Kdc) -> None:
    with spnego_server(fine) as server:
        url = f"http://{server.address}/ws"
        kdc.halt()
        try:
            with pytest.raises(NoAnswer, match=r"KDC.*; check that the KDC of krb5\.conf") as failed:
                hadoop_http.request(url, 30)
            assert not isinstance(failed.value, AccessError)
        finally:
            kdc.run()
        kdc.halt(freeze=True)
        try:
            with pytest.raises(NoAnswer, match=r"no KDC answered within 0\.\d+ s") as failed:
                hadoop_http.request(url, 0.5)
            assert not isinstance(failed.value, AccessError)
        finally:
            kdc.resume()
        assert hadoop_http.request(url, 30).status == 200


def test_request_through_a_proxy_names_the_server_behind_it(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    kdc.add("HTTP/rm.lab.test")
    with spnego_server(fine) as server, forwarding_proxy(server.address) as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for _ in range(2):
            assert hadoop_http.request("http://rm.lab.test:8088/ws", 30).status == 200
        assert server.clients == [ALICE] and len(server.seen) == 3


class forwarding_proxy:
    """A proxy that sends every request to one server, whatever host it names."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __enter__(self) -> str:
        target = self._target

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                connection = http.client.HTTPConnection(target, timeout=30)
                connection.request("GET", urllib.parse.urlsplit(self.path).path, headers=dict(self.headers))
                answer = connection.getresponse()
                content = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name not in ("Server", "Date"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
                connection.close()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return f"127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_many_threads_sign_in_at_once() -> None:
    with spnego_server(fine, sets_cookie=False) as server, ThreadPoolExecutor(8) as threads:
        url = f"http://{server.address}/ws"
        answers = list(threads.map(lambda _: hadoop_http.request(url, 60).status, range(40)))
        assert answers == [200] * 40 and len(server.clients) == 40


def application(method: str, path: str) -> tuple[int, Headers, bytes]:
    """A ResourceManager that knows one application, or a NodeManager with its log."""
    if "/logs/" in path:
        log = b"LogType:stdout\nLogLength:5\nLogContents:\nhello\nThis log belongs to a running container\n"
        return 200, {"Content-Type": "text/plain"}, log
    return 200, {"Content-Type": "application/json"}, json.dumps({"app": {"id": ID, "state": "RUNNING"}}).encode()


def test_resource_managers_fail_over_with_a_ticket_for_each() -> None:
    def standby(method: str, path: str) -> tuple[int, Headers, bytes]:
        return 307, {"Location": f"http://{active.address}{path}"}, b"This is standby RM"

    (closed,) = free_ports(1, "127.0.0.1")
    with spnego_server(application, host="127.0.0.1") as active, spnego_server(standby) as second:
        yarn = ResourceManager((f"127.0.0.1:{closed}", second.address, active.address), user="alice")
        assert yarn.application(ID).state == "RUNNING"  # by the redirect
        yarn.kill(ID)  # a redirected PUT is not followed: the next address is asked
        assert ("PUT", f"/ws/v1/cluster/apps/{ID}/state?user.name=alice") in [each[:2] for each in active.seen]
        assert active.bodies[-1] == b'{"state": "KILLED"}'
        assert second.clients == active.clients == [ALICE]


def test_resource_manager_that_cannot_be_trusted_does_not_hide_the_active_one() -> None:
    (closed,) = free_ports(1, "127.0.0.1")
    with (
        spnego_server(application, proof="wrong", host="127.0.0.1") as replaced,
        spnego_server(application, host="127.0.0.2") as unknown,  # the KDC has no such service
        spnego_server(application) as active,
    ):
        for first in (replaced.address, unknown.address):
            assert ResourceManager((first, active.address)).application(ID).state == "RUNNING"
        with pytest.raises(ClusterError, match=r"cannot be asked: .* did not prove its identity") as failed:
            ResourceManager((replaced.address, unknown.address)).application(ID)
        assert not isinstance(failed.value, ClusterUnavailable), "asking again does not help"
        with pytest.raises(ClusterUnavailable, match=r"did not prove its identity.*refused"):
            ResourceManager((replaced.address, f"127.0.0.1:{closed}")).application(ID)


def test_resource_manager_without_a_ticket_or_kdc(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with spnego_server(application) as server:
        yarn = ResourceManager((server.address,))
        kdc.halt()
        try:
            with pytest.raises(ClusterUnavailable, match="KDC"):
                yarn.application(ID)
        finally:
            kdc.run()
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
        with pytest.raises(ClusterError, match=r"cannot be asked: .*run `kinit`") as failed:
            yarn.application(ID)
        assert not isinstance(failed.value, ClusterUnavailable)


def test_driver_log_is_read_from_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with spnego_server(application) as server:
        page = f"http://{server.address}/node/containerlogs/container_1_0001_01_000001/alice"
        seen = YarnApplication(ID, "", "RUNNING", "UNDEFINED", am_log_url=page)
        part = logs.read(seen)
        assert part is not None and part.data == b"hello" and not part.complete
        with logs.open_beginning(seen, "stdout", 5) as log:
            assert log.read(5) == b"hello"
        spnego._cookies.clear()
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
        for read in (lambda: logs.read(seen), lambda: logs.open_beginning(seen, "stdout", 5)):
            with pytest.raises(ClusterError, match=r"log of container_.* cannot be read: .*run `kinit`") as failed:
                read()
            assert not isinstance(failed.value, ClusterUnavailable)


def test_page_of_webhdfs_is_an_error_without_html() -> None:
    def reply(method: str, path: str) -> tuple[int, Headers, bytes]:
        return 403, {"Content-Type": "text/html;charset=utf-8"}, PAGE.replace(b"401", b"403")

    with spnego_server(reply) as server, webhdfs._session("http") as session:
        with pytest.raises(HdfsError) as failed:
            session.get(f"http://{server.address}/file", timeout=30)
        assert str(failed.value) == "HTTP 403 HTTP ERROR 403 Authentication required"


def test_session_of_webhdfs_signs_in_and_sends_an_upload_once() -> None:
    def reply(method: str, path: str) -> tuple[int, Headers, bytes]:
        if path == "/moved":
            return 307, {"Location": f"http://{other.address}/file"}, b""
        return 200, {}, b"content"

    with (
        spnego_server(reply, host="127.0.0.1") as other,
        spnego_server(reply) as server,
        webhdfs._session("http") as session,
    ):
        session.trust_env = False
        base = f"http://{server.address}"
        assert session.get(f"{base}/file", timeout=30).content == b"content"
        assert session.get(f"{base}/moved", timeout=30).content == b"content"
        assert server.clients == other.clients == [ALICE]
        assert session.put(f"{base}/upload", data=iter([b"one", b"two"]), timeout=30).status_code == 200
        server.cookies.clear()  # the upload would be refused after its only copy was sent
        assert session.put(f"{base}/upload", data=iter([b"three"]), timeout=30).status_code == 200
        assert server.bodies[-2:] == [b"onetwo", b"three"] and server.clients == [ALICE] * 3
        assert not session.cookies
        sent = [headers for _, _, headers in [*server.seen, *other.seen]]
        assert not any("Authorization" in headers and "Cookie" in headers for headers in sent)
