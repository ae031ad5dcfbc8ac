"""Arguments of a search, checked completely before anything is started, and the names of its trials' folders.

A name is assigned when a trial is first seen, and stored in the event log.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopsml.cluster.driver.capture import Captured
from hopsml.cluster.shared import checks
from hopsml.cluster.shared.spec import Framework, IndependentGroup, RunSpec, section_from_options
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.experiment import frame_feed, verbs
from hopsml.experiment.options import SearchOptions
from hopsml.search import registry
from hopsml.search.algorithms.budgets import BUDGET, BudgetSearcher
from hopsml.search.contract import Searcher, Stopper
from hopsml.search.dispatch.journal import readable, separate_entries
from hopsml.search.space.space import Searchspace, check_function, parameters_of, takes_any, trial_id
from hopsml.storage.run_dir import RunDir

_KEY = "name"
NameOf = Callable[[Mapping[str, Any], int, int], str]  # configuration, number, earlier uses of the name -> name


def maggy_id(config: Mapping[str, Any], number: int, repeat: int) -> str:
    """Return Maggy's id of the configuration; another one for each repetition of it."""
    return trial_id(config, repeat)


class TrialNames:
    """Names of trials by number; ``config_of`` returns a trial's configuration while it has not changed yet."""

    def __init__(self, config_of: Callable[[int], Mapping[str, Any]], name_of: NameOf = maggy_id) -> None:
        self._config_of, self._name_of = config_of, name_of
        self._names: list[str] = []
        self._taken: set[str] = set()
        self._new: list[str] = []

    def name_of(self, number: int) -> str:
        """Return the name of a trial; trials before it get theirs first, so that the order of calls has no effect."""
        while len(self._names) <= number:
            self._give(len(self._names))
        return self._names[number]

    def assigned_name(self, number: int) -> str:
        """Return the name of a trial, "" if it has none yet; for any thread."""
        return self._names[number] if number < len(self._names) else ""

    def _give(self, number: int) -> None:
        config, repeat = self._config_of(number), 0
        while (name := self._name_of(config, number, repeat)) in self._taken:  # two trials never share a folder
            repeat += 1
        self._add(name)
        self._new.append(json.dumps([_KEY, number, name]))

    def _add(self, name: str) -> None:
        self._names.append(name)
        self._taken.add(name)

    def new_lines(self) -> list[str]:
        """Return lines for the event log: the names that were assigned since the last call."""
        lines, self._new = self._new, []
        return lines

    def restore_from(self, lines: Iterable[str]) -> list[str]:
        """Take the names from an event log's lines, and return the other lines."""
        found, others = separate_entries(lines, _KEY)
        with readable():
            for _, number, name in found:
                if number == len(self._names):
                    self._add(name)
        return others


VERSION = 2  # of a search's records
DIRECTIONS = ("max", "min")
_OFFERED = ("hparams", "reporter", "budget")  # arguments that a trial has in addition to its configuration
_UNITS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "m": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_UNITS |= {"d": 86400.0, "day": 86400.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]+?)s?\s*", re.IGNORECASE)

# Framework of a trial of several workers, by the name of the verb that starts such a training.
FRAMEWORKS: Mapping[str, Framework] = {
    "tensorflow": "tensorflow",
    "torch": "torch",
    "jax": "jax",
    "distributed": "none",
}

Size = Callable[[dict[str, Any]], tuple[int, int]]


