"""End of a run: what it promised to store, whether that is stored, its final state, and its last records.

A run promises its result, its final state, the output of its workers, the checkpoints that its function requested, and
the other files that its function saved. A run that has not stored all of them is not FINISHED: exit status, YARN's final
status, ``status.json`` and what schedulers show follow from ``decide``.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopsml.cluster.driver.run_state import UnstoredFiles
from hopsml.cluster.shared.plain import as_json
from hopsml.cluster.shared.worker_events import CHECKPOINTS
from hopsml.core import states
from hopsml.core.newer_python import StrEnum
from hopsml.core.states import Lifecycle
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import (
    ArgumentTypeError,
    HopsmlError,
    PathExists,
    PathNotFound,
    QuotaExceeded,
    ResultsNotStored,
    RunCancelled,
)
from hopsml.storage import backoff, left_files
from hopsml.storage.run_dir import SYSTEM_METRICS, RunDir, to_json

NOT_STORED = "results could not be stored"  # beginning of the cause of such a run


class Kind(StrEnum):
    """Kind of what a run stores, as text for users."""

    RESULT = "result"
    STATE = "final state"
    CHECKPOINTS = "checkpoint"
    LOGS = "log"
    FILES = "file"


PROMISED = frozenset(Kind)
# Profiles were requested by somebody else; the record of code and environment never fails a run.
_UNPROMISED = ("profiles", "code", "worker.json")
_RECORDS = {  # records without which a run has not stored what it promised
    ".outputs.json": Kind.RESULT,
    ".summary.json": Kind.RESULT,
    "trials.parquet": Kind.RESULT,
    "the search's own records": Kind.RESULT,
    "status.json": Kind.STATE,
}


@dataclass(frozen=True)
class Storing:
    """What is known of the storing of a run's files at its end.

    Attributes:
        stored: Kinds of which everything is stored, as far as is known.
        lost: Number of files of each kind that are not stored.
        reason: Why the first of them is not stored, with the remedy.
        left: Hosts and paths of local copies.
    """

    stored: Collection[Kind] = PROMISED
    lost: Mapping[Kind, int] = field(default_factory=dict)
    reason: str = ""
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunOutcome:
    """Final state of a run, its cause ("" if it finished) and the exit status of a driver that ends with it."""

    state: Lifecycle
    cause: str = ""
    exit_status: int = 0


def decide(promised: Collection[Kind], storing: Storing, ended_as: Lifecycle, is_cancelled: bool = False) -> RunOutcome:
    """Return how a run ends.

    Args:
        promised: Kinds that it promised to store.
        storing: What is stored and what is lost.
        ended_as: State of its training: FINISHED, FAILED or CANCELLED. Only FINISHED depends on what is stored.
        is_cancelled: True if a user cancelled it while storing was being retried.
    """
    if ended_as is not Lifecycle.FINISHED:
        return RunOutcome(ended_as, "", 130 if ended_as is Lifecycle.CANCELLED else 1)
    missing = {kind: storing.lost.get(kind, 1) for kind in Kind if kind in promised and _is_missing(kind, storing)}
    if not missing:
        return RunOutcome(Lifecycle.FINISHED)
    cause = f"{NOT_STORED}: {in_words(missing)} missing" + (f": {storing.reason}" if storing.reason else "")
    if is_cancelled:
        return RunOutcome(Lifecycle.CANCELLED, f"cancelled while storing was being retried: {cause}", 130)
    return RunOutcome(Lifecycle.FAILED, cause, 1)


def _is_missing(kind: Kind, storing: Storing) -> bool:
    return kind not in storing.stored or storing.lost.get(kind, 0) > 0


def in_words(lost: Mapping[Kind, int]) -> str:
    """Return numbers of files by kind as text: "the result, 2 checkpoints and 1 log are"."""
    parts = [
        f"the {kind}" if kind in (Kind.RESULT, Kind.STATE) else f"{count} {kind}{'s' if count > 1 else ''}"
        for kind, count in lost.items()
    ]
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    is_one = len(lost) == 1 and (next(iter(lost.values())) == 1 or next(iter(lost)) in (Kind.RESULT, Kind.STATE))
    return f"{listed} {'is' if is_one else 'are'}"


def storing_of(behind: Mapping[int, UnstoredFiles], unrecorded: Mapping[str, str], left: str = "") -> Storing:
    """Return what is lost of a run.

    Args:
        behind: Files of its workers that are not stored, by rank.
        unrecorded: Records that could not be written, with the reasons.
        left: Host and path of local copies of the records; "" if there are none.
    """
    lost: Counter[Kind] = Counter()
    reasons: dict[Kind, str] = {}
    for files in behind.values():
        named = 0
        for text in files.texts:
            named += 1
            if (kind := kind_of(text.partition(": ")[0])) is not None:
                lost[kind] += 1
                reasons.setdefault(kind, text)
        if files.count > named:
            lost[Kind.FILES] += files.count - named
    for name, reason in unrecorded.items():
        if (record := _RECORDS.get(name)) is not None:
            lost[record] += 1
            reasons.setdefault(record, reason)
    copies = [files.left for _, files in sorted(behind.items()) if files.left]
    stored = PROMISED - lost.keys()
    reason = next((reasons[kind] for kind in Kind if kind in reasons), "")
    return Storing(stored, lost, reason, (*copies, *([left] if left else [])))


def kind_of(path: str) -> Kind | None:
    """Return the kind of a file by its path; None for one that a run does not promise to store."""
    parts = path.split("/")
    if parts[0] in _UNPROMISED or path.endswith(SYSTEM_METRICS):
        return None
    if CHECKPOINTS in parts:
        return Kind.CHECKPOINTS
    return Kind.LOGS if path.endswith((".log", ".out", ".err")) else Kind.FILES


PATIENCE_S = 15.0  # for the records of a run that has not finished, whose report must not be delayed for long
_FIRST_S, _LONGEST_S = 0.5, 4.0


def status_record(run_id: str, state: str, started_s: float | None, error: str = "", **more: Any) -> dict[str, Any]:
    """Return ``status.json`` of a run that ends now; ``started_s``: seconds since the epoch, None if unknown."""
    now = time.time()
    return {
        "run_id": run_id,
        "state": state,
        "ended": now,
        "seconds": None if started_s is None else round(now - started_s, 3),
        "error": as_json(error),
        "workers": [],
        "not_on_shared_storage": {},
        **more,
    }


@dataclass
class RecordWriter:
    """Writer of the last records of one run, search or launch; writing is retried while the store refuses it.

    Attributes:
        directory: The run directory.
        tell: Called with notes for the user, at growing intervals while writing fails.
        cut: Event that ends the retries early.
        while_waiting: Called before each retry, for a sign of life; it raises nothing.
    """

    directory: RunDir
    tell: Callable[[str], None]
    cut: threading.Event = field(default_factory=threading.Event)
    while_waiting: Callable[[], object] = lambda: None

    def write(self, records: Mapping[str, Callable[[], object]], patience_s: float | None = None) -> dict[str, str]:
        """Call functions that write records, in order; return those that failed, with reasons. Raises nothing.

        Args:
            records: Functions that write a record, by the record's name.
            patience_s: Seconds for which writing is retried; None: ``HOPSML_STORAGE_RETRY_S``.
        """
        patience_s = SETTINGS.storage_retry_s if patience_s is None else patience_s
        waiting, failed = dict(records), dict[str, str]()
        began, rounds, reminder = time.monotonic(), 0, backoff.Reminder()
        while waiting:
            passing: dict[str, Exception] = {}
            for name, record in waiting.items():
                try:
                    record()
                except (PathExists, PathNotFound) as error:  # the run directory was changed by somebody
                    failed[name] = str(error)
                except OSError as error:
                    passing[name] = error
                except Exception as error:  # noqa: BLE001 the run has ended, whether or not its records can be written
                    failed[name] = f"{type(error).__name__}: {error}"
            rounds += 1
            if rounds > 1 and (written := [name for name in waiting if name not in passing and name not in failed]):
                self.tell(f"{_named(written)} could be written at last")
            waiting = {name: waiting[name] for name in passing}
            pause_s, now = backoff.pause_s(rounds, _FIRST_S, _LONGEST_S), time.monotonic()
            if not waiting or now + pause_s > began + patience_s or self.cut.is_set():
                return {**failed, **{name: _reason(error) for name, error in passing.items()}}
            if reminder.reschedule_if_due(now):
                first, limit = next(iter(passing.values())), f"{patience_s:g} s ({Settings.storage_retry_s.name})"
                since = f" for {backoff.duration_text(now - began)}" if rounds > 1 else ""
                self.tell(f"{_named(waiting)} cannot be written{since}; retrying for {limit}: {_reason(first)}")
            self.cut.wait(pause_s)
            self.while_waiting()
        return failed

    def close(
        self,
        records: Mapping[str, Callable[[], object]],
        status: Callable[[BaseException | None, Storing], Mapping[str, Any]],
        error: BaseException | None,
        *,
        behind: Mapping[int, UnstoredFiles] | None = None,
        outputs: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, str], BaseException | None]:
        """Write the records, decide how the run ends, and write ``status.json`` last. Raises nothing.

        Args:
            records: Functions that write a record each, by the record's name.
            status: Returns the content of ``status.json`` for the error with which the run ends, None if it finished.
            error: Error of the training.
            behind: Files of workers that are not stored, by rank.
            outputs: Content of ``.outputs.json``, left on this host if it cannot be stored.

        Returns:
            The records that could not be written, with reasons, and the error with which the run ends.
        """
        patience_s = None if error is None else min(PATIENCE_S, SETTINGS.storage_retry_s)
        unrecorded = self.write(records, patience_s)
        copies: dict[str, Mapping[str, Any]] = {}
        if outputs is not None and ".outputs.json" in unrecorded:
            copies[".outputs.json"] = outputs
        left = self._leave(copies)
        storing = storing_of(behind or {}, unrecorded, left)
        final = self.error_of(storing, error)
        content = status(final, storing)
        may_retry_s = min(PATIENCE_S, SETTINGS.storage_retry_s) if final is not None else None
        late = self.write({"status.json": lambda: self.directory.write_status_once(content)}, may_retry_s)
        if not late:
            return unrecorded, final
        unrecorded |= late
        is_lost = storing_of(behind or {}, unrecorded, left)
        final = self.error_of(is_lost, error)
        left = self._leave({**copies, left_files.STATUS: status(final, is_lost)})
        return unrecorded, self.error_of(storing_of(behind or {}, unrecorded, left), error)

    def error_of(self, storing: Storing, error: BaseException | None) -> BaseException | None:
        """Return the error with which a run ends: that of its training, or that its results are not stored."""
        ended = decide(PROMISED, storing, states.final_state(error), self.cut.is_set())
        if error is not None or ended.state is Lifecycle.FINISHED:
            return error
        if storing.left:
            remedy = f"Copy them to {self.directory.url} from {', '.join(storing.left)}, and remove these copies"
        elif os.strerror(errno.ENOSPC) in storing.reason:  # of either: a worker's checkpoints are written here first
            remedy = f"Free space in {self.directory.url} and on the workers' disks, and start the run again"
        else:
            remedy = f"Make {self.directory.url} writable, and start the run again"
        if Kind.RESULT in storing.stored:
            remedy = f"The result is stored (.outputs.json). {remedy}"
        text = f"{ended.cause}. {remedy}; {Settings.storage_retry_s.name} is the time for which storing is retried"
        kind = RunCancelled if ended.state is Lifecycle.CANCELLED else ResultsNotStored
        return kind(text, self.directory.url)

    def _leave(self, records: Mapping[str, Mapping[str, Any]]) -> str:
        """Leave records on this host; return host and path, "" if there are none or that fails, which is noted."""
        if not records:
            return ""
        try:
            return left_files.rescue_records(
                self.directory.url, {name: to_json(content) for name, content in records.items()}
            )
        except (OSError, HopsmlError, ArgumentTypeError) as error:
            self.tell(f"{_named(records)} could not be left on this host either: {error}")
            return ""


_IN_WORDS = {
    ".outputs.json": "the result",
    "status.json": "the final state",
    "gang.jsonl": "the log of its group's events",
    "trials.parquet": "the table of trials",
}


def unrecorded_text(unrecorded: Mapping[str, str], with_reason: bool = False) -> str:
    """Return a sentence on missing records and the consequences.

    Args:
        unrecorded: names of the records with the reasons; not empty.
        with_reason: add the reason and its remedy, where they have not been reported before.
    """
    text = f"{_named(unrecorded)} could not be written"
    if with_reason:
        text += f": {next(iter(unrecorded.values()))}"
    if ".outputs.json" in unrecorded:
        text += "; only this program has what the function returned (result.value)"
    if "status.json" in unrecorded:
        text += "; `hopsml runs ls` cannot show how the run ended"
    return text


def _named(names: Iterable[str]) -> str:
    return " and ".join(_IN_WORDS.get(name, name) for name in names)


def _reason(error: Exception) -> str:
    """Return why a record could not be written; of a full disk or quota without the file's own name."""
    path = getattr(error, "path", "")
    cause = str(error).partition(f"{path}: ")[2]
    return f"{path.rpartition('/')[0]}: {cause}" if isinstance(error, QuotaExceeded) and path and cause else str(error)
