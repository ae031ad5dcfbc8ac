"""Reads and lists the recorded runs of a project, and decides which of them are still alive.

Of a running run it also reads the printed output and the reported metrics.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from hopsml.core import processes
from hopsml.core.decoding import MALFORMED, checked
from hopsml.core.states import Lifecycle
from hopsml.errors import PathNotFound, PermissionRefused, StorageError
from hopsml.search.metric import is_batch_metric, name_of
from hopsml.storage import filesystem, left_files, run_logs, tree, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import EXPERIMENTS, RunDir, parse_json_lines

CLOCK_TOLERANCE_S = 60.0  # difference from a driver's or store's clock from which on that one counts
CLOCK_VALID_S = 600.0  # age of a measurement of a store's clock
SILENT_S = 3600.0  # a run without an end and without a new file for so long counts as lost
_LATEST_S = 1e11  # seconds since 1970: in the year 5138; times far beyond have no date
PARALLEL_READS = 8

RUNNING, LOST = Lifecycle.RUNNING, Lifecycle.LOST  # states of a run without status.json


Row = TypeVar("Row")


@dataclass(frozen=True)
class StoredRun:
    """Record of one run as it was read from its run directory; missing parts are empty."""

    directory: RunDir
    run: dict[str, Any]
    status: dict[str, Any] | None
    outputs: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)  # best trial so far of a running search
    driver: dict[str, Any] = field(default_factory=dict)  # newest heartbeat of the driver of a running run
    environment: dict[str, Any] = field(default_factory=dict)
    worker: dict[str, Any] = field(default_factory=dict)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    quiet_s: float = 0.0  # seconds since the last change in its directory

    @property
    def run_id(self) -> str:
        """Name of the run's directory, ``<appId>_<n>``."""
        return self.directory.run_id

    @property
    def state(self) -> str:
        """FINISHED, FAILED or CANCELLED; RUNNING or LOST for a run that has not ended."""
        if self.status is not None:
            return str(self.status.get("state", Lifecycle.FINISHED))
        return infer_unended_state(is_driver_alive(self.run.get("driver_process") or {}), self.quiet_s)

    @property
    def seconds(self) -> float | None:
        """Duration of the run so far, or until its end, in seconds; None if unknown."""
        if self.status is not None:
            return self.status.get("seconds")
        started = self.run.get("started")
        if not started or self.state != RUNNING:
            return None
        now_s, beat_s = time.time(), self.driver.get("time")
        is_beat = isinstance(beat_s, (int, float)) and abs(now_s - beat_s) > CLOCK_TOLERANCE_S
        # By the driver's clock, if it differs from this machine's.
        return max(0.0, float((beat_s if is_beat else now_s) - started))

    @property
    def cause(self) -> str:
        """Reason why the run did not finish, in one line; "" for one that did, or that is running."""
        status = self.status or {}
        if self.state in (Lifecycle.FINISHED, Lifecycle.RUNNING):
            return ""
        text = str(status.get("cause") or status.get("error") or "").strip()
        return text.splitlines()[0] if text else "its driver died" if self.state == Lifecycle.LOST else ""

    @property
    def main_metric(self) -> tuple[str, Any] | None:
        """Name and value of the run's main metric; None if there is none.

        It is the metric that the run was started with, else "metric", else the first number that was returned. For a
        running search it is the best value so far.
        """
        asked = (self.run.get("spec") or {}).get("metric_key") or self.search_settings.get("metric") or ""
        if "value" in self.best:
            return name_of(asked), self.best["value"]
        if asked in self.outputs:
            return asked, self.outputs[asked]
        found = {
            name: value
            for name, value in self.outputs.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        name = name_of("", found)
        return (name, found[name]) if name in found else next(iter(found.items()), None)

    @property
    def search_settings(self) -> dict[str, Any]:
        """Settings of a search; empty for any other run."""
        recorded = self.run.get("search")
        return recorded if isinstance(recorded, dict) else {}


def infer_unended_state(lives: bool | None, quiet_s: float) -> str:
    """Return RUNNING or LOST for a run without ``status.json``.

    Args:
        lives: True if its driver is alive; None where only the driver's own machine can decide that: then ``SILENT_S``
            decides.
        quiet_s: seconds since the last change in its directory.
    """
    if lives is None:
        return RUNNING if quiet_s < SILENT_S else LOST
    return RUNNING if lives else LOST


def is_driver_alive(recorded: Mapping[str, Any]) -> bool | None:
    """Return True if the process that started a run is alive; None if it belongs to another machine or container."""
    namespace = processes.pid_namespace()
    if not namespace or recorded.get("pid_namespace") != namespace:
        return None
    started = processes.start_time_of(int(recorded.get("pid", -1)))
    return started is not None and started == recorded.get("process_started")


def read(directory: RunDir, *, brief: bool = False) -> StoredRun:
    """Return the record of one run; raises PathNotFound if the directory is not a run's.

    Args:
        directory: the run directory.
        brief: read only what a table needs.
    """
    run = directory.read_run()
    status = directory.read_status() or left_files.read_rescued_status(directory.url)
    quiet_s = 0.0
    if status is None:
        quiet_s = _quiet_s(directory, run)
    return StoredRun(
        directory=directory,
        run=run,
        status=status,
        outputs=_optional(directory, directory.outputs_json),
        best=_optional(directory, directory.best_json) if status is None and "search" in run else {},
        driver=_optional(directory, directory.driver_json) if status is None else {},
        environment={} if brief else _optional(directory, directory.environment_json),
        worker={} if brief else _optional(directory, directory.worker_json),
        inputs=[] if brief else directory.read_json_lines(directory.inputs),
        quiet_s=quiet_s,
    )


def _quiet_s(directory: RunDir, run: Mapping[str, Any]) -> float:
    """Return the seconds since the last change in a run's directory.

    This machine's clock decides unless it contradicts the store's: a change in its future, or, for a driver elsewhere,
    one so old that the run would count as lost.
    """
    changed_s = last_change_s(directory)
    quiet_s = time.time() - changed_s
    is_elsewhere = is_driver_alive(run.get("driver_process") or {}) is None
    if quiet_s < -CLOCK_TOLERANCE_S or (quiet_s >= SILENT_S and is_elsewhere):
        quiet_s += _store_ahead_s(directory)
    return max(0.0, quiet_s)


_stores_ahead: dict[str, tuple[float, float]] = {}  # by store: seconds, and monotonic time of the measurement


def _store_ahead_s(directory: RunDir) -> float:
    """Return the store's clock minus this machine's, in seconds; 0 if it is not ours to write to."""
    store = urls.scheme_and_authority(directory.url)
    ahead_s, measured = _stores_ahead.get(store, (0.0, 0.0))
    if not measured or time.monotonic() - measured > CLOCK_VALID_S:
        now_s = tree.read_store_clock_s(directory.url)
        ahead_s = 0.0 if now_s is None else now_s - time.time()
        _stores_ahead[store] = ahead_s, time.monotonic()
    return ahead_s


def last_change_s(directory: RunDir) -> float:
    """Return the time of the last change in a run's directory, in seconds since 1970.

    Checkpoints and exports are not searched.
    """
    latest = 0.0
    for folder in (directory.url, directory.logs, directory.events):
        try:
            entries = filesystem.for_url(folder).list_dir(folder)
        except PathNotFound:
            continue
        latest = max([latest, *(entry.modified_s for entry in entries)])
    return latest


def recent_runs(project_url: str, count: int | None) -> list[StoredRun]:
    """Return the runs of a project, newest first.

    Entries that are not runs, or cannot be read, are left out.

    Args:
        project_url: URL of the project.
        count: greatest number of runs; None: all.

    Raises:
        StorageError: the project cannot be listed, or a run directory cannot be reached.
    """
    entries = run_folders(project_url)
    told = all(entry.modified_s for entry in entries)  # folders of an object store have no time
    found = read_runs(entries if count is None or not told else entries[: 2 * count])
    return sorted(found, key=start_time_s, reverse=True)[:count]


def run_folders(project_url: str) -> list[filesystem.FileStatus]:
    """Return the run directories of a project, the one changed last first; raises StorageError.

    A directory's time is that of its latest entry: accurate enough for a selection.
    """
    experiments = urls.join(project_url, EXPERIMENTS)
    try:
        entries = [entry for entry in filesystem.for_url(experiments).list_dir(experiments) if entry.is_dir]
    except PathNotFound:
        return []
    return sorted(entries, key=lambda entry: entry.modified_s, reverse=True)


def read_runs(entries: Sequence[filesystem.FileStatus]) -> list[StoredRun]:
    """Return the runs in these directories, as far as they are runs and can be read; raises StorageError."""
    with ThreadPoolExecutor(PARALLEL_READS, thread_name_prefix="hopsml-read-run") as pool:
        return [run for run in pool.map(lambda entry: read_summary(entry.url, _checked), entries) if run is not None]


def start_time_s(run: StoredRun) -> float:
    """Return the start of a run in seconds since 1970; 0 if it is not recorded."""
    return float(run.run.get("started") or 0.0)


def read_summary(url: str, summarize: Callable[[StoredRun], Row]) -> Row | None:
    """Return what ``summarize`` makes of the run in a directory; None if it is not a run, or cannot be read.

    One malformed record must not hide all other runs.

    Raises:
        StorageError: the directory cannot be reached.
    """
    directory = RunDir(url)
    try:
        return summarize(read(directory, brief=True))
    except (PathNotFound, PermissionRefused):  # no run, or a private one of another user
        return None
    except StorageError:
        if filesystem.exists(directory.run_json):  # a record that is not JSON; other errors are raised to the caller
            return None
        raise
    except MALFORMED:
        return None


def _checked(run: StoredRun) -> StoredRun:
    """Return the run; raises one of ``MALFORMED`` if a table cannot contain it."""
    _ = run.state, run.cause, run.main_metric
    for number in (run.run.get("started"), run.seconds):
        if number is not None and (not isinstance(number, int | float) or not abs(number) < _LATEST_S):
            raise ValueError(f"{number!r:.80} is no time of a run")
    return run


def _optional(directory: RunDir, url: str) -> dict[str, Any]:
    try:
        return directory.read_json(url)
    except PathNotFound:
        return {}


CHUNK = 1 << 20
LONGEST_LINE = 8 << 20  # most characters of a report
TAIL = 64 << 10  # bytes at the file's end that are searched for the last report
_decode_lines = checked(msgspec.json.Decoder(dict[str, Any]).decode_lines)


def empty_log_note(directory: RunDir, rank: int, generation: int | None = None) -> str:
    """Return a sentence on the logs of a rank that have no content; "" if one has. Raises StorageError."""
    logs = run_logs.list_logs(directory)
    own = [log for log in logs if log.rank == rank and generation in (None, log.generation)]
    if any(log.bytes for log in own):
        return ""
    others = sorted({log.rank for log in logs if log.rank not in (rank, None) and log.bytes})
    return (
        f"rank {rank} of run {directory.run_id} has printed nothing: {', '.join(log.url for log in own)} "
        f"{'is' if len(own) == 1 else 'are'} empty (state of the run: {read(directory, brief=True).state}); "
        + (f"output of other ranks: {', '.join(map(str, others))}" if others else "no rank has printed anything")
    )


class TextReader:
    """Incremental reader of a text file that others append to; the file need not exist yet.

    ``offset`` is the byte at which reading begins.
    """

    def __init__(self, url: str, offset: int = 0) -> None:
        self.url, self._offset = url, offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read_new_text(self) -> Iterator[str]:
        """Return the text added since the last call, in pieces; raises StorageError."""
        for piece in run_logs.read_from_offset(self.url, self._offset, CHUNK):
            self._offset += len(piece)
            yield self._decoder.decode(piece)


class OutputReader:
    """Incremental reader of the printed output of one rank, generation after generation."""

    def __init__(self, directory: RunDir, rank: int) -> None:
        self._directory, self._rank = directory, rank
        self._file: TextReader | None = None
        self._generation = -1

    def read_new_text(self) -> Iterator[str]:
        """Return the text added since the last call, in pieces; raises StorageError."""
        for log in run_logs.logs_of_rank(self._directory, self._rank):
            if log.generation < self._generation:
                continue
            if log.generation > self._generation:
                self._generation, self._file = log.generation, TextReader(log.url)
            if self._file is not None:
                yield from self._file.read_new_text()


class ReportReader:
    """Incremental reader of a JSON lines file that other processes append to."""

    def __init__(self, url: str) -> None:
        self._file, self._partial = TextReader(url), ""
        self._has_reports = True

    def read_new_reports(self) -> Iterator[dict[str, Any]]:
        """Yield the reports that were appended since the last call."""
        for piece in self._file.read_new_text() if self._has_reports else ():
            complete, _, self._partial = (self._partial + piece).rpartition("\n")
            # not written by hopsml: reading a sparse file to its end would take hours
            if len(self._partial) > LONGEST_LINE:
                self._has_reports, self._partial = False, ""
                return
            try:
                yield from _decode_lines(complete)
            # a NaN, which Python writes but JSON does not allow; or invalid JSON
            except msgspec.MsgspecError:
                yield from parse_json_lines(complete)


def last_report(directory: RunDir) -> dict[str, Any]:
    """Return the newest line of ``metrics.jsonl``; empty if nothing was reported."""
    reports = _last_reports(directory)
    return reports[-1] if reports else {}


def newest_values(directory: RunDir) -> dict[str, Any]:
    """Return the newest value of each metric among the last reports, those within epochs after all others."""
    values = {name: value for report in _last_reports(directory) for name, value in report.items()}
    return {name: values[name] for name in sorted(values, key=is_batch_metric) if name not in ("step", "time")}


def _last_reports(directory: RunDir) -> list[dict[str, Any]]:
    """Return the reports at the end of ``metrics.jsonl``, oldest first."""
    system = for_url(directory.metrics)
    try:
        length = system.status(directory.metrics).length
        data = system.read_range(directory.metrics, max(0, length - TAIL), TAIL)
    except PathNotFound:
        return []
    return parse_json_lines(data.decode(errors="replace"))