@dataclass
class SearchCall:
    """A search whose arguments have been checked, before searcher and stopper are used. Times are in seconds.

    ``name_of`` names the trials' folders in ``folder`` of the run directory; None: Maggy's ids. ``with_summary``: write
    the predecessor's ``.summary.json``. ``facts`` are for ``run.json``. ``captured``: the function of a search that is
    continued, which has no ``function`` in this process. ``finish`` writes further files of the verb. ``frames``:
    DataFrames by the function's arguments, which are not recorded.
    """

    run: RunSpec  # of the run that holds the executors
    function: Callable[..., Any] | None
    args: dict[str, Any]
    space: Searchspace
    searcher: Searcher
    stopper: Stopper | None
    num_trials: int | None
    direction: str
    metric: str
    size_of: Size | None
    deadline_s: float | None
    budget_executor_s: float | None
    patience_s: float
    promoted_workers: tuple[tuple[int, int], ...]
    retries: int
    isolated: bool
    max_executors: int | None
    warm_start: Any
    profile: str | None
    progress: bool
    echo: bool
    searcher_name: str = ""
    stopper_name: str = ""
    name_of: NameOf | None = None
    folder: str = "trials"
    with_summary: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    captured: Captured | None = None
    frames: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[RunDir, list[dict[str, Any]]], None] | None = None
    notes: tuple[str, ...] = ()  # notes published when it begins
    resources: tuple[str, ...] = ()  # paths of files that are copied into the run directory
    framework: Framework = "tensorflow"  # of trials of several workers


def checked_call(verb: str, options: SearchOptions, seed: int, may_be_empty: bool = False) -> SearchCall:
    """Check all arguments of a search and return the call; nothing is started.

    Args:
        verb: name of the verb, for messages.
        options: the arguments.
        seed: seed to use if the options have none.
        may_be_empty: accept a search space without parameters.

    Raises:
        ArgumentError: An argument is not valid.
        ArgumentTypeError: An argument has a wrong type.
    """
    function, space = options.train_fn, searchspace(options.space, may_be_empty)
    rows = frame_feed.datasets(options.data, verb)
    args = dict(frame_feed.with_rows(options.args, rows, verb) or {})
    check_function(space, function)
    check_filled_in(space, function, args)
    seed = seed if options.seed is None else checks.whole_number("seed", options.seed, at_least=0)
    direction = direction_of(options.direction)
    searcher = searcher_of(options, space, seed)
    notes = missing_budget_note(searcher, function)
    if rows and size_function(options.workers_per_trial) is not None:
        raise ArgumentError(
            f"{verb}(): data= with workers_per_trial={options.workers_per_trial!r:.80}: data= is supported only for "
            "trials of one worker. Omit workers_per_trial=, or write the DataFrame to Parquet, and read it in the "
            "trials by hopsml.data.parquet(url)"
        )
    if options.echo and size_function(options.workers_per_trial) is not None:
        notes += ("echo has no effect with workers_per_trial; the output of the workers of a trial is in its logs",)
    framework = framework_of(options.framework)
    if framework != "tensorflow" and size_function(options.workers_per_trial) is None:
        notes += (f"framework={options.framework!r} has no effect: a trial of one worker forms no group",)
    trials = None if searcher.counts else options.num_trials  # then num_trials is the number of configurations
    trials = None if trials is None else checks.whole_number("num_trials", trials)
    stopper = stopper_of(options, space, seed)
    notes += advice_for(stopper, trials, searcher.total)
    endless = isinstance(options.searcher, str) and searcher.total is None and not searcher.counts
    if trials is None and endless and options.deadline is None and options.budget is None:
        raise ArgumentError("num_trials=None: the search would not end; pass num_trials, deadline or budget")
    return SearchCall(
        run=section_from_options(
            RunSpec,
            options,
            verb=verb,
            group=section_from_options(IndependentGroup, options),
            framework="none",
            frames=tuple(rows),
            sidecar=frame_feed.SIDECAR if rows else "",
            seed=seed,
            environment=verbs.worker_environment(options.environment, options.share),
        ),
        function=function,
        args=args,
        space=space,
        searcher=searcher,
        stopper=stopper,
        num_trials=trials,
        direction=direction,
        metric="" if options.metric is None else checks.text("metric", options.metric),
        size_of=size_function(options.workers_per_trial),
        deadline_s=duration("deadline", options.deadline),
        budget_executor_s=duration("budget", options.budget, unit_s=60.0),
        patience_s=duration("patience", options.patience) or 30.0,
        promoted_workers=promotion_pairs(options.promoted_workers, options.workers_per_trial),
        retries=checks.whole_number("retries", options.retries, at_least=0),
        isolated=parse_isolation(options.isolation),
        max_executors=None
        if options.max_executors is None
        else checks.whole_number("max_executors", options.max_executors),
        warm_start=options.warm_start,
        profile=options.profile,
        progress=bool(options.progress),
        echo=bool(options.echo),
        frames=dict(options.data or {}),
        facts={"num_trials": options.num_trials} if searcher.counts else {},
        searcher_name=options.searcher if isinstance(options.searcher, str) else type(searcher).__name__,
        stopper_name=options.stopper if isinstance(options.stopper, str) else type(options.stopper).__name__,
        notes=notes,
        framework=framework,
    )


