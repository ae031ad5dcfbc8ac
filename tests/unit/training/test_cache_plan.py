"""Tests of the cache's decisions without a disk: files to remove, size limit, ranges to fetch."""

from __future__ import annotations

import pytest

from hopsml.training.data import stored_files
from hopsml.training.data.stored_files import CacheFile

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("room", "removed"),
    [(100, []), (60, []), (59, ["a"]), (30, ["a", "c"]), (29, ["a", "c", "b"]), (0, ["a", "c", "b"])],
)
def test_cache_removes_least_recently_used_files_first(room: int, removed: list[str]) -> None:
    pieces = [CacheFile("a", 10, 1.0), CacheFile("b", 30, 3.0), CacheFile("c", 20, 2.0)]
    assert stored_files.files_to_remove(pieces, room) == removed


def test_cache_removes_files_of_equal_age_in_order_of_name() -> None:
    pieces = [CacheFile(name, 10, 1.0) for name in "bca"]
    assert stored_files.files_to_remove(pieces, 15) == ["a", "b"]
    assert stored_files.files_to_remove(pieces[::-1], 15) == ["a", "b"]


def test_cache_removes_a_small_old_file_before_a_newer_large_one() -> None:
    pieces = [CacheFile("newest", 10, 3.0), CacheFile("large", 50, 2.0), CacheFile("small", 1, 1.0)]
    assert stored_files.files_to_remove(pieces, 20) == ["small", "large"]


def test_cache_removes_as_many_files_as_the_size_limit_requires() -> None:
    pieces = [CacheFile(str(number), 10, float(number)) for number in range(5)]
    assert stored_files.files_to_remove(pieces, 30) == ["0", "1"]
    assert stored_files.files_to_remove(pieces, 29) == ["0", "1", "2"]
    assert stored_files.files_to_remove([], 0) == []


@pytest.mark.parametrize(
    ("most", "cached", "free", "total", "room"),
    [
        (800, 0, 2 * 10**9, 10**10, 700),  # an eighth is left for what other processes write before they look
        (801, 0, 2 * 10**9, 10**10, 701),
        (10**12, 50, 2_000, 10_000, 1_050),  # and a tenth of the disk
        (10**12, 50, 2_000, 10_009, 1_050),
        (10**12, 50, 951, 10_000, 1),
        (10**12, 50, 950, 10_000, 0),
        (10**12, 50, 900, 10_000, 0),
        (10**13, 0, 10**12, 10**13, 10**12 - (10 << 30)),  # of a large disk 10 GiB
        (0, 50, 2_000, 10_000, 0),
    ],
)
def test_cache_room_is_limited_by_setting_free_space_and_disk_share(
    most: int, cached: int, free: int, total: int, room: int
) -> None:
    assert stored_files.cache_room(most, cached, free, total) == room


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [
        ([1, 2, 3, 7, 9, 10], [(1, 4), (7, 8), (9, 11)]),
        ([0], [(0, 1)]),
        ([5, 6], [(5, 7)]),
        ([5, 7], [(5, 6), (7, 8)]),
        ([], []),
    ],
)
def test_consecutive_missing_pieces_are_fetched_as_one_range(numbers: list[int], runs: list[tuple[int, int]]) -> None:
    assert stored_files.consecutive_ranges(numbers) == runs
    assert stored_files.consecutive_ranges(iter(numbers)) == runs
