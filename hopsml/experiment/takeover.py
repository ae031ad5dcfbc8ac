"""Continuation of runs whose driver failed: find the run, end it in favour of its successor, find its checkpoint.

YARN, or a job service, starts the whole script again. Each of its calls is matched with the run that the same call made
in an earlier attempt: it continues that run, or, if the user's own code had failed, raises that error again at once.

Sign of life: ``driver.json`` is written every ``BEAT_S`` seconds. A process that wants to continue a run watches it for
``WATCH_S``, so that clocks of different machines need not agree, and longer if the run's agents have a longer lease:
they store files until it ends. A process that continues it writes ``continued.json`` exclusively; a driver that finds
this file was assumed to have failed, and ends its run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hopsml.cluster.driver.run_state import RunState
from hopsml.core import decoding
from hopsml.core.states import Lifecycle
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, HopsmlError, PathExists, PathNotFound, RunError, StorageError
from hopsml.experiment.ending import status_record
from hopsml.storage import checkpoints, run_logs, tree, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import EXPERIMENTS, RunDir
from hopsml.tracking import catalog, provenance

log = logging.getLogger(__name__)

BEAT_S = 10.0
WATCH_S = 25.0  # with the default lease
LOOK_S = 0.5
TIDY_GENERATIONS = 10  # generations between two deletions of logs that are not retained
OLD_S = 600.0  # a run in which nothing has changed for that long has no driver
_under_way: set[str] = set()  # URLs of this process's runs


class SignOfLife:
    """Writer of one run's signs of life; calls ``on_taken`` with the URL of a run that continues this one."""

    def __init__(self, directory: RunDir, state: RunState, on_taken: Callable[[str], None]) -> None:
        self._directory, self._state, self._on_taken = directory, state, on_taken
        self._beats, self._tidied = 0, 0  # the latter: the generation at which logs were last checked

    def start(self) -> None:
        """Start the thread, which ends with the run, and return at once; the first sign is ``run.json``."""
        _under_way.add(self._directory.url)
        name = f"hopsml-driver-of-{self._directory.run_id}"
        threading.Thread(target=self._live, name=name, daemon=True).start()

    def _live(self) -> None:
        try:
            while not self._state.wait(BEAT_S):
                try:
                    self.give()
                except StorageError as error:  # without storage no other process can continue the run
                    log.debug("no heartbeat in %s: %s", self._directory.url, error)
        finally:
            _under_way.discard(self._directory.url)

    def give(self) -> None:
        """Write a sign of life, or report that another run continues this one. Raises StorageError."""
        if successor := self._directory.read_successor():
            self._on_taken(successor)
            return
        self._beats += 1
        sign = {
            "process": provenance.process_identity(),
            "beat": self._beats,
            "time": time.time(),
            "lease_s": SETTINGS.lease_s,
        }
        if self._state.progress is not None:
            sign["progress"] = dict(zip(("done", "total", "unit"), self._state.progress, strict=True))
        self._directory.write_json(self._directory.driver_json, sign)
        if (generation := self._state.generation) - self._tidied >= TIDY_GENERATIONS:
            run_logs.delete_surplus_logs(self._directory, self._state.begun)
            self._tidied = generation


def driver_lives(directory: RunDir, driver: Mapping[str, Any] | None = None) -> bool:
    """Return True if the run is under way; may take ``WATCH_S`` seconds if its driver is on another machine.

    Args:
        directory: run directory.
        driver: the driver's process, as from ``provenance.process_identity``; by default that of the run record.

    Raises:
        StorageError: The run directory cannot be read.
    """
    who = driver or directory.read_run().get("driver_process") or {}
    if who == provenance.process_identity():
        return directory.url in _under_way
    if catalog.is_driver_alive(who) is False or _silent_s(directory) > OLD_S:
        return False
    before, lease_s = _last(directory)
    watch_s = WATCH_S + max(0.0, lease_s - float(Settings.lease_s.default))
    deadline = time.monotonic() + watch_s
    log.warning("waiting %g s for a heartbeat of the driver of %s", watch_s, directory.url)
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        if _last(directory)[0] != before:
            return True
    return False


def _silent_s(directory: RunDir) -> float:
    """Return the seconds since something changed in a run's directory, by its store's clock alone; 0 if that is unknown.

    This machine's clock may be a day ahead: a run under way would be taken for a dead one.
    """
    changed_s = catalog.last_change_s(directory)
    now_s = tree.read_store_clock_s(directory.url)
    return 0.0 if now_s is None else now_s - changed_s  # None: it is not ours to write to


def _last(directory: RunDir) -> tuple[object, float]:
    """Return process and number of the last sign, None if there is none, and the agents' lease in seconds.

    The lease is this process's setting if no sign has one.
    """
    sign: Mapping[str, Any] = {}
    with contextlib.suppress(PathNotFound):
        sign = directory.read_json(directory.driver_json)
    lease_s = sign.get("lease_s")
    if not isinstance(lease_s, (int, float)) or not 0 < lease_s < float("inf"):
        lease_s = SETTINGS.lease_s
    return (sign.get("process"), sign.get("beat")) if sign else None, float(lease_s)


