"""Searchers that model the densities of good and of other configurations: TPE, and the model of BOHB.

TPE by optuna's sampler: Bergstra et al. 2011, "Algorithms for hyper-parameter optimization", NIPS 24; several parameters
are sampled jointly as in Falkner et al. 2018 (BOHB); running trials count as bad ones.

BOHB: Falkner et al. 2018, "BOHB: robust and efficient hyperparameter optimization at scale", ICML, section 4. The
densities are estimated from the scores at the highest level (number of steps) that enough configurations have reached.
BOHB is this searcher together with the stopper ``hyperband`` (or ``HyperbandSearcher``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.search.algorithms import random
from hopsml.search.algorithms.history import History, PastTrial, Warmup
from hopsml.search.algorithms.random import derived_seed, generator, seed_or_random
from hopsml.search.contract import Config, End, Outcome, Searcher, Suggestion, Wait
from hopsml.search.space.parameter import CATEGORICAL, Choice, Integers, Interval, LogIntegers, Parameter
from hopsml.search.space.space import Searchspace, check_filled

if TYPE_CHECKING:
    import numpy as np
    import optuna

    Array = np.ndarray[Any, np.dtype[np.float64]]


COMPLETE = 1_000  # level of completed trials, above that of any step


class Bohb(Searcher):
    """Model-based searcher of BOHB: suggests configurations that are likelier among the good than among the others.

    Scores are recorded at the steps 1, ``factor``, ``factor`` squared and so on; with Hyperband's reduction factor
    these are its rungs.

    Args:
        space: search space.
        seed: seed of its random numbers; None: a random one.
        min_points: minimum number of configurations for each density; None: one more than there are parameters. A model
            needs two more than that.
        top_fraction: fraction of the configurations that count as good.
        random_fraction: fraction of all configurations that are drawn at random.
        num_samples: number of samples from the good density, of which the one with the best ratio is suggested.
        bandwidth_factor: factor by which the bandwidths are widened for sampling.
        min_bandwidth: smallest bandwidth.
        factor: ratio of two levels.

    Raises:
        ArgumentError: an invalid value.
    """

    def __init__(
        self,
        space: Searchspace,
        seed: int | None = None,
        min_points: int | None = None,
        top_fraction: float = 0.15,
        random_fraction: float = 1 / 3,
        num_samples: int = 64,
        bandwidth_factor: float = 3.0,
        min_bandwidth: float = 1e-3,
        factor: int = 3,
    ) -> None:
        check_filled(space)
        counts = {"min_points": (min_points, 2), "num_samples": (num_samples, 1), "factor": (factor, 2)}
        for name, (value, least) in counts.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ArgumentError(f"{name}={value!r}: it must be an integer, {least} or more")
        for name, fraction in (("top_fraction", top_fraction), ("random_fraction", random_fraction)):
            if not 0 <= fraction <= 1:
                raise ArgumentError(f"{name}={fraction!r}: it must be a fraction from 0 to 1")
        if not (bandwidth_factor > 0 and min_bandwidth > 0):
            raise ArgumentError(
                f"bandwidth_factor={bandwidth_factor!r}, min_bandwidth={min_bandwidth!r}: both must be numbers "
                "greater than 0"
            )
        self.space, self.seed, self.factor = space, seed_or_random(seed), factor
        self.min_points = len(space) + 1 if min_points is None else min_points
        self.top_fraction, self.random_fraction = top_fraction, random_fraction
        self.num_samples, self.bandwidth_factor, self.min_bandwidth = num_samples, bandwidth_factor, min_bandwidth
        self._begin()

    def _begin(self) -> None:
        self._configs: dict[int, Config] = {}  # configurations of earlier searches have negative numbers
        self._levels: dict[int, dict[int, float]] = {}  # level -> number -> score
        self._failed: list[int] = []
        self._next: dict[int, int] = {}  # number -> the next level

    # ---------------------------------------------------------------------------------------- observations

    def report(self, number: int, step: int, score: float) -> None:
        """Record the score at each level (``factor`` ** level steps) that the trial passes.

        It is the score of its first report at or past the level.
        """
        level = self._next[number]
        while step >= self.factor**level:
            self._levels.setdefault(level, {})[number] = score
            level += 1
        self._next[number] = level

    def tell(self, number: int, outcome: Outcome) -> None:
        """Record the final score of a trial; a trial without one counts among the bad ones at every level."""
        if outcome.score is None:
            self._failed.append(number)
            return
        if outcome.step is not None:
            self.report(number, outcome.step, outcome.score)
        if outcome.end is End.COMPLETED or not self._next[number]:
            self._levels.setdefault(COMPLETE if outcome.end is End.COMPLETED else 0, {})[number] = outcome.score

    def learn(self, config: Config, outcome: Outcome) -> None:
        """Record a trial of an earlier search, if its configuration is in the space."""
        if self.space.contains(config):
            number = -1 - sum(known < 0 for known in self._configs)
            self._add(number, dict(config))
            self.tell(number, outcome)

    def _add(self, number: int, config: Config) -> None:
        self._configs[number] = config
        self._next[number] = 0

    # ---------------------------------------------------------------------------------------- suggestions

    def ask(self, number: int) -> Suggestion | Wait:
        """Return a configuration: by the model, or at random if there is none yet or by ``random_fraction``."""
        draw = generator(self.seed, number)
        known = None if draw.random() < self.random_fraction else self._furthest()
        if known is None:
            config = self.space.inverse_transform(draw.random(len(self.space)).tolist())
        else:
            config = self._promising(known, draw)
        self._add(number, config)
        return Suggestion(config)

    def _furthest(self) -> list[int] | None:
        """Return the trials of the highest level with enough scores, best first, failed ones last; None if none has."""
        for level in sorted(self._levels, reverse=True):
            scores = self._levels[level]
            if len(scores) >= self.min_points + 2:
                ranked = sorted(scores, key=lambda number: (-scores[number], number))
                return ranked + [number for number in self._failed if number not in scores]
        return None

    def _promising(self, ranked: list[int], draw: np.random.Generator) -> Config:
        """Return the sampled configuration for which the ratio of the good to the bad density is highest."""
        import numpy as np

        good_count = max(self.min_points, int(self.top_fraction * len(ranked)))
        bad_count = max(self.min_points, len(ranked) - good_count)
        categories = [found.count if _is_category(found) else None for found in self.space.parameters.values()]
        good = Density(self._rows(ranked[:good_count], draw), categories, self.min_bandwidth)
        bad = Density(self._rows(ranked[-bad_count:], draw), categories, self.min_bandwidth)
        points = good.sample(self.num_samples, draw, self.bandwidth_factor)
        best = points[int(np.argmax(good.log(points) - bad.log(points)))]
        places = dict(zip(self.space.parameters, best.tolist(), strict=True))
        return self.space.build(lambda found: _value(found, places[found.name]))

    def _rows(self, numbers: list[int], draw: np.random.Generator) -> Array:
        """Return one row of model inputs for each configuration.

        Inactive parameters get values drawn from configurations that have them, as in BOHB.
        """
        import numpy as np

        rows = np.full((len(numbers), len(self.space)), np.nan)
        for column, found in enumerate(self.space.parameters.values()):
            for row, number in enumerate(numbers):
                if found.name in self._configs[number]:
                    rows[row, column] = _place(found, self._configs[number][found.name])
            missing = np.isnan(rows[:, column])
            if missing.all():
                rows[:, column] = [_place(found, found.at(unit)) for unit in draw.random(len(rows)).tolist()]
            elif missing.any():
                rows[missing, column] = draw.choice(rows[~missing, column], size=int(missing.sum()))
        return rows

    # ---------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Return configurations, scores and seed as JSON values, for ``restore``."""
        return {
            "seed": self.seed,
            "configs": [[number, self.space.encode(config)] for number, config in self._configs.items()],
            "levels": [[level, [list(pair) for pair in scores.items()]] for level, scores in self._levels.items()],
            "failed": list(self._failed),
            "next": [list(pair) for pair in self._next.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""
        self._begin()
        self.seed = state["seed"]
        self._configs = {number: self.space.decode(config) for number, config in state["configs"]}
        self._levels = {level: {number: score for number, score in scores} for level, scores in state["levels"]}
        self._failed = list(state["failed"])
        self._next = {number: level for number, level in state["next"]}


def _is_category(found: Parameter) -> bool:
    return found.kind == CATEGORICAL


def _place(found: Parameter, value: Any) -> float:
    """Return the value as the densities' input: a category's position, else its unit from 0 to 1."""
    return float(found.index(value)) if isinstance(found, Choice) and _is_category(found) else found.unit(value)


def _value(found: Parameter, place: float) -> Any:
    return found.values[int(place)] if isinstance(found, Choice) and _is_category(found) else found.at(place)


class Density:
    """Kernel density estimate over configurations in the unit cube (section 4 of the paper).

    The kernel is a product over parameters: normal for ordered values, that of Aitchison and Aitken 1976 (Biometrika
    63) for categories: 1 - h for the category itself, the remaining h shared by the others. Bandwidths follow the
    normal reference rule (Scott 1992); for a category the spread is the root of the probability that two draws differ,
    and h is at most that of equal shares.

    Args:
        rows: array (configurations, parameters); an entry is a unit from 0 to 1, or the position of a category.
        categories: for each column its number of categories; None for ordered values.
        least: smallest bandwidth.
    """

    def __init__(self, rows: Array, categories: Sequence[int | None], least: float) -> None:
        import numpy as np

        self.rows, self.categories = rows, list(categories)
        rate = 1.06 * len(rows) ** (-1.0 / (4 + rows.shape[1]))
        self.widths = np.array([self._width(column, rate, least) for column in range(rows.shape[1])])

    def _width(self, column: int, rate: float, least: float) -> float:
        import numpy as np

        count = self.categories[column]
        if count is None:
            return max(least, rate * float(self.rows[:, column].std()))
        if count == 1:
            return 0.0
        shares = np.bincount(self.rows[:, column].astype(int), minlength=count) / len(self.rows)
        spread = float(np.sqrt(max(1.0 - float(shares @ shares), 0.0)))
        return min(max(least, rate * spread), (count - 1) / count)

    def log(self, points: Array) -> Array:
        """Return the logarithm of the estimated density at each row of ``points``."""
        import numpy as np
        from scipy.special import logsumexp

        total = np.zeros((len(points), len(self.rows)))
        for column, (count, width) in enumerate(zip(self.categories, self.widths, strict=True)):
            ours, theirs = points[:, column][:, None], self.rows[:, column][None, :]
            if count is None:
                total += -0.5 * ((ours - theirs) / width) ** 2 - np.log(width * np.sqrt(2.0 * np.pi))
            elif count > 1:
                total += np.where(ours == theirs, np.log(1.0 - width), np.log(width / (count - 1)))
        result: Array = logsumexp(total, axis=1) - np.log(len(self.rows))
        return result

    def sample(self, count: int, draw: np.random.Generator, factor: float) -> Array:
        """Draw points around the rows with wider bandwidths, truncated to the unit cube.

        Args:
            count: number of points.
            draw: generator of random numbers.
            factor: factor of the bandwidths.
        """
        import numpy as np
        from scipy.special import ndtr, ndtri

        centres = self.rows[draw.integers(len(self.rows), size=count)]
        points = np.empty_like(centres)
        for column, (values, width) in enumerate(zip(self.categories, self.widths, strict=True)):
            centre = centres[:, column]
            if values is None:
                wide = width * factor
                low, high = ndtr(-centre / wide), ndtr((1.0 - centre) / wide)  # truncated normal distribution
                points[:, column] = np.clip(centre + wide * ndtri(draw.uniform(low, high)), 0.0, 1.0)
            else:
                anew = draw.random(count) < min(width * factor, 1.0)
                points[:, column] = np.where(anew, draw.integers(values, size=count), centre)
        return points


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
        random.require_packages("TPE", "optuna", "scipy")
        self.space, self.seed = space, seed_or_random(seed)
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
            self._study.sampler = _sampler_class()(self.space, derived_seed(self.seed, number))
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
    optuna = random.import_optuna()
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
