"""Main loop of the mirror process: scans the disk, carries out the plan, and responds to the agent's messages.

One thread scans and plans, several copy, the main thread reads messages. Input lines: ``{"do": "flush", "id": 1,
"timeout_s": 5, "retry_s": 0}``, ``{"do": "stop"}``; the end of the input is a final flush and the end. Output lines:
``{"event": ...}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hopsml.errors import HopsmlError, StorageError
from hopsml.storage import causes, checkpoints, filesystem, mirror_plan, tree, urls
from hopsml.storage.backoff import Outage
from hopsml.storage.filesystem import FileSystem, for_url, walk
from hopsml.storage.mirror_plan import (
    Action,
    CommitCheckpoint,
    CopiedVersion,
    Listing,
    LocalFile,
    MirrorState,
    PathBehind,
)
from hopsml.storage.run_dir import parse_step_name

CHECKPOINTS = "checkpoints"
NO_TRIALS = ("code", "events", "export", "logs")  # folders of the run itself, with names that users choose
_COPIES_AT_ONCE = 4
SCAN_SHARE = 0.05  # greatest share of the time for scans of the disk: a search has thousands of files
_MOST_NAMED = 50  # paths in one message
_REMIND_S = 30.0  # seconds between two reports of copies that fail


class MirrorSettings:
    """Settings of the mirror as the agent passes them on the command line, as JSON."""

    def __init__(self, text: str, parent_pidfd: int) -> None:
        given = json.loads(text)
        self.root = Path(given["root"])
        self.url: str = given["url"]
        self.interval_s: float = given["interval_s"]
        self.grace_s: float = given["grace_s"]
        self.timeout_s: float = given["timeout_s"]
        self.keep_checkpoints: int | None = given["keep_checkpoints"]
        self.resume: bool = given["resume"]
        self.parent_pidfd = parent_pidfd  # file descriptor of the agent's process; -1: none


class MirrorLoop:
    """Thread that scans, plans and hands out copies; shared state is guarded by ``changed``."""

    def __init__(self, wanted: MirrorSettings) -> None:
        self._wanted = wanted
        self._system: FileSystem = for_url(wanted.url, wanted.timeout_s)
        self._state = MirrorState()
        self._listing = Listing()
        self._busy: dict[str, Future[None]] = {}
        self._committed: dict[str, dict[int, int]] = {}  # by directory: step -> time when it was written
        self._urgent = 0  # number of waiting flushes
        self._scans = 0  # number of scans of the disk
        self._was_behind = False
        self._reported_s = 0.0  # time of the last report of copies that fail
        self._resumed = not wanted.resume
        self._resuming = Outage(longest_s=mirror_plan.LONGEST_RETRY_S)
        self._wake = threading.Event()
        self.changed = threading.Condition()
        self._pool = ThreadPoolExecutor(_COPIES_AT_ONCE, thread_name_prefix="mirror-copy")

    def run(self) -> None:
        """Scan the disk and start copies repeatedly; never returns, ends with the process."""
        while True:
            self._wake.clear()
            if not self._resumed and self._resuming.may_try(time.monotonic()):
                self._resume()
            began_s = time.monotonic()
            self._scan_and_plan()
            self._remind()
            rest_s = max(self._wanted.interval_s, (time.monotonic() - began_s) / SCAN_SHARE)
            with self.changed:
                urgent, outage = self._urgent > 0, self._state.outage is not None
            self._wake.wait(min(0.2, self._wanted.interval_s) if urgent and outage else rest_s)

    def flush(self, deadline_s: float, cut_short: threading.Event, retry_s: float | None = None) -> bool:
        """Wait until all files that are on disk now are on the shared storage, or cannot be copied.

        Args:
            deadline_s: monotonic time in seconds at which to return in any case.
            cut_short: event that ends the wait.
            retry_s: seconds for which failed copies are retried; None: until the deadline if the store is unavailable, not
                at all if it refuses them.

        Returns:
            True if ``report`` describes all files that were on disk at the call; False if there was no time to scan it.
        """
        with self.changed:
            self._urgent += 1
            began_s, scans = time.monotonic(), self._scans
            try:
                while True:
                    self._wake.set()
                    late = mirror_plan.paths_behind(self._listing, self._state)
                    # Two scans: one may have begun before this call.
                    is_current = self._scans >= scans + 2 and self._resumed
                    if is_current and not self._busy:
                        if not late:
                            return True
                        if all(self._is_given_up(one.path, began_s, retry_s) for one in late):
                            return True
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0 or cut_short.is_set():
                        return is_current
                    self.changed.wait(min(left_s, 0.5))
            finally:
                self._urgent -= 1

    def _remind(self) -> None:
        """Report from time to time that copies fail, as long as they do."""
        with self.changed:
            now_s = time.monotonic()
            if not self._was_behind or now_s - self._reported_s < _REMIND_S:
                return
            self._reported_s = now_s
            late = mirror_plan.paths_behind(self._listing, self._state)
        send_event({"event": "behind", **behind_record(late)})

    def report(self) -> dict[str, Any]:
        """Return the paths that are behind, as part of a message."""
        with self.changed:
            late = mirror_plan.paths_behind(self._listing, self._state)
            return behind_record(late)

    def _is_given_up(self, path: str, began_s: float, retry_s: float | None) -> bool:
        """Return True if a flush that began at ``began_s`` does not wait for this path any more."""
        failure = self._state.failures.get(path)
        if retry_s is None:
            return failure is not None and not failure.transient and failure.at_s >= began_s
        failure = failure or self._state.outage
        return failure is not None and failure.at_s >= began_s and time.monotonic() - began_s >= retry_s

    def _scan_and_plan(self) -> None:
        listing = scan(self._wanted.root)
        with self.changed:
            self._scans += 1
            self._listing = listing
            mirror_plan.forget_deleted_paths(self._state, listing)
            now_s, wall_ns = time.monotonic(), time.time_ns()
            actions = mirror_plan.plan(listing, self._state, self._busy, now_s, wall_ns, self._urgent > 0)
            for action in actions:
                self._busy[action.path] = self._pool.submit(self._carry_out, action)
            self.changed.notify_all()

    def _carry_out(self, action: Action) -> None:
        began_s = time.monotonic()
        failure: tuple[str, bool] | None = None
        try:
            if isinstance(action, CommitCheckpoint):
                self._commit(action.path)
            else:
                self._copy(action.file)
        except (OSError, HopsmlError) as error:
            failure = (str(error), causes.is_transient(error))
        except Exception as error:  # noqa: BLE001  an unknown cause must neither end the mirror nor hide
            failure = (f"{type(error).__name__}: {error}", False)
        self._note(action, began_s, failure)

    def _note(self, action: Action, began_s: float, failure: tuple[str, bool] | None) -> None:
        with self.changed:
            now_s = time.monotonic()
            if failure:
                mirror_plan.record_failure(self._state, action, now_s, *failure)
            else:
                mirror_plan.record_success(self._state, action, now_s, now_s - began_s)
            self._busy.pop(action.path, None)
            is_behind = bool(self._state.failures)
            turned, self._was_behind = is_behind != self._was_behind, is_behind
            if turned:
                self._reported_s = now_s
            late = mirror_plan.paths_behind(self._listing, self._state)
            self.changed.notify_all()
        if turned:
            send_event({"event": "behind" if is_behind else "recovered", **behind_record(late)})
        if turned and not is_behind:
            tree.delete_discarded(self._wanted.timeout_s)
        self._wake.set()

    def _copy(self, file: LocalFile) -> None:
        local, target = self._wanted.root / file.path, urls.join(self._wanted.url, file.path)
        if file.is_append_only:
            return self._system.upload(local, target)
        fresh = urls.temporary_sibling(target)
        try:
            self._system.upload(local, fresh)
            if scan_file(self._wanted.root, local) != file:
                raise StorageError(
                    f"{local} changed while it was copied; it is copied again when it no longer changes", target
                )
            self._system.rename(fresh, target, overwrite=True)
        except BaseException:
            tree.discard(fresh, self._wanted.timeout_s)
            raise
        return None

    def _commit(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        directory = urls.join(self._wanted.url, folder)
        step = parse_step_name(name)
        written_ns = (self._wanted.root / path).stat().st_mtime_ns
        checkpoints.commit(self._wanted.root / path, directory, step or 0, self._wanted.timeout_s)
        keep = self._wanted.keep_checkpoints or checkpoints.read_retention(self._wanted.root / folder)
        with self.changed:
            committed = self._committed.setdefault(directory, {})
            committed[step or 0] = written_ns
            known = dict(committed)
        if keep:  # after the newer one is committed, so that one always exists
            latest = max(known, key=lambda one: known[one])  # a run may have returned to a lower step
            gone = checkpoints.prune(directory, keep, self._wanted.timeout_s, known=known, latest=latest)
            with self.changed:
                for one in gone:
                    committed.pop(one, None)

    def _resume(self) -> None:
        """Find out what an earlier process of this mirror has copied.

        A file counts as copied if the copy has its length and is not older, by the store's clock.
        """
        before_s = time.time()
        there_s = tree.read_store_clock_s(self._wanted.url, self._wanted.timeout_s)
        is_behind = there_s is not None and there_s > time.time()
        behind_s = there_s - before_s if is_behind and there_s is not None else 0.0  # of this host's clock, at most
        local = {file.path: file for file in scan(self._wanted.root).files}
        try:
            there = list(walk(self._wanted.url, self._wanted.timeout_s))
        except StorageError as error:
            if causes.is_transient(error):
                self._resuming.record_failure(time.monotonic())
                return
            there = []
        with self.changed:
            for entry in there:
                file = local.get(urls.relative(entry.url, self._wanted.url))
                if file and file.length == entry.length and file.modified_ns / 1e9 + behind_s < entry.modified_s:
                    self._state.copied[file.path] = CopiedVersion(file.length, file.modified_ns, file.inode, 0.0, 0.0)
            self._resumed = True


def scan(root: Path) -> Listing:
    """Return the files and complete checkpoints on disk below ``root``; temporary names are left out."""
    files: list[LocalFile] = []
    complete: list[str] = []
    _scan_folder(str(root), "", files, complete)
    return Listing(tuple(files), tuple(complete))


def _scan_folder(folder: str, below: str, files: list[LocalFile], complete: list[str]) -> None:
    """Scan one folder; ``below`` is its name relative to the root, with a slash at its end.

    Fast, since a search has thousands of folders.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:  # deleted during the scan
        return
    has_checkpoints = is_checkpoint_folder(below.rstrip("/"))
    for entry in found:
        if urls.has_temporary_part(entry.name):
            continue
        try:
            if entry.is_dir(follow_symlinks=False):
                if has_checkpoints and parse_step_name(entry.name) is not None:
                    complete.append(below + entry.name)
                else:
                    _scan_folder(entry.path, f"{below}{entry.name}/", files, complete)
            elif entry.is_file():
                facts = entry.stat()
                files.append(LocalFile(below + entry.name, facts.st_size, facts.st_mtime_ns, facts.st_ino))
        except OSError:
            continue


