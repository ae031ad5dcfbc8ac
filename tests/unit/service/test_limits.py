"""Tests of rate limits per user and address, and of a client that waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml import service_connection
from hopsml.client import Client
from hopsml.cluster.shared import http_connections
from hopsml.cluster.shared.acceptor import ConnectionLimits
from hopsml.errors import ServiceError
from hopsml.service.browse import files
from hopsml.service.browse.project import Changes
from hopsml.service.rest import limited, server
from hopsml.service.rest.event_stream import Broadcaster, Streams
from hopsml.service.rest.feeds import ProjectFeed
from hopsml.service.rest.limited import Limits, Rate, TokenBucket, take_token
from hopsml.service.rest.service_application import service_application
from hopsml.service.store.accounts import Role
from tests.helpers.cluster.workloads import WAIT_S
from tests.helpers.service.project import ProjectOnDisk
from tests.helpers.service.served import Served

pytestmark = pytest.mark.fast


@given(st.lists(st.floats(0, 5), max_size=60), st.floats(0.1, 50), st.integers(1, 20))
def test_token_bucket_passes_at_most_its_rate_and_burst_in_any_window(
    gaps: list[float], per_s: float, at_once: int
) -> None:
    bucket: TokenBucket | None = None
    now, passed = 100.0, []
    for gap in gaps:
        now += gap
        bucket, wait_s = take_token(bucket, Rate(per_s, at_once), now)
        if wait_s:
            assert take_token(bucket, Rate(per_s, at_once), now + wait_s * 1.000001)[1] == 0, "whoever waits is taken"
        else:
            passed.append(now)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= at_once + (passed[last] - passed[first]) * per_s + 1e-6


def test_clock_set_back_adds_no_tokens_and_a_zero_rate_is_unlimited() -> None:
    bucket, _ = take_token(None, Rate(1.0, 1.0), 100.0)
    bucket, wait_s = take_token(bucket, Rate(1.0, 1.0), 50.0)
    assert wait_s == 1.0 and bucket.refused == 1
    assert take_token(bucket, Rate(1.0, 1.0), 100.5)[1] == 0.5
    assert take_token(TokenBucket(0.0, 0.0), Rate(0.0, 1.0), 0.0)[1] == 0.0


class LimitedService:
    """A service with limits, at a time that a test sets."""

    def __init__(self, served: Served, limits: Callable[[Callable[[], float]], Limits]) -> None:
        self.now, self._served = 0.0, served
        streams = Streams(Broadcaster(ProjectFeed(Changes(served.project))))
        self._app = service_application(served.jobs, served.project, streams, "x", limits(lambda: self.now))

    def ask(self, method: str, path: str, token: str, peer: str = "10.0.0.1") -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(peer, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as asking:
                return await asking.request(method, f"/api/v1/{path}", headers={"authorization": f"Bearer {token}"})

        return asyncio.run(ask())

    def statuses(self, count: int, *request: str) -> list[int]:
        return [self.ask(*request).status_code for _ in range(count)]


def test_each_user_has_separate_limits_for_changes_and_reads(served: Served) -> None:
    service = LimitedService(served, lambda clock: Limits(0.2, 0.3, clock=clock))
    alice, bob = served.tokens[Role.USER], served.tokens["bob"]  # type: ignore[index]
    assert service.statuses(5, "POST", "jobs/1/cancel", alice) == [404, 404, 429, 429, 429]
    assert service.statuses(4, "GET", "jobs", alice) == [200, 200, 200, 429]
    assert service.ask("POST", "jobs/1/cancel", bob).status_code == 404
    refused = service.ask("POST", "jobs/1/cancel", alice)
    assert refused.headers["retry-after"] == "5" and set(refused.json()) == {"error", "remedy"}
    assert refused.headers["x-content-type-options"] == "nosniff"
    service.now += 5
    assert service.statuses(2, "POST", "jobs/1/cancel", alice) == [404, 429]
    found = served.ask("GET", "audit", Role.ADMIN).json()["entries"]
    assert [(one["user"], one["outcome"]) for one in found] == [("user", 429)] * 2, "one for each row of refusals"


def test_unauthenticated_requests_are_limited_per_address(served: Served) -> None:
    service = LimitedService(served, lambda clock: Limits(strangers=Rate(1.0, 2.0), clock=clock))
    assert service.statuses(4, "GET", "jobs", "guess") == [401, 401, 429, 429]
    assert service.ask("GET", "jobs", "").status_code == 429
    assert service.ask("GET", "jobs", served.tokens[Role.USER]).status_code == 200
    assert service.ask("GET", "jobs", "guess", "10.0.0.2").status_code == 401
    service.now += 1
    assert service.statuses(2, "GET", "jobs", "guess") == [401, 429]


def test_ipv6_network_counts_as_one_unauthenticated_peer(served: Served) -> None:
    service = LimitedService(served, lambda clock: Limits(strangers=Rate(1.0, 2.0), clock=clock))
    peers = [f"2001:db8:0:1::{number:x}" for number in range(1, 5)]
    assert [service.ask("GET", "jobs", "guess", peer).status_code for peer in peers] == [401, 401, 429, 429]
    for peer in ("2001:db8:0:2::1", "fe80::1", "fe80::2", "::ffff:10.0.0.1", "::ffff:10.0.0.2", "10.0.0.3", "?"):
        assert service.ask("GET", "jobs", "guess", peer).status_code == 401


def test_pipelined_requests_of_an_unauthenticated_peer_are_dropped(served: Served) -> None:
    """Otherwise the event loop would be busy with refusing each of them."""

    async def play(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /api/v1/jobs HTTP/1.1\r\nHost: a\r\n\r\n" * 2000)
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := await asyncio.wait_for(reader.read(1 << 16), WAIT_S):
                received += piece
        writer.close()
        assert received.count(b"HTTP/1.1 429") <= 1 and received.count(b"HTTP/1.1 ") <= limited.STRANGERS.at_once + 5

    over_sockets(served, play)


def test_number_of_token_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "_MOST", 3)
    limits = Limits(strangers=Rate(1.0, 1.0), clock=lambda: 0.0)
    waits = [limits.refuses("strangers", peer, {}) for peer in "abcda"]
    assert waits == [0, 0, 0, 0, 0] and limits.refuses("strangers", "d", {}) == 1.0


def test_burst_of_a_thousand_submissions_is_accepted() -> None:
    limits = Limits(clock=lambda: 0.0)
    assert not any(limits.refuses("changes", "alice", {}) for _ in range(2000))
    assert limits.refuses("changes", "alice", {}) > 0


@pytest.fixture
def busy() -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Start a server that answers with the given statuses and waiting times, and then with a token."""
    answers: list[tuple[int, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, wait = answers.pop(0) if answers else (201, "")
            body = b'{"token": "t"}' if status == 201 else b'{"error": "too many calls", "remedy": "wait"}'
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if wait:
                self.send_header("Retry-After", wait)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_client_waits_for_the_requested_time(busy: tuple[str, list[tuple[int, str]]]) -> None:
    address, answers = busy
    answers += [(429, "1"), (429, "0")]
    started_s = time.monotonic()
    assert Client(address, "x").create_token("bob") == "t" and time.monotonic() - started_s >= 1.0
    assert not answers


@pytest.mark.parametrize("wait", ["", "soon", "-1", "61", "99999999999999999999"])
def test_client_does_not_wait_for_an_invalid_or_long_time(busy: tuple[str, list[tuple[int, str]]], wait: str) -> None:
    address, answers = busy
    answers += [(429, wait), (429, wait)]
    with pytest.raises(ServiceError, match="too many calls; wait"):
        Client(address, "x").create_token("bob")
    assert len(answers) == 1


def test_client_stops_retrying_after_its_time_limit(
    busy: tuple[str, list[tuple[int, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_connection, "_PATIENCE_S", 0.2)
    address, answers = busy
    answers += [(429, "0")] * 50
    with pytest.raises(ServiceError, match="too many calls"):
        Client(address, "x").create_token("bob")
    assert answers


@pytest.mark.parametrize(
    ("trusted", "statuses"),
    [((), {401, 429}), (("192.0.2.1",), {401, 429}), (("127.0.0.1",), {401}), (("127.0.0.0/8",), {401})],
)
def test_forwarded_address_counts_only_from_a_trusted_proxy(
    served: Served, trusted: tuple[str, ...], statuses: set[int]
) -> None:
    """Over a socket: an unauthenticated peer that forges an address for each request is still limited."""
    app = service_application(served.jobs, served.project, served.streams, "here", Limits(strangers=Rate(0.001, 5.0)))

    async def play() -> set[int]:
        found: set[int] = set()
        listener = server.bind_local("127.0.0.1", 0)
        port, begun = listener.getsockname()[1], asyncio.Event()
        answering = asyncio.create_task(
            server.serve_application(app, listener, served.streams, begun.set, trusted_proxies=trusted)
        )
        await begun.wait()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            for number in range(20):
                headers = {"x-forwarded-for": f"10.0.0.{number}"}
                found.add((await client.post("/api/v1/jobs", headers=headers, content=b"{}")).status_code)
        os.kill(os.getpid(), signal.SIGTERM)
        await answering
        return found

    assert asyncio.run(play()) == statuses


def over_sockets(served: Served, play: Callable[[tuple[str, int]], Awaitable[None]]) -> None:
    """Let a client play against a service that listens."""

    async def run() -> None:
        listener = server.bind_local("127.0.0.1", 0)
        begun = asyncio.Event()
        answering = asyncio.create_task(server.serve_application(served.app, listener, served.streams, begun.set))
        await begun.wait()
        try:
            await play(listener.getsockname())
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await answering

    asyncio.run(run())


def test_connections_of_one_user_are_bounded_and_others_are_served(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer opens many event streams; other users are served, and so is the viewer after some have ended."""
    limits = ConnectionLimits(pending=8, of_one_peer=6, descriptors=len(os.listdir("/proc/self/fd")) + 60)
    monkeypatch.setattr(ConnectionLimits, "of_this_process", lambda: limits)
    monkeypatch.setattr(http_connections, "FEWEST_OF_A_USER", 1)
    most = limits.descriptors // 4

    async def status(address: tuple[str, int], token: str, path: str) -> tuple[int, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        return int(head.split()[1]), writer

    async def play(address: tuple[str, int]) -> None:
        viewer = served.tokens[Role.VIEWER]
        found = [await status(address, viewer, "/api/events") for _ in range(most + 3)]
        assert [code for code, _ in found] == [200] * most + [429] * 3
        other = await status(address, served.tokens[Role.USER], "/api/v1/jobs")
        assert other[0] == 200
        for _, writer in found:
            writer.close()
        while (again := await status(address, viewer, "/api/v1/jobs"))[0] == 429:
            await asyncio.sleep(0.01)
        assert again[0] == 200
        for _, writer in (other, again):
            writer.close()

    over_sockets(served, play)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "jobs"), ("POST", "schedules"), ("PUT", "run-notes/x"), ("PUT", "secrets/abc"), ("POST", "views")],
)
def test_request_body_is_read_only_up_to_its_limit(served: Served, method: str, path: str) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 64 << 20:
            sent += 1 << 16
            yield b"a" * (1 << 16)

    headers = {"content-type": "application/json"}
    refused = served.ask(method, path, Role.VIEWER, content=endless(), headers=headers)
    assert refused.status_code == 413 and refused.json()["error"] == "the body is too long"
    assert sent <= limited.MOST_BODY_BYTES + (1 << 17)


def test_concurrent_uploads_of_one_user_are_bounded(served: Served) -> None:
    async def play(address: tuple[str, int]) -> None:
        head = f"POST /api/v1/workspaces HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {served.tokens[Role.USER]}\r\n"
        under_way = [await asyncio.open_connection(*address) for _ in range(limited.MOST_UPLOADS)]
        for _, writer in under_way:
            writer.write(f"{head}Content-Length: 1000\r\n\r\nP".encode())
        statuses = set[int]()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{address[1]}") as client:
            while 429 not in statuses:  # once all have started
                headers = {"authorization": f"Bearer {served.tokens[Role.USER]}"}
                statuses.add((await client.post("/api/v1/workspaces", headers=headers, content=b"x")).status_code)
            other = {"authorization": f"Bearer {served.tokens[Role.OPERATOR]}"}
            assert (await client.post("/api/v1/workspaces", headers=other, content=b"x")).status_code == 400
        for _, writer in under_way:
            writer.close()

    over_sockets(served, play)


def test_slow_requests_hold_a_bounded_number_of_threads_and_do_not_delay_authentication(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all 40 threads of the server in slow reads, tokens are still checked."""
    blocked, release = threading.Semaphore(0), threading.Event()

    def detail(*_: object) -> None:
        blocked.release()
        release.wait(WAIT_S)

    monkeypatch.setattr(served.project, "detail", detail)

    async def play() -> None:
        transport = httpx.ASGITransport(served.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=WAIT_S) as client:

            def request(token: str, path: str) -> asyncio.Task[httpx.Response]:
                return asyncio.create_task(client.get(path, headers={"authorization": f"Bearer {token}"}))

            viewer, *others = served.tokens.values()
            slow = [request(viewer, "/api/runs/x") for _ in range(60)]
            try:
                for _ in range(limited.MOST_AT_ONCE):
                    assert await asyncio.to_thread(blocked.acquire, timeout=WAIT_S)
                answer = await asyncio.wait_for(request(others[0], "/api/v1/jobs"), WAIT_S)
                assert answer.status_code == 200 and not blocked.acquire(blocking=False)
                slow += [request(token, "/api/runs/x") for token in others for _ in range(limited.MOST_AT_ONCE)]
                for _ in range(len(others) * limited.MOST_AT_ONCE):
                    assert await asyncio.to_thread(blocked.acquire, timeout=WAIT_S)
                answer = await asyncio.wait_for(request("nobody's", "/api/v1/jobs"), WAIT_S)
                assert answer.status_code == 401
            finally:
                release.set()
            assert {answer.status_code for answer in await asyncio.gather(*slow)} == {200}

    asyncio.run(play())


def test_downloads_use_separate_threads(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty downloads from an unresponsive store do not block other requests of the same user."""
    release = threading.Event()

    def pieces(url: str, begin: int, end: int) -> Iterator[bytes]:
        release.wait(WAIT_S)
        yield b"x" * (end - begin)

    monkeypatch.setattr(files, "read_pieces", pieces)
    made = ProjectOnDisk(Path(served.project.url.removeprefix("file://"))).run("app_1")
    (made.folder / "model.bin").write_text("abc")

    async def play() -> None:
        transport = httpx.ASGITransport(served.app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {served.tokens[Role.VIEWER]}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers) as client:
            slow = [asyncio.create_task(client.get("/api/runs/app_1/files/model.bin")) for _ in range(50)]
            try:
                for _ in range(3):
                    answer = await asyncio.wait_for(client.get("/api/v1/jobs"), WAIT_S)
                    assert answer.status_code == 200
            finally:
                release.set()
            assert {answer.content for answer in await asyncio.gather(*slow)} == {b"xxx"}

    asyncio.run(play())


def test_request_whose_body_does_not_arrive_times_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited.limit_body, "__defaults__", (0.05,))

    async def silent() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(WAIT_S)

    answer = served.ask("POST", "jobs", content=silent(), headers={"content-type": "application/json"})
    assert answer.status_code == 408 and "in time" in answer.json()["error"]


def test_interrupted_upload_is_recorded_without_a_traceback(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    async def play(address: tuple[str, int]) -> None:
        head = f"POST /api/v1/workspaces HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {served.tokens[Role.USER]}\r\n"
        _, writer = await asyncio.open_connection(*address)
        writer.write(f"{head}Content-Length: 1000\r\n\r\nP".encode())
        await writer.drain()
        writer.close()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{address[1]}") as client:
            headers = {"authorization": f"Bearer {served.tokens[Role.ADMIN]}"}
            while not (found := (await client.get("/api/v1/audit", headers=headers)).json()["entries"]):
                await asyncio.sleep(0.01)
            assert [(one["action"], one["outcome"]) for one in found] == [("upload", 400)]

    over_sockets(served, play)
    assert not [record for record in caplog.records if record.exc_info]
