"""A search as anybody sees it who can read its directory, while it runs and afterwards: by its journal alone."""

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
from hopsml.search.space.config_json import reader
from hopsml.search.space.space import Searchspace
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir
from hopsml.storage.segments import SegmentReader

_read = reader(())


@dataclass(frozen=True)
class Report:
    """What a trial said of the metric that the search is about."""

    trial: str
    number: int
    step: int
    value: float


class SearchReader:
    """Reads a search's journal; ``more`` takes in what has come to it. Nothing is unpickled and nothing is written."""

    def __init__(self, directory: RunDir, recorded: dict[str, Any]) -> None:
        """``recorded``: what ``run.json`` says of the search."""
        self.directory, self._recorded = directory, recorded
        self.direction = _direction(recorded)
        self.metric = name_of(str(recorded.get("metric") or ""))
        self.distributed = bool(recorded.get("distributed"))
        self._journal = SegmentReader(urls.join(directory.url, JOURNAL))
        self._names = Names(lambda number: {}, by_id)
        self._dispatch = Dispatch(SearchSpec(None, self.direction), SilentSearcher(Searchspace()))

    def more(self) -> list[Report]:
        """What trials have reported since the last call, in order. Raises StorageError."""
        reports = []
        for line in self._names.take_over(facts_of(self._journal.new_lines())):
            fact = _read(line)
            if not isinstance(fact, list):  # a snapshot of what has been read one by one
                continue
            self._dispatch.repeat(fact)
            if fact[0] == "report":
                reports.append(Report(self._names.given(fact[1]), fact[1], fact[2], fact[3]))
        return reports

    @property
    def planned(self) -> int | None:
        """How many trials there are to be; None: nobody knows."""
        total = self._recorded.get("total")
        return None if total is None else int(total) + self._dispatch.ask_tell.extra

    def counts(self) -> dict[str, int]:
        """How many trials are where: waiting, running, paused, completed, stopped, failed."""
        return self._dispatch.ledger.counts()

    @property
    def over(self) -> int:
        """How many trials have ended, one way or another."""
        return self._dispatch.ledger.over

    def best(self) -> dict[str, Any] | None:
        """The best trial that is over: number, id, value, configuration; None without any."""
        best = self._dispatch.ledger.best
        return None if best is None else self._part(row(best), "number", "value", "config")

    def running(self) -> list[dict[str, Any]]:
        """Trials that had begun and not ended, with their last report."""
        placed = self._dispatch.ledger.placed.values()
        return [self._part(row(trial), "number", "step", "value", "config") for trial in placed]

    def trials(self) -> list[dict[str, Any]]:
        """All trials that are known, by number: the rows of the search's table, each with its ``trial_id``.

        ``resumed_from`` is the number of the trial whose checkpoint it went on from last, also its own; None for none.
        """
        return [
            {**row(t), "trial_id": self._names.given(t.number), "resumed_from": t.resume_from}
            for t in self._dispatch.ledger.trials
        ]

    def _part(self, facts: dict[str, Any], *names: str) -> dict[str, Any]:
        return {"trial_id": self._names.given(facts["number"]), **{name: facts[name] for name in names}}

    def folder_of(self, trial: str) -> str:
        """URL of the folder in which the files of a trial lie, by its id."""
        return urls.join(self.directory.url, self._recorded.get("folder", "trials"), trial)

    def output(self) -> Iterator[bytes]:
        """What the trials have printed, in the order of their numbers, under a line that says whose it is."""
        for trial in self._dispatch.ledger.trials:
            if trial.begun or trial.phase is TrialPhase.OVER:
                name = self._names.given(trial.number)
                for log, content in _printed(self.folder_of(name)):
                    yield f"==> trial {trial.number}, {name}, {trial.where}: {log} <==\n".encode()
                    yield content if content.endswith(b"\n") else content + b"\n"


def _printed(folder: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of the logs of one trial that are not empty; a distributed one has one of each rank."""
    for place, begins in ((folder, "output"), (urls.join(folder, "logs"), "g")):
        try:
            entries = for_url(place).list_dir(place)
        except PathNotFound:
            continue
        for entry in sorted(entries, key=lambda entry: entry.modified_s):
            if entry.name.startswith(begins) and entry.name.endswith(".log") and entry.length:
                yield entry.name, for_url(entry.url).read_bytes(entry.url)


def rows_of(directory: RunDir, space: Searchspace) -> list[dict[str, Any]]:
    """The table of a recorded search's trials, however it ended, by its journal alone: nothing of it is unpickled.

    Values that JSON does not know are found by their names in ``space``, which is the reader's own.
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
    """Stands for the searcher of a recorded search of which only the trials are wanted: it proposes and learns nothing."""

    def __init__(self, space: Searchspace) -> None:
        self.space = space

    def ask(self, number: int) -> Suggestion | Wait:
        """Propose none: the trials of the journal are all."""
        return Wait.DONE

    def tell(self, number: int, outcome: Outcome) -> None:
        """Learn nothing from the outcome of a trial."""

    def state(self) -> dict[str, Any]:
        """An empty state: there is nothing to keep."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Ignore what the searcher of that search has written."""
