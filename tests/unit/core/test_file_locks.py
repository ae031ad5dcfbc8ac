"""Tests of locks between processes, and of scratch folders that ended processes have left."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hopsml.core import file_locks

pytestmark = pytest.mark.fast


def test_folder_is_deleted_once_its_process_has_released_the_lock(tmp_path: Path) -> None:
    ours, lock = file_locks.make_locked_folder(tmp_path, "lock", "agent-")
    left, left_lock = file_locks.make_locked_folder(tmp_path, "lock", "agent-")
    other = tmp_path / "other"
    other.mkdir()
    os.close(left_lock)
    file_locks.delete_abandoned_folders(tmp_path, "agent-*", "lock")
    assert ours.is_dir() and not left.exists() and other.is_dir()
    os.close(lock)


def test_lock_is_exclusive_until_its_holder_leaves_the_block(tmp_path: Path) -> None:
    path, entered = tmp_path / "lock", threading.Event()
    assert not file_locks.is_locked(path)
    with file_locks.locked(path):
        assert file_locks.is_locked(path)
        with path.open() as file:
            assert not file_locks.try_lock(file.fileno()) and not file_locks.try_lock(file.fileno(), shared=True)

        def enter() -> None:
            with file_locks.locked(path):
                entered.set()

        waiting = threading.Thread(target=enter)
        waiting.start()
        assert not entered.wait(0.05)
    waiting.join(30)
    assert entered.is_set() and not file_locks.is_locked(path)


def test_is_locked_is_false_for_missing_files_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    assert not file_locks.is_locked(tmp_path / "file" / "lock")
    assert not file_locks.is_locked(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_folders_of_other_users_are_neither_opened_nor_deleted(tmp_path: Path) -> None:
    """A lease on the lock file, or a pipe in its place, would delay each start."""
    own, other = tmp_path / "agent-1-a", tmp_path / "agent-2-b"
    for folder in (own, other):
        folder.mkdir()
        os.mkfifo(folder / "lock")
    os.chown(other, 12002, 12002)
    file_locks.delete_abandoned_folders(tmp_path, "agent-*", "lock")
    assert other.exists()
