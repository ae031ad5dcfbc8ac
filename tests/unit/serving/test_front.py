"""Tests of the front, the single address of a serving, with real sockets: choice of replicas, and losses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from hopsml.serving.balancer import SENDINGS, Balancer, may_send_again
from hopsml.serving.definitions import ServingLimits
from hopsml.serving.front import CONTROL, Front, serve_front
from hopsml.serving.messages import Command, StatusRequest, SupervisorAnswer, encode_line
from hopsml.serving.supervisor import listening_socket

pytestmark = pytest.mark.fast
TOKEN, OWNER = "t" * 20, "o" * 20
PREDICT = "/v1/models/digits:predict"
A, B = ("10.0.0.1", 1), ("10.0.0.2", 2)


def test_replica_with_the_fewest_requests_is_chosen_and_equal_ones_alternate() -> None:
    found = Balancer()
    assert found.choose_replica() is None
    found.add_replica(0, A)
    found.add_replica(1, B)
    assert {found.choose_replica(), found.choose_replica()} == {(0, A), (1, B)}
    found.begin_request(0)
    assert [found.choose_replica() for _ in range(3)] == [(1, B)] * 3
    found.end_request(0)
    assert found.choose_replica({1}) == (0, A) and found.choose_replica({0, 1}) is not None
    found.remove_replica(1)
    assert (found.choose_replica({0}), found.available_count) == ((0, A), 1)


def test_tried_replica_is_chosen_again_only_after_all_others() -> None:
    found = Balancer()
    for replica in range(3):
        found.add_replica(replica, (f"10.0.0.{replica}", 1))
    found.begin_request(1)
    found.begin_request(2)
    for _ in range(6):  # replica 0 is the least loaded, and the request has failed there
        chosen = found.choose_replica({0})
        assert chosen is not None and chosen[0] in (1, 2)
    assert {found.choose_replica({0, 1})} == {(2, ("10.0.0.2", 1))}
    again = found.choose_replica({0, 1, 2})
    assert again is not None and again[0] == 0


def test_replicas_with_equal_load_are_chosen_equally_often() -> None:
    found = Balancer()
    for replica in (0, 1, 4):
        found.add_replica(replica, (f"10.0.0.{replica}", 1))
    chosen = [found.choose_replica() for _ in range(30)]
    assert [chosen.count((replica, (f"10.0.0.{replica}", 1))) for replica in (0, 1, 4)] == [10, 10, 10]


def balanced(replicas: int) -> Balancer:
    """Return a balancer with replicas 0, 1 ..., each with a separate address."""
    found = Balancer()
    for replica in range(replicas):
        found.add_replica(replica, address(replica))
    return found


def address(replica: int) -> tuple[str, int]:
    return f"10.0.0.{replica}", 8000 + replica


def choices(balancer: Balancer, count: int) -> list[int | None]:
    """Return the replicas of the next choices."""
    return [None if one is None else one[0] for one in (balancer.choose_replica() for _ in range(count))]


def test_idle_replicas_are_chosen_in_order_of_their_numbers() -> None:
    assert choices(balanced(3), 7) == [0, 1, 2, 0, 1, 2, 0]
    assert choices(balanced(1), 3) == [0, 0, 0]
    found = balanced(3)
    found.remove_replica(1)  # the others share its requests equally
    assert choices(found, 6) == [0, 2, 0, 2, 0, 2]
    found.begin_request(0)
    assert choices(found, 2) == [2, 2]
    found.end_request(0)
    assert choices(found, 3) == [0, 2, 0]


def test_replica_is_chosen_with_its_latest_address() -> None:
    found = balanced(2)
    assert sorted(filter(None, [found.choose_replica(), found.choose_replica()])) == [(0, address(0)), (1, address(1))]
    found.remove_replica(0)
    found.add_replica(0, A)
    found.add_replica(1, B)
    assert found.available_count == 2
    assert sorted(filter(None, [found.choose_replica(), found.choose_replica()])) == [(0, A), (1, B)]


def test_load_of_a_replica_is_its_number_of_requests_in_flight() -> None:
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


def test_removed_replica_retains_its_requests_in_flight_until_they_end() -> None:
    found = balanced(2)
    found.begin_request(0)
    found.remove_replica(0)
    found.remove_replica(0)  # removed twice, or unknown
    found.remove_replica(7)
    assert (found.available_count, choices(found, 2)) == (1, [1, 1])
    found.add_replica(0, A)
    assert choices(found, 2) == [1, 1]
    found.end_request(0)
    assert sorted(map(str, choices(found, 2))) == ["0", "1"]


def test_request_is_sent_at_most_twice() -> None:
    assert [may_send_again(number) for number in range(1, SENDINGS + 2)] == [True, False, False]


# ------------------------------------------------------------------------------------------ with sockets


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def one_request(reader: asyncio.StreamReader) -> bytes:
    """Return the body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    return await reader.readexactly(length)


