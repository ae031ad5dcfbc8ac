"""Tree-structured Parzen estimator by optuna's sampler.

Bergstra et al. 2011, "Algorithms for hyper-parameter optimization", NIPS 24; several parameters are sampled jointly as
in Falkner et al. 2018 (BOHB); running trials count as bad ones.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hopsml.search.algorithms import libraries
from hopsml.search.algorithms.history import History, PastTrial
from hopsml.search.algorithms.randomness import number_of, seed_of
from hopsml.search.algorithms.warmup import Warmup
from hopsml.search.contract import Config, End, Outcome, Searcher, Suggestion, Wait
from hopsml.search.space.parameter import Choice, Integers, Interval, LogIntegers, Parameter
from hopsml.search.space.space import Searchspace, check_filled

if TYPE_CHECKING:
    import optuna


class Tpe(Searcher):
    """Searcher by optuna's multivariate tree-structured Parzen estimator (TPE).

    Stopped trials are ranked by the step that they reached, then by their score.

    Args:
        space: search space.
        seed: seed of its random numbers; None: a random one.
        num_warmup_trials: number of trials that must have ended with a score before the model is used.
        random_fraction: fraction of all trials that are drawn without the model.

    Raises:
        ArgumentError: an invalid value, or a library is missing.
    """

    def __init__(
        self, space: Searchspace, seed: int | None = None, num_warmup_trials: int = 10, random_fraction: float = 0.0
    ) -> None:
        check_filled(space)
        libraries.require("TPE", "optuna", "scipy")
        self.space, self.seed = space, seed_of(seed)
        self._warmup = Warmup(space, self.seed, num_warmup_trials, random_fraction)
        self._scored = 0
        self._history = History(space)
        self._study = _study()
        self._running: dict[int, optuna.Trial] = {}

    def ask(self, number: int) -> Suggestion | Wait:
        """Return a configuration: of the warm-up, or one sampled by the model."""
        config = self._warmup.config(number, self._scored)
        if config is not None:
            self._run(number, config)
        else:
            # A new sampler for each trial, so that only results carry over from one trial to the next.
            self._study.sampler = _sampler_class()(self.space, number_of(self.seed, number))
            trial = self._running[number] = self._study.ask()
            config = self.space.build(functools.partial(_suggest, trial))
        self._history.ask(config)
        return Suggestion(config)

    def _run(self, number: int, config: Config) -> None:
        """Add to optuna's study a running trial with this configuration."""
        import optuna

        self._study.sampler = optuna.samplers.RandomSampler(seed=0)  # draws nothing: all values are enqueued
        self._study.enqueue_trial(self.space.encode(config))
        trial = self._running[number] = self._study.ask()
        self.space.build(functools.partial(_suggest, trial))

    def tell(self, number: int, outcome: Outcome) -> None:
        """Record the outcome of an ended trial, also in optuna's study."""
        import optuna

        self._history.tell(number, outcome)
        self._scored += outcome.score is not None
        trial = self._running.pop(number)
        if outcome.score is None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        elif outcome.end is End.STOPPED:
            trial.report(outcome.score, max(outcome.step or 0, 0))
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(trial, outcome.score)

    def learn(self, config: Config, outcome: Outcome) -> None:
        """Record a trial of an earlier search, if its configuration is in the space."""
        if self._history.learn(config, outcome):
            self._scored += outcome.score is not None
            self._add(PastTrial(config, outcome))

    def state(self) -> dict[str, Any]:
        """Return trials, warm-up and seed as JSON values, for ``restore``."""
        return {"seed": self.seed, "warmup": self._warmup.state(), **self._history.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance, with a new optuna study of the same trials."""
        self.seed = state["seed"]
        self._warmup.restore(state["warmup"])
        self._history.restore(state)
        self._scored = len(self._history.scored())
        self._study, self._running = _study(), {}
        for trial in self._history.learned:
            self._add(trial)
        for number, trial in enumerate(self._history.asked):
            if trial.outcome is None:
                self._run(number, trial.config)
            else:
                self._add(trial)

    def _add(self, trial: PastTrial) -> None:
        """Add an ended trial to optuna's study, as ``tell`` would have left it."""
        import optuna

        outcome = trial.outcome
        assert outcome is not None
        reports, ended = None, optuna.trial.TrialState.COMPLETE
        if outcome.score is None:
            ended = optuna.trial.TrialState.FAIL
        elif outcome.end is End.STOPPED:
            reports, ended = {max(outcome.step or 0, 0): outcome.score}, optuna.trial.TrialState.PRUNED
        self._study.add_trial(
            optuna.trial.create_trial(
                state=ended,
                value=outcome.score,
                params=self.space.encode(trial.config),
                distributions={name: _distribution(self.space.parameters[name]) for name in trial.config},
                intermediate_values=reports,
            )
        )


def _study() -> optuna.Study:
    optuna = libraries.optuna()
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # the creation of a study does not concern the user
    try:
        return optuna.create_study(direction="maximize")  # type: ignore[no-any-return] # loaded where it is used
    finally:
        optuna.logging.set_verbosity(level)


@functools.cache
def _sampler_class() -> Any:
    import optuna

    class Sampler(optuna.samplers.TPESampler):
        """TPE sampler that samples unconditional parameters jointly, and conditional ones one by one."""

        def __init__(self, space: Searchspace, seed: int) -> None:
            super().__init__(seed=seed, n_startup_trials=0, multivariate=True, constant_liar=True)
            self._always = {
                name: distribution
                for name, found in space.parameters.items()
                if not found.when and not (distribution := _distribution(found)).single()
            }

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return self._always

    return Sampler


def _distribution(found: Parameter) -> Any:
    from optuna import distributions

    if isinstance(found, Choice):
        return distributions.CategoricalDistribution(tuple(range(found.count)))
    if isinstance(found, Integers):
        return distributions.IntDistribution(found.low, found.high, log=isinstance(found, LogIntegers))
    assert isinstance(found, Interval)
    return distributions.FloatDistribution(found.low, found.high, log=found.logarithmic)


def _suggest(trial: optuna.Trial, found: Parameter) -> Any:
    if isinstance(found, Choice):
        return found.values[trial.suggest_categorical(found.name, tuple(range(found.count)))]
    if isinstance(found, Integers):
        return trial.suggest_int(found.name, found.low, found.high, log=isinstance(found, LogIntegers))
    assert isinstance(found, Interval)
    return trial.suggest_float(found.name, found.low, found.high, log=found.logarithmic)
