"""Every operation, type, reduction and size, against numpy; equal to the last bit on all members."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hopsml.collective import Group
from tests.collective.together import TRANSPORTS, Array, each, group

pytestmark = pytest.mark.fast

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
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_all_reduce_is_what_numpy_says(transport: str, size: int, dtype: Any) -> None:
    with group(size, TRANSPORTS[transport](size)) as members:
        for count in COUNTS:
            of_all = [values(rank, count, dtype) for rank in range(size)]
            for name, ufunc in REDUCTIONS.items():
                expected = functools.reduce(ufunc, of_all)
                results = each(members, lambda m, name=name, of_all=of_all: m.all_reduce(of_all[m.rank], name))
                assert all(np.array_equal(result, expected) for result in results), (count, name)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_others_are_what_numpy_says(transport: str, size: int) -> None:
    with group(size, TRANSPORTS[transport](size)) as members:
        for dtype in TYPES.values():
            for count in (*COUNTS, *([ROUNDS] if dtype == "float32" else [])):
                check_the_others(members, dtype, count)


def check_the_others(members: list[Group], dtype: Any, count: int) -> None:
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


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("wire", ["same", "float16", "bfloat16"])
def test_floats_are_equal_to_the_last_bit(transport: str, size: int, wire: str) -> None:
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
def test_the_result_may_take_the_place_of_the_value(transport: str, size: int) -> None:
    with group(size, TRANSPORTS[transport](size)) as members:
        for count in (*COUNTS, ROUNDS):
            of_all = [values(rank, count, "float32") for rank in range(size)]
            expected = functools.reduce(np.add, of_all)
            each(members, lambda m, x=of_all: m.all_reduce(x[m.rank], out=x[m.rank]))
            assert all(np.array_equal(one, expected) for one in of_all)