def is_checkpoint_folder(below: str) -> bool:
    """Return True if a folder, relative to the run directory, is the checkpoint folder of the run or of a trial.

    Trials are in ``trials/<id>/``, or under the predecessor's names, ``a=1&b=5/`` or ``generation.0/a=1&b=5/``.
    """
    parts = below.split("/")
    return parts[-1] == CHECKPOINTS and parts[0] not in NO_TRIALS


def scan_file(root: Path, path: Path) -> LocalFile | None:
    """Return one file as it is now; None if it does not exist or is not a regular file."""
    try:
        facts = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    return LocalFile(path.relative_to(root).as_posix(), facts.st_size, facts.st_mtime_ns, facts.st_ino)


def behind_record(late: list[PathBehind]) -> dict[str, Any]:
    """Return the part of a message that lists what is behind."""
    return {
        "behind_count": len(late),
        "behind": [{"path": one.path, "reason": one.reason} for one in late[:_MOST_NAMED]],
    }


_output_lock = threading.Lock()


def send_event(message: dict[str, Any]) -> None:
    """Write one message to the agent as a line of JSON; does nothing if the agent has exited."""
    with _output_lock, contextlib.suppress(OSError, ValueError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Run one mirror until the input ends, the agent exits or SIGTERM arrives; then flush a last time.

    Args:
        arguments: settings as JSON; a file descriptor that becomes readable when the agent has exited (-1: none).
    """
    wanted = MirrorSettings(arguments[0], int(arguments[1]))
    ended = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent handles Ctrl-C
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with contextlib.suppress(OSError):
        os.nice(5)  # lower priority than training
    if wanted.parent_pidfd >= 0:
        threading.Thread(target=_watch, args=(wanted.parent_pidfd, ended), daemon=True).start()
    loop = MirrorLoop(wanted)
    threading.Thread(target=loop.run, daemon=True).start()
    for request in _requests(ended):
        if request["do"] == "stop":
            break
        if request["do"] == "flush":
            is_current = loop.flush(time.monotonic() + request["timeout_s"], ended, request["retry_s"])
            send_event({"event": "flushed", "id": request["id"], "is_current": is_current, **loop.report()})
    is_current = loop.flush(time.monotonic() + wanted.grace_s, threading.Event())
    last = loop.report()
    send_event({"event": "stopped", "is_current": is_current, **last})
    filesystem.kill_all()  # a stopped (SIGSTOP) helper would not notice that this process ends
    os._exit(1 if last["behind_count"] or not is_current else 0)  # a copy may still be stuck


def _requests(ended: threading.Event) -> Iterator[dict[str, Any]]:
    """Yield the agent's messages until the input ends or ``ended`` is set."""
    stdin = sys.stdin.fileno()
    poll = select.poll()
    poll.register(stdin, select.POLLIN | select.POLLHUP)
    rest = b""
    while not ended.is_set():
        if not poll.poll(200):  # ms; setting ``ended`` does not always interrupt the wait
            continue
        data = os.read(stdin, 1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)


def _watch(parent: int, ended: threading.Event) -> None:
    select.select([parent], [], [])
    ended.set()
