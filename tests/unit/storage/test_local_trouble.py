"""Tests of the local file system with a full disk, missing permissions, a killed writer: errors, no partial files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hopsml.errors import PathExists, PathNotFound, PermissionRefused, QuotaExceeded, StorageError
from hopsml.storage import checkpoints, filesystem, tree, trust
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import create_run_dir
from hopsml.training import checkpoint_files

pytestmark = pytest.mark.fast


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop root's rights, as root passes all permission checks."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_full_disk_raises_quota_exceeded_and_leaves_the_old_file(full_disk: Path, tmp_path: Path) -> None:
    target = str(full_disk / "f")
    system = for_url(target)
    system.write_bytes(target, b"before")
    (tmp_path / "big").write_bytes(bytes(2 << 20))
    for call in (
        lambda: system.write_bytes(target, bytes(2 << 20)),
        lambda: system.upload(tmp_path / "big", target),
        lambda: system.download(str(tmp_path / "big"), target),
    ):
        with pytest.raises(QuotaExceeded, match="No space left on device"):
            call()
        assert os.listdir(full_disk) == ["f"]
        assert system.read_bytes(target) == b"before"


def test_tree_that_does_not_fit_on_the_disk_leaves_no_files(full_disk: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(5):
        (source / str(number)).write_bytes(bytes(400_000))
    with pytest.raises(QuotaExceeded):
        tree.upload_tree(source, str(full_disk / "t"))
    assert os.listdir(full_disk) == []


def test_missing_permission_raises_permission_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    (tmp_path / "f").write_bytes(b"x")
    os.chmod(tmp_path / "f", 0o600)
    system, url = for_url(str(tmp_path)), f"file://{tmp_path}/f"
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and parent.stat().st_mode & 0o005 != 0o005:
            os.chmod(parent, parent.stat().st_mode | 0o055)  # pytest's own folders are private
    with as_nobody():
        for call in (
            lambda: system.read_bytes(url),
            lambda: system.write_bytes(url, b"y"),
            lambda: system.delete(url),
            lambda: system.make_dirs(f"file://{tmp_path}/d"),
        ):
            with pytest.raises(PermissionRefused, match="Permission denied") as caught:
                call()
            assert str(tmp_path) in str(caught.value)
    assert (tmp_path / "f").read_bytes() == b"x"


def test_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"old")
    script = f"""
import os, signal
from hopsml.storage.filesystem import for_url
from hopsml.training import checkpoint_files
with for_url({str(target)!r}).open_write({str(target)!r}) as file:
    file.write(bytes(1 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    assert target.read_bytes() == b"old"


def test_exclusive_write_works_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some disks have none: the name is claimed first, and there is still one winner."""

    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    url = str(tmp_path / "f")
    for_url(url).write_bytes(url, b"1", overwrite=False)
    with pytest.raises(PathExists):
        for_url(url).write_bytes(url, b"2", overwrite=False)
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"1"


def _named_pipe(path: Path) -> None:
    os.mkfifo(path)


def _link_to_an_endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _link_to_a_terminal(path: Path) -> None:
    path.symlink_to("/dev/ptmx")


@pytest.mark.parametrize("make", [_named_pipe, _link_to_an_endless_device, _link_to_a_terminal])
def test_special_file_is_refused_without_blocking(tmp_path: Path, make: Callable[[Path], None]) -> None:
    url, other = str(tmp_path / "run.json"), str(tmp_path / "other")
    make(Path(url))
    system = for_url(url)
    for call in (
        lambda: system.read_bytes(url),
        lambda: system.read_range(url, 0, 10),
        lambda: system.open_read(url),
        lambda: system.download(url, other),
        lambda: system.upload(url, other),
        lambda: system.append_bytes(url, b"x"),
        lambda: filesystem.read_record(url),
        lambda: filesystem.copy(url, other),
        lambda: trust.read_bytes(url, "it is read"),
    ):
        with pytest.raises(StorageError, match=r"not a regular file|No such device") as caught:
            call()
        assert "run.json" in str(caught.value)
    assert os.listdir(tmp_path) == ["run.json"]


def test_named_pipes_in_place_of_checkpoint_records_are_refused_without_blocking(tmp_path: Path) -> None:
    folder = tmp_path / "step-000000001"
    folder.mkdir()
    for name in (checkpoints.MANIFEST, checkpoint_files.DESCRIPTION):
        os.mkfifo(folder / name)
    os.mkfifo(tmp_path / checkpoints.KEEP)
    assert checkpoints.read_retention(tmp_path) is None
    assert checkpoint_files.complete_checkpoints(tmp_path) == []
    with pytest.raises(PermissionRefused, match="a named pipe"):
        checkpoints.latest_complete(str(tmp_path))


@pytest.mark.parametrize("place", ["/proc/nowhere", "{}/file/below"])
def test_folder_that_cannot_be_created_is_refused_with_a_remedy(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    url = f"file://{place.format(tmp_path)}"
    with pytest.raises((PathNotFound, PathExists), match=r"cannot make directory .*HOPSML_PROJECT_URL"):
        create_run_dir(url, "app")
