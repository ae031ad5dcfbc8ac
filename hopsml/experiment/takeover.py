"""Continuing a run whose driver is gone: finding it, ending it in favour of another, and its newest checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hopsml.errors import ArgumentError, PathExists, PathNotFound, RunError
from hopsml.experiment import last_records
from hopsml.experiment.attempts import Begin, Call, EarlierRun, RefuseAgain, decide, earlier
from hopsml.states import Lifecycle
from hopsml.storage import checkpoints, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import EXPERIMENTS, RunDir

PARALLEL_READS = 8


class EarlierRuns:
    """Runs that earlier attempts' drivers have begun for this application; each can be taken over once."""

    def __init__(self, application_id: str, attempt: int) -> None:
        """``attempt``: which one of YARN's at the application this driver is; nothing is read for the first."""
        self.attempt = attempt
        self._application_id = application_id
        self._found: dict[str, list[EarlierRun]] = {}  # by store; read once, as earlier drivers begin no further run
        self._answered: set[str] = set()
        self._lock = threading.Lock()

    def take(self, store: str, record: Mapping[str, Any]) -> str:
        """URL of the run that the call of this ``record`` made in an earlier attempt, to go on with; "" where it made none.

        Raises RunError with the error of then where the user's own code had failed, StorageError.
        """
        if self.attempt == 1:
            return ""
        with self._lock:
            if store not in self._found:
                self._found[store] = _runs(store, self._application_id)
            decision = decide(Call.of(record), self.attempt, self._found[store], self._answered)
            if isinstance(decision, Begin):
                return ""
            self._answered.add(decision.run.url)
        if isinstance(decision, RefuseAgain):
            raise RunError(
                f"it has failed by its own code in an earlier attempt at {self._application_id}, and is not started "
                f"again: {decision.run.raised}",
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
    try:
        return earlier(directory.url, directory.read_run(), directory.read_status())
    except PathNotFound:  # a folder of that name that is no run
        return None


def refusal(left: RunDir, successor: str) -> ArgumentError:
    """The error for an attempt to resume a run that another run, ``successor``, has resumed already."""
    return ArgumentError(f"run {left.run_id} goes on in {successor} already: resume that one")


def end(url: str, successor: RunDir) -> None:
    """Hand a run over to its successor: workers that may still run for it add no checkpoint any more.

    Its agents are gone by then, as a rule: they live on a lease of its driver. One that was cut off may not know yet. Raises
    ArgumentError where another driver has taken it up; the successor's directory then says that nothing came of it.
    """
    left = RunDir(url)
    try:
        left.hand_over(successor.url)
    except PathExists:
        if (other := left.successor()) != successor.url:
            error = refusal(left, other)
            _close(successor, Lifecycle.CANCELLED, str(error))
            raise error from None
    _close(left, Lifecycle.LOST, f"its driver died; it goes on in {successor.url}", continued_by=successor.url)


def _close(directory: RunDir, state: Lifecycle, error: str, **more: Any) -> None:
    """Write the final status of a run whose own driver cannot."""
    directory.end(last_records.status(directory.run_id, state, None, error, **more))


def checkpoint_of(url: str) -> tuple[str, int]:
    """Run directory and step of the newest checkpoint of a run, or of the runs that it went on from; ("", -1) for none.

    Asked once, by the driver, so that all members of the new group begin with the same one.
    """
    for directory in _chain(url):
        step = checkpoints.latest_complete(directory.checkpoints)
        if step is not None:
            return directory.url, step
    return "", -1


def further_fits(url: str) -> tuple[tuple[str, int, int], ...]:
    """(run directory, number, step) of the newest checkpoint for each of the function's calls of ``fit`` after the first.

    A run that went on passed over the calls that had finished, and left nothing of them: those are found in the runs before
    it. What these hold of a call later than any that it has itself trained in came of something else, and is left out.
    """
    found: dict[int, tuple[str, int]] = {}
    last: int | None = None  # of the newest run that holds anything
    for directory in _chain(url):
        here = {1: -1} if checkpoints.latest_complete(directory.checkpoints) is not None else {}
        for fit in directory.further_fits():
            step = checkpoints.latest_complete(directory.checkpoints_of(fit))
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
    """The run, and the runs that it continues, newest first."""
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
