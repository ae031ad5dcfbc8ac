"""Verb ``search``: trials of a training function over a space of hyper-parameters, on all executors at once.

search(train, space, searcher="tpe", num_trials=64)      blocks; returns the best trial, all trials, plots
submit_search(...)                                       the same, but returns a handle at once
continue_search(run, num_trials=32)                      continues a search of this or an earlier session
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from hopsml.cluster.shared import checks
from hopsml.core import settings
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.experiment import applications
from hopsml.experiment.options import SearchOptions, StartOptions
from hopsml.experiment.searches import call as calls
from hopsml.experiment.searches import recorded, start
from hopsml.experiment.searches.handle import SearchRun
from hopsml.experiment.searches.recorded import Learned, rows_of
from hopsml.experiment.searches.result import SearchResult
from hopsml.experiment.verbs import Verb
from hopsml.search.contract import End, Outcome
from hopsml.search.metric import finite_or_none
from hopsml.search.registry import ARGUMENTS_ELSEWHERE
from hopsml.search.space.space import Searchspace
from hopsml.tracking import inputs, named_runs

# Names of positional arguments after the function.
_ORDERS = (("space", "searcher", "stopper", "num_trials", "direction", "metric"),)
# Arguments of algorithms that users often pass to the verb.
_ABSENT = {
    **{name: f'say searcher_args={{"{name}": ...}}' for name in ("points", "min_budget", "max_budget", "eta")},
    **{
        name: f'say stopper_args={{"{name}": ...}}'
        for name in ("min_step", "max_step", "reduction_factor", "min_trials", "n_iterations")
    },
    **{name: f'say stopper_args={{"{meant}": ...}}' for name, meant in ARGUMENTS_ELSEWHERE.items()},
}

_verb = Verb(SearchOptions, "search", orders=_ORDERS, absent=_ABSENT)


@_verb
def search(options: SearchOptions) -> SearchResult:
    """Search for the configuration with the best value of a metric; blocks and returns a ``SearchResult``.

    Every trial calls ``train_fn`` with one configuration, by parameter name; a parameter ``hparams`` gets all of it as
    a dict, ``reporter`` the reporter. The function returns a number, or a dict that holds the metric; it may report
    while it runs (``hopsml.report(step=..., accuracy=...)``, ``reporter.broadcast(value, step)``).

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once, before anything is started.
        RunError: no trial has returned a value; the message has the first errors.
        StorageError: the run directory cannot be written; names the path.
    """
    return submit_call(calls.checked_call("search", options, seed_of_run(options))).result()


@_verb
def submit_search(options: SearchOptions) -> SearchRun:
    """Start ``search`` and return at once with a handle: ``result(timeout)``, ``best``, ``status()``, ``extend(32)``.

    Raises:
        ArgumentError, ArgumentTypeError, StorageError: as ``search``.
    """
    return submit_call(calls.checked_call("search", options, seed_of_run(options)))


def seed_of_run(options: StartOptions) -> int:
    """Return the seed of a search whose call has none: from the environment, else drawn at random."""
    return inputs.choose_seed(options.environment or {}, os.environ)


def submit_call(call: calls.SearchCall) -> SearchRun:
    """Start a search from a checked call, and return its handle."""
    known = learned_trials(call.warm_start, call.space, call.direction)
    return start.start_search(call, known)


def learned_trials(given: Any, space: Searchspace, direction: str) -> list[Learned]:
    """Return the trials of earlier searches, for the searcher to learn from; those outside of ``space`` are left out.

    Args:
        given: results, handles, URLs or ids of searches, or dicts of ``config`` and ``value``; one, or a list of them.
        space: search space of the new search.
        direction: "max" or "min".

    Raises:
        ArgumentError: No trial remains of those given.
    """
    if given is None:
        return []
    items = list(given) if isinstance(given, list | tuple) and not hasattr(given, "run_dir") else [given]
    sign = 1.0 if direction == "max" else -1.0
    found: list[Learned] = []
    for item in items:
        for row in _rows(item, space):
            value = finite_or_none(row.get("value"))
            config = dict(row["config"])
            if space.contains(config) and value is not None:
                end = End.STOPPED if row.get("state") == "stopped" else End.COMPLETED
                found.append((config, Outcome(end, sign * value, row.get("step"))))
    if items and not found:
        raise ArgumentError(
            "warm_start: none of its trials has a value and a configuration of this search space; omit warm_start, "
            "or give the space the same parameters"
        )
    return found


def _rows(item: Any, space: Searchspace) -> Iterable[Mapping[str, Any]]:
    if isinstance(item, Mapping):
        if not isinstance(item.get("config"), Mapping) or "value" not in item:
            raise ArgumentTypeError(f"warm_start: {item!r:.100} has no 'config' and 'value'")
        return [item]
    if isinstance(rows := getattr(item, "rows", None), list):
        return rows
    return rows_of(named_runs.find(item, settings.project_url()), space)


def continue_search(
    run: Any,
    num_trials: int = 0,
    deadline: float | str | None = None,
    *,
    max_executors: int | None = None,
    profile: str | None = None,
    progress: bool = True,
) -> SearchResult:
    """Continue a search, in this session or in a new one, in its own run directory; blocks until its end.

    Results of earlier sessions remain; trials that were under way when the search was cancelled, or its driver failed,
    start again, from their newest checkpoint if they have one. If two processes continue the same search at once, one
    of them gets an error.

    Args:
        run: the search's URL, path, id, handle or result.
        num_trials: number of trials in addition to those planned.
        deadline: seconds, or text such as "20 min", after which it ends with the results so far.
        max_executors: largest number of executors to use; by default as before.
        profile: name of a file in conf/; used if there is no Spark application yet.
        progress: show progress.

    Raises:
        ArgumentError: for a run that is not a search, one that is under way, and one recorded by a newer hopsml;
            otherwise as ``search``.
    """
    return submit_continued(
        run, num_trials, deadline, max_executors=max_executors, profile=profile, progress=progress
    ).result()


def submit_continued(
    run: Any,
    num_trials: int = 0,
    deadline: float | str | None = None,
    *,
    max_executors: int | None = None,
    profile: str | None = None,
    progress: bool = True,
) -> SearchRun:
    """Start ``continue_search`` and return at once with a handle."""
    extra = checks.whole_number("num_trials", num_trials, at_least=0)
    applications.set_profile_variables(profile)  # which may set the project's URL
    directory = named_runs.find(run, settings.project_url())
    call = recorded.load_call(directory)
    lines = recorded.read_event_log(directory)
    if directory.read_status() is None:
        recorded.check_is_over(directory, lines)
    call.profile, call.progress = profile, progress
    call.max_executors = call.max_executors if max_executors is None else max_executors
    earlier = start.EarlierSearch(directory, lines, extra, calls.duration("deadline", deadline))
    with recorded.right_to_continue(directory, lines):
        return start.start_search(call, earlier=earlier)
