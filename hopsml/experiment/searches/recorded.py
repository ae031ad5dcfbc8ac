"""Files of a search: the event log and progress files, written; the call and the trials, read from its directory.

``SearchWriter`` appends to the event log at once, and writes progress files on a thread. ``SearchReader`` is for any
process that can read the directory, during the search and afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from hopsml.cluster.driver import secret_extraction
from hopsml.cluster.driver.capture import Captured
from hopsml.core import decoding, moved_names
from hopsml.core.callbacks import nonblocking_logger
from hopsml.errors import ArgumentError, PathExists, PathNotFound, StorageError
from hopsml.experiment import takeover
from hopsml.experiment.searches.call import VERSION, SearchCall, TrialNames, maggy_id
from hopsml.search.contract import Config, End, Outcome, Searcher, Suggestion, Wait
from hopsml.search.dispatch import journal
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.ledger import TrialPhase, TrialState, row
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.metric import finite_or_none, name_of
from hopsml.search.space.parameter import line_parser
from hopsml.search.space.space import Searchspace
from hopsml.storage import filesystem, segments, urls
from hopsml.storage.backoff import Outage, Reminder, duration_text
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir, to_json
from hopsml.storage.segments import SegmentReader
from hopsml.tracking import catalog, provenance, record

log = nonblocking_logger("hopsml.search")

FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 10.0  # of the event log, for which the search waits
LOOK_S = 0.2  # between two checks, during a wait, that the search shall continue
EVERY_S = 0.5  # between two versions of a file, at least
SHARE = 0.05  # largest share of time for writing such files


class EventLog(Protocol):
    """Interface of the event log, to which lines are appended; ``segments.SegmentWriter`` implements it."""

    def add(self, lines: Sequence[str]) -> None:
        """Append the lines durably. Raises StorageError."""


class SearchWriter:
    """Writer of a search's files; ``append_events`` is for the session's thread and blocks, the rest is for any thread."""

    def __init__(self, journal: EventLog, note: Callable[[str], None]) -> None:
        """Start the thread; ``note`` is called with notes for people."""
        self._journal, self._note = journal, note
        self._tasks: deque[Callable[[], None]] = deque()
        self._files: dict[str, Callable[[], bytes]] = {}
        self._next_at: dict[str, float] = {}
        self._outage = Outage()  # of storage, as observed by these files
        self._news = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._write_files, name="hopsml-search-files", daemon=True)
        self._thread.start()

    def append_events(self, lines: Sequence[str], go_on: Callable[[], bool]) -> None:
        """Append lines to the event log; retry failures of storage while ``go_on()``, then raise StorageError."""
        outage, reminder = Outage(FIRST_RETRY_S, LONGEST_RETRY_S), Reminder()
        while lines:
            try:
                self._journal.add(lines)
            except StorageError as error:
                outage.record_failure(now := time.monotonic())
                if reminder.reschedule_if_due(now):
                    lasted_s = reminder.lasted_s(now)
                    since = f" for {duration_text(lasted_s)}, {outage.failures} attempts" if lasted_s else ""
                    self._note(f"the search waits, since its event log cannot be written{since}; retrying: {error}")
                while go_on() and not outage.may_try(time.monotonic()):
                    time.sleep(LOOK_S)
                if not go_on():
                    raise
            else:
                if outage.record_success():
                    self._note("the search continues, since its event log is written again")
                return

    def queue_file(self, url: str, content: Callable[[], bytes]) -> None:
        """Queue a progress file; a newer version replaces one that is not written yet."""
        with self._news:
            self._files[url] = content
            self._news.notify()

    def queue_task(self, task: Callable[[], None]) -> None:
        """Call a task on the thread, in order, before ``close`` returns."""
        with self._news:
            self._tasks.append(task)
            self._news.notify()

    def close(self) -> None:
        """Write the newest version of each file, and end the thread."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join()

    # ------------------------------------------------------------------------------------------ the thread

    def _write_files(self) -> None:
        while True:
            with self._news:
                while (url := self._due()) is None and not self._tasks and not self._closing:
                    self._news.wait(self._patience_s())
                task = self._tasks.popleft() if self._tasks else None
                if url is None and task is None:
                    return
                content = self._files.pop(url) if url is not None else None
            if task is not None:
                task()
            if url is not None and content is not None:
                self._write(url, content)

    def _due(self) -> str | None:
        now = time.monotonic()
        return next((url for url in self._files if self._closing or self._at(url) <= now), None)

    def _at(self, url: str) -> float:
        """Return when the next version of a file may be written, in monotonic seconds."""
        return max(self._next_at.get(url, 0.0), self._outage.retry_at or 0.0)

    def _patience_s(self) -> float | None:
        times = [self._at(url) for url in self._files]
        return max(0.001, min(times) - time.monotonic()) if times else None

    def _write(self, url: str, content: Callable[[], bytes]) -> None:
        started_at = time.monotonic()
        try:
            for_url(url).write_bytes(url, content())
        except Exception:  # no data is lost, as the event log has it
            if self._outage.record_failure(time.monotonic()):
                log.warning("%s could not be written; newer ones are written later", url, exc_info=True)
        else:
            if self._outage.record_success():
                log.warning("the files with the progress of the search are written again: %s", url)
        now = time.monotonic()
        self._next_at[url] = now + max(EVERY_S, (now - started_at) / SHARE)


