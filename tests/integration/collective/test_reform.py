"""Tests of resumable groups: waiting calls, pauses, ends, and loss of members during calls.

Members are threads in most tests: one that closes its group is lost for the others, like a killed one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hopsml.collective import Group
from hopsml.errors import ArgumentError, CollectiveChanged, CollectiveEnded, CollectiveMismatch, PeerLost
from tests.helpers.clock import END_S
from tests.helpers.collective.together import SECRET, TRANSPORTS, addresses, each, group, held, listeners

pytestmark = pytest.mark.local


def play(transport: str, size: int, seed: int, rounds: int) -> None:
    """Run the program of kills and stops; inconsistent results are the failure."""
    command = [sys.executable, "-m", "tests.helpers.collective.resuming", transport, *map(str, (size, seed, rounds))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("size", "seed"),
    [pytest.param(2, 1, marks=pytest.mark.variant), (3, 2), pytest.param(4, 3, marks=pytest.mark.variant)],
)
def test_members_killed_and_stopped_during_calls_leave_equal_results(transport: str, size: int, seed: int) -> None:
    play(transport, size, seed, rounds=4)


@pytest.mark.variant
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_sequences_of_kills_and_stops_leave_equal_results(transport: str, seed: int) -> None:
    play(transport, 2 + seed % 3, seed, rounds=8)


FLOATS = np.arange(30_000, dtype="float32")
GO_ON: dict[str, Any] = {"secret": SECRET, "form_timeout_s": 20}


def reform(
    members: Sequence[Group], transport: str = "sockets", new: int = 0, order: Sequence[int] = (), skip: int = 0
) -> list[Group]:
    """Reform these members in this order of ranks, followed by ``new`` new members, which are returned.

    ``skip``: number of generations without a group.
    """
    size = len(members) + new
    sockets, hosts = listeners(size), TRANSPORTS[transport](size)
    names, generation = addresses(sockets), members[0].generation + 1 + skip

    def one(rank: int) -> Group | None:
        place = {"hosts": hosts, "listener": sockets[rank].detach(), "generation": generation, **GO_ON}
        if rank >= len(members):
            return Group.form(rank, names, resumable=True, **place)
        members[order[rank] if order else rank].reform(rank, names, **place)
        return None

    with ThreadPoolExecutor(size) as pool:
        return [new for new in pool.map(one, range(size)) if new is not None]


def await_waiting(member: Group) -> None:
    """Until its calls do."""
    until = time.monotonic() + 20
    while not member.awaits_reform:
        assert time.monotonic() < until
        time.sleep(0.001)


def calls(pool: ThreadPoolExecutor, members: Sequence[Group], work: Any) -> list[Future[Any]]:
    """Start this call of each member in a separate thread."""
    return [pool.submit(work, member) for member in members]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_continue_without_the_lost_member(transport: str) -> None:
    with group(3, TRANSPORTS[transport](3), resumable=True) as members, ThreadPoolExecutor(3) as pool:
        each(members, lambda m: m.barrier())
        sums = calls(pool, members[1:], lambda m: m.all_reduce(FLOATS * 2**m.rank, "mean"))
        members[0].end("enough")
        for member in members[1:]:
            await_waiting(member)
            assert member.lost_rank == 0
        reform(members[1:], transport, order=[1, 0])
        assert [member.rank for member in members[1:]] == [1, 0]
        assert all(np.array_equal(one.result(), FLOATS * 3) for one in sums)
        assert {(m.size, m.generation, m.awaits_reform, m.lost_rank) for m in members[1:]} == {(2, 1, False, None)}
        assert all(one is None for one in each(members[1:], lambda m: m.barrier()))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_single_survivor_forms_a_group(transport: str) -> None:
    with group(2, TRANSPORTS[transport](2), resumable=True) as members, ThreadPoolExecutor(1) as pool:
        [own] = calls(pool, members[:1], lambda m: m.all_reduce(FLOATS, "mean"))
        members[1].end()
        await_waiting(members[0])
        reform(members[:1])
        assert np.array_equal(own.result(), FLOATS)
        [new] = reform(members[:1], transport, new=1)
        assert each([members[0], new], lambda m: m.all_reduce([1.0])[0]) == [2.0, 2.0]
        new.end()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_results_that_depend_on_members_use_the_new_group(transport: str) -> None:
    with group(3, TRANSPORTS[transport](3), resumable=True) as members, ThreadPoolExecutor(2) as pool:
        pending = calls(pool, members[1:], lambda m: m.all_gather(FLOATS + m.rank))
        members[0].end()
        for member in members[1:]:
            await_waiting(member)
        reform(members[1:], transport)
        first, second = (one.result() for one in pending)
        assert np.array_equal(first, second) and np.array_equal(first, np.stack([FLOATS + 1, FLOATS + 2]))
        [alone] = calls(pool, members[1:2], lambda m: m.broadcast(FLOATS + m.rank))
        reform(members[1:], transport, order=[1, 0])
        assert np.array_equal(members[2].broadcast(FLOATS + 9), alone.result())
        assert alone.result()[0] == 9  # rank 0 is the other one by now


def test_output_buffer_for_other_members_is_refused_and_the_input_is_unchanged() -> None:
    with group(3, resumable=True) as members, ThreadPoolExecutor(2) as pool:
        parts = [np.stack([FLOATS] * 3) for _ in range(2)]
        pending = calls(pool, members[:2], lambda m: m.reduce_scatter(parts[m.rank], out=parts[m.rank][m.rank]))
        members[2].end()
        for member in members[:2]:
            await_waiting(member)
        reform(members[:2])
        for one, part in zip(pending, parts, strict=True):
            assert isinstance(one.exception(), CollectiveChanged)
            assert np.array_equal(part, np.stack([FLOATS] * 3))
        room = np.empty((3, 2), "float32")
        with pytest.raises(ArgumentError, match="of shape"):
            members[0].all_gather(np.ones(2, "float32"), out=room)
        assert each(members[:2], lambda m: m.reduce_scatter(np.ones((2, 1)))[0]) == [2.0, 2.0]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_overwritten_input_is_preserved_for_the_repetition(transport: str) -> None:
    """Several rounds; the lost member has taken part in the first one and is stopped during the call."""
    size = 3
    with group(size, TRANSPORTS[transport](size), resumable=True) as members, ThreadPoolExecutor(size) as pool:
        for _ in range(5):
            values = [np.full(1_500_000, 2.0**rank, "float32") for rank in range(size)]
            sums = calls(pool, members, lambda m, v=values: m.all_reduce(v[m.rank], out=v[m.rank]))
            time.sleep(np.random.default_rng().random() * 0.004)
            reform(members, transport)
            for one in sums:
                assert (one.result() == 7).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 4, 5, 11])  # more than eight exchange information in several steps
def test_all_members_pause_after_the_same_call(transport: str, size: int) -> None:
    with group(size, TRANSPORTS[transport](size), resumable=True) as members:
        for turn in range(3):

            def work(member: Group, turn: int = turn) -> int:
                for call in range(10_000):
                    if call == 3 and member.rank == turn % size:
                        member.request_pause()
                    member.all_reduce(FLOATS[: 10 if call % 2 else 20_000])
                    if member.pause_agreed:
                        return call
                raise AssertionError("nobody paused")

            assert len(set(each(members, work))) == 1
            reform(members, transport)
            assert not any(member.pause_agreed for member in members)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_pause_admits_new_members(transport: str) -> None:
    with group(2, TRANSPORTS[transport](2), resumable=True) as members:
        members[1].request_pause()
        each(members, lambda m: m.barrier())
        assert all(member.pause_agreed for member in members)
        members += reform(members, transport, new=2)
        assert each(members, lambda m: m.all_reduce([1.0])[0]) == [4.0] * 4
        assert [member.rank for member in members] == [0, 1, 2, 3]


def test_new_member_takes_part_in_the_repeated_call() -> None:
    with group(2, resumable=True) as members, ThreadPoolExecutor(2) as pool:
        [own] = calls(pool, members[:1], lambda m: m.all_reduce([1.0])[0])
        members[1].end()
        await_waiting(members[0])
        [new] = reform(members[:1], new=1)
        assert (new.all_reduce([2.0])[0], own.result()) == (3.0, 3.0)
        new.end()


def test_member_that_missed_a_call_cannot_rejoin() -> None:
    with group(3, resumable=True) as members:
        each(members, lambda m: m.barrier())
        reform(members[:2])
        reform(members[:2])
        reform(members)  # no call was made without it
        reform(members[:2])
        each(members[:2], lambda m: m.barrier())
        with pytest.raises(CollectiveMismatch, match=r"rank 0 has completed call 2, .*; rank 2 has completed call 1, "):
            reform(members)
        reform(members[:2], order=[1, 0], skip=1)
        assert each(members[:2], lambda m: m.all_reduce([1.0])[0]) == [2.0, 2.0]


def test_invalid_reforms_are_refused() -> None:
    with group(2) as members, pytest.raises(ArgumentError, match="not resumable"):
        reform(members)
    with group(1, resumable=True, generation=7) as [alone]:
        with pytest.raises(ArgumentError, match="generation 7 is not higher than the newest, 7"):
            alone.reform(0, ["127.0.0.1:1"], generation=7, secret=SECRET)
        with pytest.raises(ArgumentError, match="no such rank"):
            alone.reform(1, ["127.0.0.1:1"], generation=8, secret=SECRET)
        assert alone.all_reduce([1.0])[0] == 1.0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_loss_during_a_reform_is_followed_by_another_reform(transport: str) -> None:
    """A newer reform cancels the one that waits for an absent member; the call is still pending."""
    with group(3, TRANSPORTS[transport](3), resumable=True) as members, ThreadPoolExecutor(6) as pool:
        sums = calls(pool, members[:2], lambda m: m.all_reduce(FLOATS))
        members[2].end()
        sockets = listeners(3)
        names = addresses(sockets)
        vain = [
            pool.submit(m.reform, m.rank + 1, names, generation=1, listener=sockets[m.rank + 1].detach(), **GO_ON)
            for m in members[:2]
        ]
        for _ in range(4):  # each of the two connects to it twice
            sockets[0].accept()[0].close()
        lost_listener = sockets[0]
        sockets = listeners(2)
        names = addresses(sockets)
        new = [
            pool.submit(m.reform, m.rank, names, generation=2, listener=sockets[m.rank].detach(), **GO_ON)
            for m in members[:2]
        ]
        assert [type(one.exception()) for one in vain] == [CollectiveChanged] * 2
        assert [one.result() for one in new] == [None, None]
        assert all(np.array_equal(one.result(), 2 * FLOATS) for one in sums)
        lost_listener.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_end_cancels_waiting_calls_and_reforms(transport: str) -> None:
    """A call, and a reform that waits for an absent member."""
    with group(2, TRANSPORTS[transport](2), resumable=True) as members, ThreadPoolExecutor(2) as pool:
        [own] = calls(pool, members[:1], lambda m: m.barrier())
        members[1].end()
        await_waiting(members[0])
        [here, absent] = listeners(2)
        vain = pool.submit(
            members[0].reform, 0, addresses([here, absent]), generation=1, listener=here.detach(), **GO_ON
        )
        members[0].end("enough")
        for one in (own, vain):
            assert isinstance(one.exception(), CollectiveEnded)
        with pytest.raises(CollectiveEnded):
            reform(members[:1])
        absent.close()


def test_mismatch_raises_also_in_a_resumable_group() -> None:
    with group(2, resumable=True) as members:
        errors = each(members, lambda m: m.all_reduce([1.0]) if m.rank else m.barrier())
        assert [type(error) for error in errors] == [CollectiveMismatch] * 2
        with pytest.raises(CollectiveMismatch):
            reform(members)


def test_forked_process_can_end_its_copy_of_a_waiting_group() -> None:
    with group(2, resumable=True) as members, ThreadPoolExecutor(1) as pool:
        [own] = calls(pool, members[:1], lambda m: m.all_reduce([1.0])[0])
        members[1].end()
        await_waiting(members[0])
        pid = os.fork()
        if pid == 0:
            try:
                members[0].barrier()
            except CollectiveEnded:
                with_place = members[0].rank, members[0].size
                members[0].end("a fork")
                members[0]._release()
                os._exit(7 if with_place == (0, 2) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        reform(members[:1])
        assert own.result() == 1.0


def test_loss_ends_a_group_that_is_not_resumable() -> None:
    with group(2) as members:
        members[1].end()
        with pytest.raises(PeerLost):
            members[0].barrier()
        assert not members[0].awaits_reform


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("times", [60, pytest.param(1_000, marks=pytest.mark.variant)])
def test_many_reforms_leave_no_resources(transport: str, times: int) -> None:
    with group(2, TRANSPORTS[transport](2), resumable=True) as members, ThreadPoolExecutor(2) as pool:

        def once() -> None:
            sums = calls(pool, members, lambda m: m.all_reduce(FLOATS))
            reform(members, transport)
            assert all(np.array_equal(one.result(), 2 * FLOATS) for one in sums)

        for _ in range(20):
            once()
        before = held()
        for _ in range(times):
            once()
        after = held()
    assert after[:2] == before[:2]
    assert after[2] < before[2] + 4096  # kB


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_guest_joins_with_its_own_count_of_calls(transport: str) -> None:
    alone = {"secret": SECRET, "form_timeout_s": 20, "generation": 1, "resumable": True}
    guest, stranger = (Group.form(0, ("here:1",), guest=is_guest, **alone) for is_guest in (True, False))
    for one in (guest, stranger):
        assert [one.all_reduce([3.0])[0] for _ in range(5)] == [3.0] * 5
    with group(2, TRANSPORTS[transport](2), resumable=True) as members:
        each(members, lambda m: m.barrier())
        reform([*members, guest], transport, skip=1)
        all_members = [*members, guest]
        assert [one.size for one in all_members] == [3, 3, 3]
        assert each(all_members, lambda m: m.all_reduce([2.0**m.rank])[0]) == [7.0] * 3
        reform(all_members, transport, order=[0, 2, 1])  # it is a member as any other from now on
        assert each(all_members, lambda m: float(m.broadcast([1.0 + m.rank], root=2)[0])) == [3.0] * 3
        with pytest.raises(CollectiveMismatch, match="cannot go on together"):
            reform([*all_members, stranger], transport)
    guest.end()
    stranger.end()
