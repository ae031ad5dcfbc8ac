"""Module ``maggy.optimizer``: optimizers, implemented by hopsml's searchers; base class and adapter of users' optimizers."""

from __future__ import annotations

import copy
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import cloudpickle

from hopsml.core import refused_names
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.maggy.trial import Trial
from hopsml.search import registry
from hopsml.search.contract import End, Outcome, Searcher, Suggestion, Wait
from hopsml.search.space.space import Searchspace

__path__: list[str] = []  # so that an import of a missing name reports what to use instead
__all__ = ["GP", "TPE", "AbstractOptimizer", "Asha", "GridSearch", "RandomSearch", "SingleRun", "bayes"]

bayes = sys.modules[f"{__name__}.bayes"] = sys.modules[__name__]  # ``maggy.optimizer.bayes`` has GP and TPE


class NamedOptimizer:
    """Optimizer that hopsml implements under its ``name``; ``arguments`` are those of the searcher.

    ``pruner`` "hyperband" passes the parameter ``budget`` to trials; ``pruner_kwargs`` are its arguments. Code that
    requests trials from it directly sets ``num_trials`` and ``searchspace``, then calls it as an ``AbstractOptimizer``.
    """

    name = "none"
    num_trials: int | None = None
    searchspace: Searchspace | None = None
    direction: str = "max"

    def __init__(
        self, pruner: str | None = None, pruner_kwargs: Mapping[str, Any] | None = None, **arguments: Any
    ) -> None:
        self.arguments, self.pruner, self.pruner_arguments = arguments, pruner, dict(pruner_kwargs or {})
        self.trial_store: dict[str, Trial] = {}
        self.final_store: list[Trial] = []
        self._searcher: Searcher | None = None
        self._running: dict[int, Trial] = {}  # by number
        self._asked = 0

    def initialize(self) -> None:
        """Start over with ``num_trials`` trials over ``searchspace``. Raises ArgumentError if either is not set."""
        if self.num_trials is None or self.searchspace is None:
            raise ArgumentError(f"{type(self).__name__}: set num_trials and searchspace before initialize()")
        self._searcher = searcher_of(self, self.searchspace, self.num_trials, self.direction, None)
        self.trial_store, self.final_store, self._running, self._asked = {}, [], {}, 0

    def get_suggestion(self, trial: Trial | None = None) -> Trial | str | None:
        """Return the next trial, "IDLE" (retry later) or None (no more); ``trial``: one that has ended."""
        if self._searcher is None:
            raise ArgumentError(f"{type(self).__name__}: call initialize() before get_suggestion()")
        if trial is not None:
            self._tell(self._searcher, trial)
        own_count = self._searcher.total is not None or self._searcher.counts
        answer = self._searcher.ask(self._asked) if own_count or self._asked < (self.num_trials or 0) else Wait.DONE
        if isinstance(answer, Wait):
            return "IDLE" if answer is Wait.LATER else None
        found = Trial(dict(answer.config))
        self._running[self._asked] = self.trial_store[found.trial_id] = found
        self._asked += 1
        return found

    def _tell(self, searcher: Searcher, trial: Trial) -> None:
        metric = trial.final_metric
        score = None if metric is None else metric if self.direction == "max" else -metric
        end = End.FAILED if score is None else End.STOPPED if trial.early_stop else End.COMPLETED
        for number in [number for number, one in self._running.items() if one is trial]:
            del self._running[number]
            searcher.tell(number, Outcome(end, score))
            self.trial_store.pop(trial.trial_id, None)
            self.final_store.append(trial)

    def finalize_experiment(self, trials: list[Trial]) -> None:
        """Do nothing: the method exists because Maggy's interface has it."""


class RandomSearch(NamedOptimizer):
    """Random search over the search space."""

    name = "random"


class GridSearch(NamedOptimizer):
    """Grid search: every combination once; it sets the number of trials itself."""

    name = "grid"


class SingleRun(NamedOptimizer):
    """One call of the function for each trial, without hyper-parameters."""

    name = "none"


class Asha(NamedOptimizer):
    """Asynchronous successive halving (ASHA); a trial's resource is its hyper-parameter ``budget``."""

    name = "asha"

    def __init__(self, reduction_factor: int = 2, resource_min: int = 1, resource_max: int = 4) -> None:
        super().__init__(reduction_factor=reduction_factor, resource_min=resource_min, resource_max=resource_max)


