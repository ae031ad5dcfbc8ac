"""Plan of a mirror: computes the copies to make from the files on disk and those already copied; no side effects.

Files that only grow (logs, event files) are copied repeatedly; others when they no longer change; directories
``checkpoints/step-*`` once, as a whole.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from hopsml.storage.backoff import pause_s

# The cost of a copy grows with the length: a long file is copied for at most this share of the time, and no file
# is copied more often than every GROWING_PAUSE_S.
COPY_SHARE = 0.05
LONG_BYTES = 1 << 20
GROWING_PAUSE_S = 2.0
SETTLE_S = 1.0
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
URGENT_RETRY_S = 1.0
TOGETHER_S = 0.5  # failures of concurrent copies within this time count as one


@dataclass(frozen=True)
class LocalFile:
    """File as it was scanned on disk; ``path`` is relative to the mirrored folder."""

    path: str
    length: int
    modified_ns: int
    inode: int

    @property
    def is_append_only(self) -> bool:
        """True if every prefix of this file is useful: a log or an event file."""
        name = self.path.rpartition("/")[2]
        return "tfevents" in name or name.endswith((".log", ".jsonl", ".csv", ".out", ".err"))


@dataclass(frozen=True)
class Listing:
    """Result of a scan of the disk: files outside of checkpoints, and the complete checkpoints' directories."""

    files: tuple[LocalFile, ...] = ()
    checkpoints: tuple[str, ...] = ()


@dataclass(frozen=True)
class CopiedVersion:
    """Version of a file that is on the store, with the time and duration of its copy (monotonic seconds)."""

    length: int
    modified_ns: int
    inode: int
    at_s: float
    took_s: float

    def is_current(self, file: LocalFile) -> bool:
        """Return True if length, time and inode of the file are those that were copied."""
        return (self.length, self.modified_ns, self.inode) == (file.length, file.modified_ns, file.inode)


@dataclass(frozen=True)
class CopyFailure:
    """Last failure of one path: reason, time, number in a row.

    ``transient`` is True if a later attempt may succeed without intervention.
    """

    reason: str
    at_s: float
    count: int
    transient: bool

    def retry_at_s(self, urgent: bool) -> float:
        """Return when to try again: 1 s, 2 s, 4 s ... up to 30 s later; within 1 s if ``urgent``."""
        delay_s = pause_s(self.count, FIRST_RETRY_S, LONGEST_RETRY_S)
        return self.at_s + (min(delay_s, URGENT_RETRY_S) if urgent else delay_s)


@dataclass
class MirrorState:
    """State of the mirror: copied files, last failures, and whether the shared storage responds."""

    copied: dict[str, CopiedVersion] = field(default_factory=dict)  # by path of the file
    committed: set[str] = field(default_factory=set)  # paths of checkpoints
    failures: dict[str, CopyFailure] = field(default_factory=dict)
    outage: CopyFailure | None = None  # the store itself does not respond; until it does nothing else is tried


@dataclass(frozen=True)
class CopyFile:
    """Action: copy one file, as it was scanned."""

    file: LocalFile

    @property
    def path(self) -> str:
        """Path of the file, relative to the mirrored folder."""
        return self.file.path


@dataclass(frozen=True)
class CommitCheckpoint:
    """Action: copy one checkpoint's directory as a whole."""

    path: str


Action = CopyFile | CommitCheckpoint


@dataclass(frozen=True)
class PathBehind:
    """Path whose present version is not on the store, with the reason."""

    path: str
    reason: str


def plan(
    listing: Listing, state: MirrorState, busy: Collection[str], now_s: float, wall_ns: int, urgent: bool
) -> list[Action]:
    """Return the copies to start now, short files first: they are many and cheap.

    Args:
        listing: result of the last scan.
        state: state of the mirror.
        busy: paths that are being copied.
        now_s: monotonic time in seconds.
        wall_ns: time of the clock that stamps files, in nanoseconds.
        urgent: True if a flush waits: no copy is delayed.
    """
    if state.outage and (now_s < state.outage.retry_at_s(urgent) or busy):
        return []
    due: list[Action] = [
        CopyFile(file)
        for file in sorted(listing.files, key=lambda file: file.length)
        if file.path not in busy and _file_is_due(file, state, now_s, wall_ns, urgent)
    ]
    due += [
        CommitCheckpoint(path)
        for path in listing.checkpoints
        if path not in busy and path not in state.committed and _may_retry(path, state, now_s, urgent)
    ]
    return due[:1] if state.outage else due  # one probe shows if the store responds again


def paths_behind(listing: Listing, state: MirrorState) -> list[PathBehind]:
    """Return the paths on disk whose present version is not on the store, each with the reason."""
    late = [file.path for file in listing.files if not _is_copied(file, state)]
    late += [path for path in listing.checkpoints if path not in state.committed]
    late.sort(key=lambda path: path not in state.failures)  # those with a reason first
    return [PathBehind(path, _reason(path, state)) for path in late]


def record_success(state: MirrorState, action: Action, now_s: float, took_s: float) -> None:
    """Record that an action was carried out at ``now_s`` and took ``took_s`` seconds; this ends an outage."""
    state.outage = None
    state.failures.pop(action.path, None)
    if isinstance(action, CommitCheckpoint):
        state.committed.add(action.path)
    else:
        file = action.file
        state.copied[file.path] = CopiedVersion(file.length, file.modified_ns, file.inode, now_s, took_s)


def record_failure(state: MirrorState, action: Action, now_s: float, reason: str, transient: bool) -> None:
    """Record that an action failed; a transient cause counts as an outage of the whole store."""
    before = state.failures.get(action.path)
    state.failures[action.path] = CopyFailure(reason, now_s, before.count + 1 if before else 1, transient)
    if transient:
        known = state.outage
        together = known is not None and now_s - known.at_s < TOGETHER_S
        count = 1 if known is None else known.count if together else known.count + 1
        state.outage = CopyFailure(reason, now_s, count, transient)


def forget_deleted_paths(state: MirrorState, listing: Listing) -> None:
    """Remove paths that are no longer on disk from the state; their copies on the store remain."""
    present = {file.path for file in listing.files} | set(listing.checkpoints)
    for known in (state.copied, state.failures):
        for path in [path for path in known if path not in present]:
            del known[path]
    if state.outage and not state.failures:
        state.outage = None


def _file_is_due(file: LocalFile, state: MirrorState, now_s: float, wall_ns: int, urgent: bool) -> bool:
    if _is_copied(file, state) or not _may_retry(file.path, state, now_s, urgent):
        return False
    if urgent:
        return True
    if not file.is_append_only:
        return abs(wall_ns - file.modified_ns) >= SETTLE_S * 1e9  # the clock may have been set back since
    before = state.copied.get(file.path)
    if before is None:
        return True
    least_s = GROWING_PAUSE_S
    if before.length > LONG_BYTES:
        least_s = max(least_s, before.took_s / COPY_SHARE)
    return now_s - before.at_s >= least_s


def _is_copied(file: LocalFile, state: MirrorState) -> bool:
    before = state.copied.get(file.path)
    return before is not None and before.is_current(file)


def _may_retry(path: str, state: MirrorState, now_s: float, urgent: bool) -> bool:
    failure = state.failures.get(path)
    return failure is None or failure.transient or now_s >= failure.retry_at_s(urgent)


def _reason(path: str, state: MirrorState) -> str:
    if path in state.failures:
        return state.failures[path].reason
    if state.outage:
        return state.outage.reason
    return "not copied yet"
