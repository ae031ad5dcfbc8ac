"""Tests of event streams on real connections: hang-ups, orderly end, one reader for many listeners."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import httpx
import pytest

from hopsml.service.rest import event_stream
from hopsml.service.rest.feeds import LogFeed
from hopsml.service.store.accounts import Role, Tokens
from tests.helpers.service.followed import PlayedJob, connected, events, listening, until, until_end, within_time
from tests.helpers.service.served import Served

pytestmark = pytest.mark.local

CLIENTS = 200


def test_closed_connection_leaves_no_stream_or_task(served: Served, tmp_path: Path) -> None:
    job = PlayedJob(served, tmp_path)
    job.starts()

    async def scenario() -> None:
        async with listening(served) as port:
            before = len(asyncio.all_tasks())
            async with contextlib.AsyncExitStack() as stack:
                for path in ("jobs/events", f"jobs/{job.id}/log/events"):
                    reader = await stack.enter_async_context(connected(port, path, served.tokens[Role.VIEWER]))
                    assert (await anext(events(reader)))["event"] == "hello"
                assert len(served.streams) == 2
            await until(lambda: len(served.streams) == 0, "the end of what was looked at")
            await until(lambda: len(asyncio.all_tasks()) == before, "the end of their tasks")
            job.prints(b"one\ntwo\n")
            async with connected(port, f"jobs/{job.id}/log/events", served.tokens[Role.USER], "4") as reader:
                received = events(reader)
                assert (await anext(received))["id"] == "4"
                assert (await anext(received))["text"] == "two\n"
                await served.streams.end()
                assert [event async for event in received] == []

    within_time(served, scenario)


def test_slow_listener_does_not_make_the_server_buffer_a_log(served: Served, tmp_path: Path) -> None:
    job = PlayedJob(served, tmp_path)
    job.starts()
    job.prints(b"x" * (32 << 20))
    feeds: list[LogFeed] = []

    async def scenario() -> None:
        async with listening(served) as port:
            path = f"jobs/{job.id}/log/events"
            async with connected(port, path, served.tokens[Role.USER]):
                await until(lambda: len(served.streams) == 1, "the stream")
                (shared,) = served.streams._open.values()
                feeds.append(shared._feed)  # type: ignore[arg-type]
                async with connected(port, path, served.tokens[Role.USER]) as reader:
                    received_text = 0
                    async for event in events(reader):  # the other client reads nothing
                        received_text += len(event.get("text", ""))
                        if received_text == 32 << 20:
                            break
                assert sum(len(event) for event, _ in feeds[0]._pieces.values()) < 5 << 20

    within_time(served, scenario)


def test_stream_ends_when_its_token_is_revoked(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "KNOWN_S", 0.0)
    job = PlayedJob(served, tmp_path)
    job.starts()
    tokens = Tokens(served.jobs.store)
    token = tokens.create("eve", Role.VIEWER, time.time())

    async def scenario() -> None:
        async with listening(served) as port, connected(port, f"jobs/{job.id}/log/events", token) as reader:
            received = events(reader)
            assert (await anext(received))["event"] == "hello"
            job.prints(b"for eve\n")
            assert (await anext(received))["text"] == "for eve\n"
            tokens.revoke(next(one.id for one in tokens.all() if one.user == "eve"), time.time())
            job.prints(b"not for eve\n")
            assert [event async for event in received] == []
            await until(lambda: len(served.streams) == 0, "the end of what was looked at")

    within_time(served, scenario)


def test_log_stream_of_one_try_ends_with_the_try(served: Served, tmp_path: Path) -> None:
    job = PlayedJob(served, tmp_path)
    job.starts()
    job.starts()
    job.prints(b"of the first try\n")
    job.starts()
    job.prints(b"of the second\n")

    async def scenario() -> None:
        async with listening(served) as port:
            path, token = f"jobs/{job.id}/log/events", served.tokens[Role.USER]
            async with connected(port, f"{path}?try=1", token) as reader:
                assert await until_end(reader) == "of the first try\n"
            async with connected(port, f"{path}?try=2", token) as reader:
                received = events(reader)
                assert [(await anext(received))["event"] for _ in range(2)] == ["hello", "log"]
                job.prints(b"more\n")
                assert (await anext(received))["text"] == "more\n"

    within_time(served, scenario)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("jobs/1/log/events?task=nope", 400),
        ("jobs/1/log/events?try=7", 400),
        ("jobs/9/log/events", 404),
        ("jobs/events", 401),
    ],
)
def test_invalid_stream_request_is_refused_at_once(served: Served, path: str, status: int) -> None:
    served.submit()
    headers = {"authorization": "" if status == 401 else f"Bearer {served.tokens[Role.USER]}"}
    answer: httpx.Response = served.ask("GET", path, headers=headers)
    assert answer.status_code == status and set(answer.json()) == {"error", "remedy"}


@pytest.mark.variant
def test_two_hundred_connections_to_one_log_share_one_reader(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = PlayedJob(served, tmp_path)
    job.starts()
    engine, reads = served.jobs.engine, list[int]()
    read = engine.log
    monkeypatch.setattr(engine, "log", lambda *arguments: (reads.append(arguments[1]), read(*arguments))[1])

    async def follow(port: int) -> str:
        async with connected(port, f"jobs/{job.id}/log/events", served.tokens[Role.USER]) as reader:
            return await until_end(reader)

    async def scenario() -> None:
        async with listening(served) as port:
            clients = [asyncio.create_task(follow(port)) for _ in range(CLIENTS)]
            await until(
                lambda: sum(shared.listeners for shared in served.streams._open.values()) == CLIENTS, "all of them"
            )
            assert len(served.streams) == 1
            reads_before, started_s = len(reads), time.monotonic()
            for step in range(50):
                job.prints(f"step {step}\n".encode())
                await asyncio.sleep(0.02)
            job.ends()
            received_text = "".join(f"step {step}\n" for step in range(50))
            assert {await client for client in clients} == {received_text}
            took_s = time.monotonic() - started_s
            print(f"{CLIENTS} listeners, {len(reads) - reads_before} reads in {took_s:.1f} s")
            assert len(reads) - reads_before <= took_s / 0.02 + 5, "as many as one listener needs"

    within_time(served, scenario)
