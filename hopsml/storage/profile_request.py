"""Request for a profile of a running worker, stored in the run's directory, and its state.

``profile.json`` contains the newest request. The driver polls for it as it does for a cancel request, lets the worker's
agent take the profile, and writes the answer into the same file. Profiles are stored in ``profiles/``, the newest
``MOST_KEPT`` of them.
"""

from __future__ import annotations

import platform
import secrets
import time

import msgspec

from hopsml.core import settings
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import mailbox, urls
from hopsml.storage.filesystem import FileStatus, for_url
from hopsml.storage.run_dir import RunDir

ENDINGS = {"speedscope": ".speedscope.json", "flamegraph": ".svg", "raw": ".txt"}  # file name ending by format
MOST_S = 300
MOST_KEPT = 20
PATIENCE_S = 60.0  # in addition to a profile's own seconds; an older request is not being carried out any more


class ProfileRequest(msgspec.Struct, frozen=True):
    """Request for a profile, and its state: "asked", "taking", "done" or "failed".

    ``answer`` is the profile's path below the run, or the error.
    """

    id: str
    rank: int
    seconds: int
    format: str
    idle: bool  # include waiting threads
    by: str
    asked: float  # seconds since 1970, by the requester's clock
    state: str = "asked"
    answer: str = ""

    @property
    def is_open(self) -> bool:
        """True if the request has no result yet."""
        return self.state in ("asked", "taking")


def checked(rank: int, seconds: int, form: str, idle: bool = False) -> ProfileRequest:
    """Return a request of this user; raises ArgumentError for invalid values.

    Args:
        rank: rank of the worker.
        seconds: duration of the profile, 1 to ``MOST_S``.
        form: a key of ``ENDINGS``.
        idle: include waiting threads.
    """
    if rank < 0:
        raise ArgumentError(f"rank={rank}: ranks count from 0")
    if not 1 <= seconds <= MOST_S:
        raise ArgumentError(f"seconds={seconds}: a profile takes 1 to {MOST_S} seconds")
    if form not in ENDINGS:
        raise ArgumentError(f"format={form[:40]!r}: it is one of {', '.join(ENDINGS)}")
    by = f"{settings.user_name()} on {platform.node()}"
    return ProfileRequest(secrets.token_hex(8), rank, seconds, form, idle, by, time.time())


def ask(directory: RunDir, wish: ProfileRequest, now: float) -> None:
    """Write a request into the run's directory.

    Raises:
        ArgumentError: another request is being carried out.
        StorageError: the run's directory cannot be read or written.
    """
    before = read(directory)
    if before is not None and before.is_open and now - before.asked < before.seconds + PATIENCE_S:
        raise ArgumentError(
            f"a profile of rank {before.rank} is under way, for {before.seconds} s, which {before.by} asked for; ask again "
            "when it is there"
        )
    _write(directory, wish)


def read(directory: RunDir) -> ProfileRequest | None:
    """Return the newest request; None if there is none, or the file is invalid. Raises StorageError."""
    try:
        return msgspec.convert(
            RunDir(directory.url, mailbox.TIMEOUT_S).read_json(directory.profile_json), ProfileRequest
        )
    except (PathNotFound, msgspec.ValidationError):
        return None


def answer(directory: RunDir, wish: ProfileRequest, state: str, text: str = "") -> None:
    """Record the state of a request, unless another one has replaced it. Raises StorageError."""
    newest = read(directory)
    if newest is not None and newest.id == wish.id:
        _write(directory, msgspec.structs.replace(wish, state=state, answer=text))


def path_of(wish: ProfileRequest, now: float) -> str:
    """Return the path of a request's profile, relative to the run's directory."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    return f"profiles/rank-{wish.rank}-{moment}{ENDINGS[wish.format]}"


def kept(directory: RunDir) -> list[FileStatus]:
    """Return the stored profiles, the newest first. Raises StorageError."""
    try:
        found = for_url(directory.profiles).list_dir(directory.profiles)
    except PathNotFound:
        return []
    entries = [one for one in found if not one.is_dir and not urls.is_temporary(one.url)]
    return sorted(entries, key=lambda entry: (entry.modified_s, entry.name), reverse=True)


def trim(directory: RunDir) -> None:
    """Delete all but the newest ``MOST_KEPT`` profiles. Raises StorageError."""
    for entry in kept(directory)[MOST_KEPT:]:
        for_url(entry.url).delete(entry.url)


def _write(directory: RunDir, wish: ProfileRequest) -> None:
    directory.write_json(directory.profile_json, msgspec.to_builtins(wish))
