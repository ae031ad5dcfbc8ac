"""Contract of every file system; the test class of each store inherits these tests."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hopsml.errors import ArgumentError, PathExists, PathNotFound, StorageError
from hopsml.storage import filesystem, tree, urls
from hopsml.storage.filesystem import FileSystem, for_url
from hopsml.storage.remote.store import CHUNK_BYTES


class FileSystemContract:
    """Base class; a subclass has a fixture ``store``: the URL of an empty directory that the test may fill."""

    exclusive_writers = True  # of several writers without overwrite, one succeeds
    has_folders = True  # else a folder is there while something is in it, and a file may be one

    @pytest.fixture
    def system(self, store: str) -> FileSystem:
        return for_url(store)

    def test_file_is_written_read_and_described(self, system: FileSystem, store: str) -> None:
        url = urls.join(store, "deep/er/file name ü%20#1&a=b.txt")
        system.write_bytes(url, b"hello")
        found = system.status(url)
        assert (found.url, found.name, found.is_dir, found.length) == (url, urls.name(url), False, 5)
        assert abs(found.modified_s - _now()) < 600
        assert system.read_bytes(url) == b"hello"
        assert [entry.name for entry in system.list_dir(urls.parent(url))] == [urls.name(url)]

    def test_empty_file_is_written_and_downloaded(self, system: FileSystem, store: str, tmp_path: Path) -> None:
        url = urls.join(store, "empty")
        system.write_bytes(url, b"")
        assert system.status(url).length == 0
        assert system.read_bytes(url) == b""
        system.download(url, tmp_path / "empty")
        assert (tmp_path / "empty").read_bytes() == b""

    def test_read_bytes_refuses_more_than_its_limit(self, system: FileSystem, store: str) -> None:
        url, data = urls.join(store, "r"), os.urandom(CHUNK_BYTES + 1)
        system.write_bytes(url, data)
        assert system.read_bytes(url, len(data)) == data
        with pytest.raises(StorageError, match=f"r: it has more than the {CHUNK_BYTES} bytes that a record"):
            system.read_bytes(url, CHUNK_BYTES)
        assert system.read_range(url, CHUNK_BYTES, 10) == data[CHUNK_BYTES:]  # the connection can be used

    def test_file_of_several_chunks_is_stored_completely(self, system: FileSystem, store: str, tmp_path: Path) -> None:
        data = os.urandom(CHUNK_BYTES + 12345)
        (tmp_path / "up").write_bytes(data)
        system.upload(tmp_path / "up", urls.join(store, "up"))
        system.write_bytes(urls.join(store, "bytes"), data)
        assert system.read_bytes(urls.join(store, "up")) == data
        system.download(urls.join(store, "bytes"), tmp_path / "new" / "down")
        assert (tmp_path / "new" / "down").read_bytes() == data
        assert [entry.name for entry in system.list_dir(store)] == [
            "bytes",
            "up",
        ]  # no temporary file remains
        assert os.listdir(tmp_path / "new") == ["down"]

    def test_ranges_and_readers_return_the_requested_bytes(self, system: FileSystem, store: str) -> None:
        url = urls.join(store, "r")
        system.write_bytes(url, bytes(range(200)))
        assert system.read_range(url, 10, 5) == bytes(range(10, 15))
        assert system.read_range(url, 195, 50) == bytes(range(195, 200))
        assert system.read_range(url, 500, 5) == b""
        with system.open_read(url) as file:
            file.seek(-3, os.SEEK_END)
            assert file.read() == bytes(range(197, 200))
            file.seek(100)
            assert file.read(2) == bytes([100, 101])

    def test_written_file_appears_at_close_and_not_after_a_failure(self, system: FileSystem, store: str) -> None:
        url = urls.join(store, "w")
        with system.open_write(url) as file:
            file.write(b"one ")
            assert not filesystem.exists(url)
            file.write(b"two")
        assert system.read_bytes(url) == b"one two"

        def fail_half_way() -> None:
            with system.open_write(url) as file:
                file.write(b"three")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_half_way()
        assert system.read_bytes(url) == b"one two"

    def test_existing_file_is_replaced_only_with_overwrite(
        self, system: FileSystem, store: str, tmp_path: Path
    ) -> None:
        url = urls.join(store, "f")
        (tmp_path / "l").write_bytes(b"local")
        system.write_bytes(url, b"1")
        with pytest.raises(PathExists, match="exists"):
            system.write_bytes(url, b"2", overwrite=False)
        with pytest.raises(PathExists):
            system.upload(tmp_path / "l", url, overwrite=False)
        with pytest.raises(PathExists):
            system.open_write(url, overwrite=False)
        assert system.read_bytes(url) == b"1"
        system.upload(tmp_path / "l", url)
        assert system.read_bytes(url) == b"local"

    def test_append_bytes_appends(self, system: FileSystem, store: str) -> None:
        url = urls.join(store, "log")
        system.append_bytes(url, b"a")
        system.append_bytes(url, b"b")
        assert system.read_bytes(url) == b"ab"

    def test_one_of_several_exclusive_writers_succeeds(self, store: str) -> None:
        if not self.exclusive_writers:
            pytest.skip("this store cannot")

        def write(number: int) -> bool:
            try:
                for_url(store).write_bytes(urls.join(store, "one"), str(number).encode(), overwrite=False)
            except PathExists:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(write, range(4)))
        assert results.count(True) == 1
        assert for_url(store).read_bytes(urls.join(store, "one")) == str(results.index(True)).encode()
        assert [entry.name for entry in for_url(store).list_dir(store)] == ["one"]

    def test_missing_path_raises_path_not_found(self, system: FileSystem, store: str, tmp_path: Path) -> None:
        url = urls.join(store, "none")
        for call in (system.status, system.read_bytes, system.list_dir, system.open_read):
            with pytest.raises(PathNotFound, match="none") as caught:
                call(url)
            assert caught.value.path == url
            assert isinstance(caught.value, FileNotFoundError)
        with pytest.raises(PathNotFound):
            system.download(url, tmp_path / "x")
        with pytest.raises(PathNotFound):
            system.rename(url, urls.join(store, "other"))
        with pytest.raises(PathNotFound, match="no-such-local"):
            system.upload(tmp_path / "no-such-local", url)
        assert system.delete(url) is False
        assert filesystem.exists(url) is False
        assert os.listdir(tmp_path) == []

    def test_directories_are_created_listed_and_deleted(self, system: FileSystem, store: str) -> None:
        system.make_dirs(urls.join(store, "d/e"))
        system.make_dirs(urls.join(store, "d/e"))
        system.write_bytes(urls.join(store, "d/e/f"), b"x")
        assert system.status(urls.join(store, "d")).is_dir
        with pytest.raises(PathNotFound, match=r"(?i)not a directory"):
            system.list_dir(urls.join(store, "d/e/f"))
        with pytest.raises(PathExists):
            system.make_dirs(urls.join(store, "d/e/f"))
        with pytest.raises(PathExists, match="is a directory"):
            system.write_bytes(urls.join(store, "d"), b"x")
        with pytest.raises(StorageError):
            system.read_bytes(urls.join(store, "d"))
        with pytest.raises(PathExists, match="recursive"):
            system.delete(urls.join(store, "d"))
        assert [urls.relative(entry.url, store) for entry in filesystem.walk(store)] == ["d", "d/e", "d/e/f"]
        assert system.delete(urls.join(store, "d"), recursive=True) is True
        assert not self.has_folders or system.list_dir(store) == []

    def test_directory_removed_during_walk_counts_as_empty(self, system: FileSystem, store: str) -> None:
        system.write_bytes(urls.join(store, ".tmp-1/a"), b"x")
        system.write_bytes(urls.join(store, "later/b"), b"x")
        walking = filesystem.walk(store)
        assert next(walking).name == ".tmp-1"
        system.rename(urls.join(store, ".tmp-1"), urls.join(store, "moved"))
        assert [urls.relative(entry.url, store) for entry in walking] == ["later", "later/b"]
        with pytest.raises(PathNotFound):
            list(filesystem.walk(urls.join(store, ".tmp-1")))

    def test_rename_replaces_only_with_overwrite(self, system: FileSystem, store: str) -> None:
        one, two = urls.join(store, "one"), urls.join(store, "two")
        system.write_bytes(one, b"1")
        system.rename(one, two)
        assert not filesystem.exists(one)
        system.write_bytes(one, b"new")
        with pytest.raises(PathExists):
            system.rename(one, two)
        system.rename(one, two, overwrite=True)
        assert system.read_bytes(two) == b"new"
        system.write_bytes(urls.join(store, "dir/f"), b"x")
        system.write_bytes(urls.join(store, "full/f"), b"y")
        system.rename(urls.join(store, "dir"), urls.join(store, "moved"))
        with pytest.raises(PathExists):
            system.rename(urls.join(store, "moved"), urls.join(store, "full"))
        assert system.read_bytes(urls.join(store, "moved/f")) == b"x"

    def test_trees_are_uploaded_copied_and_downloaded(self, store: str, tmp_path: Path) -> None:
        source = tmp_path / "source"
        for name in ("a", "b/c", "b/d/e", ".tmp-00ff"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(name)
        (source / "hollow").mkdir()
        target = urls.join(store, "tree")
        assert tree.upload_tree(source, target) == len("ab/cb/d/e")
        with pytest.raises(PathExists):
            tree.upload_tree(source, target)
        (source / "a").write_text("A2")
        tree.upload_tree(source, target, overwrite=True)
        tree.copy_tree(target, urls.join(store, "copy"))
        tree.download_tree(urls.join(store, "copy"), tmp_path / "back")
        assert tree.local_files(tmp_path / "back") == ["a", "b/c", "b/d/e"]
        assert (tmp_path / "back" / "a").read_text() == "A2"
        assert [entry.name for entry in for_url(store).list_dir(store)] == ["copy", "tree"]

    def test_failed_upload_of_a_tree_leaves_no_files(self, store: str, tmp_path: Path) -> None:
        with pytest.raises(PathNotFound, match="no-such"):
            tree.upload_tree(tmp_path / "no-such", urls.join(store, "t"))
        for_url(store).write_bytes(urls.join(store, "file"), b"x")
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "f").write_text("y")
        if not self.has_folders:
            return
        with pytest.raises(StorageError, match="file"):
            tree.upload_tree(tmp_path / "source", urls.join(store, "file/t"))
        assert [entry.name for entry in for_url(store).list_dir(store)] == ["file"]

    def test_invalid_timeout_is_refused(self, store: str) -> None:
        with pytest.raises(ArgumentError, match="timeout_s=0"):
            for_url(store, timeout_s=0)


def _now() -> float:
    import time

    return time.time()
