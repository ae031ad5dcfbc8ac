"""Tests that groups form despite unauthenticated peers: replays, garbage, silence, other generations."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from hopsml.collective import Group
from hopsml.errors import ArgumentError, CollectiveRefused, CollectiveTimeout, PeerLost
from tests.helpers import clock
from tests.helpers.collective.together import SECRET, addresses, each, form, listeners

pytestmark = pytest.mark.local

MAGIC = b"HOPSMLC1"
HELLO = struct.Struct("<8sQiiiI32s")
CHALLENGE = struct.Struct("<QQ32s32s")
Stranger = Callable[[socket.socket], None]


def hello(
    sender: int = 1, to: int = 0, size: int = 2, generation: int = 0, channel: int = 0, nonce: bytes = b"n" * 32
) -> bytes:
    """Return the first message of a connecting member."""
    return HELLO.pack(MAGIC, generation, sender, to, size, channel, nonce)


def signature(secret: bytes, label: str, nonces: bytes, size: int = 2) -> bytes:
    """As the library signs, of rank 1 that connects to rank 0 for notices; written from its description."""
    text = struct.pack("<32sQQiiiI", label.encode(), 0, 0, 1, 0, size, 0) + nonces
    return hmac.new(secret, text, hashlib.sha256).digest()


def receive(one: socket.socket, size: int) -> bytes:
    """Return ``size`` bytes, or the data before the end of the connection."""
    got = b""
    while len(got) < size:
        try:
            more = one.recv(size - len(got))
        except ConnectionError:
            break
        if not more:
            break
        got += more
    return got


@pytest.fixture
def forming_group() -> Iterator[tuple[tuple[str, int], Callable[[], list[Group]]]]:
    """Rank 0 of two is forming: yield its address, and a function that lets rank 1 join and returns both."""
    sockets = listeners(2)
    names = addresses(sockets)
    members: list[Group] = []
    with ThreadPoolExecutor(2) as pool:

        def member(rank: int) -> Future[Group]:
            options = {"secret": SECRET, "form_timeout_s": 20, "timeout_s": 20}
            return pool.submit(Group.form, rank, names, listener=sockets[rank].detach(), **options)

        target = sockets[0].getsockname()
        first = member(0)

        def both() -> list[Group]:
            members.extend(future.result() for future in (first, member(1)))
            return members

        try:
            yield target, both
        finally:
            for one in members or both():
                one.end()


def hello_and_silence(one: socket.socket) -> None:
    one.sendall(hello())


def wrong_proof(one: socket.socket) -> None:
    one.sendall(hello())
    _, _, nonce, _ = CHALLENGE.unpack(receive(one, CHALLENGE.size))
    one.sendall(signature(b"another secret!!", "hopsml collective 1: proof", b"n" * 32 + nonce))
    assert receive(one, 1) == b""


def reflected_proof(one: socket.socket) -> None:
    """Send the proof of another conversation, or of the other direction."""
    one.sendall(hello())
    receive(one, CHALLENGE.size)
    one.sendall(signature(SECRET, "hopsml collective 1: welcome", b"n" * 64))
    assert receive(one, 1) == b""


def garbage(one: socket.socket) -> None:
    one.sendall(os.urandom(200))
    receive(one, 1)


def http_request(one: socket.socket) -> None:
    one.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n" + b"X: y\r\n" * 20 + b"\r\n")
    assert receive(one, 1) == b""


def older_generation(one: socket.socket) -> None:
    one.sendall(HELLO.pack(MAGIC, 2**40, 1, 0, 2, 0, b"n" * 32))
    refused, generation, _, _ = CHALLENGE.unpack(receive(one, CHALLENGE.size))
    assert (refused, generation) == (1, 0)
    assert receive(one, 1) == b""


def unknown_rank(one: socket.socket) -> None:
    one.sendall(hello(sender=7))
    assert receive(one, 1) == b""


def partial_hello(one: socket.socket) -> None:
    one.sendall(hello()[:40])
    one.shutdown(socket.SHUT_WR)
    assert receive(one, 1) == b""


def silence(one: socket.socket) -> None:
    """It only connects."""


STRANGERS: tuple[Stranger, ...] = (
    *(hello_and_silence, wrong_proof, reflected_proof, garbage, http_request, older_generation),
    *(unknown_rank, partial_hello, silence),
)


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda stranger: stranger.__name__)
def test_unauthenticated_peer_learns_nothing_and_delays_no_member(
    stranger: Stranger, forming_group: tuple[tuple[str, int], Callable[[], list[Group]]]
) -> None:
    target, both = forming_group
    with socket.create_connection(target, timeout=10) as one:
        stranger(one)
        assert each(both(), lambda m: m.all_reduce([1.0])[0]) == [2.0, 2.0]


def test_many_silent_connections_delay_no_member(
    forming_group: tuple[tuple[str, int], Callable[[], list[Group]]],
) -> None:
    target, both = forming_group
    crowd = [socket.create_connection(target, timeout=10) for _ in range(100)]
    try:
        assert each(both(), lambda m: m.all_reduce([1.0])[0]) == [2.0, 2.0]
    finally:
        for one in crowd:
            one.close()


def test_replayed_handshake_is_refused(forming_group: tuple[tuple[str, int], Callable[[], list[Group]]]) -> None:
    """The very bytes with which a member has once proved itself."""
    target, both = forming_group
    with socket.create_connection(target, timeout=10) as one:
        one.sendall(hello())
        _, _, nonce, _ = CHALLENGE.unpack(receive(one, CHALLENGE.size))
        proof = signature(SECRET, "hopsml collective 1: proof", b"n" * 32 + nonce)
        one.sendall(proof)
        welcome = receive(one, 32)  # it would have been a member
        assert welcome == signature(SECRET, "hopsml collective 1: welcome", b"n" * 32 + nonce)
    with socket.create_connection(target, timeout=10) as again:
        again.sendall(hello())
        receive(again, CHALLENGE.size)
        again.sendall(proof)
        assert receive(again, 1) == b""
    assert each(both(), lambda m: m.all_reduce([1.0])[0]) == [2.0, 2.0]


def test_random_bytes_do_not_disturb_forming(forming_group: tuple[tuple[str, int], Callable[[], list[Group]]]) -> None:
    """Mutations of a true hello and of noise, for half a second."""
    target, both = forming_group
    chance, until = random.Random(1), time.monotonic() + 0.5
    while time.monotonic() < until:
        with socket.create_connection(target, timeout=10) as one:
            message = bytearray(hello() + os.urandom(chance.randrange(60)))
            for _ in range(chance.randrange(6)):
                message[chance.randrange(len(message))] = chance.randrange(256)
            one.sendall(message[: chance.randrange(1, len(message) + 1)])
    assert each(both(), lambda m: m.all_reduce([1.0])[0]) == [2.0, 2.0]


def test_different_secret_is_refused_on_both_sides() -> None:
    sockets = listeners(2)
    names = addresses(sockets)

    def one(rank: int) -> Exception:
        secret = SECRET if rank == 0 else b"not this group's"
        with pytest.raises((CollectiveRefused, CollectiveTimeout)) as caught:
            Group.form(rank, names, secret=secret, listener=sockets[rank].detach(), form_timeout_s=0.4)
        return caught.value

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(one, range(2))
    assert "does not know the group's secret" in str(first) and "missing: rank 1" in str(first)
    assert isinstance(second, CollectiveRefused) and "rank 0: it closed the connection" in str(second)


def test_member_of_an_older_generation_is_refused_at_once() -> None:
    """A member of the new generation sends the signed refusal, and its group forms undisturbed."""
    sockets = listeners(2)
    names = addresses(sockets)
    with ThreadPoolExecutor(3) as pool:
        options = {"secret": SECRET, "form_timeout_s": 20, "timeout_s": 20}
        first = pool.submit(Group.form, 0, names, generation=5, listener=sockets[0].detach(), **options)
        start_s = clock.awake()
        with pytest.raises(CollectiveRefused, match="generation 5, this one of generation 4"):
            Group.form(1, names, generation=4, secret=SECRET, form_timeout_s=20)
        assert clock.awake() - start_s < 5
        second = pool.submit(Group.form, 1, names, generation=5, listener=sockets[1].detach(), **options)
        members = [first.result(), second.result()]
        assert each(members, lambda m: m.all_reduce([1.0])[0]) == [2.0, 2.0]
        for member in members:
            member.end()


def test_member_that_ends_while_the_group_forms_is_named_at_once() -> None:
    """A member authenticates and is killed; rank 2 never connects."""
    sockets = listeners(3)
    with ThreadPoolExecutor(1) as pool:
        target, names = sockets[0].getsockname(), addresses(sockets)
        first = pool.submit(Group.form, 0, names, secret=SECRET, listener=sockets[0].detach(), form_timeout_s=20)
        with socket.create_connection(target) as one:
            one.sendall(hello(size=3))
            _, _, nonce, _ = CHALLENGE.unpack(receive(one, CHALLENGE.size))
            one.sendall(signature(SECRET, "hopsml collective 1: proof", b"n" * 32 + nonce, size=3))
            assert len(receive(one, 32)) == 32
        start_s = clock.awake()
        with pytest.raises(PeerLost, match="rank 1 ended while the group formed"):
            first.result()
        assert clock.awake() - start_s < 5
    for other in sockets[1:]:
        other.close()


def test_missing_members_are_named_at_the_timeout() -> None:
    sockets = listeners(3)
    names = addresses(sockets)
    with pytest.raises(CollectiveTimeout, match="missing: rank 0, 2"):
        Group.form(1, names, secret=SECRET, listener=sockets[1].detach(), form_timeout_s=0.2)
    for one in sockets:
        one.close()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"secret": b"short"}, "at least 16 bytes"),
        ({"rank": 2}, "no such rank"),
        ({"rank": 1, "addresses": ["nowhere", "127.0.0.1:0"]}, "host:port"),
        ({"hosts": ["a"]}, "1 hosts for 2 addresses"),
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, object], words: str) -> None:
    options: dict[str, object] = {"rank": 0, "addresses": ["127.0.0.1:0", "127.0.0.1:0"], "secret": SECRET, **wrong}
    with pytest.raises(ArgumentError, match=words):
        Group.form(**{"form_timeout_s": 0.2, **options})


def test_secret_is_never_sent() -> None:
    """Nor a part of it: all data of a forming group is searched."""
    sockets = listeners(2)
    target, relay = sockets[0].getsockname(), listeners(1)[0]
    seen: list[bytes] = []
    pairs: list[tuple[socket.socket, socket.socket]] = []

    def carry(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either side is closed
            while data := source.recv(4096):
                seen.append(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    names = [addresses([relay])[0], addresses(sockets)[1]]
    with ThreadPoolExecutor(6) as pool:
        forming = [
            pool.submit(Group.form, rank, names, secret=SECRET, listener=sockets[rank].detach(), form_timeout_s=20)
            for rank in range(2)
        ]
        for _ in range(2):  # the connection for notices, and that for data
            one, other = relay.accept()[0], socket.create_connection(target)
            pairs.append((one, other))
            pool.submit(carry, one, other)
            pool.submit(carry, other, one)
        members = [future.result() for future in forming]
        each(members, lambda m: m.barrier())
        for member in members:
            member.end()
    for one in (relay, *(one for pair in pairs for one in pair)):
        one.close()
    assert len(b"".join(seen)) > 400 and SECRET[:4] not in b"".join(seen)


def test_listener_is_closed_even_if_forming_fails() -> None:
    [one] = listeners(1)
    number = one.detach()
    with pytest.raises(ArgumentError, match="no such rank"):
        Group.form(5, ["127.0.0.1:1"], secret=SECRET, listener=number)
    with pytest.raises(OSError):
        os.fstat(number)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 on this machine")
def test_group_forms_over_ipv6_addresses() -> None:
    sockets = [socket.create_server(("::1", 0), family=socket.AF_INET6) for _ in range(2)]
    names = [f"[::1]:{one.getsockname()[1]}" for one in sockets]
    with ThreadPoolExecutor(2) as pool:
        forming = [
            pool.submit(Group.form, rank, names, secret=SECRET, listener=sockets[rank].detach(), form_timeout_s=20)
            for rank in range(2)
        ]
        members = [future.result() for future in forming]
    assert each(members, lambda m: m.all_reduce([1.0])[0]) == [2.0, 2.0]
    for member in members:
        member.end()


def test_eight_members_form_simultaneously() -> None:
    members = form(8)
    assert each(members, lambda m: m.all_reduce([1.0])[0]) == [8.0] * 8
    for member in members:
        member.end()
