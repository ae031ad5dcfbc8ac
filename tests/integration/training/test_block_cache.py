"""Tests of the local cache of remote data: bounded, shared, valid for the same file only, never a cause of failure."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopsml
from hopsml.errors import ArgumentError, StorageError
from hopsml.storage.filesystem import for_url
from hopsml.storage.remote.adapter import RemoteFileSystem
from hopsml.training.data import stored_files
from hopsml.training.data.stored_files import BlockCache
from tests.helpers import small_disk
from tests.helpers.clock import END_S
from tests.helpers.training import record_files

pytestmark = pytest.mark.local
ROOT = Path(__file__).parents[3]


class CountedFile:
    """A remote file that notes what is fetched of it."""

    def __init__(self, length: int) -> None:
        self.content = np.random.default_rng(length).bytes(length)
        self.fetched: list[tuple[int, int]] = []

    def fetch(self, offset: int, length: int) -> bytes:
        self.fetched.append((offset, length))
        return self.content[offset : offset + length]

    def check(self, cache: BlockCache, offset: int, length: int, version: str = "v") -> None:
        found = cache.read(version, len(self.content), offset, length, self.fetch)
        assert found == self.content[offset : offset + length]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "BLOCK", 1000)


def stored_bytes(folder: Path) -> int:
    """Return the number of bytes in the folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def test_removed_cache_folder_is_created_again(tmp_path: Path, small_blocks: None) -> None:
    cache, file = BlockCache(tmp_path / "cache", 100_000), CountedFile(3_000)
    file.check(cache, 0, 3_000)
    shutil.rmtree(tmp_path / "cache")
    for _ in range(3):
        file.check(cache, 0, 3_000)
    assert (
        len(file.fetched) == 3 and stored_bytes(tmp_path / "cache") > 3_000
    )  # the second one noticed that the folder was gone


# ---------------------------------------------------------------------------------------------- blocks


@pytest.mark.usefixtures("small_blocks")
def test_cached_blocks_are_reused_for_the_same_version_only(tmp_path: Path) -> None:
    file, cache = CountedFile(4500), BlockCache(tmp_path / "c", 1 << 20)
    file.check(cache, 1500, 1000)
    assert file.fetched == [(1000, 2000)]
    file.check(BlockCache(tmp_path / "c", 1 << 20), 0, 4500)  # as another process would
    assert file.fetched[1:] == [(0, 1000), (3000, 1500)]
    file.check(cache, 0, 9999)
    file.check(cache, 4400, 0)
    assert len(file.fetched) == 3 or file.fetched[3:] == [(4400, 0)]
    file.check(cache, 0, 100, "another")
    assert file.fetched[-1] == (0, 1000)


@pytest.mark.usefixtures("small_blocks")
def test_cache_stays_within_its_size_and_retains_used_blocks(tmp_path: Path) -> None:
    file, cache, folder = CountedFile(100_000), BlockCache(tmp_path / "c", 20_000), tmp_path / "c"
    for number in range(100):
        file.check(cache, number * 1000, 1000)
        assert stored_bytes(folder) <= 20_000
        for age, path in enumerate(sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)):
            os.utime(path, (1e9 - age, 1e9 - age))  # explicit times, as the disk's clock may be coarse
        file.check(cache, 0, 1000)
    assert file.fetched.count((0, 1000)) == 1
    assert stored_bytes(folder) >= 15_000


@pytest.mark.usefixtures("small_blocks")
def test_damaged_block_is_fetched_again(tmp_path: Path) -> None:
    file, cache = CountedFile(1000), BlockCache(tmp_path / "c", 1 << 20)
    for damage in (
        lambda content: content[:-1],
        lambda content: b"x" + content[1:],
        lambda content: bytes(len(content)),
    ):
        file.check(cache, 0, 1000)
        (block,) = (tmp_path / "c").iterdir()
        block.write_bytes(damage(block.read_bytes()))
        fetched = len(file.fetched)
        file.check(cache, 0, 1000)
        assert len(file.fetched) == fetched + 1