PARALLEL_READS = 8


# -- decision for a further attempt of the application; pure


@dataclass(frozen=True)
class VerbCall:
    """Identity of a verb's call in a script: two calls with equal fields are the same one."""

    verb: str
    function: str
    code_sha256: str
    arguments: str  # JSON, as recorded

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> VerbCall:
        """Return the call that has made a run, from the run's ``run.json``."""
        arguments = json.dumps(record.get("arguments"), sort_keys=True)
        return cls(str(record.get("verb")), str(record.get("function")), str(record.get("code_sha256")), arguments)


@dataclass(frozen=True)
class EarlierRun:
    """Record of a run that this attempt of the application, or an earlier one, has started."""

    url: str
    call: VerbCall
    attempt: int  # attempt of the application that started it
    number: int  # the runs of an application are numbered in the order of their start
    continues: str = ""  # URL of the run that it continues
    raised: str = ""  # the error, if the user's own code ended it


@dataclass(frozen=True)
class StartNewRun:
    """Decision to start a new run: no earlier attempt has made this call."""


@dataclass(frozen=True)
class ContinueRun:
    """Decision to continue from where ``run`` stopped; if it had finished, nothing remains to be done."""

    run: EarlierRun


@dataclass(frozen=True)
class RefuseCall:
    """Decision to refuse the call: the same code has failed in ``run``, and would fail again."""

    run: EarlierRun


Decision = StartNewRun | ContinueRun | RefuseCall


def decide_takeover(
    call: VerbCall, attempt: int, runs: Sequence[EarlierRun], answered: Collection[str] = ()
) -> Decision:
    """Decide how the driver of ``attempt`` treats ``call``: start a run, continue one, or refuse.

    The same calls are matched in the order in which they were first made.

    Args:
        call: the call of a verb.
        attempt: number of the application's attempt, from 1.
        runs: all runs of the application.
        answered: URLs of runs that this driver has used already, for a script that makes the same call again.
    """
    by_url = {run.url: run for run in runs}
    taken = {run.continues for run in runs} | set(answered)
    open_ones = [run for run in runs if run.attempt < attempt and run.call == call and run.url not in taken]
    if not open_ones:
        return StartNewRun()
    first = min(open_ones, key=lambda run: _origin(run, by_url).number)
    return RefuseCall(first) if first.raised else ContinueRun(first)


def _origin(run: EarlierRun, by_url: Mapping[str, EarlierRun]) -> EarlierRun:
    """Return the first run of a chain of continuations."""
    while run.continues in by_url:
        run = by_url[run.continues]
    return run


def earlier_run(url: str, record: Mapping[str, Any], status: Mapping[str, Any] | None) -> EarlierRun:
    """Return the run at ``url``, from its ``run.json`` and its ``status.json``, which is None before its end."""
    ended = status or {}
    return EarlierRun(
        url=url,
        call=VerbCall.of(record),
        attempt=int(record.get("attempt", 1)),
        number=int(urls.name(url).rpartition("_")[2]),
        continues=str(record.get("continues") or ""),
        raised=str(ended.get("error", "")) if ended.get("raised") else "",
    )


# -- application of the decision


class EarlierRuns:
    """Runs that earlier attempts' drivers have started for this application; each can be taken over once."""

    def __init__(self, application_id: str, attempt: int, forgives: bool = False) -> None:
        """Create it without reading anything.

        Args:
            application_id: id under which the application's runs are recorded.
            attempt: number of this driver among the application's attempts; for the first one nothing is read.
            forgives: continue also runs that the user's own code has ended, as a job's ``retries`` request.
        """
        self.attempt, self._forgives = attempt, forgives
        self._application_id = application_id
        self._found: dict[str, list[EarlierRun]] = {}  # by store; read once, as earlier drivers start no further run
        self._answered: set[str] = set()
        self._lock = threading.Lock()

    def reserve_run_to_continue(self, store: str, record: Mapping[str, Any]) -> str:
        """Return the URL of the run that the same call made in an earlier attempt, to continue it; "" if none.

        Raises:
            RunError: The user's own code had failed in that run; has the error's text.
            StorageError: The earlier runs cannot be read.
        """
        if self.attempt == 1:
            return ""
        with self._lock:
            if store not in self._found:
                self._found[store] = _runs(store, self._application_id)
            decision = decide_takeover(VerbCall.of(record), self.attempt, self._found[store], self._answered)
            if isinstance(decision, StartNewRun):
                return ""
            self._answered.add(decision.run.url)
        if isinstance(decision, RefuseCall) and not self._forgives:
            raise RunError(
                f"it failed by an error of its code in an earlier attempt of {self._application_id}, and is not "
                f"started again: {decision.run.raised}",
                decision.run.url,
            )
        return decision.run.url


