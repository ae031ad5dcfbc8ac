"""Tests of every operation, type, reduction and size against numpy; bit-identical on all members."""

from __future__ import annotations

import ctypes
import functools
import gc
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hopsml.collective import Group, library
from hopsml.core import traffic
from tests.helpers.collective.together import TRANSPORTS, Array, each, form, group

pytestmark = pytest.mark.local

TYPES: dict[str, Any] = {
    **{name: np.dtype(name) for name in ("float32", "float64", "float16", "int32", "int64", "uint8")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
COUNTS = (0, 1, 5, 4099, 70001)
# One buffer of shared memory has 2**18 elements of 4 bytes: of this there are several rounds, the last one small.
ROUNDS = 2**19 + 77
REDUCTIONS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def values(rank: int, count: int, dtype: Any) -> Array:
    """Small whole numbers, whose sums are exact in every type."""
    return np.random.default_rng([rank, count]).integers(0, 12, count).astype(dtype)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(1, marks=pytest.mark.variant),
        pytest.param(2, marks=pytest.mark.variant),
        3,
        pytest.param(4, marks=pytest.mark.variant),
        5,
    ],
)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_all_reduce_equals_numpy(transport: str, size: int, dtype: Any) -> None:
    with group(size, TRANSPORTS[transport](size)) as members:
        for count in COUNTS:
            of_all = [values(rank, count, dtype) for rank in range(size)]
            for name, ufunc in REDUCTIONS.items():
                expected = functools.reduce(ufunc, of_all)
                results = each(members, lambda m, name=name, of_all=of_all: m.all_reduce(of_all[m.rank], name))
                assert all(np.array_equal(result, expected) for result in results), (count, name)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "size", [pytest.param(2, marks=pytest.mark.variant), 3, pytest.param(5, marks=pytest.mark.variant)]
)
def test_other_operations_equal_numpy(transport: str, size: int) -> None:
    with group(size, TRANSPORTS[transport](size)) as members:
        for dtype in TYPES.values():
            for count in (*COUNTS, *([ROUNDS] if dtype == "float32" else [])):
                check_other_operations(members, dtype, count)


def check_other_operations(members: list[Group], dtype: Any, count: int) -> None:
    """all_gather, broadcast, reduce_scatter and barrier."""
    size = len(members)
    of_all = [values(rank, count, dtype) for rank in range(size)]
    parts = [values(rank + 10, size * count, dtype).reshape(size, count) for rank in range(size)]

    def work(member: Group) -> None:
        rank = member.rank
        member.barrier()
        assert np.array_equal(member.all_gather(of_all[rank]), np.stack(of_all))
        assert np.array_equal(member.broadcast(of_all[rank], size - 1), of_all[-1])
        expected = functools.reduce(np.add, [part[rank] for part in parts])
        assert np.array_equal(member.reduce_scatter(parts[rank]), expected)

    assert each(members, work) == [None] * size


def test_byte_order_and_axis_order_do_not_matter() -> None:
    with group(2, TRANSPORTS["sockets"](2)) as members:
        given = {0: np.arange(6.0).reshape(2, 3).astype(">f8"), 1: np.asfortranarray(np.arange(6.0).reshape(2, 3))}
        for result in each(members, lambda m: m.all_reduce(given[m.rank])):
            assert np.array_equal(result, 2 * np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "size", [pytest.param(2, marks=pytest.mark.variant), 3, pytest.param(4, marks=pytest.mark.variant)]
)
@pytest.mark.parametrize("wire", ["same", "float16", "bfloat16"])
def test_float_results_are_bit_identical_on_all_members(transport: str, size: int, wire: str) -> None:
    close = {"same": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[wire]
    with group(size, TRANSPORTS[transport](size)) as members:
        for count in (3, 9001, 200003, ROUNDS):
            of_all = [np.random.default_rng(rank).normal(size=count).astype("float32") for rank in range(size)]
            first, *rest = each(members, lambda m, x=of_all: m.all_reduce(x[m.rank], "mean", wire=wire))
            assert isinstance(first, np.ndarray)
            assert all(np.array_equal(first, other) for other in rest)
            assert np.abs(first - np.mean(of_all, 0)).max() <= close * np.abs(of_all).max()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3])
def test_all_reduce_in_place_is_correct(transport: str, size: int) -> None:
    with group(size, TRANSPORTS[transport](size)) as members:
        for count in (*COUNTS, ROUNDS):
            of_all = [values(rank, count, "float32") for rank in range(size)]
            expected = functools.reduce(np.add, of_all)
            each(members, lambda m, x=of_all: m.all_reduce(x[m.rank], out=x[m.rank]))
            assert all(np.array_equal(one, expected) for one in of_all)