JOURNAL, PICKLE = "journal", "search.pickle"
RESTART = "start its script again instead"  # what to do about a record that cannot be read
_SESSION, _LEARNED = "session", "learn"  # keys of lines in the event log
Learned = tuple[Config, Outcome]


def load_call(directory: RunDir) -> SearchCall:
    """Return the call that started a search, with searcher and stopper in their initial state.

    Raises:
        ArgumentError: The run is not a search, was recorded by a newer hopsml, its record is malformed, or a file differs
            from the record.
    """
    with decoding.understood(f"the records of search {directory.run_id} are", RESTART):
        recorded = directory.read_run()
        content = _checked_pickle(directory, recorded.get("search"))
        shipped = record.read_shipped_function(directory, recorded)
        environment = record.given_environment(recorded["spec"]["environment"], os.environ)
        what = f"search {directory.run_id}"
        secrets = secret_extraction.supply_secrets_again(recorded.get("secrets", ()), {}, os.environ, what)
        arguments = recorded["arguments"]
        captured = Captured(
            name=recorded["function"],
            payload=shipped.payload,
            preload=tuple(recorded["spec"]["preload"]),
            own_imports=tuple(recorded["own_imports"]),
            source=recorded["source"],
            sha256=shipped.sha256,
            code_sha256=recorded["code_sha256"],
            secrets=secrets,
        )
    call: SearchCall = moved_names.loads(content)  # whose errors are those of the user's classes
    call.args, call.run, call.captured = arguments, msgspec.structs.replace(call.run, environment=environment), captured
    return call


def _checked_pickle(directory: RunDir, recorded: Any) -> bytes:
    """Return the content of ``code/search.pickle`` after checking it, without unpickling."""
    if not isinstance(recorded, dict):
        raise ArgumentError(f"run {directory.run_id} is not a search; use experiment.resume to continue a training")
    if recorded.get("version") != VERSION:
        raise ArgumentError(
            f"search {directory.run_id} was recorded in version {recorded.get('version')!r}, and this hopsml reads "
            f"{VERSION}: continue it with the version of hopsml that started it"
        )
    url = urls.join(directory.code, PICKLE)
    if not filesystem.exists(url):
        raise ArgumentError(
            f"search {directory.run_id} ended before it was recorded, since there is no {url}; start it again"
        )
    content = filesystem.for_url(url).read_bytes(url)
    if hashlib.sha256(content).hexdigest() != recorded.get("pickle_sha256"):
        raise ArgumentError(
            f"{url} differs from the record of search {directory.run_id}: it was changed or damaged; start a new search"
        )
    return content


def read_event_log(directory: RunDir) -> list[str]:
    """Return the lines of the search's event log, of all its sessions, in order. Raises StorageError."""
    return [
        line for lines in segments.read_lines_by_writer(urls.join(directory.url, JOURNAL)).values() for line in lines
    ]


def opening_lines(known: Iterable[Learned], space: Searchspace) -> list[str]:
    """Return the first lines of a session: header, writing process, and trials of other searches to learn from."""
    learned = [
        [_LEARNED, space.encode(config), recorded_outcome.end.value, recorded_outcome.score, recorded_outcome.step]
        for config, recorded_outcome in known
    ]
    return [journal.version_line(), *map(json.dumps, [[_SESSION, provenance.process_identity()], *learned])]


def search_events(lines: Iterable[str]) -> list[str]:
    """Return an event log's lines without those of ``opening_lines`` that are no events of the search itself."""
    return journal.separate_entries(lines, _SESSION, _LEARNED)[1]


@contextlib.contextmanager
def right_to_continue(directory: RunDir, lines: list[str]) -> Iterator[None]:
    """Context manager for the exclusive right to continue a search after the sessions in these lines.

    The right is released if the block fails, and taken over from a process of this machine that has exited.

    Raises:
        ArgumentError: Another process has it.
        StorageError: The right cannot be read or written.
    """
    url = urls.join(directory.url, f"continued-{len(_sessions(lines))}.json")
    system, holding = filesystem.for_url(url), to_json({"process": provenance.process_identity()})
    try:
        system.write_bytes(url, holding, overwrite=False)
    except PathExists:
        holder = directory.read_json(url).get("process") or {}
        if catalog.is_driver_alive(holder) is not False:
            raise ArgumentError(
                f"search {directory.run_id} is already continued by process {holder.get('pid')} on "
                f"{holder.get('host')}; wait for its end, or remove {url} if that process no longer exists"
            ) from None
        system.write_bytes(url, holding)
    try:
        yield
    except BaseException:
        system.delete(url)
        raise