def advice_for(stopper: Stopper | None, *limits: int | None) -> tuple[str, ...]:
    """Return the stopper's hint on a search whose number of trials is the lowest of these limits, if it has one."""
    known = [limit for limit in limits if limit is not None]
    return tuple(text for text in (stopper.advice(min(known)),) if text) if stopper is not None and known else ()


def missing_budget_note(searcher: Searcher, function: Callable[..., Any]) -> tuple[str, ...]:
    """Return a note if a searcher repeats configurations with larger budgets, but the function has no such parameter.

    In this case the budget is removed from configurations, so that ``function(**best.config)`` repeats the trial.
    """
    if not isinstance(searcher, BudgetSearcher):
        return ()
    known = parameters_of(function)
    if known is None or takes_any(known) or BUDGET in known or "hparams" in known:
        return ()
    searcher.says_budget = False
    return (
        f"{getattr(function, '__name__', function)} has no parameter {BUDGET}, so all trials of a configuration "
        "train for the same number of steps; add the parameter, and train for this number of steps. If the function "
        "reports during training, use stopper='asha' or 'hyperband' with searcher='random'",
    )


def check_filled_in(space: Searchspace, function: Callable[..., Any], args: Mapping[str, Any]) -> None:
    """Raise ArgumentError if a parameter of the function would get no value, or two."""
    if twice := sorted(set(args) & set(space.keys())):
        raise ArgumentError(f"{', '.join(twice)} is in args and in the search space; remove it from one of them")
    known = parameters_of(function)
    if known is None:
        return
    given = {*space.keys(), *args, *_OFFERED}
    missing = [
        name
        for name, one in known.items()
        if one.default is inspect.Parameter.empty
        and one.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        and name not in given
    ]
    if missing:
        raise ArgumentError(
            f"{getattr(function, '__name__', function)}({', '.join(known)}) needs {', '.join(missing)}, which neither the "
            "search space nor args gives; add it to one of them, or give it a default"
        )


def searchspace(space: Any, may_be_empty: bool = False) -> Searchspace:
    """Return a Searchspace, or the one that a dict of ``name: (type, region)`` describes."""
    if isinstance(space, Searchspace):
        found = space
    elif isinstance(space, Mapping):
        found = Searchspace(**space)
    else:
        raise ArgumentTypeError(
            f"space={space!r:.80} is a {type(space).__name__}; pass hopsml.Searchspace(lr=('DOUBLE', [0.1, 1.0]), ...)"
        )
    if not len(found) and not may_be_empty:
        raise ArgumentError("the search space is empty; give it at least one parameter, such as lr=('DOUBLE', [0, 1])")
    return found


def direction_of(direction: Any) -> str:
    """Return "max" or "min" from text in any case. Raises ArgumentError for anything else."""
    if not isinstance(direction, str) or direction.lower() not in DIRECTIONS:
        raise ArgumentError(f"direction={direction!r} is not known; it must be 'max' or 'min'")
    return direction.lower()


def framework_of(name: Any) -> Framework:
    """Return the framework for which the verb of this name forms groups. Raises ArgumentError for another name."""
    if name not in FRAMEWORKS:
        raise ArgumentError(f"framework={name!r} is not known; it must be one of {', '.join(map(repr, FRAMEWORKS))}")
    return FRAMEWORKS[name]


def parse_isolation(isolation: Any) -> bool:
    """Return True for "process" (a process for each trial), False for "reuse"; else raise ArgumentError."""
    if isolation not in ("reuse", "process"):
        raise ArgumentError(
            f"isolation={isolation!r} is unknown; 'reuse' runs trials one after another in the same process, "
            "'process' starts a new process for each trial"
        )
    return bool(isolation == "process")


