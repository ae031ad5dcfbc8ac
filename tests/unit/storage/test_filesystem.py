"""Contract of file systems on stores that need no service, and tests of the table of schemes."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import fsspec
import pytest

from hopsml.core import traffic
from hopsml.errors import ArgumentError, PathExists, StorageError
from hopsml.storage import filesystem, tree
from hopsml.storage.filesystem import for_url
from tests.helpers.storage.filesystem_contract import FileSystemContract
from tests.unit.storage.registered_store import RegisteredFileSystem

pytestmark = pytest.mark.fast


class TestBarePath(FileSystemContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> str:
        return str(_sibling_folder(tmp_path))


class TestFileUrl(FileSystemContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> str:
        return f"file://{_sibling_folder(tmp_path)}"


class TestFsspecMemory(FileSystemContract):
    exclusive_writers = False  # fsspec's memory store looks and then writes

    @pytest.fixture
    def store(self) -> str:
        url = f"memory://bucket/{secrets.token_hex(8)}"
        for_url(url).make_dirs(url)
        return url


@pytest.mark.variant  # of HDFS's and of the memory store's, which share this code
class TestFsspecInAHelper(FileSystemContract):
    exclusive_writers = False  # fsspec's local store looks and then writes

    @pytest.fixture
    def store(self, tmp_path: Path) -> str:
        return f"local://{_sibling_folder(tmp_path)}"


def _sibling_folder(tmp_path: Path) -> Path:
    """Return a new directory next to tmp_path, so that a test finds its own tmp_path empty."""
    folder = tmp_path.with_name(tmp_path.name + "-store")
    folder.mkdir()
    return folder


def test_bytes_of_remote_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "_traffic", traffic._Traffic())
    told: list[traffic.Totals] = []
    traffic.set_traffic_reporter(told.append)
    url = f"memory://bucket/{secrets.token_hex(8)}/x"
    store = for_url(url)
    store.write_bytes(url, b"x" * 1000)
    assert store.read_range(url, 0, 10) == b"x" * 10 and len(store.read_bytes(url)) == 1000
    store.download(url, tmp_path / "copy")
    store.upload(tmp_path / "copy", f"{url}2")
    place = 2 * traffic.COUNTED.index(traffic.STORAGE)
    assert told[-1][place : place + 2] == (2010, 2000)
    for_url(str(tmp_path)).read_bytes(str(tmp_path / "copy"))
    assert told[-1][place : place + 2] == (2010, 2000), "files of this machine are no network traffic"


def test_scheme_selects_the_file_system() -> None:
    assert for_url("/a/b").scheme == for_url("file:///a/b").scheme == "file"
    assert for_url("hdfs://h:8020/a").scheme == "hdfs"


def test_unsupported_operation_of_an_object_store_is_named() -> None:
    url = f"memory://bucket/{secrets.token_hex(8)}"
    store = for_url(url)
    for call, words in (
        (lambda: store.set_permission(url, 0o700), "cannot change the permission of .*no permissions"),
        (lambda: store.set_owner(url, "somebody"), "cannot change the owner of .*no owners"),
        (lambda: store.capacity(url), "cannot measure .*does not report its size"),
    ):
        with pytest.raises(StorageError, match=words):
            call()


def test_unknown_scheme_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"nosuch://.*fsspec"):
        for_url("nosuch://host/x")


def test_store_registered_by_this_program_is_available_in_the_helper_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper process itself has neither registered the store nor set its options."""
    fsspec.register_implementation("registered", RegisteredFileSystem, clobber=True)
    monkeypatch.setitem(fsspec.config.conf, "registered", {"length": 7})
    assert for_url("registered://x/y").status("registered://x/y").length == 7


def test_copy_works_between_stores(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    memory = f"memory://bucket/{secrets.token_hex(8)}"
    filesystem.copy(str(tmp_path / "a"), f"{memory}/a")
    filesystem.copy(f"{memory}/a", f"{memory}/b")
    filesystem.copy(f"{memory}/b", str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == b"abc"
    with pytest.raises(PathExists):
        filesystem.copy(f"{memory}/b", str(tmp_path / "b"), overwrite=False)


def test_keys_that_lead_out_of_their_folder_are_not_listed_or_downloaded(tmp_path: Path) -> None:
    """Whoever may write to a bucket can give an object any key; one that downloads the folder would write elsewhere."""
    from fsspec.implementations.memory import MemoryFile

    memory, bucket = fsspec.filesystem("memory"), f"bucket/{secrets.token_hex(8)}"
    for key in (f"/{bucket}/a.txt", f"/{bucket}/../evil", f"/{bucket}/in/../../../evil", f"/{bucket}/./evil"):
        memory.store[key] = MemoryFile(memory, key, b"x")
    assert [entry.name for entry in for_url("memory:///").list_dir(f"memory://{bucket}")] == ["a.txt", "in"]
    tree.download_tree(f"memory://{bucket}", tmp_path / "here" / "there")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.txt"]


def test_names_with_wildcards_are_literal_on_an_object_store() -> None:
    base = "memory://wild"
    store = for_url(base)
    try:
        store.write_bytes(f"{base}/a[1].txt", b"1")
        store.write_bytes(f"{base}/a1.txt", b"2")
        assert store.delete(f"{base}/a[1].txt")
        assert [entry.name for entry in store.list_dir(base)] == ["a1.txt"]
        store.write_bytes(f"{base}/plots[1]/.tmp-abc", b"x")
        store.rename(f"{base}/plots[1]/.tmp-abc", f"{base}/plots[1]/x*.png", overwrite=True)
        assert store.read_bytes(f"{base}/plots[1]/x*.png") == b"x"
        store.rename(f"{base}/plots[1]", f"{base}/moved?")
        assert store.read_bytes(f"{base}/moved?/x*.png") == b"x"
        assert [entry.name for entry in store.list_dir(f"{base}/moved?")] == ["x*.png"]
        assert store.delete(f"{base}/moved?", recursive=True)
        store.write_bytes(f"{base}/of/y*.png", b"y")
        store.write_bytes(f"{base}/of/y1.png", b"z")
        store.rename(f"{base}/of", f"{base}/to")
        assert sorted(entry.name for entry in store.list_dir(f"{base}/to")) == ["y*.png", "y1.png"]
        assert store.read_bytes(f"{base}/to/y*.png") == b"y" and store.delete(f"{base}/to", recursive=True)
        assert [entry.name for entry in store.list_dir(base)] == ["a1.txt"]
    finally:
        store.delete(base, recursive=True)


def test_range_at_the_end_of_a_file_is_empty_if_the_store_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    base = "memory://ranges"
    original = MemoryFileSystem.cat_file

    def as_s3_does(
        self: MemoryFileSystem, path: str, start: int | None = None, end: int | None = None, **more: Any
    ) -> Any:
        if start is not None and start >= self.info(path)["size"]:
            raise OSError(22, "The requested range is not satisfiable")
        return original(self, path, start=start, end=end, **more)

    store = for_url(base)
    store.write_bytes(f"{base}/f", b"12345")
    monkeypatch.setattr(MemoryFileSystem, "cat_file", as_s3_does)
    try:
        assert store.read_range(f"{base}/f", 2, 10) == b"345" and store.read_range(f"{base}/f", 5, 10) == b""
    finally:
        store.delete(base, recursive=True)