def _runs(store: str, application_id: str) -> list[EarlierRun]:
    folder = urls.join(store, EXPERIMENTS)
    try:
        entries = for_url(folder).list_dir(folder)
    except PathNotFound:
        return []
    ours = []
    for entry in entries:
        name, _, number = entry.name.rpartition("_")
        if name == application_id and number.isdigit():
            ours.append(RunDir(entry.url))
    with ThreadPoolExecutor(PARALLEL_READS, thread_name_prefix="hopsml-earlier-runs") as pool:
        return [run for run in pool.map(_read, ours) if run is not None]


def _read(directory: RunDir) -> EarlierRun | None:
    """Return an earlier run; None if there is none. Raises StorageError, and ArgumentError for a malformed record."""
    try:
        with decoding.understood(f"the records of run {directory.run_id} are", "delete the run"):
            return earlier_run(directory.url, directory.read_run(), directory.read_status())
    except PathNotFound:  # a folder of that name that holds no run
        return None


def already_resumed_error(left: RunDir, successor: str) -> ArgumentError:
    """Return the error for an attempt to resume a run that another run, ``successor``, has resumed already."""
    return ArgumentError(f"run {left.run_id} was already continued in {successor}; resume that run")


def hand_over_run(url: str, successor: RunDir) -> None:
    """Hand a run over to its successor, so that workers that may still run for it add no checkpoint any more.

    Usually its agents have exited by then, as their lease depends on its driver; one that was disconnected may not
    have.

    Raises:
        ArgumentError: Another driver has continued the run; the successor's directory is marked as cancelled.
    """
    left = RunDir(url)
    try:
        left.write_successor(successor.url)
    except PathExists:
        if (other := left.read_successor()) != successor.url:
            error = already_resumed_error(left, other)
            _close(successor, Lifecycle.CANCELLED, str(error))
            raise error from None
    _close(
        left, Lifecycle.LOST, f"its driver died; {urls.name(successor.url)} continues it", continued_by=successor.url
    )


def record_failed_start(url: str, successor: RunDir, error: BaseException) -> None:
    """Mark a run as failed that could not be started, and make the run at ``url``, if any, resumable again.

    Raises nothing, so that the caller can raise the original error.
    """
    with contextlib.suppress(HopsmlError):
        _close(successor, Lifecycle.FAILED, f"it could not be started: {str(error) or type(error).__name__}")
        if url:
            RunDir(url).remove_successor(successor.url)


def _close(directory: RunDir, state: Lifecycle, error: str, **more: Any) -> None:
    """Write the final status of a run whose driver cannot write it."""
    directory.write_status_once(status_record(directory.run_id, state, None, error, **more))


def checkpoint_of(url: str) -> tuple[str, int]:
    """Find the newest intact checkpoint of a run, or of the runs it continues.

    The driver calls it once, so that all members of the new group start from the same checkpoint.

    Returns:
        Run directory and step, or ("", -1).
    """
    for directory in _chain(url):
        step = checkpoints.latest_sound(directory.checkpoints)
        if step is not None:
            return directory.url, step
    return "", -1


def later_fit_checkpoints(url: str) -> tuple[tuple[str, int, int], ...]:
    """Find the newest checkpoint of each of the function's calls of ``fit`` after the first.

    A continued run skips the calls that had finished, and stores nothing of them: their checkpoints are found in the
    runs before it. Those runs' checkpoints of a call later than any that the newest run has trained in belong to a
    different course of the function, and are excluded.

    Returns:
        (run directory, number of the call, step) of each.
    """
    found: dict[int, tuple[str, int]] = {}
    last: int | None = None  # of the newest run that has any checkpoint
    for directory in _chain(url):
        here = {1: -1} if checkpoints.latest_complete(directory.checkpoints) is not None else {}
        for fit in directory.list_further_fits():
            step = checkpoints.latest_sound(directory.checkpoints_of_fit(fit))
            if step is not None:
                here[fit] = step
        if last is None and here:
            last = max(here)
        for fit, step in here.items():
            if last is not None and 1 < fit <= last:
                found.setdefault(fit, (directory.url, step))
        if 1 in here and last is not None and all(fit in found for fit in range(2, last + 1)):
            break
    return tuple((of, fit, step) for fit, (of, step) in sorted(found.items()))


def _chain(url: str) -> Iterator[RunDir]:
    """Yield the run, and the runs that it continues, newest first."""
    seen: set[str] = set()
    while url and url not in seen:
        seen.add(url)
        directory = RunDir(url)
        yield directory
        try:
            record = directory.read_run()
        except PathNotFound:
            return
        url = str(record.get("continues") or record.get("resumed_from") or "")
