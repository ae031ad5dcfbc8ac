"""Tests of the addresses of ``hopsml ui``: permissions, answers, and nothing else reachable."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from hopsml.errors import ArgumentError, PathNotFound, StorageUnavailable
from hopsml.service.browse.project import Changes, Project
from hopsml.service.rest import errors, server
from hopsml.service.rest.event_stream import Broadcaster
from hopsml.service.rest.feeds import ProjectFeed
from hopsml.service.rest.run_routes import application
from tests.helpers.service.project import ProjectOnDisk

pytestmark = pytest.mark.fast

TOKEN = "a-token-of-this-test"
BEARER = {"authorization": f"Bearer {TOKEN}"}


def send_request(
    project: ProjectOnDisk, target: str, headers: dict[str, str] = BEARER, method: str = "GET"
) -> httpx.Response:
    """Return the answer to one request; the target is sent unchanged, dots included."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(application(Project(project.url), TOKEN), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
            url = httpx.URL("http://page").copy_with(raw_path=target.encode())
            return await client.request(method, url, headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer wrong"}, {"cookie": "hopsml_ui_x=1"}, {"cookie": "=;\x7f"}]
)
@pytest.mark.parametrize("target", ["/", "/style.css", "/api/runs", "/api/events", "/?token=wrong", "/nothing"])
def test_request_without_the_token_is_refused(project: ProjectOnDisk, target: str, headers: dict[str, str]) -> None:
    answer = send_request(project, target, headers)
    assert answer.status_code == 401 and set(answer.json()) == {"error", "remedy"}


def link_everything_to(secret: Path, folder: Path) -> None:
    """Link every file name of a run's directory to one file, or to its folder, of the server's user."""
    for name in ("logs", "artifacts", "profiles", "trials/t1"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in (
        "logs/g0-rank0.log", "logs/g0-rank0.system.jsonl", "output.log", "trials/t1/output.log", "metrics.jsonl",
        "artifacts/x.png", "artifacts/x.csv", "artifacts/x.parquet", "profiles/x.speedscope.json", "environment.json",
    ):  # fmt: skip
        os.symlink(secret, folder / name)
    os.symlink(secret.parent, folder / "trials" / "t2")
    os.symlink(secret.parent, folder / "journal")


@pytest.mark.parametrize(
    "target",
    [
        "", "/metrics", "/logs", "/logs?trial=t1", "/logs?trial=t2", "/logs.zip", "/logs.zip?trial=t1", "/logs.zip?trial=t2",
        "/search", "/slow", "/profiles", "/profiles/x.speedscope.json", "/files/artifacts/x.csv", "/files/logs",
        "/files/logs/g0-rank0.log", "/files/journal/output.log", "/images/artifacts/x.png", "/tables/artifacts/x.csv",
        "/tables/artifacts/x.parquet", "/files?trial=t2", "/files/output.log?trial=t2", "?trial=t2", "/metrics?trial=t2",
    ],
)  # fmt: skip
def test_no_address_shows_a_file_outside_a_run_through_a_link(
    project: ProjectOnDisk, tmp_path: Path, target: str
) -> None:
    (tmp_path / "home").mkdir()
    secret = tmp_path / "home" / "output.log"
    secret.write_bytes(b"a,b\nthe-servers-key,1\n")
    run = project.run("app_1", search={"metric": "accuracy", "direction": "max"})
    link_everything_to(secret, run.folder)
    answer = send_request(project, f"/api/runs/app_1{target}")
    content = answer.content
    if answer.status_code == 200 and "logs.zip" in target:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            content = b"".join(archive.read(name) for name in archive.namelist())
    assert answer.status_code in (200, 403) and b"the-servers-key" not in content


def test_token_in_the_address_is_replaced_by_a_cookie(project: ProjectOnDisk) -> None:
    answer = send_request(project, f"/?token={TOKEN}&a=b", {})
    assert (answer.status_code, answer.headers["location"]) == (303, "./?a=b")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert send_request(project, "/", {"cookie": cookie.split(";")[0]}).status_code == 200


@pytest.mark.parametrize("target", ["/", "/api/runs", "/nothing", "/api/runs/nothing"])
def test_every_answer_has_a_restrictive_content_policy(project: ProjectOnDisk, target: str) -> None:
    headers = send_request(project, target).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors" in policy
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_changing_methods_are_refused(project: ProjectOnDisk, method: str) -> None:
    project.run("app_1")
    for target in ("/api/runs", "/api/runs/app_1", "/api/runs/app_1/files/run.json"):
        assert send_request(project, target, method=method).status_code == 405


def test_run_list_and_details_of_a_run_are_returned(project: ProjectOnDisk) -> None:
    run = project.run("app_1", outputs={"accuracy": 0.9}, arguments={"lr": 0.1})
    run.report(3, loss=1.5)
    run.print(0, "hello", "world")
    page = send_request(project, "/api/runs?filter=lr%3E0.05&sort=metric").json()
    assert [row["id"] for row in page["rows"]] == ["app_1"] and page["rows"][0]["metric"] == 0.9
    assert send_request(project, "/api/runs/app_1").json()["step"] == 3
    found = send_request(project, "/api/runs/app_1/metrics?tag=loss").json()
    assert found["tags"] == [{"tag": "loss", "source": "chief", "count": 1}] and found["series"][0]["values"] == [1.5]
    logs = send_request(project, "/api/runs/app_1/logs?offset=-1").json()
    assert [line["text"] for line in logs["lines"]] == ["world"] and logs["total"] == 2
    assert send_request(project, "/api/runs/app_1/logs?find=WORLD").json() == {"line": 1}
    assert send_request(project, "/api/compare?run=app_1").json()["tag"] == "loss"
    about = send_request(project, "/api/about").json()
    assert about["project"] == "digits" and (about["jobs"], about["user"], about["role"]) == (False, "", "")


def test_nan_metric_is_returned_as_text(project: ProjectOnDisk) -> None:
    project.run("app_1", outputs={"accuracy": float("nan")})
    assert send_request(project, "/api/runs").json()["rows"][0]["metric"] == "NaN"


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/api/runs?limit=x", 400),
        ("/api/runs?limit=501", 400),
        ("/api/runs?offset=-1", 400),
        ("/api/runs?sort=__class__", 400),
        ("/api/runs/none", 404),
        ("/api/runs/app_1/search", 400),
        ("/api/runs/app_1/logs?level=loud", 400),
        ("/api/runs/app_1/logs?rank=x", 400),
        ("/api/runs/app_1/metrics?points=1", 400),
        ("/api/runs/app_1/files/none", 404),
        ("/api/compare", 400),
        ("/api/compare?run=app_1&step=nan", 400),
        ("/api/none", 404),
        ("/none", 404),
    ],
)
def test_invalid_request_is_refused_with_error_and_remedy(project: ProjectOnDisk, target: str, status: int) -> None:
    project.run("app_1")
    answer = send_request(project, target)
    assert answer.status_code == status and answer.json()["error"] and answer.json()["remedy"]