def shared_memories() -> int:
    """Return the number of shared memories mapped by this process."""
    return Path("/proc/self/maps").read_text().count("memfd:hopsml-collective")


@pytest.mark.parametrize(("transport", "shared"), [("sockets", 0), ("memory", 5), ("both", 5)])
def test_members_of_one_machine_share_memory(transport: str, shared: int) -> None:
    gc.collect()
    before = shared_memories()
    with group(5, TRANSPORTS[transport](5)) as members:
        assert shared_memories() == before + shared
        assert each(members, lambda m: m.all_reduce([1.0])[0]) == [5.0] * 5


def test_members_without_shared_memory_use_sockets() -> None:
    gc.collect()
    before, limits = shared_memories(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        members = form(5, TRANSPORTS["both"](5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert shared_memories() == before
    assert each(members, lambda m: m.all_reduce([1.0])[0]) == [5.0] * 5
    for member in members:
        member.end()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_mean_of_integers_is_rounded_toward_zero(transport: str) -> None:
    with group(3, TRANSPORTS[transport](3)) as members:
        values = [np.array([-4, 5, 7, -1], "int64"), np.array([-3, 3, 7, 0], "int64"), np.array([0, 0, 7, 0], "int64")]
        for result in each(members, lambda m: m.all_reduce(values[m.rank], "mean")):
            assert result.tolist() == [-2, 2, 7, 0]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("wire", ["same", "float16", "bfloat16"])
def test_non_finite_values_are_preserved_on_all_members(transport: str, wire: str) -> None:
    """Nor is there an overflow where 16 bits could not hold the sum."""
    special = np.zeros(20_000, "float32")
    special[:4] = np.nan, np.inf, -np.inf, 61_440.0
    with group(3, TRANSPORTS[transport](3)) as members:
        first, *rest = each(members, lambda m: m.all_reduce(np.zeros_like(special) if m.rank else special, wire=wire))
        assert np.isnan(first[0]) and first[3] == 61_440 and np.isfinite(first[3:]).all()
        assert all(np.array_equal(first, other, equal_nan=True) for other in rest)
        high = np.full(20_000, 50_000, "float32")
        for result in each(members, lambda m: m.all_reduce(high, wire=wire)):
            assert np.allclose(result, 150_000, rtol=0.01)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_min_and_max_with_nan_are_nan(transport: str) -> None:
    values = np.array([1.0, 2.0, np.nan, 4.0], "float32")
    with group(3, TRANSPORTS[transport](3)) as members:
        for name in ("min", "max"):
            for result in each(members, lambda m, name=name: m.all_reduce(np.roll(values, m.rank), name)):
                assert np.isnan(result).sum() == 3


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_threads_of_a_member_are_serialised(transport: str) -> None:
    with group(2, TRANSPORTS[transport](2)) as members, ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(member.all_reduce, np.ones(3000, "float32")) for _ in range(20) for member in members]
        assert all((call.result() == 2).all() for call in calls)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sums_of_16_bit_floats_are_computed_in_32_bits(transport: str) -> None:
    """Stored between two stages they would be infinite, or rounded twice."""
    with group(3, TRANSPORTS[transport](3)) as members:
        large = np.full(4, 40_000, "float16")
        assert each(members, lambda m: m.all_reduce(large, "mean").tolist()) == [[40_000.0] * 4] * 3
        parts = [np.array([value], ml_dtypes.bfloat16) for value in (1, 256, 1)]
        assert [float(result[0]) for result in each(members, lambda m: m.all_reduce(parts[m.rank]))] == [258.0] * 3


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_mean_of_small_integer_types_does_not_overflow(dtype: str) -> None:
    most = np.iinfo(dtype).max
    with group(2) as members:
        for result in each(members, lambda m: m.all_reduce(np.array([most, most - m.rank], dtype), "mean")):
            assert result.dtype == dtype and result.tolist() == [most, most - 1]


@pytest.mark.parametrize("transport", ["sockets", "memory"])
def test_bytes_over_sockets_are_counted(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both members are in this process; those that share memory send little."""
    monkeypatch.setattr(traffic, "_traffic", traffic._Traffic())
    counters = (ctypes.c_uint64 * 2)()
    traffic.set_traffic_reporter(None, ctypes.addressof(counters))
    array = np.ones(1_000_000, "float32")
    try:
        with group(2, TRANSPORTS[transport](2)) as members:
            each(members, lambda m: m.all_reduce(array))
            received, sent = counters
    finally:
        library.load().hopsml_count_into(None)
    if transport == "memory":
        assert sent < 100_000
    else:
        assert 2 * array.nbytes <= received <= sent <= 2.1 * array.nbytes
