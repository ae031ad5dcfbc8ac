"""Tests of the front, the single address of a serving, with real sockets: choice of replicas, and losses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from hopsml.serving.balancer import SENDINGS, Balancer, is_sent_again
from hopsml.serving.definitions import ServingLimits
from hopsml.serving.front import CONTROL, Front, listening
from hopsml.serving.messages import Command, StatusRequest, SupervisorAnswer, encode_line
from hopsml.serving.supervisor import bound

pytestmark = pytest.mark.fast
TOKEN, OWNER = "t" * 20, "o" * 20
PREDICT = "/v1/models/digits:predict"
A, B = ("10.0.0.1", 1), ("10.0.0.2", 2)


def test_the_replica_with_the_fewest_requests_is_asked_and_of_equals_each_in_turn() -> None:
    found = Balancer()
    assert found.choose() is None
    found.add_replica(0, A)
    found.add_replica(1, B)
    assert {found.choose(), found.choose()} == {(0, A), (1, B)}
    found.begin_request(0)
    assert [found.choose() for _ in range(3)] == [(1, B)] * 3
    found.end_request(0)
    assert found.choose({1}) == (0, A) and found.choose({0, 1}) is not None
    found.remove_replica(1)
    assert (found.choose({0}), found.answering) == ((0, A), 1)


def test_a_replica_that_was_tried_is_chosen_only_where_all_were_tried() -> None:
    found = Balancer()
    for replica in range(3):
        found.add_replica(replica, (f"10.0.0.{replica}", 1))
    found.begin_request(1)
    found.begin_request(2)
    for _ in range(6):  # replica 0 is the least loaded, and the request has failed there
        chosen = found.choose({0})
        assert chosen is not None and chosen[0] in (1, 2)
    assert {found.choose({0, 1})} == {(2, ("10.0.0.2", 1))}
    again = found.choose({0, 1, 2})
    assert again is not None and again[0] == 0


def test_replicas_with_equal_load_are_chosen_equally_often() -> None:
    found = Balancer()
    for replica in (0, 1, 4):
        found.add_replica(replica, (f"10.0.0.{replica}", 1))
    chosen = [found.choose() for _ in range(30)]
    assert [chosen.count((replica, (f"10.0.0.{replica}", 1))) for replica in (0, 1, 4)] == [10, 10, 10]


def balanced(replicas: int) -> Balancer:
    """Replicas 0, 1 ... that answer, each at an address of its own."""
    found = Balancer()
    for replica in range(replicas):
        found.add_replica(replica, address(replica))
    return found


def address(replica: int) -> tuple[str, int]:
    return f"10.0.0.{replica}", 8000 + replica


def choices(balancer: Balancer, count: int) -> list[int | None]:
    """The next replicas that are chosen."""
    return [None if one is None else one[0] for one in (balancer.choose() for _ in range(count))]


def test_idle_replicas_take_turns_by_their_numbers() -> None:
    assert choices(balanced(3), 7) == [0, 1, 2, 0, 1, 2, 0]
    assert choices(balanced(1), 3) == [0, 0, 0]
    found = balanced(3)
    found.remove_replica(1)  # the others share its requests equally
    assert choices(found, 6) == [0, 2, 0, 2, 0, 2]
    found.begin_request(0)
    assert choices(found, 2) == [2, 2]
    found.end_request(0)
    assert choices(found, 3) == [0, 2, 0]


def test_a_replica_is_chosen_with_the_address_it_was_last_seen_at() -> None:
    found = balanced(2)
    assert sorted(filter(None, [found.choose(), found.choose()])) == [(0, address(0)), (1, address(1))]
    found.remove_replica(0)
    found.add_replica(0, A)
    found.add_replica(1, B)
    assert found.answering == 2
    assert sorted(filter(None, [found.choose(), found.choose()])) == [(0, A), (1, B)]


def test_requests_that_ended_count_no_more_and_those_in_flight_count_each() -> None:
    found = balanced(2)
    for _ in range(3):
        found.begin_request(0)
    found.begin_request(1)
    assert choices(found, 3) == [1, 1, 1]  # 3 and 1 are in them
    found.begin_request(1)
    assert choices(found, 3) == [1, 1, 1]
    found.begin_request(1)
    assert sorted(map(str, choices(found, 2))) == ["0", "1"]  # as many
    found.begin_request(1)
    assert choices(found, 3) == [0, 0, 0]
    for _ in range(4):
        found.end_request(1)
    for _ in range(3):
        found.end_request(0)
    found.add_replica(2, address(2))  # which has had none yet
    assert choices(found, 6) == [2, 1, 0, 2, 1, 0]


def test_a_replica_that_is_lost_with_requests_in_it_has_them_until_they_end() -> None:
    found = balanced(2)
    found.begin_request(0)
    found.remove_replica(0)
    found.remove_replica(0)  # said twice, or of a replica that was never there
    found.remove_replica(7)
    assert (found.answering, choices(found, 2)) == (1, [1, 1])
    found.add_replica(0, A)
    assert choices(found, 2) == [1, 1]
    found.end_request(0)
    assert sorted(map(str, choices(found, 2))) == ["0", "1"]


def test_a_request_is_sent_once_more() -> None:
    assert [is_sent_again(number) for number in range(1, SENDINGS + 2)] == [True, False, False]


# ------------------------------------------------------------------------------------------ with sockets


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def one_request(reader: asyncio.StreamReader) -> bytes:
    """Its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    return await reader.readexactly(length)