@pytest.mark.usefixtures("small_blocks")
def test_temporary_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o700)
    (tmp_path / "c" / ".tmp-old").write_bytes(b"x")
    os.utime(tmp_path / "c" / ".tmp-old", (1, 1))
    (tmp_path / "c" / ".tmp-new").write_bytes(b"x")
    CountedFile(1000).check(BlockCache(tmp_path / "c", 1 << 20), 0, 1000)
    assert [path.name for path in (tmp_path / "c").glob(".tmp-*")] == [".tmp-new"]


READ = """
import random, sys
from pathlib import Path
from hopsml.training.data import stored_files
stored_files.BLOCK = 1000
cache = stored_files.BlockCache(Path(sys.argv[1]), 12_000)
content = random.Random(7).randbytes(30_000)
chosen = random.Random(int(sys.argv[2]))
for _ in range(400):
    begin = chosen.randrange(30_000)
    length = chosen.randrange(4_000)
    found = cache.read("v", 30_000, begin, length, lambda offset, size: content[offset : offset + size])
    assert found == content[begin : begin + length]
print("read", cache._is_usable)
"""


def test_concurrent_processes_share_the_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", READ, str(tmp_path / "c")]
    readers = [
        subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        for seed in range(4)
    ]
    assert [process.communicate(timeout=END_S)[0] for process in readers] == ["read True\n"] * 4
    assert stored_bytes(tmp_path / "c") <= 12_000


# ---------------------------------------------------------------------------------------------- trouble


def unusable(tmp_path: Path, kind: str) -> Path:
    folder = tmp_path / "c"
    if kind == "a file":
        folder.write_text("x")
    elif kind == "of others":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.symlink_to(tmp_path / "nowhere")
    return folder


@pytest.mark.parametrize("kind", ["a file", "of others", "a link to nowhere"])
def test_unusable_cache_folder_is_logged_once_and_reads_continue(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    file, cache = CountedFile(3000), BlockCache(unusable(tmp_path, kind), 1 << 30)
    for _ in range(3):
        file.check(cache, 0, 3000)
    (line,) = caplog.messages
    assert "so data are read from the store" in line and str(tmp_path / "c") in line and "HOPSML_DATA_CACHE" in line
    assert file.fetched == [(0, 3000)] * 3


def test_full_disk_is_logged_once_and_reads_continue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk.mounted(tmp_path / "disk", 1536) as disk:
        file, cache = CountedFile(3 << 20), BlockCache(disk / "c", 1 << 30)
        file.check(cache, 0, 3 << 20)
        file.check(cache, 0, 3 << 20)
        assert not [path for path in (disk / "c").iterdir() if path.name.startswith(".tmp-")]
    (line,) = caplog.messages
    assert "No space left" in line


def test_disk_filled_by_other_programs_is_not_used_by_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk.mounted(tmp_path / "disk", 20_000) as disk:
        (disk / "others").write_bytes(bytes(18_500 << 10))
        file = CountedFile(3 << 20)
        file.check(BlockCache(disk / "c", 1 << 30), 0, 3 << 20)
        assert stored_bytes(disk / "c") == 0
    (line,) = caplog.messages
    assert "its disk is full, except for the space reserved for other programs" in line


def test_store_error_is_raised_through_the_cache(tmp_path: Path) -> None:
    def raise_storage_error(offset: int, length: int) -> bytes:
        raise StorageError("it is gone", "f")

    with pytest.raises(StorageError, match="it is gone"):
        BlockCache(tmp_path / "c", 1 << 30).read("v", 10, 0, 10, raise_storage_error)


# ---------------------------------------------------------------------------------------------- data sets


@pytest.fixture(params=["disk", "memory"])
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of the disk, or of a file system in memory."""
    with contextlib.ExitStack() as stack:
        folder = tmp_path
        if request.param == "memory":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopsml-", dir="/dev/shm")))
        monkeypatch.setenv("HOPSML_DATA_CACHE", str(folder / "cache"))
        yield folder / "cache"


@pytest.fixture
def store() -> Iterator[str]:
    url = f"memory://bucket/{secrets.token_hex(8)}"
    yield url
    for_url(url).delete(url, recursive=True)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of which something was read on the store."""
    found: list[str] = []
    real = RemoteFileSystem.read_range

    def counted(self: RemoteFileSystem, url: str, offset: int, length: int) -> bytes:
        found.append(url)
        return real(self, url, offset, length)

    monkeypatch.setattr(RemoteFileSystem, "read_range", counted)
    return found


def parquet(first: int) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table({"id": np.arange(first, first + 10)}), content)
    return content.getvalue()


