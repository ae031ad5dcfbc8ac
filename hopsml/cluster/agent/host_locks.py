"""Lock files for what a host has, its GPUs and its cores: what nobody else can hold, and what others can see.

A user's locks lie in folders that are private (0700), so that no other user can lock, replace or remove them. Beside them a
folder for everybody shows other users what is taken. That one is believed as far as it costs little: anybody may lock
anything there.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from hopsml.errors import RunError

# Whatever TMPDIR says: YARN gives every container one of its own. In all of them, because somebody may have taken our
# folder's name in one: agents of a user that see different folders have one in common.
BASES = (Path("/dev/shm"), Path("/tmp"))


@dataclass(frozen=True)
class LockPlace:
    """Where the locks of one kind of thing lie: folders of this ``name`` below each of ``bases``. ``what``: for messages."""

    name: str
    what: str
    bases: tuple[Path, ...] = BASES

    def private_folders(self) -> list[Path]:
        """The folders for this user's locks, made where they are missing. Raises RunError where none can be had."""
        folders = [base / f"{self.name}-{os.geteuid()}" for base in self.bases]
        problems = {folder: _problem_of(folder) for folder in folders}
        usable = [folder for folder in folders if not problems[folder]]
        if not usable:
            reasons = "; ".join(f"{folder} {problem}" for folder, problem in problems.items())
            raise RunError(f"{self.what} cannot be locked: {reasons}. Remove what lies there, or let its owner do it")
        return usable

    def advertise(self, name: str) -> int | Literal["held"] | None:
        """Let other users see that this is taken.

        Returns a descriptor to keep, "held" where another user says so of his own, None where nobody can.
        Never waits, and takes nothing that it finds for what it is called: it is not ours.
        """
        folder = self.bases[-1] / self.name
        try:
            os.mkdir(folder)
            os.chmod(folder, 0o1777)  # mkdir's mode is cut by the umask
        except OSError:
            pass  # there already, or it shows when the file is opened
        path, flags = folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                return None
            try:
                descriptor = os.open(path, flags)  # reading is enough to lock, so every user can, whoever made the file
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
        """Lock file name -> "process 123" that holds it, as far as the kernel tells; for messages only."""
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
    """Make the folder; why it cannot be used, empty where it can."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        return f"cannot be made: {error.strerror}"
    try:
        facts = os.lstat(folder)
        if not stat.S_ISDIR(facts.st_mode):
            return "is no directory"
        if facts.st_uid != os.geteuid():
            return f"belongs to user {facts.st_uid}"
        os.chmod(folder, 0o700)
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    return ""


def lock_all(folders: Sequence[Path], name: str) -> list[int] | None:
    """Descriptors that hold the exclusive lock ``name`` in every folder; None if somebody else has one of them."""
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
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the folder was removed this moment: the next pass makes it anew
        return None
    except OSError as error:
        raise RunError(f"the lock {path} cannot be opened: {error.strerror}; remove it or its directory") from error
    return _held(descriptor, path)


def _held(descriptor: int, path: Path) -> int | None:
    """The descriptor with the lock, or None, and then it is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine, there = os.fstat(descriptor), os.lstat(path)
        if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass  # held, or removed between opening and locking: the next pass makes it anew
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def keep(folder: Path) -> int:
    """A descriptor by which cleaners of /tmp see that the folder is in use: they leave alone what somebody has locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # a cleaner is at work: it finds the files young
        pass
    return descriptor


class HeldLocks:
    """Locks that this process alone holds, until ``close`` or its death; usable as a context manager.

    The locks are flocks, which the kernel drops with the last descriptor, so after kill -9 too. Descriptors
    are not inherited by programs that are started, and are closed in forked children.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = list(descriptors)
        if self._descriptors:
            _open.add(self)

    def close(self) -> None:
        """Give back what is locked. May be called twice."""
        for descriptor in self._descriptors:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also drops what a child forked behind Python's back shares
        self.forget()

    def forget(self) -> None:
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
        held.forget()


os.register_at_fork(after_in_child=_forget_all)