def _sessions(lines: list[str]) -> list[dict[str, Any]]:
    with journal.readable():
        return [dict(who) for _, who in journal.separate_entries(lines, _SESSION)[0]]


def check_is_over(directory: RunDir, lines: list[str]) -> None:
    """Raise ArgumentError if the driver of the last session still runs."""
    sessions = _sessions(lines)
    if not sessions:
        return
    who = sessions[-1]
    # A process on this machine may be stopped (Ctrl-Z) or lack access to storage: then it gives no sign of life.
    here = catalog.is_driver_alive(who) if who != provenance.process_identity() else None
    if here or (here is None and takeover.driver_lives(directory, who)):
        raise ArgumentError(
            f"search {directory.run_id} is running in process {sessions[-1].get('pid')} on "
            f"{sessions[-1].get('host')}; cancel it first, or wait for its end"
        )


def replay(call: SearchCall, spec: SearchSpec, lines: list[str]) -> tuple[Dispatch, TrialNames]:
    """Return the state of the search from its event log, and the names of its trials."""
    with journal.readable():
        for _, config, end, score, step in journal.separate_entries(lines, _LEARNED)[0]:
            call.searcher.learn(call.space.decode(config), Outcome(End(end), score, step))
    found: list[Dispatch] = []
    names = TrialNames(lambda number: found[0].ledger.trials[number].config, call.name_of or maggy_id)
    found.append(journal.replay(names.restore_from(search_events(lines)), spec, call.searcher, call.stopper))
    return found[0], names


def complete_finished_trials(dispatch: Dispatch, names: TrialNames, trials_url: str) -> int:
    """Complete trials that returned without the failed driver's knowledge, from their records; return how many."""
    count = 0
    for trial in dispatch.ledger.trials:
        name = names.assigned_name(trial.number)
        if trial.phase is not TrialPhase.OVER and name and (found := _finished(urls.join(trials_url, name), trial)):
            attempt, value, outputs, seconds = found
            if trial.phase is not TrialPhase.RUNNING:
                dispatch.ask_tell.record_begin(trial, attempt)
            dispatch.ask_tell.end(trial, End.COMPLETED, value, outputs, "", seconds)
            count += 1
    return count


def _finished(folder: str, trial: TrialState) -> tuple[int, float | None, Any, float] | None:
    """Return attempt, value, outputs, seconds of a trial that has returned, from ``trial.json``; None for others."""
    record = _read(urls.join(folder, "trial.json"))
    if record.get("status") != "FINALIZED" or record.get("number") != trial.number:
        return None
    outputs = _read(urls.join(folder, ".outputs.json"))
    outputs.pop("log", None)
    seconds = float(record.get("duration") or 0.0) / 1000
    return int(record["attempt"]), finite_or_none(record.get("final_metric")), outputs, seconds