def searcher_of(options: SearchOptions, space: Searchspace, seed: int) -> Searcher:
    """Return the searcher, made from its name and arguments or passed as an object; some get the number of trials."""
    given = dict(options.searcher_args or {})
    if isinstance(options.searcher, Searcher):
        if given:
            raise ArgumentError(
                "searcher_args needs the name of a searcher; pass the arguments to the constructor "
                "of your searcher instead"
            )
        return options.searcher
    own = isinstance(options.searcher, type) and issubclass(options.searcher, Searcher)
    kind = options.searcher if own else registry.searcher_class(options.searcher)
    if options.num_trials is not None and "num_trials" in inspect.signature(kind).parameters:
        given.setdefault("num_trials", checks.whole_number("num_trials", options.num_trials))
    if own:
        made: Searcher = kind(space, seed=seed, **given)
        return made
    return registry.searcher(options.searcher, space, seed=seed, **given)


def stopper_of(options: SearchOptions, space: Searchspace, seed: int) -> Stopper | None:
    """Return the stopper, made from name and arguments or passed as an object; some get space, seed and trials."""
    given = dict(options.stopper_args or {})
    if isinstance(options.stopper, Stopper):
        if given:
            raise ArgumentError(
                "stopper_args needs the name of a stopper; pass the arguments to the constructor of "
                "your stopper instead"
            )
        return options.stopper
    kind = registry.stopper_class(options.stopper)
    takes = inspect.signature(kind).parameters if kind is not None else {}
    known = {"space": space, "seed": seed, "population": options.num_trials}
    return registry.stopper(options.stopper, **{**{name: known[name] for name in known if name in takes}, **given})


def duration(name: str, value: Any, unit_s: float = 1.0) -> float | None:
    """Return seconds from a number of ``unit_s`` or a text such as "20 min", "1.5h", "90 s"; None for None."""
    if value is None:
        return None
    if isinstance(value, str):
        found = _DURATION.fullmatch(value)
        unit = _UNITS.get(found.group(2).lower()) if found else None
        if found is None or unit is None:
            raise ArgumentError(
                f"{name}={value!r} is not a duration; write a number with s, min, h or d, such as '20 min'"
            )
        seconds = float(found.group(1)) * unit
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value) * unit_s
    else:
        raise ArgumentTypeError(
            f"{name}={value!r} is a {type(value).__name__}; it must be a number or text like '20 min'"
        )
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ArgumentError(f"{name}={value!r}: it must be greater than 0, and finite")
    return seconds


def size_function(workers: Any) -> Size | None:
    """Return None for trials of one worker, else a function that returns (workers, fewest) for a configuration."""
    if callable(workers):
        return lambda config: _pair(workers(config))
    size, fewest = _pair(workers)
    return None if (size, fewest) == (1, 1) else lambda config: (size, fewest)


def _pair(workers: Any) -> tuple[int, int]:
    """Return (size, fewest) from a number, or from a pair (fewest, most)."""
    if isinstance(workers, (tuple, list)) and len(workers) == 2:
        fewest, most = (checks.whole_number("workers_per_trial", number) for number in workers)
        if fewest > most:
            raise ArgumentError(f"workers_per_trial={tuple(workers)}: the fewest must not be more than the most")
        return most, fewest
    size = checks.whole_number("workers_per_trial", workers)
    return size, size


def promotion_pairs(workers: Mapping[int, int] | None, workers_per_trial: Any) -> tuple[tuple[int, int], ...]:
    """Return ``{step: workers}`` as pairs, by rising step. Raises ArgumentError, ArgumentTypeError."""
    if workers is None:
        return ()
    if size_function(workers_per_trial) is None:
        raise ArgumentError(
            f"promoted_workers={workers!r:.80} is for trials that are distributed trainings: give workers_per_trial, too"
        )
    if not isinstance(workers, Mapping):
        raise ArgumentTypeError(f"promoted_workers={workers!r:.80} must be a dict: step -> workers from there on")
    return tuple(sorted((int(step), checks.whole_number("promoted_workers", size)) for step, size in workers.items()))