def test_error_text_is_split_into_error_and_remedy() -> None:
    assert errors.split_message("x=1: too small; take 2") == ("x=1: too small", "take 2")
    assert errors.split_message("x=1: take 2") == ("x=1", "take 2")
    assert errors.split_message("broken") == ("broken", "")
    kinds = (ArgumentError("a"), PathNotFound("a"), StorageUnavailable("a"), ValueError("a"))
    assert [errors.status_of(one) for one in kinds] == [400, 404, 503, 500]


@pytest.mark.parametrize(
    "path",
    [
        "../app_2/run.json",
        "..%2Fapp_2%2Frun.json",
        "%2e%2e/app_2/run.json",
        "logs/..%2f..%2fapp_2/run.json",
        "..%5capp_2%5crun.json",
        "%2Fetc%2Fpasswd",
        "run.json%00",
        "....//run.json",
    ],
)
def test_path_outside_a_run_is_refused(project: ProjectOnDisk, path: str) -> None:
    project.run("app_1")
    project.run("app_2", name="not for you")
    for target in (f"/api/runs/app_1/files/{path}", f"/api/runs/app_1/{path}", f"/{path}", f"/api/runs/{path}"):
        answer = send_request(project, target)
        assert answer.status_code in (400, 404) and "not for you" not in answer.text and "root:" not in answer.text