class _Bayesian(NamedOptimizer):
    """Base class of both; raises ArgumentError for ``interim_results``, Maggy's learning from running trials."""

    def __init__(
        self,
        num_warmup_trials: int = 15,
        random_fraction: float = 0.33,
        interim_results: bool = False,
        pruner: str | None = None,
        pruner_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if interim_results:
            raise ArgumentError(
                "interim_results=True: models learn from trials that have ended; leave it out, or use pruner='hyperband', "
                "whose short trials end early"
            )
        super().__init__(pruner, pruner_kwargs, num_warmup_trials=num_warmup_trials, random_fraction=random_fraction)


class GP(_Bayesian):
    """Bayesian optimization with a Gaussian process."""

    name = "gp"


class TPE(_Bayesian):
    """Bayesian optimization with tree-structured Parzen estimators."""

    name = "tpe"


class AbstractOptimizer(ABC):
    """Base class of users' optimizers: ``initialize``, ``get_suggestion``, ``finalize_experiment``.

    Attributes that are set before ``initialize``: ``num_trials``, ``searchspace``, ``trial_store`` (running trials by
    id), ``final_store`` (trials that have ended), ``direction``.
    """

    num_trials: int
    searchspace: Searchspace
    trial_store: dict[str, Trial]
    final_store: list[Trial]
    direction: str

    @abstractmethod
    def initialize(self) -> None:
        """Prepare the optimizer for its first suggestion; called once."""

    @abstractmethod
    def get_suggestion(self, trial: Trial | None = None) -> Trial | str | None:
        """Return the next trial, "IDLE" (retry later) or None (no more); ``trial``: one that has ended."""

    @abstractmethod
    def finalize_experiment(self, trials: list[Trial]) -> None:
        """Clean up after the search; called once, with all trials, when there are no more."""


class OptimizerAdapter(Searcher):
    """Searcher that adapts a user's optimizer; its state is the original optimizer and its calls, in order."""

    def __init__(self, optimizer: AbstractOptimizer, space: Searchspace, num_trials: int, direction: str) -> None:
        self._plain = cloudpickle.dumps(optimizer)
        self.space, self._num_trials, self._direction = space, num_trials, direction
        self._events: list[list[Any]] = []
        self._begin()

    def _begin(self) -> None:
        self.optimizer: AbstractOptimizer = cloudpickle.loads(self._plain)
        self.optimizer.num_trials, self.optimizer.searchspace = self._num_trials, copy.deepcopy(self.space)
        self.optimizer.direction = self._direction
        self.optimizer.trial_store, self.optimizer.final_store = {}, []
        self.optimizer.initialize()
        self._trials: dict[int, Trial] = {}
        self._last: Trial | None = None
        self._over = False

    def ask(self, number: int) -> Suggestion | Wait:
        """Return the optimizer's next suggestion, ``Wait.LATER`` for "IDLE", ``Wait.DONE`` for None."""
        if self._over:
            return Wait.DONE
        found = self.optimizer.get_suggestion(self._last)
        self._last = None
        self._events.append(["ask", number])
        if found is None:
            self._over = True
            self.optimizer.finalize_experiment(list(self._trials.values()))
            return Wait.DONE
        if isinstance(found, str):
            if found != "IDLE":
                raise ArgumentError(f'get_suggestion gave {found!r}; it must give a Trial, "IDLE" or None')
            return Wait.LATER
        if not isinstance(getattr(found, "params", None), dict):
            raise ArgumentTypeError(f"get_suggestion gave {found!r:.80}; it must give a Trial with a dict of params")
        found.status = Trial.RUNNING
        self._trials[number] = found
        self.optimizer.trial_store[found.trial_id] = found
        return Suggestion(dict(found.params))

    def report(self, number: int, step: int, score: float) -> None:
        """Append a report to the trial's history, and record it for ``restore``."""
        self._events.append(["report", number, step, score])
        trial = self._trials[number]
        trial.step_history.append(step)
        trial.metric_history.append(self._value(score))

    def tell(self, number: int, outcome: Outcome) -> None:
        """Set the outcome of a trial, pass it on with the next suggestion, and record it for ``restore``."""
        self._events.append(["tell", number, outcome.end.value, outcome.score, outcome.step])
        trial = self._trials[number]
        trial.status = Trial.ERROR if outcome.end is End.FAILED else Trial.FINALIZED
        trial.early_stop = outcome.end is End.STOPPED
        trial.final_metric = None if outcome.score is None else self._value(outcome.score)
        self.optimizer.trial_store.pop(trial.trial_id, None)
        self.optimizer.final_store.append(trial)
        self._last = trial

    def _value(self, score: float) -> float:
        return score if self._direction == "max" else -score

    def state(self) -> dict[str, Any]:
        """Return the calls so far as JSON values."""
        return {"events": [list(event) for event in self._events]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state by a new copy of the optimizer and the same calls."""
        self._begin()
        self._events = []
        for kind, number, *rest in state["events"]:
            if kind == "ask":
                self.ask(number)
            elif kind == "report":
                self.report(number, *rest)
            else:
                self.tell(number, Outcome(End(rest[0]), *rest[1:]))


def searcher_of(optimizer: Any, space: Searchspace, num_trials: int, direction: str, seed: int | None) -> Searcher:
    """Return the searcher for Maggy's ``optimizer=``.

    Args:
        optimizer: None, a name, an instance or class of this module, a user's optimizer, or a Searcher.
        space: the search space.
        num_trials: number of trials.
        direction: "max" or "min".
        seed: seed of the searcher; drawn if None.

    Raises:
        ArgumentTypeError: ``optimizer`` is of another type.
        KeyError: The name is not known.
    """
    if isinstance(optimizer, Searcher):
        return optimizer
    if isinstance(optimizer, type):
        optimizer = optimizer()
    if isinstance(optimizer, AbstractOptimizer):
        return OptimizerAdapter(optimizer, space, num_trials, direction)
    if not isinstance(optimizer, NamedOptimizer):
        if optimizer is not None and not isinstance(optimizer, str):
            raise ArgumentTypeError(
                f"optimizer={optimizer!r:.80} is a {type(optimizer).__name__}; it must be a name, an optimizer or a Searcher"
            )
        optimizer = _named(optimizer)
    arguments = dict(optimizer.arguments)
    if optimizer.name == "asha":
        arguments["num_trials"] = num_trials
    found = registry.searcher(optimizer.name, space, seed=seed, **arguments)
    if optimizer.pruner is not None:
        if optimizer.pruner.lower() != "hyperband":
            raise ArgumentError(f"pruner={optimizer.pruner!r} is not known; there is 'hyperband'")
        found = registry.searcher("hyperband", space, seed=seed, searcher=found, **optimizer.pruner_arguments)
    return found


def _named(name: str | None) -> NamedOptimizer:
    if name is not None and name.lower() == "asha":
        return Asha()
    found = NamedOptimizer()
    registry.searcher_class(name)  # raises the KeyError that Maggy's callers expect
    found.name = name or "none"
    return found


def __getattr__(name: str) -> object:
    raise refused_names.missing_attribute_error(__name__, name, __all__)
