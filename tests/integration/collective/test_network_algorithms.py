"""Tests of the all-reduce algorithms over sockets: correct, in the documented order, and without hangs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import numpy as np
import pytest

from hopsml.collective import Group
from hopsml.errors import ArgumentError, CollectiveEnded, CollectiveMismatch, PeerLost
from tests.helpers.collective.together import SECRET, Array, addresses, each, group, listeners

pytestmark = pytest.mark.local

ALGORITHMS = ("direct", "pairwise", "ring")
SIZES = (2, 3, 4, 5, 6, 7, 8, 13)
COUNTS = (0, 1, 3, 5, 4099, 70_001)
FLOATS = np.ones(5000, "float32")
LARGE = np.ones(100_000, "float32")


def whole_numbers(rank: int, count: int, dtype: str) -> Array:
    """Small ones, whose sums are exact in every type."""
    return np.random.default_rng([rank, count]).integers(0, 9, count).astype(dtype)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_equals_numpy_for_each_algorithm_and_size(algorithm: str, size: int) -> None:
    with group(size, algorithm=algorithm) as members:
        for count in COUNTS:
            for dtype in ("float32", "int64", "uint8", "float16") if size == 5 else ("float32",):
                of_all = [whole_numbers(rank, count, dtype) for rank in range(size)]
                for name, ufunc in {"sum": np.add, "max": np.maximum}.items():
                    expected = functools.reduce(ufunc, of_all)
                    results = each(members, lambda m, n=name, x=of_all: m.all_reduce(x[m.rank], n))
                    assert all(np.array_equal(result, expected) for result in results), (count, dtype, name)
        for result in each(members, lambda m: m.all_reduce(np.full(9000, m.rank, "float64"), "mean")):
            assert np.array_equal(result, np.full(9000, np.arange(size).mean()))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_thirty_two_members_reduce_correctly(algorithm: str) -> None:
    with group(32, algorithm=algorithm) as members:
        each(members, lambda m: m.barrier())
        for count in (1, 40_003):
            of_all = [whole_numbers(rank, count, "float32") for rank in range(32)]
            for result in each(members, lambda m, x=of_all: m.all_reduce(x[m.rank])):
                assert np.array_equal(result, np.sum(of_all, 0))


@pytest.mark.parametrize("size", [5, 8, 17])
def test_automatic_algorithm_gives_equal_results_for_all_sizes(size: int) -> None:
    """Small, larger, and large enough for the ring algorithm."""
    with group(size) as members:
        for count in (100, 3000, 30_000, 600_000):
            of_all = [np.random.default_rng(rank).normal(size=count).astype("float32") for rank in range(size)]
            first, *rest = each(members, lambda m, x=of_all: m.all_reduce(x[m.rank]))
            assert all(np.array_equal(first, other) for other in rest)
            assert np.allclose(first, np.sum(of_all, 0), atol=1e-4)


def tree_sum(values: list[Array]) -> Array:
    """Return the sum as a tree over members in order; beyond a power of two the first members are paired."""
    power = 1 << (len(values).bit_length() - 1)
    extra = len(values) - power
    level = [values[2 * i] + values[2 * i + 1] for i in range(extra)] + values[2 * extra :]
    while len(level) > 1:
        level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def ring_sum(values: list[Array]) -> Array:
    """The sum of each part, begun at the member of its number, in ring order."""
    parts = [np.array_split(value, len(values)) for value in values]
    sums = []
    for number in range(len(values)):
        order = [parts[(number + step) % len(values)][number] for step in range(len(values))]
        sums.append(functools.reduce(np.add, order))
    return np.concatenate(sums)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize(
    ("algorithm", "order"),
    [("direct", lambda values: functools.reduce(np.add, values)), ("pairwise", tree_sum), ("ring", ring_sum)],
    ids=ALGORITHMS,
)
@pytest.mark.parametrize("count", [1001, 90_001])
def test_order_of_summation_is_that_of_the_algorithm(
    algorithm: str, order: Callable[[list[Array]], Array], size: int, count: int
) -> None:
    """The order depends on the algorithm, never on the member: results are bit-identical."""
    of_all = [np.random.default_rng(rank).normal(size=count).astype("float32") for rank in range(size)]
    with group(size, algorithm=algorithm) as members:
        for _ in range(2):
            for result in each(members, lambda m: m.all_reduce(of_all[m.rank])):
                assert np.array_equal(result, order(of_all))
        for result in each(members, lambda m: m.all_reduce(of_all[m.rank], "mean", out=of_all[m.rank].copy())):
            assert np.array_equal(result, order(of_all) / np.float32(size))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 5])
def test_all_reduce_in_place_is_correct(algorithm: str, size: int) -> None:
    with group(size, algorithm=algorithm) as members:
        for count in COUNTS:
            of_all = [whole_numbers(rank, count, "float32") for rank in range(size)]
            expected = np.sum(of_all, 0)
            each(members, lambda m, x=of_all: m.all_reduce(x[m.rank], out=x[m.rank]))
            assert all(np.array_equal(one, expected) for one in of_all)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithm_between_machines_uses_one_member_of_each(algorithm: str) -> None:
    hosts = ["a", "b", "c", "a", "b", "c", "d"]
    with group(7, hosts, algorithm=algorithm) as members:
        for count in (3, 5000, 300_001):
            of_all = [np.random.default_rng(rank).normal(size=count).astype("float32") for rank in range(7)]
            first, *rest = each(members, lambda m, x=of_all: m.all_reduce(x[m.rank], "mean"))
            assert np.allclose(first, np.mean(of_all, 0), atol=1e-6)
            assert all(np.array_equal(first, other) for other in rest)


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_sixteen_bit_wire_rounds_equally_for_each_algorithm(wire: str) -> None:
    """The direct algorithm is used, whatever was requested."""
    of_all = [np.random.default_rng(rank).normal(size=70_001).astype("float32") for rank in range(5)]
    results = []
    for algorithm in ALGORITHMS:
        with group(5, algorithm=algorithm) as members:
            results += each(members, lambda m: m.all_reduce(of_all[m.rank], wire=wire))
    assert all(np.array_equal(results[0], other) for other in results[1:])


Call = Callable[[Group], object]
DIFFERENT: dict[str, Call] = {
    "the operation": lambda m: m.barrier(),
    "another operation": lambda m: m.all_gather(FLOATS),
    "the type": lambda m: m.all_reduce(LARGE.astype("int32")),
    "the number of elements": lambda m: m.all_reduce(FLOATS),
    "a few elements": lambda m: m.all_reduce(FLOATS[:2]),
    "the reduction": lambda m: m.all_reduce(LARGE, "max"),
    "the wire": lambda m: m.all_reduce(LARGE, wire="float16"),
    "the name": lambda m: m.all_reduce(LARGE, name="bias"),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize(
    "size", [pytest.param(3, marks=pytest.mark.variant), 6, pytest.param(18, marks=pytest.mark.variant)]
)
def test_different_call_of_one_member_raises_a_mismatch_on_all(algorithm: str, what: str, size: int) -> None:
    """For each position of the member, although in pairs or in a ring most never exchange data with it."""
    for odd in (0, 1, size // 2, size - 1) if size == 6 else (size - 1,):
        with group(size, algorithm=algorithm) as members:
            each(members, lambda m: m.barrier("before"))
            for usual in (LARGE, FLOATS[:3]) if size == 6 else (LARGE,):
                work: Call = lambda m, o=odd, x=usual: DIFFERENT[what](m) if m.rank == o else m.all_reduce(x)  # noqa: E731
                for error in each(members, work):
                    assert isinstance(error, CollectiveMismatch), (odd, error)
                    assert f"rank {odd} " in str(error) and "call 2" in str(error)


def test_different_calls_of_every_second_member_raise_a_mismatch() -> None:
    for size in (4, 7):
        with group(size, algorithm="pairwise") as members:
            for error in each(members, lambda m: m.barrier() if m.rank % 2 else m.all_reduce(LARGE)):
                assert isinstance(error, CollectiveMismatch)


def test_members_with_different_algorithms_raise_a_mismatch() -> None:
    sockets = listeners(3)
    names = addresses(sockets)

    def one(rank: int) -> Group:
        options = {"secret": SECRET, "timeout_s": 20, "listener": sockets[rank].detach()}
        return Group.form(rank, names, algorithm=ALGORITHMS[rank], **options)

    members: dict[int, Group] = {}
    threads = [threading.Thread(target=lambda r=rank: members.update({r: one(r)})) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in each([members[rank] for rank in range(3)], lambda m: m.all_reduce(LARGE)):
        assert isinstance(error, CollectiveMismatch) and ("in a ring" in str(error) or "in pairs" in str(error))
    for member in members.values():
        member.end()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_member_may_end_after_its_part_of_the_last_operation(algorithm: str) -> None:
    for size in (3, 4, 7):
        with group(size, algorithm=algorithm) as members:

            def last(member: Group) -> Array:
                result = member.all_reduce(LARGE)
                member.end("done")
                return result

            assert all(np.array_equal(result, len(members) * LARGE) for result in each(members, last))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_member_that_ends_is_lost_for_all_others(algorithm: str) -> None:
    with group(6, algorithm=algorithm) as members:
        work: Call = lambda m: m.end("enough") if m.rank == 4 else m.all_reduce(LARGE)  # noqa: E731
        for rank, error in enumerate(each(members, work)):
            assert rank == 4 or (isinstance(error, PeerLost) and error.rank == 4 and "enough" in str(error)), error
        with pytest.raises(CollectiveEnded, match="enough"):
            members[4].barrier()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_absent_member_is_named_by_all_others(algorithm: str) -> None:
    """Also by members that wait for other waiting members."""
    with group(6, algorithm=algorithm, timeout_s=0.5) as members:
        others = [member for member in members if member.rank != 2]
        for error in each(others, lambda m: m.all_reduce(LARGE)):
            assert error.rank == 2 and "rank 2 took no part in time" in str(error)


def test_invalid_algorithm_and_timeout_are_refused() -> None:
    names = ["127.0.0.1:1", "127.0.0.1:2"]
    with pytest.raises(ArgumentError, match="algorithm 'tree' is not one of auto, direct, pairwise, ring"):
        Group.form(0, names, secret=SECRET, algorithm="tree")
    with pytest.raises(ArgumentError, match="at least a second"):
        Group.form(0, names, secret=SECRET, network_timeout_s=0.1)
