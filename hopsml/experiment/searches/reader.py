"""Reader of a search's event log, for processes that can read its directory, during the search and afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hopsml.errors import ArgumentError, PathNotFound
from hopsml.experiment.searches.names import Names, by_id
from hopsml.experiment.searches.recorded import JOURNAL, facts_of, lines_of
from hopsml.search.contract import Outcome, Searcher, Suggestion, Wait
from hopsml.search.dispatch import journal
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.ledger import TrialPhase, row
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.metric import name_of
from hopsml.search.space.parameter import reader
from hopsml.search.space.space import Searchspace
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir
from hopsml.storage.segments import SegmentReader

_read = reader(())


@dataclass(frozen=True)
class Report:
    """Report of the searched metric by a trial: the trial's name and number, step and value."""

    trial: str
    number: int
    step: int
    value: float


class SearchReader:
    """Reader of a search's event log; ``more`` reads new lines. Nothing is unpickled and nothing is written."""

    def __init__(self, directory: RunDir, recorded: dict[str, Any]) -> None:
        """Create it without reading; ``recorded``: the description of the search in ``run.json``."""
        self.directory, self._recorded = directory, recorded
        self.direction = _direction(recorded)
        self.metric = name_of(str(recorded.get("metric") or ""))
        self.distributed = bool(recorded.get("distributed"))
        self._journal = SegmentReader(urls.join(directory.url, JOURNAL))
        self._names = Names(lambda number: {}, by_id)
        self._dispatch = Dispatch(SearchSpec(None, self.direction), SilentSearcher(Searchspace()))

    def more(self) -> list[Report]:
        """Return the values that trials have reported since the last call, in order. Raises StorageError."""
        reports = []
        for line in self._names.take_over(facts_of(self._journal.new_lines())):
            fact = _read(line)
            if not isinstance(fact, list):  # a snapshot, whose events have been read one by one
                continue
            self._dispatch.repeat(fact)
            if fact[0] == "report":
                reports.append(Report(self._names.given(fact[1]), fact[1], fact[2], fact[3]))
        return reports

    @property
    def planned(self) -> int | None:
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
            {**row(t), "trial_id": self._names.given(t.number), "resumed_from": t.resume_from}
            for t in self._dispatch.ledger.trials
        ]

    def _part(self, facts: dict[str, Any], *names: str) -> dict[str, Any]:
        return {"trial_id": self._names.given(facts["number"]), **{name: facts[name] for name in names}}

    def folder_of(self, trial: str) -> str:
        """Return the URL of the folder with the files of a trial, by its id."""
        return urls.join(self.directory.url, self._recorded.get("folder", "trials"), trial)

    def output(self) -> Iterator[bytes]:
        """Yield what the trials have printed, by their numbers, each after a line with the trial's name."""
        for trial in self._dispatch.ledger.trials:
            if trial.begun or trial.phase is TrialPhase.OVER:
                name = self._names.given(trial.number)
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
        raise ArgumentError(f"run {directory.run_id} is no search: it has no trials to learn from")
    names = Names(lambda number: {}, by_id)
    facts = names.take_over(facts_of(lines_of(directory)))
    dispatch = journal.replay(facts, SearchSpec(None, _direction(recorded)), SilentSearcher(space))
    return [{**row(t), "trial_id": names.given(t.number), "outputs": t.outputs} for t in dispatch.ledger.trials]


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
