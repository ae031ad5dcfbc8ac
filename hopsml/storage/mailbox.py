"""Mailboxes: small files on shared storage, by which processes send requests to a driver that they cannot connect to.

The receiver polls. While the storage does not respond, its pauses grow. Requests of a run: to cancel it, and to profile
one of its workers. ``profile.json`` contains the newest profile request; the driver lets the worker's agent take the
profile, and writes the answer into the same file. Profiles are stored in ``profiles/``, the newest
``MOST_KEPT_PROFILES`` of them.
"""

from __future__ import annotations

import logging
import platform
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from hopsml.core import settings
from hopsml.errors import ArgumentError, PathNotFound, StorageError
from hopsml.storage import backoff, urls
from hopsml.storage.filesystem import FileStatus, for_url
from hopsml.storage.run_dir import RunDir

log = logging.getLogger("hopsml.storage")

LOCAL_S, REMOTE_S = 1.0, 5.0  # pauses between two reads, on this machine's disk and elsewhere: one call each
SLOWEST_S = 60.0  # longest pause while the storage does not respond
TIMEOUT_S = 5.0  # of one read
MOST_BYTES = 1 << 16  # of one message

Read = TypeVar("Read")


def send(url: str, message: bytes) -> None:
    """Write a message atomically; it replaces the one before. Raises StorageError."""
    for_url(url).write_bytes(url, message)


def receive(url: str, most: int = MOST_BYTES) -> bytes | None:
    """Return the first ``most`` bytes of the message; None if there is none. Raises StorageError."""
    try:
        return for_url(url, TIMEOUT_S).read_range(url, 0, most)
    except PathNotFound:
        return None


def discard(url: str) -> None:
    """Delete the message, if there is one. Raises StorageError."""
    for_url(url).delete(url)


@dataclass
class Polling:
    """Schedule of reads of a mailbox, with growing pauses while the storage does not respond."""

    usual_s: float
    failures: int = 0  # reads in a row that failed

    @classmethod
    def for_url(cls, url: str) -> Polling:
        """Return the schedule for a URL: a remote store is read less often than a local disk."""
        return cls(LOCAL_S if urls.is_local(url) else REMOTE_S)

    @property
    def pause_s(self) -> float:
        """Seconds until the next read."""
        return backoff.pause_s(self.failures + 1, self.usual_s, max(self.usual_s, SLOWEST_S))

    @property
    def is_storage_responding(self) -> bool:
        """True if the storage responded the last time."""
        return not self.failures

    def poll(self, read: Callable[[], Read], *errors: type[Exception]) -> Read | None:
        """Return what ``read`` returns; None after a StorageError or one of ``errors``, which makes the pauses longer."""
        expected: tuple[type[Exception], ...] = (StorageError, *errors)
        try:
            found = read()
        except expected as error:
            self.failures += 1
            log.debug("a mailbox could not be read: %s", error)
            return None
        self.failures = 0
        return found


def poll_in_background(
    name: str, usual_s: float, read: Callable[[], bool], *errors: type[Exception]
) -> threading.Thread:
    """Start a daemon thread that calls ``read`` until it returns True.

    Args:
        name: Name of the thread.
        usual_s: Seconds between two calls while the storage responds.
        read: Reads the mailbox and carries out its message; may raise StorageError or one of ``errors``.
        errors: Further exceptions after which polling continues.
    """

    def run() -> None:
        polling = Polling(usual_s)
        while not polling.poll(read, *errors):
            time.sleep(polling.pause_s)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def write_cancel_request(directory: RunDir, reason: str) -> None:
    """Request that the run ends; an existing request is replaced. Raises StorageError."""
    request = {"reason": reason, "by": settings.user_name(), "from": platform.node(), "asked": time.time()}
    directory.write_json(directory.cancel_json, request)


def delete_cancel_request(directory: RunDir) -> None:
    """Delete the request, so that a search that continues in its directory is not cancelled again."""
    discard(directory.cancel_json)


