"""Taking GPUs of this host so that no second process takes them: one file lock for each GPU."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from hopsml.cluster.gpus import HostGpu, parse_address
from hopsml.errors import ArgumentError, RunError

logger = logging.getLogger(__name__)

# One place for all users of a host, whatever TMPDIR says: YARN gives every container a TMPDIR of its own.
LOCK_DIRECTORY = Path("/tmp/hopsml-gpu-locks")
_RETRY_S = 0.05  # flock cannot wait for one of several files


class GpuClaim:
    """GPUs that this process alone holds, until ``close`` or its death; usable as a context manager.

    The locks are flocks, which the kernel drops with the last descriptor, so after kill -9 too. Descriptors
    are not inherited by programs that are started, and are closed in forked children.
    """

    def __init__(self, gpus: Sequence[HostGpu], descriptors: Sequence[int]) -> None:
        self.gpus = tuple(gpus)
        self._descriptors = list(descriptors)
        if self._descriptors:
            _open_claims.add(self)

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of the GPUs, in the order in which they were granted."""
        return tuple(gpu.index for gpu in self.gpus)

    def close(self) -> None:
        """Gives the GPUs back; may be called twice."""
        for descriptor in self._descriptors:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also drops what a child forked behind Python's back shares
        self.forget()

    def forget(self) -> None:
        """Closes the descriptors without unlocking: for a forked child, which must not hold them."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        _open_claims.discard(self)

    def __enter__(self) -> GpuClaim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_open_claims: set[GpuClaim] = set()


def _forget_all() -> None:
    for claim in list(_open_claims):
        claim.forget()


os.register_at_fork(after_in_child=_forget_all)


def claim_gpus(
    host: Sequence[HostGpu],
    addresses: Sequence[str] = (),
    count: int | None = None,
    *,
    lock_directory: Path = LOCK_DIRECTORY,
    timeout_s: float = 10.0,
) -> GpuClaim:
    """Takes ``count`` GPUs of ``host`` (default: as many as there are addresses), all or none.

    Those that Spark's ``addresses`` name come first. One that another process holds is replaced by a free
    one, with a sentence in the log: YARN without isolation gives several executors the same address.
    Without addresses, idle GPUs come before those on which anybody computes. A host without GPUs gives an
    empty claim, whatever Spark granted.

    Raises ArgumentError for an address that is none or a negative count, RunError if within ``timeout_s``
    there are not enough free GPUs; its message names who holds them.
    """
    wanted = len(addresses) if count is None else count
    if wanted < 0:
        raise ArgumentError(f"count={wanted}: a number of GPUs is 0 or more")
    granted = [parse_address(address, host) for address in addresses]
    if wanted == 0:
        return GpuClaim((), ())
    if not host:
        logger.warning(
            "%d GPU(s) were wanted (Spark granted: %s), but this host has no working NVIDIA driver: the slot "
            "computes on CPU",
            wanted,
            ", ".join(addresses) or "none",
        )
        return GpuClaim((), ())
    candidates = _preferred(host, granted)
    if wanted > len(candidates):
        raise RunError(f"{wanted} GPUs were wanted, but this host has {len(candidates)}; ask for fewer of them")
    deadline = time.monotonic() + timeout_s
    while True:
        claim = _claim_now(candidates, wanted, lock_directory)
        if claim is not None:
            _explain(claim, granted[:wanted])
            return claim
        if time.monotonic() >= deadline:
            raise RunError(_shortage(candidates, wanted, lock_directory, timeout_s))
        time.sleep(_RETRY_S)


def _preferred(host: Sequence[HostGpu], granted: Sequence[int]) -> list[HostGpu]:
    by_index = {gpu.index: gpu for gpu in host}
    first = [by_index[index] for index in dict.fromkeys(granted) if index in by_index]
    others = [gpu for gpu in host if gpu not in first]
    return [*first, *sorted(others, key=lambda gpu: (gpu.processes, gpu.index))]


def _explain(claim: GpuClaim, granted: Sequence[int]) -> None:
    missed = [index for index in granted if index not in claim.indices]
    if missed or len(set(granted)) < len(granted):
        logger.warning(
            "Spark granted GPU %s, which another process of this host holds or that is not there; GPU %s was "
            "taken instead (YARN without GPU isolation cannot tell its executors' GPUs apart)",
            ", ".join(map(str, missed or granted)),
            ", ".join(str(index) for index in claim.indices if index not in granted),
        )


def _index(gpu: HostGpu) -> int:
    return gpu.index


def _shortage(candidates: Sequence[HostGpu], wanted: int, directory: Path, timeout_s: float) -> str:
    holders = _holders(directory)
    held = ", ".join(f"GPU {gpu.index} by {holders.get(gpu.key, 'nobody')}" for gpu in sorted(candidates, key=_index))
    return (
        f"{wanted} GPU(s) were wanted, but not that many came free within {timeout_s:g} s. Held: {held}. "
        "End those processes, ask for fewer executors per host, or let Spark count the GPUs "
        "(spark.executor.resource.gpu.amount)"
    )


# -- the lock files


def _claim_now(candidates: Sequence[HostGpu], wanted: int, directory: Path) -> GpuClaim | None:
    """One pass; None if it found too few. Passes of several processes exclude each other."""
    _make_directory(directory)
    gate = _lock(directory / "claiming")
    if gate is None:
        return None
    taken: list[HostGpu] = []
    descriptors: list[int] = []
    try:
        for gpu in candidates:
            if len(taken) == wanted:
                break
            descriptor = _lock(directory / gpu.key)
            if descriptor is not None:
                taken.append(gpu)
                descriptors.append(descriptor)
        if len(taken) == wanted:
            # Cleaners of /tmp leave a directory alone that somebody has locked.
            descriptors.append(_share(directory))
            claim = GpuClaim(taken, descriptors)
            descriptors = []
            return claim
        return None
    finally:
        for descriptor in [*descriptors, gate]:
            os.close(descriptor)


def _make_directory(directory: Path) -> None:
    """Made for everybody, as /tmp itself is; a link or a file in its place is refused."""
    try:
        os.mkdir(directory)
        os.chmod(directory, 0o1777)  # mkdir's mode is cut by the umask
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            raise RunError(f"{directory} is no directory; GPUs are locked there: remove it") from None
    except OSError as error:
        raise RunError(f"{directory} for the GPU locks cannot be made: {error.strerror}") from error


def _share(directory: Path) -> int:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # a cleaner is at work: it finds the files young
        pass
    return descriptor


def _lock(path: Path) -> int | None:
    """A descriptor that holds the exclusive lock on ``path``, or None if somebody else does."""
    descriptor = _open(path)
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


def _open(path: Path) -> int:
    """Opened for reading alone, which is enough to lock: so every user can, whoever made the file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(descriptor, 0o644)
            return descriptor
        except FileExistsError:  # another process was faster
            return os.open(path, flags)
    except OSError as error:
        raise RunError(f"the GPU lock {path} cannot be opened: {error.strerror}; remove it or its directory") from error


def _holders(directory: Path) -> dict[str, str]:
    """Lock file name -> "process 123" that holds it, as far as the kernel tells; for messages only."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
        inodes = {entry.stat(follow_symlinks=False).st_ino: entry.name for entry in os.scandir(directory)}
    except OSError:
        return {}
    holders: dict[str, str] = {}
    for words in map(str.split, lines):
        if len(words) >= 6 and words[1] == "FLOCK":
            name = inodes.get(int(words[5].rpartition(":")[2]))
            if name is not None:
                holders[name] = f"process {words[4]}"
    return holders