async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with its body."""
    while not reader.at_eof():
        try:
            body = await one_request(reader)
        except asyncio.IncompleteReadError:
            break
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nmodel-version: 3\r\n\r\n%s" % (len(body), body))
    writer.close()


async def disconnects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close the connection during the request."""
    await one_request(reader)
    writer.transport.abort()


async def answer_to(port: int, body: bytes, path: str = PREDICT, token: str = TOKEN) -> tuple[int, bytes]:
    """Return the front's answer to one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.startswith(b"content-length"))
    found = int(answer.split(b" ")[1]), await reader.readexactly(length)
    writer.close()
    return found


async def answer_command(command: Command) -> SupervisorAnswer:
    assert isinstance(command, StatusRequest)
    return SupervisorAnswer(ready=2)


def run_front(
    handles: dict[int, Handle], body: Callable[[Front, int], Awaitable[None]], deadline_s: float = 20.0
) -> None:
    """Run ``body`` with a front over the given replicas, and its port."""

    async def run() -> None:
        front = Front("digits", ServingLimits(deadline_s=deadline_s, body_bytes=100), TOKEN, OWNER, answer_command)
        async with AsyncExitStack() as stack:
            for number, handle in handles.items():
                server = await stack.enter_async_context(await asyncio.start_server(handle, "127.0.0.1", 0))
                front.add_replica(number, server.sockets[0].getsockname()[:2])
            listener = stack.enter_context(listening_socket("127.0.0.1", 0))
            listener.setblocking(False)
            await stack.enter_async_context(serve_front(front, listener))
            await body(front, listener.getsockname()[1])
            for number in handles:
                front.remove_replica(number)

    asyncio.run(run())


def test_request_in_a_failed_replica_is_answered_by_another() -> None:
    async def body(front: Front, port: int) -> None:
        found = await asyncio.gather(*(answer_to(port, b"%d" % number) for number in range(20)))
        assert found == [(200, b"%d" % number) for number in range(20)]

    run_front({0: disconnects, 1: echoes}, body)


def test_request_that_fails_in_every_replica_is_an_error() -> None:
    async def body(front: Front, port: int) -> None:
        status, text = await answer_to(port, b"1")
        assert status == 503 and b"2 replicas failed while they computed the request" in text

    run_front({0: disconnects, 1: disconnects}, body)


def test_requests_wait_for_a_replica_and_are_answered_when_one_is_added() -> None:
    async def body(front: Front, port: int) -> None:
        waiting = asyncio.create_task(answer_to(port, b"1"))
        while not front._changed._waiters:  # type: ignore[attr-defined]  # the request has come
            await asyncio.sleep(0.01)
        async with await asyncio.start_server(echoes, "127.0.0.1", 0) as server:
            front.add_replica(0, server.sockets[0].getsockname()[:2])
            assert await waiting == (200, b"1")
            front.remove_replica(0)

    run_front({}, body)


def test_request_without_a_replica_is_refused_at_its_deadline() -> None:
    async def body(front: Front, port: int) -> None:
        status, text = await answer_to(port, b"1")
        assert status == 503 and b"no replica has answered for 0.1 s; check `hopsml serve show digits`" in text

    run_front({}, body, deadline_s=0.1)


def test_front_requires_the_client_token_and_the_control_token() -> None:
    async def body(front: Front, port: int) -> None:
        status = encode_line(StatusRequest())
        assert (await answer_to(port, b"1", token=OWNER))[0] == 401
        assert (await answer_to(port, status, CONTROL))[0] == 401
        assert (await answer_to(port, b"{}", CONTROL, OWNER))[0] == 400
        code, text = await answer_to(port, status, CONTROL, OWNER)
        assert code == 200 and json.loads(text)["ready"] == 2
        assert (await answer_to(port, b"x" * 101))[0] == 413

    run_front({0: echoes}, body)