def read_cancel_request(directory: RunDir) -> str:
    """Return the reason and author of a cancel request; "" if there is none. Raises StorageError."""
    try:
        request = RunDir(directory.url, TIMEOUT_S).read_json(directory.cancel_json)
    except PathNotFound:
        return ""
    return f"{request.get('reason') or 'cancelled'} (hopsml runs cancel, {request.get('by')} on {request.get('from')})"


ENDINGS = {"speedscope": ".speedscope.json", "flamegraph": ".svg", "raw": ".txt"}  # file name ending by format
MOST_PROFILE_S = 300
MOST_KEPT_PROFILES = 20
PROFILE_PATIENCE_S = 60.0  # in addition to a profile's own seconds; an older request is not being carried out any more


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


def checked_profile_request(rank: int, seconds: int, form: str, idle: bool = False) -> ProfileRequest:
    """Return a request of this user; raises ArgumentError for invalid values.

    Args:
        rank: rank of the worker.
        seconds: duration of the profile, 1 to ``MOST_PROFILE_S``.
        form: a key of ``ENDINGS``.
        idle: include waiting threads.
    """
    if rank < 0:
        raise ArgumentError(f"rank={rank}: the rank must be 0 or more")
    if not 1 <= seconds <= MOST_PROFILE_S:
        raise ArgumentError(f"seconds={seconds}: the duration of a profile must be 1 to {MOST_PROFILE_S} seconds")
    if form not in ENDINGS:
        raise ArgumentError(f"format={form[:40]!r}: the format must be one of {', '.join(ENDINGS)}")
    by = f"{settings.user_name()} on {platform.node()}"
    return ProfileRequest(secrets.token_hex(8), rank, seconds, form, idle, by, time.time())


def request_profile(directory: RunDir, wish: ProfileRequest, now: float) -> None:
    """Write a request into the run's directory.

    Raises:
        ArgumentError: another request is being carried out.
        StorageError: the run's directory cannot be read or written.
    """
    before = read_profile_request(directory)
    if before is not None and before.is_open and now - before.asked < before.seconds + PROFILE_PATIENCE_S:
        raise ArgumentError(
            f"a profile of rank {before.rank} is being taken for {before.seconds} s, as requested by {before.by}; "
            "repeat the request when it has ended"
        )
    _write_profile_request(directory, wish)


def read_profile_request(directory: RunDir) -> ProfileRequest | None:
    """Return the newest request; None if there is none, or the file is invalid. Raises StorageError."""
    try:
        return msgspec.convert(RunDir(directory.url, TIMEOUT_S).read_json(directory.profile_json), ProfileRequest)
    except (PathNotFound, msgspec.ValidationError):
        return None


def record_profile_state(directory: RunDir, wish: ProfileRequest, state: str, text: str = "") -> None:
    """Record the state of a request, unless another one has replaced it. Raises StorageError."""
    newest = read_profile_request(directory)
    if newest is not None and newest.id == wish.id:
        _write_profile_request(directory, msgspec.structs.replace(wish, state=state, answer=text))


def profile_path(wish: ProfileRequest, now: float) -> str:
    """Return the path of a request's profile, relative to the run's directory."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    return f"profiles/rank-{wish.rank}-{moment}{ENDINGS[wish.format]}"


def list_profiles(directory: RunDir) -> list[FileStatus]:
    """Return the stored profiles, the newest first. Raises StorageError."""
    try:
        found = for_url(directory.profiles).list_dir(directory.profiles)
    except PathNotFound:
        return []
    entries = [one for one in found if not one.is_dir and not urls.is_temporary(one.url)]
    return sorted(entries, key=lambda entry: (entry.modified_s, entry.name), reverse=True)


def delete_old_profiles(directory: RunDir) -> None:
    """Delete all but the newest ``MOST_KEPT_PROFILES`` profiles. Raises StorageError."""
    for entry in list_profiles(directory)[MOST_KEPT_PROFILES:]:
        for_url(entry.url).delete(entry.url)


def _write_profile_request(directory: RunDir, wish: ProfileRequest) -> None:
    directory.write_json(directory.profile_json, msgspec.to_builtins(wish))
