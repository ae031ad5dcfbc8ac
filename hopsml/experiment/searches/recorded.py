"""A search of an earlier session, read from its directory: the call, and the results of its trials."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle
import msgspec

from hopsml.cluster.driver import secret_extraction
from hopsml.cluster.driver.capture import Captured
from hopsml.errors import ArgumentError, PathExists, PathNotFound
from hopsml.experiment import sign_of_life
from hopsml.experiment.searches.call import VERSION, SearchCall
from hopsml.experiment.searches.names import Names, by_id
from hopsml.search.contract import Config, End, Outcome
from hopsml.search.dispatch import journal
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.ledger import TrialPhase, TrialState
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.metric import finite
from hopsml.search.space.space import Searchspace
from hopsml.storage import filesystem, segments, urls
from hopsml.storage.run_dir import RunDir, to_json
from hopsml.tracking import catalog, machine, record

JOURNAL, PICKLE = "journal", "search.pickle"
_SESSION, _LEARNED = "session", "learn"  # keys of lines in the event log
Learned = tuple[Config, Outcome]


def call_of(directory: RunDir) -> SearchCall:
    """Return the call that started a search, with searcher and stopper in their initial state.

    Raises:
        ArgumentError: The run is not a search, was recorded by a newer hopsml, or a file differs from the record.
    """
    recorded = directory.read_run()
    content = _checked_pickle(directory, recorded.get("search"))
    shipped = record.shipped(directory, recorded)
    environment = record.given_environment(recorded["spec"]["environment"], os.environ)
    what = f"search {directory.run_id}"
    secrets = secret_extraction.given_again(recorded.get("secrets", ()), {}, os.environ, what)
    call: SearchCall = cloudpickle.loads(content)
    call.args, call.run = recorded["arguments"], msgspec.structs.replace(call.run, environment=environment)
    call.captured = Captured(
        name=recorded["function"],
        payload=shipped.payload,
        preload=tuple(recorded["spec"]["preload"]),
        own_imports=tuple(recorded["own_imports"]),
        source=recorded["source"],
        sha256=shipped.sha256,
        code_sha256=recorded["code_sha256"],
        secrets=secrets,
    )
    return call


def _checked_pickle(directory: RunDir, recorded: Any) -> bytes:
    """Return the content of ``code/search.pickle`` after checking it, without unpickling."""
    if not isinstance(recorded, dict):
        raise ArgumentError(f"run {directory.run_id} is no search; experiment.resume goes on with a training")
    if recorded.get("version") != VERSION:
        raise ArgumentError(
            f"search {directory.run_id} was recorded in version {recorded.get('version')!r}, and this hopsml reads "
            f"{VERSION}: continue it with the hopsml that began it"
        )
    url = urls.join(directory.code, PICKLE)
    if not filesystem.exists(url):
        raise ArgumentError(f"search {directory.run_id} ended before it had begun: there is no {url}; start it again")
    content = filesystem.for_url(url).read_bytes(url)
    if hashlib.sha256(content).hexdigest() != recorded.get("pickle_sha256"):
        raise ArgumentError(f"{url} is not what search {directory.run_id} recorded: it was changed or damaged since")
    return content


def lines_of(directory: RunDir) -> list[str]:
    """Return the lines of the search's event log, of all its sessions, in order. Raises StorageError."""
    return [line for lines in segments.lines_of(urls.join(directory.url, JOURNAL)).values() for line in lines]


def opening(known: Iterable[Learned], space: Searchspace) -> list[str]:
    """Return the first lines of a session: header, writing process, and trials of other searches to learn from."""
    learned = [[_LEARNED, space.encode(config), told.end.value, told.score, told.step] for config, told in known]
    return [journal.opening(), *map(json.dumps, [[_SESSION, machine.who()], *learned])]


def facts_of(lines: Iterable[str]) -> list[str]:
    """Return an event log's lines without those of ``opening`` that are no events of the search itself."""
    return journal.divided(lines, _SESSION, _LEARNED)[1]


@contextlib.contextmanager
def claimed(directory: RunDir, lines: list[str]) -> Iterator[None]:
    """Context manager for the exclusive right to continue a search after the sessions in these lines.

    The right is released if the block fails, and taken over from a process of this machine that has exited.

    Raises:
        ArgumentError: Another process has it.
        StorageError: The right cannot be read or written.
    """
    url = urls.join(directory.url, f"continued-{len(_sessions(lines))}.json")
    system, claim = filesystem.for_url(url), to_json({"process": machine.who()})
    try:
        system.write_bytes(url, claim, overwrite=False)
    except PathExists:
        holder = directory.read_json(url).get("process") or {}
        if catalog.driver_lives(holder) is not False:
            raise ArgumentError(
                f"search {directory.run_id} goes on in process {holder.get('pid')} on {holder.get('host')} already: wait "
                f"for its end; if that process has died, remove {url}"
            ) from None
        system.write_bytes(url, claim)
    try:
        yield
    except BaseException:
        system.delete(url)
        raise


def _sessions(lines: list[str]) -> list[dict[str, Any]]:
    return [who for _, who in journal.divided(lines, _SESSION)[0]]


def check_is_over(directory: RunDir, lines: list[str]) -> None:
    """Raise ArgumentError if the driver of the last session still runs."""
    sessions = _sessions(lines)
    if not sessions:
        return
    who = sessions[-1]
    # A process on this machine may be stopped (Ctrl-Z) or lack access to storage: then it gives no sign of life.
    here = catalog.driver_lives(who) if who != machine.who() else None
    if here or (here is None and sign_of_life.driver_lives(directory, who)):
        raise ArgumentError(
            f"search {directory.run_id} is under way in process {sessions[-1].get('pid')} on {sessions[-1].get('host')}; "
            "cancel it first, or wait for its end"
        )


def replayed(call: SearchCall, spec: SearchSpec, lines: list[str]) -> tuple[Dispatch, Names]:
    """Return the state of the search from its event log, and the names of its trials."""
    for _, config, end, score, step in journal.divided(lines, _LEARNED)[0]:
        call.searcher.learn(call.space.decode(config), Outcome(End(end), score, step))
    found: list[Dispatch] = []
    names = Names(lambda number: found[0].ledger.trials[number].config, call.name_of or by_id)
    found.append(journal.replay(names.take_over(facts_of(lines)), spec, call.searcher, call.stopper))
    return found[0], names


def take_in_finished(dispatch: Dispatch, names: Names, trials_url: str) -> int:
    """Complete trials that returned without the failed driver's knowledge, from their records; return how many."""
    count = 0
    for trial in dispatch.ledger.trials:
        name = names.given(trial.number)
        if trial.phase is not TrialPhase.OVER and name and (found := _finished(urls.join(trials_url, name), trial)):
            attempt, value, outputs, seconds = found
            if trial.phase is not TrialPhase.RUNNING:
                dispatch.ask_tell.begin(trial, attempt)
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
    return int(record["attempt"]), finite(record.get("final_metric")), outputs, seconds


def _read(url: str) -> dict[str, Any]:
    """Return a JSON object; an empty one if the file does not exist or cannot be parsed."""
    try:
        found = json.loads(filesystem.read_record(url))
    except (PathNotFound, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