def _read(url: str) -> dict[str, Any]:
    """Return a JSON object; an empty one if the file does not exist or cannot be parsed."""
    try:
        found = json.loads(filesystem.read_record(url))
    except (PathNotFound, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_parse = line_parser(())


@dataclass(frozen=True)
class Report:
    """Report of the searched metric by a trial: the trial's name and number, step and value."""

    trial: str
    number: int
    step: int
    value: float


class SearchReader:
    """Reader of a search's event log; ``read_new_reports`` reads new lines. Nothing is unpickled and nothing is written."""

    def __init__(self, directory: RunDir, recorded: dict[str, Any]) -> None:
        """Create it without reading; ``recorded``: the description of the search in ``run.json``."""
        self.directory, self._recorded = directory, recorded
        self.direction = _direction(recorded)
        self.metric = name_of(str(recorded.get("metric") or ""))
        self.distributed = bool(recorded.get("distributed"))
        self._journal = SegmentReader(urls.join(directory.url, JOURNAL))
        self._names = TrialNames(lambda number: {}, maggy_id)
        self._dispatch = Dispatch(SearchSpec(None, self.direction), SilentSearcher(Searchspace()))

    def read_new_reports(self) -> list[Report]:
        """Return the values that trials have reported since the last call, in order.

        Raises:
            StorageError: The event log cannot be read.
            ArgumentError: A line of it is no event.
        """
        reports = []
        for line in self._names.restore_from(search_events(self._journal.read_new_lines())):
            with journal.readable():
                fact = _parse(line)
                if not isinstance(fact, list):  # a snapshot, whose events have been read one by one
                    continue
                self._dispatch.repeat(fact)
                if fact[0] == "report":
                    reports.append(Report(self._names.assigned_name(fact[1]), fact[1], fact[2], fact[3]))
        return reports

    @property
    def planned_count(self) -> int | None:
        """Number of trials that the search will have; None if it is not known."""
        total = self._recorded.get("total")
        return None if total is None else int(total) + self._dispatch.ask_tell.extra

    def counts(self) -> dict[str, int]:
        """Return the numbers of trials by state: waiting, running, paused, completed, stopped, failed."""
        return self._dispatch.ledger.counts()

    @property
    def ended_count(self) -> int:
        """Number of trials that have ended, in any way."""
        return self._dispatch.ledger.ended_count

    def best(self) -> dict[str, Any] | None:
        """Return number, id, value and configuration of the best trial that has ended; None if there is none."""
        best = self._dispatch.ledger.best
        return None if best is None else self._part(row(best), "number", "value", "config")

    def running(self) -> list[dict[str, Any]]:
        """Return the trials that have begun and not ended, with their last report."""
        placed = self._dispatch.ledger.placed.values()
        return [self._part(row(trial), "number", "step", "value", "config") for trial in placed]

    def trials(self) -> list[dict[str, Any]]:
        """Return all trials by number: the rows of the search's table, each with its ``trial_id``.

        ``resumed_from`` is the number of the trial (it may be the same one) from whose checkpoint it last continued, or
        None.
        """
        return [
            {**row(t), "trial_id": self._names.assigned_name(t.number), "resumed_from": t.resume_from}
            for t in self._dispatch.ledger.trials
        ]

    def _part(self, facts: dict[str, Any], *names: str) -> dict[str, Any]:
        return {"trial_id": self._names.assigned_name(facts["number"]), **{name: facts[name] for name in names}}

    def folder_of(self, trial: str) -> str:
        """Return the URL of the folder with the files of a trial, by its id."""
        return urls.join(self.directory.url, self._recorded.get("folder", "trials"), trial)

    def output(self) -> Iterator[bytes]:
        """Yield what the trials have printed, by their numbers, each after a line with the trial's name."""
        for trial in self._dispatch.ledger.trials:
            if trial.begun or trial.phase is TrialPhase.OVER:
                name = self._names.assigned_name(trial.number)
                for log, content in _printed(self.folder_of(name)):
                    yield f"==> trial {trial.number}, {name}, {trial.where}: {log} <==\n".encode()
                    yield content if content.endswith(b"\n") else content + b"\n"


def _printed(folder: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of a trial's logs that are not empty; a distributed trial has a log for each rank."""
    for place, begins in ((folder, "output"), (urls.join(folder, "logs"), "g")):
        try:
            entries = for_url(place).list_dir(place)
        except PathNotFound:
            continue
        for entry in sorted(entries, key=lambda entry: entry.modified_s):
            if entry.name.startswith(begins) and entry.name.endswith(".log") and entry.length:
                yield entry.name, for_url(entry.url).read_bytes(entry.url)


def rows_of(directory: RunDir, space: Searchspace) -> list[dict[str, Any]]:
    """Return the table of a recorded search's trials, however it ended, from its event log; nothing is unpickled.

    Values that JSON cannot represent are looked up by their names in ``space``, which the caller provides.

    Raises:
        ArgumentError: The run is not a search.
    """
    recorded = directory.read_run().get("search")
    if not isinstance(recorded, dict):
        raise ArgumentError(f"run {directory.run_id} is not a search, so it has no trials; give the id of a search")
    names = TrialNames(lambda number: {}, maggy_id)
    facts = names.restore_from(search_events(read_event_log(directory)))
    dispatch = journal.replay(facts, SearchSpec(None, _direction(recorded)), SilentSearcher(space))
    return [{**row(t), "trial_id": names.assigned_name(t.number), "outputs": t.outputs} for t in dispatch.ledger.trials]


def _direction(recorded: Mapping[str, Any]) -> str:
    return "min" if recorded.get("direction") == "min" else "max"


class SilentSearcher(Searcher):
    """Stub for the searcher of a recorded search when only its trials are read: it suggests and learns nothing."""

    def __init__(self, space: Searchspace) -> None:
        self.space = space

    def ask(self, number: int) -> Suggestion | Wait:
        """Suggest no trial: the trials of the event log are all."""
        return Wait.DONE

    def tell(self, number: int, outcome: Outcome) -> None:
        """Ignore the outcome of a trial."""

    def state(self) -> dict[str, Any]:
        """Return an empty state, as there is nothing to store."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Ignore the state that the searcher of that search has written."""