def test_file_is_downloaded_completely_or_by_range(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    (run.folder / "page ü.html").write_bytes(b"<script>alert(1)</script>")
    answer = send_request(project, "/api/runs/app_1/files/page%20%C3%BC.html")
    assert (
        answer.content == b"<script>alert(1)</script>" and answer.headers["content-type"] == "application/octet-stream"
    )
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''page%20%C3%BC.html"
    for wanted, status, content in (("bytes=1-6", 206, b"script"), ("bytes=-1", 206, b">"), ("lines=1", 200, None)):
        part = send_request(project, "/api/runs/app_1/files/page%20%C3%BC.html", {**BEARER, "range": wanted})
        assert part.status_code == status and part.content == (content or answer.content)
    for wanted in ("bytes=5-2", "bytes=-", "bytes=1-2,4-5", "bytes=--1", "bytes=" + "9" * 5000 + "-", "bytes=a-b"):
        part = send_request(project, "/api/runs/app_1/files/page%20%C3%BC.html", {**BEARER, "range": wanted})
        assert (part.status_code, part.content) == (200, answer.content), wanted  # no range at all
        assert part.headers["content-length"] == str(len(answer.content))
    for wanted in ("bytes=25-", "bytes=-0", "bytes=99-100"):
        part = send_request(project, "/api/runs/app_1/files/page%20%C3%BC.html", {**BEARER, "range": wanted})
        assert part.status_code == 400 and "the file has 25 bytes" in part.text, wanted
    names = [entry["name"] for entry in send_request(project, "/api/runs/app_1/files").json()["entries"]]
    assert names == ["logs", "page ü.html", "run.json", "status.json"]


def test_page_script_is_compressed_and_cached(project: ProjectOnDisk) -> None:
    answer = send_request(project, "/app.js", {**BEARER, "accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip" and "import" in answer.text
    again = send_request(project, "/app.js", {**BEARER, "if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_internal_error_is_answered_without_a_traceback(
    project: ProjectOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Project, "detail", broken)
    answer = send_request(project, "/api/runs/app_1")
    assert answer.status_code == 500 and "secret" not in answer.text and "ZeroDivisionError" in answer.json()["error"]


def run_with_broadcaster(
    project: ProjectOnDisk, do: Callable[[Broadcaster, Changes], Awaitable[None]], heartbeat_s: float = 60.0
) -> None:
    async def run() -> None:
        browsed = Project(project.url)
        browsed.runs.refresh()
        changes = Changes(browsed, "e")
        broadcaster = Broadcaster(ProjectFeed(changes), look_s=0.01, heartbeat_s=heartbeat_s)
        try:
            async with asyncio.timeout(20):
                await do(broadcaster, changes)
        finally:
            await broadcaster.end()

    asyncio.run(run())


def test_event_stream_starts_at_once_and_sends_changes(project: ProjectOnDisk) -> None:
    async def listen(broadcaster: Broadcaster, changes: Changes) -> None:
        async with opened(broadcaster, "") as stream:
            assert b"event: hello" in await anext(stream)
            project.run("app_1")
            assert await anext(stream) == b'id: e-1\nevent: run\ndata: {"run":"app_1"}\n\n'

    run_with_broadcaster(project, listen)


def test_event_stream_resumes_after_the_last_seen_event(project: ProjectOnDisk) -> None:
    async def listen(broadcaster: Broadcaster, changes: Changes) -> None:
        for number in range(3):
            project.run(f"app_{number}")
            changes.poll()
        async with opened(broadcaster, "e-1") as stream:
            await anext(stream)
            assert [(await anext(stream)).split(b"\n")[0] for _ in range(2)] == [b"id: e-2", b"id: e-3"]
        async with opened(broadcaster, "of-another-server-7") as stream:
            await anext(stream)
            assert b"event: reset" in await anext(stream)

    run_with_broadcaster(project, listen)


def test_listener_that_connects_as_the_last_one_leaves_receives_changes(project: ProjectOnDisk) -> None:
    async def listen(broadcaster: Broadcaster, changes: Changes) -> None:
        for number in range(3):
            async with opened(broadcaster, "") as stream:
                await anext(stream)
                project.run(f"app_{number}")
                assert f"app_{number}".encode() in await anext(stream)

    run_with_broadcaster(project, listen)


def test_idle_event_stream_sends_heartbeats(project: ProjectOnDisk) -> None:
    async def listen(broadcaster: Broadcaster, changes: Changes) -> None:
        async with opened(broadcaster, "") as stream:
            await anext(stream)
            assert await anext(stream) == b": still here\n\n"

    run_with_broadcaster(project, listen, heartbeat_s=0.05)


@contextlib.asynccontextmanager
async def opened(broadcaster: Broadcaster, last: str) -> AsyncIterator[AsyncIterator[bytes]]:
    async with contextlib.aclosing(broadcaster.stream(last)) as stream:  # type: ignore[type-var]
        yield stream


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", ""])
def test_address_other_than_loopback_is_refused(host: str) -> None:
    with pytest.raises(ArgumentError, match="ssh -L"):
        server.bind_local(host, 0)


def test_occupied_or_invalid_port_is_refused() -> None:
    with server.bind_local("127.0.0.1", 0) as listener:
        with pytest.raises(ArgumentError, match="cannot listen"):
            server.bind_local("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(ArgumentError, match="0, for any"):
            server.bind_local("127.0.0.1", 70_000)


def test_freshly_read_project_is_not_read_again_at_the_start(project: ProjectOnDisk) -> None:
    project.run("app_1")
    read = Project(project.url)
    read.runs.refresh()
    project.run("app_2")
    coming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return coming.pop(0)

    async def send(message: Any) -> None:
        assert message["type"].endswith(".complete")

    asyncio.run(application(read, TOKEN)({"type": "lifespan", "asgi": {}}, receive, send))  # type: ignore[arg-type]
    assert not coming and list(read.runs.rows()) == ["app_1"]