def records(first: int) -> bytes:
    return record_files.content({"id": number} for number in range(first, first + 10))


SOURCES = [
    (hopsml.data.parquet, "parquet", parquet),
    (hopsml.data.tfrecords, "tfrecord", records),
    (hopsml.data.files, "txt", lambda first: b"content of %d" % first),
]


@pytest.mark.parametrize(("source", "suffix", "content"), SOURCES)
def test_later_epochs_and_other_readers_do_not_read_from_the_store(
    store: str, cache: Path, reads: list[str], source: Any, suffix: str, content: Callable[[int], bytes]
) -> None:
    for number in range(3):
        for_url(store).write_bytes(f"{store}/{number}.{suffix}", content(number * 10))
    plain = [list(batch.values()) for batch in source(store).batch(4)]
    assert not cache.exists()
    reads.clear()
    again = [list(batch.values()) for batch in source(store, cache=True).batch(4)]
    assert reads and cache.exists()
    reads.clear()
    twice = [list(batch.values()) for batch in source(store, cache=True).batch(4).repeat(2)]
    assert reads == []
    for one, other in zip([*plain, *plain], [*again, *again], strict=True):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))
    for one, other in zip([*plain, *plain], twice, strict=True):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_changed_file_is_read_again_from_the_store(store: str, cache: Path) -> None:
    def content() -> list[bytes]:
        return [one for batch in hopsml.data.files(store, cache=True).batch(4) for one in batch["content"]]

    for_url(store).write_bytes(f"{store}/a", b"first")
    assert content() == [b"first"]
    for_url(store).write_bytes(f"{store}/a", b"other")
    assert content() == [b"other"]


def test_local_files_and_a_size_limit_of_0_are_not_cached(
    tmp_path: Path, store: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert len(list(hopsml.data.files(str(tmp_path / "a"), cache=True).batch(1))) == 1
    for_url(store).write_bytes(f"{store}/a", b"x")
    rows = hopsml.data.files(store, cache=True).batch(1)
    monkeypatch.setenv("HOPSML_DATA_CACHE_BYTES", "0")
    assert [batch["content"].tolist() for batch in rows] == [[b"x"]]
    assert not cache.exists()
    monkeypatch.setenv("HOPSML_DATA_CACHE_BYTES", "10g")
    with pytest.raises(ArgumentError, match=r"HOPSML_DATA_CACHE_BYTES='10g': the value must be a number of bytes"):
        list(rows)


def test_default_cache_folder_is_below_the_yarn_local_directory(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """YARN removes an application's folder with the application."""
    monkeypatch.delenv("HOPSML_DATA_CACHE", raising=False)
    monkeypatch.setenv("LOCAL_DIRS", f"{tmp_path},/elsewhere")
    for_url(store).write_bytes(f"{store}/a", b"x")
    assert len(list(hopsml.data.files(store, cache=True).batch(1))) == 1
    folder = tmp_path / f"hopsml-data-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700 and len(list(folder.iterdir())) == 1
