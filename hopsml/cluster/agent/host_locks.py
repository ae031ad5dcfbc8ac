"""Lock files for a host's GPUs and cores: exclusive within a user, visible to other users.

A user's locks are in private folders (0700), so that no other user can lock, replace or remove them. In addition, a
shared folder shows other users what is taken. Its locks are trusted only where an error costs little, because any user
can lock any file there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hopsml.core import file_locks
from hopsml.core.newer_python import Self
from hopsml.errors import RunError

# Independent of TMPDIR, which YARN sets for each container. In all of these folders, since another user may have taken
# our folder's name in one: agents of a user that see different folders have one in common.
BASES = (Path("/dev/shm"), Path("/tmp"))


@dataclass(frozen=True)
class LockPlace:
    """Location of the locks of one kind of resource: a folder called ``name`` below each of ``bases``.

    ``what`` names the resource in messages.
    """

    name: str
    what: str
    bases: tuple[Path, ...] = BASES

    def private_folders(self) -> list[Path]:
        """Return the folders for this user's locks, created if missing.

        Raises:
            RunError: if none can be used.
        """
        folders = [base / f"{self.name}-{os.geteuid()}" for base in self.bases]
        problems = {folder: _problem_of(folder) for folder in folders}
        usable = [folder for folder in folders if not problems[folder]]
        if not usable:
            reasons = "; ".join(f"{folder} {problem}" for folder, problem in problems.items())
            raise RunError(
                f"{self.what} cannot be locked: {reasons}. Remove the file or folder, or ask its owner to remove it"
            )
        return usable

    def advertise(self, name: str) -> int | Literal["held"] | None:
        """Show other users that a resource is taken.

        It never waits, and does not trust the type of an existing file, which may be another user's.

        Returns:
            A descriptor to hold; "held" if another user has locked the resource; None if it cannot be shown.
        """
        folder = self.bases[-1] / self.name
        try:
            os.mkdir(folder)
            os.chmod(folder, 0o1777)  # mkdir's mode is cut by the umask
        except OSError:
            pass  # it exists, or the error appears when the file is opened
        path, flags = folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                return None
            try:
                # reading suffices to lock, so every user can, whoever created the file
                descriptor = os.open(path, flags)
            except FileNotFoundError:
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
                os.fchmod(descriptor, 0o644)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        held = _held(descriptor, path)
        return "held" if held is None else held

    def holders(self) -> dict[str, str]:
        """Return the holder ("process 123") of each locked file, by its name.

        Only for messages: the kernel may not show all.
        """
        names: dict[int, str] = {}
        for folder in [*(base / f"{self.name}-{os.geteuid()}" for base in self.bases), self.bases[-1] / self.name]:
            try:
                names |= {entry.stat(follow_symlinks=False).st_ino: entry.name for entry in os.scandir(folder)}
            except OSError:
                continue
        found: dict[str, str] = {}
        try:
            lines = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return {}
        for words in map(str.split, lines):
            if len(words) >= 6 and words[1] == "FLOCK":
                name = names.get(int(words[5].rpartition(":")[2]))
                if name is not None:
                    found[name] = f"process {words[4]}"
        return found


def _problem_of(folder: Path) -> str:
    """Create the folder; return the reason why it cannot be used, or ""."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        return f"cannot be created: {error.strerror}"
    try:
        facts = os.lstat(folder)
        if not stat.S_ISDIR(facts.st_mode):
            return "is not a directory"
        if facts.st_uid != os.geteuid():
            return f"belongs to user {facts.st_uid}"
        os.chmod(folder, 0o700)
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    return ""


def lock_all(folders: Sequence[Path], name: str) -> list[int] | None:
    """Return descriptors that hold the exclusive lock ``name`` in every folder; None if one of them is taken."""
    descriptors: list[int] = []
    try:
        for folder in folders:
            descriptor = _lock(folder / name)
            if descriptor is None:
                break
            descriptors.append(descriptor)
        else:
            held, descriptors = descriptors, []
            return held
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return None


def _lock(path: Path) -> int | None:
    """Create and lock a file; return its descriptor, or None if another process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the folder was removed at this moment; the next attempt creates it again
        return None
    except OSError as error:
        raise RunError(f"the lock {path} cannot be opened: {error.strerror}; remove it or its directory") from error
    return _held(descriptor, path)


def _held(descriptor: int, path: Path) -> int | None:
    """Lock a descriptor and return it; None, with the descriptor closed, if the lock is taken."""
    try:
        if file_locks.try_lock(descriptor):
            mine, there = os.fstat(descriptor), os.lstat(path)
            if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
                return descriptor
    except FileNotFoundError:
        pass  # removed between opening and locking; the next attempt creates it again
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def hold_folder(folder: Path) -> int:
    """Return a descriptor with a shared lock on the folder, so that cleaners of /tmp leave it alone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    file_locks.try_lock(descriptor, shared=True)  # fails while a cleaner is running; the files are too young for it
    return descriptor


class HeldLocks:
    """Locks that only this process holds, until ``close`` or its end; usable as a context manager.

    The locks are flocks, which the kernel drops with the last descriptor, also after kill -9. Descriptors are not
    inherited by programs that are started, and are closed in forked children.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = list(descriptors)
        if self._descriptors:
            _open.add(self)

    def close(self) -> None:
        """Release all of the locks; may be called twice."""
        for descriptor in self._descriptors:
            file_locks.unlock(descriptor)  # also what a child shares that was forked without Python's hooks
        self.close_without_unlocking()

    def close_without_unlocking(self) -> None:
        """Close the descriptors without unlocking: for a forked child, which must not hold them."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        _open.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_open: set[HeldLocks] = set()


def _forget_all() -> None:
    for held in list(_open):
        held.close_without_unlocking()


os.register_at_fork(after_in_child=_forget_all)