async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request with its body."""
    while not reader.at_eof():
        try:
            body = await one_request(reader)
        except asyncio.IncompleteReadError:
            break
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nmodel-version: 3\r\n\r\n%s" % (len(body), body))
    writer.close()


async def is_lost(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Goes away with the request in it."""
    await one_request(reader)
    writer.transport.abort()


async def asked(port: int, body: bytes, path: str = PREDICT, token: str = TOKEN) -> tuple[int, bytes]:
    """The front's answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.startswith(b"content-length"))
    found = int(answer.split(b" ")[1]), await reader.readexactly(length)
    writer.close()
    return found


async def did(command: Command) -> SupervisorAnswer:
    assert isinstance(command, StatusRequest)
    return SupervisorAnswer(ready=2)


def play(handles: dict[int, Handle], body: Callable[[Front, int], Awaitable[None]], deadline_s: float = 20.0) -> None:
    """A front with such replicas, and what is done with it and its port."""

    async def whole() -> None:
        front = Front("digits", ServingLimits(deadline_s=deadline_s, body_bytes=100), TOKEN, OWNER, did)
        async with AsyncExitStack() as stack:
            for number, handle in handles.items():
                server = await stack.enter_async_context(await asyncio.start_server(handle, "127.0.0.1", 0))
                front.add_replica(number, server.sockets[0].getsockname()[:2])
            listener = stack.enter_context(bound("127.0.0.1", 0))
            listener.setblocking(False)
            await stack.enter_async_context(listening(front, listener))
            await body(front, listener.getsockname()[1])
            for number in handles:
                front.remove_replica(number)

    asyncio.run(whole())


def test_what_was_in_a_replica_that_is_lost_is_answered_by_another() -> None:
    async def body(front: Front, port: int) -> None:
        found = await asyncio.gather(*(asked(port, b"%d" % number) for number in range(20)))
        assert found == [(200, b"%d" % number) for number in range(20)]

    play({0: is_lost, 1: echoes}, body)


def test_what_is_lost_with_every_replica_is_told() -> None:
    async def body(front: Front, port: int) -> None:
        status, said = await asked(port, b"1")
        assert status == 503 and b"2 replicas failed while they computed the request" in said

    play({0: is_lost, 1: is_lost}, body)


def test_without_a_replica_requests_wait_and_are_answered_when_one_is_back() -> None:
    async def body(front: Front, port: int) -> None:
        waiting = asyncio.create_task(asked(port, b"1"))
        while not front._changed._waiters:  # type: ignore[attr-defined]  # the request has come
            await asyncio.sleep(0.01)
        async with await asyncio.start_server(echoes, "127.0.0.1", 0) as server:
            front.add_replica(0, server.sockets[0].getsockname()[:2])
            assert await waiting == (200, b"1")
            front.remove_replica(0)

    play({}, body)


def test_without_a_replica_a_request_is_refused_at_its_deadline() -> None:
    async def body(front: Front, port: int) -> None:
        status, said = await asked(port, b"1")
        assert status == 503 and b"no replica has answered for 0.1 s; check `hopsml serve show digits`" in said

    play({}, body, deadline_s=0.1)


def test_who_may_ask_and_who_may_command() -> None:
    async def body(front: Front, port: int) -> None:
        status = encode_line(StatusRequest())
        assert (await asked(port, b"1", token=OWNER))[0] == 401
        assert (await asked(port, status, CONTROL))[0] == 401
        assert (await asked(port, b"{}", CONTROL, OWNER))[0] == 400
        code, said = await asked(port, status, CONTROL, OWNER)
        assert code == 200 and json.loads(said)["ready"] == 2
        assert (await asked(port, b"x" * 101))[0] == 413

    play({0: echoes}, body)
