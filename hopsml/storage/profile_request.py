"""A wish for a profile of a running worker, left in the run's directory, and what has become of it.

``profile.json`` holds the newest wish. Its driver looks for it as it does for a wish to cancel, has the worker's agent take
the profile, and writes the answer into the same file. Profiles lie in ``profiles/``, the newest ``MOST_KEPT`` of them.
"""

from __future__ import annotations

import platform
import secrets
import time

import msgspec

from hopsml import settings
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import urls
from hopsml.storage.filesystem import FileStatus, for_url
from hopsml.storage.run_dir import RunDir

ENDINGS = {"speedscope": ".speedscope.json", "flamegraph": ".svg", "raw": ".txt"}  # by format
MOST_S = 300
MOST_KEPT = 20
PATIENCE_S = 60.0  # beyond a profile's own seconds: a wish that is older has nobody who answers it
TIMEOUT_S = 5.0  # of one look


class ProfileWish(msgspec.Struct, frozen=True):
    """``state``: "asked", "taking", "done" or "failed"; ``answer``: the profile's path below the run, or what is wrong."""

    id: str
    rank: int
    seconds: int
    format: str
    idle: bool  # whether threads that wait count, too
    by: str
    asked: float  # seconds since 1970, by the clock of who asked
    state: str = "asked"
    answer: str = ""

    @property
    def is_open(self) -> bool:
        """Whether nobody has answered it."""
        return self.state in ("asked", "taking")


def checked(rank: int, seconds: int, form: str, idle: bool = False) -> ProfileWish:
    """A wish of this user's. Raises ArgumentError for values that no profile can have."""
    if rank < 0:
        raise ArgumentError(f"rank={rank}: ranks count from 0")
    if not 1 <= seconds <= MOST_S:
        raise ArgumentError(f"seconds={seconds}: a profile takes 1 to {MOST_S} seconds")
    if form not in ENDINGS:
        raise ArgumentError(f"format={form[:40]!r}: it is one of {', '.join(ENDINGS)}")
    by = f"{settings.user_name()} on {platform.node()}"
    return ProfileWish(secrets.token_hex(8), rank, seconds, form, idle, by, time.time())


def ask(directory: RunDir, wish: ProfileWish, now: float) -> None:
    """Leave a wish. Raises ArgumentError while another one is under way, StorageError."""
    before = read(directory)
    if before is not None and before.is_open and now - before.asked < before.seconds + PATIENCE_S:
        raise ArgumentError(
            f"a profile of rank {before.rank} is under way, for {before.seconds} s, which {before.by} asked for; ask again "
            "when it is there"
        )
    _write(directory, wish)


def read(directory: RunDir) -> ProfileWish | None:
    """The newest wish; None where nobody has had one, or where the file is none. Raises StorageError."""
    try:
        return msgspec.convert(RunDir(directory.url, TIMEOUT_S).read_json(directory.profile_json), ProfileWish)
    except (PathNotFound, msgspec.ValidationError):
        return None


def answer(directory: RunDir, wish: ProfileWish, state: str, text: str = "") -> None:
    """Say what has become of a wish, unless another one has taken its place. Raises StorageError."""
    newest = read(directory)
    if newest is not None and newest.id == wish.id:
        _write(directory, msgspec.structs.replace(wish, state=state, answer=text))


def path_of(wish: ProfileWish, now: float) -> str:
    """Where in the run's directory the profile will lie."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    return f"profiles/rank-{wish.rank}-{moment}{ENDINGS[wish.format]}"


def kept(directory: RunDir) -> list[FileStatus]:
    """The profiles that are there, the newest first. Raises StorageError."""
    try:
        found = for_url(directory.profiles).list_dir(directory.profiles)
    except PathNotFound:
        return []
    entries = [one for one in found if not one.is_dir and not urls.is_temporary(one.url)]
    return sorted(entries, key=lambda entry: (entry.modified_s, entry.name), reverse=True)


def trim(directory: RunDir) -> None:
    """Delete all but the newest. Raises StorageError."""
    for entry in kept(directory)[MOST_KEPT:]:
        for_url(entry.url).delete(entry.url)


def _write(directory: RunDir, wish: ProfileWish) -> None:
    directory.write_json(directory.profile_json, msgspec.to_builtins(wish))
