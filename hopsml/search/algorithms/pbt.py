"""Population based training (PBT), and population based bandits (PB2), which choose numbers by a Gaussian process.

PBT: Jaderberg et al. 2017, arXiv 1711.09846, algorithm 1 with truncation selection. Every ``interval`` steps a trial is
compared with the rest of the population. One of the worst continues from the newest checkpoint of one of the best
(exploit), with the other's hyper-parameters slightly changed (explore). With fewer slots than trials, a trial that is
ahead of a waiting one releases its slot at the end of an interval. In synchronous mode all trials wait at the end of an
interval, and are compared together.

PB2: Parker-Holder et al. 2020, "Provably efficient online hyperparameter optimization with population-based bandits",
NeurIPS 33, algorithm 1. Numbers are not perturbed at random: a Gaussian process of the gain of an interval, over time
and hyper-parameters, gives the point where the upper confidence bound of the next gain is highest. Categories, for
which the paper has no model, change as in population based training.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.gaussian_process import Kernel, Posterior
from hopsml.search.algorithms.random import generator, seed_or_random
from hopsml.search.contract import Config, Exploit, Outcome, Stopper, Verdict
from hopsml.search.space.parameter import CATEGORICAL, Choice, Integers, Parameter
from hopsml.search.space.space import Searchspace, check_filled

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(slots=True)
class Individual:
    """State of one trial of the population.

    ``score`` is that at the end of its last interval, or that of the trial from which it took over.
    """

    config: Config
    intervals: int = 0  # number of completed intervals
    score: float | None = None
    step: int = 0  # step of that score
    due: bool = False  # compare it when it is resumed
    kept: bool = False  # it continued at the end of its last interval although another one waited
    verdict: Verdict = Verdict.CONTINUE
    exploit: Exploit | None = None  # synchronous mode: decided while it waits, returned when it is resumed
    released: bool = False  # synchronous mode: all others have reached the interval's end, it may be resumed


class PopulationBased(Stopper):
    """Population based training: trials in the worst ``quantile`` take over from the best ones at each interval.

    At an exchange a hyper-parameter is drawn again with ``resample_probability``; else a number is multiplied by one of
    ``factors``, a DISCRETE value moves to a neighbour, and a category stays. No trial is compared before the whole
    population has begun.

    Args:
        space: search space; required.
        population: number of trials; required.
        interval: number of steps between comparisons.
        max_step: step at which a trial is complete; None: when its function returns.
        quantile: fraction of the population that is exchanged, above 0 and at most 0.5.
        resample_probability: probability that a hyper-parameter is drawn again.
        factors: factors by which numbers change.
        seed: seed of its random numbers; None: a random one.
        synchronous: a trial waits at the end of an interval until all have reached it. Equal amounts of training are
            then compared, and the same seed gives the same exchanges regardless of speed; slots are idle in between.

    Raises:
        ArgumentError: a missing or invalid value.
    """

    def __init__(
        self,
        space: Searchspace | None = None,
        population: int | None = None,
        interval: int = 1,
        max_step: int | None = None,
        quantile: float = 0.25,
        resample_probability: float = 0.25,
        factors: Sequence[float] = (1.2, 0.8),
        seed: int | None = None,
        synchronous: bool = False,
    ) -> None:
        if space is None or population is None:
            missing = "space" if space is None else "population"
            raise ArgumentError(
                f"{missing} is missing: population based training needs the search space and how many train"
            )
        check_filled(space)
        for name, value, least in (("population", population, 2), ("interval", interval, 1), ("max_step", max_step, 1)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ArgumentError(f"{name}={value!r}: it must be an integer, {least} or more")
        if not 0 < quantile <= 0.5:
            raise ArgumentError(f"quantile={quantile!r}: it must be greater than 0 and at most 0.5")
        if not 0 <= resample_probability <= 1:
            raise ArgumentError(f"resample_probability={resample_probability!r}: it must be a probability from 0 to 1")
        if not factors or not all(math.isfinite(factor) and factor > 0 for factor in factors):
            raise ArgumentError(f"factors={factors!r}: they must be numbers greater than 0, such as (1.2, 0.8)")
        self.space, self.population, self.interval, self.max_step = space, population, interval, max_step
        self.quantile, self.resample, self.factors = quantile, resample_probability, tuple(factors)
        self.seed, self.synchronous = seed_or_random(seed), bool(synchronous)
        self._clear()

    def _clear(self) -> None:
        self._begun = 0
        self._closed = False  # True if no more trials will begin
        self._members: dict[int, Individual] = {}

    def begin(self, number: int, config: Config) -> None:
        """Add a new trial to the population."""
        self._begun += 1
        self._members[number] = Individual(dict(config))

    def report(self, number: int, step: int, score: float) -> Verdict | Exploit:
        """Decide at the end of an interval whether the trial continues, pauses, exploits a better one or stops.

        The decision is made at the first report past the end of the interval. At ``max_step`` it stops at once.
        """
        member = self._members[number]
        if member.verdict is not Verdict.CONTINUE:
            return member.verdict
        ended = step // self.interval > member.intervals
        if ended:
            self._close_interval(member, step, score)
        if self.max_step is not None and step >= self.max_step:
            member.verdict = Verdict.STOP
            return member.verdict
        if self.synchronous:
            return self._in_step(number, member, ended)
        yields = ended and self._others_wait(member)
        if yields and member.kept:  # else a trial that exploits at every interval would never yield its slot
            member.due = True
        elif ended or member.due:
            member.due = False
            exploit = self._compare(number, member)
            if exploit is not None:
                member.kept = yields
                return exploit
        if yields:
            member.kept = False
            member.verdict = Verdict.PAUSE
        return member.verdict

    def _in_step(self, number: int, member: Individual, ended: bool) -> Verdict | Exploit:
        """Decide in synchronous mode: trials wait at the end of an interval until the last one has reached it."""
        exploit, member.exploit = member.exploit, None
        if exploit is not None:  # decided while it waited
            return exploit
        if not ended:
            return Verdict.CONTINUE
        member.verdict = Verdict.PAUSE
        if not self._settle_interval():
            return Verdict.PAUSE
        member.verdict, member.released = Verdict.CONTINUE, False
        exploit, member.exploit = member.exploit, None
        return exploit or Verdict.CONTINUE

    def _settle_interval(self) -> bool:
        """Compare and release all trials if every one waits; returns True if so."""
        waiting = {key: one for key, one in self._members.items() if one.verdict is Verdict.PAUSE}
        on_their_way = any(one.verdict is Verdict.CONTINUE or one.released for one in self._members.values())
        if not waiting or on_their_way or self._newcomers:
            return False
        for number, exploit in [(number, self._compare(number, one, take=False)) for number, one in waiting.items()]:
            waiting[number].exploit, waiting[number].released = exploit, True
        for one in waiting.values():
            if one.exploit is not None:
                self._take_over(one, one.exploit)
        return True

    def _close_interval(self, member: Individual, step: int, score: float) -> None:
        member.intervals, member.score, member.step = step // self.interval, score, step

    def _others_wait(self, member: Individual) -> bool:
        behind = (one.intervals < member.intervals for one in self._members.values() if one.verdict is Verdict.PAUSE)
        return self._newcomers > 0 or any(behind)

    @property
    def _newcomers(self) -> int:
        """Number of trials of the population that have not begun yet."""
        return 0 if self._closed else max(self.population - self._begun, 0)

    def _compare(self, number: int, member: Individual, take: bool = True) -> Exploit | None:
        """Return the exchange with one of the best trials if this is one of the worst, else None.

        Among equals, trials of greater number count as worse. An exchange is also made with a trial that is no better:
        otherwise two that have become alike would stay so forever. Without ``take`` no state changes yet, so that
        others are compared with the same scores.
        """
        scored = [(-other.score, key) for key, other in self._members.items() if other.score is not None]
        count = min(math.ceil(len(scored) * self.quantile), len(scored) // 2)
        if self._newcomers or member.score is None or not count:
            return None
        ranked = [key for _, key in sorted(scored)]
        if number not in ranked[-count:]:
            return None
        draw = generator(self.seed, number, member.intervals)
        source = ranked[int(draw.integers(count))]
        best = self._members[source]
        exploit = Exploit(source, self._explore(number, best, draw))
        if take:
            self._take_over(member, exploit)
        return exploit

    def _take_over(self, member: Individual, exploit: Exploit) -> None:
        """Copy configuration and score of the exploited trial, whose weights this one continues from."""
        member.config, member.score = exploit.config, self._members[exploit.source].score

    def _explore(self, number: int, source: Individual, draw: np.random.Generator) -> Config:
        return perturbed(self.space, source.config, draw, self.resample, self.factors)

    def end(self, number: int, outcome: Outcome) -> None:
        """Remove an ended trial from the population: others are no longer compared with it."""
        self._members.pop(number, None)

    def resume(self) -> int | None:
        """Return the waiting trial with the fewest intervals; None if there is none, or new ones will begin."""
        if self.synchronous:
            self._settle_interval()  # the last running trial may have ended
        waiting = [
            (one.intervals, key)
            for key, one in self._members.items()
            if one.verdict is Verdict.PAUSE and (one.released or not self.synchronous)
        ]
        if not waiting or self._newcomers:
            return None
        number = min(waiting)[1]
        self._members[number].verdict, self._members[number].released = Verdict.CONTINUE, False
        return number

    def settle(self) -> int | None:
        """Expect no further trial, and return the trial to be resumed, as ``resume`` does.

        Later comparisons are made even if fewer than ``population`` trials have begun.
        """
        self._closed = True
        return self.resume()

    def wants(self) -> bool:
        """Return True if fewer than ``population`` trials are alive."""
        return len(self._members) < self.population

    def state(self) -> dict[str, Any]:
        """Return the population as JSON values, for ``restore``."""
        return {
            "seed": self.seed,
            "begun": self._begun,
            "closed": self._closed,
            "members": [[number, *self._written(member)] for number, member in self._members.items()],
        }

    def _written(self, one: Individual) -> list[Any]:
        config = self.space.encode(one.config)
        exploit = None if one.exploit is None else [one.exploit.source, self.space.encode(one.exploit.config)]
        written = [config, one.intervals, one.score, one.step, one.due, one.kept, one.verdict.value]
        return [*written, exploit, one.released]

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""
        self._clear()
        self.seed, self._begun, self._closed = state["seed"], state["begun"], state["closed"]
        for number, config, intervals, score, step, due, kept, verdict, exploit, released in state["members"]:
            decoded = self.space.decode(config)
            pending = None if exploit is None else Exploit(exploit[0], self.space.decode(exploit[1]))
            self._members[number] = Individual(
                decoded, intervals, score, step, due, kept, Verdict(verdict), pending, released
            )


def perturbed(
    space: Searchspace, config: Config, draw: np.random.Generator, resample: float, factors: Sequence[float]
) -> Config:
    """Return a configuration near another one.

    Parameters that become active by a changed condition are drawn at random.

    Args:
        space: search space.
        config: configuration to change.
        draw: generator of random numbers.
        resample: probability that a parameter is drawn again.
        factors: factors by which numbers change.
    """

    def choose(found: Parameter) -> Any:
        if found.name not in config or draw.random() < resample:
            return found.at(float(draw.random()))
        return _moved(found, config[found.name], float(factors[int(draw.integers(len(factors)))]))

    return space.build(choose)


def _moved(found: Parameter, value: Any, factor: float) -> Any:
    """Return the value after a change by a factor, within the region."""
    if found.kind == CATEGORICAL:
        return value
    if isinstance(found, Choice):
        place = found.index(value) + (1 if factor > 1 else -1)
        return found.values[min(max(place, 0), len(found.values) - 1)]
    if isinstance(found, Integers):
        moved = round(value * factor)
        if moved == value:  # small integers would never move
            moved += 1 if factor > 1 else -1
        return min(max(moved, found.low), found.high)
    low, high = found.at(0.0), found.at(1.0)
    return min(max(value * factor, low), high)


MODELLED_AT_MOST = 64  # number of the newest intervals in the model
LEAST = 4  # intervals that a model needs
CANDIDATES = 256  # points spread over the space; half as many more near the source
C1, C2 = 0.2, 0.4  # constants of the confidence bound, as in the experiments of the paper
# Grid of the kernel: length scales in the cube, noise as a share of the variance, rate of change with time.
LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
NOISES = (0.003, 0.03, 0.3)
FORGETTINGS = (0.0, 0.05, 0.15, 0.4)
VARIANCES = (0.01, 100.0)  # bounds of the signal variance


class PB2(PopulationBased):
    """Population based training that chooses new hyper-parameters by a time-varying Gaussian process.

    The arguments are those of ``PopulationBased``; ``resample_probability`` and ``factors`` are used until there is a
    model, and ``resample_probability`` for categories always.
    """

    def _clear(self) -> None:
        super()._clear()
        self._gains: list[tuple[int, list[float], float]] = []  # (interval, place, gain in score for each step)

    def _close_interval(self, member: Individual, step: int, score: float) -> None:
        if member.score is not None and step > member.step:
            place = self.space.transform(member.config)
            self._gains.append((step // self.interval, place, (score - member.score) / (step - member.step)))
            del self._gains[:-MODELLED_AT_MOST]
        super()._close_interval(member, step, score)

    def _explore(self, number: int, source: Individual, draw: np.random.Generator) -> Config:
        config = perturbed(self.space, source.config, draw, self.resample, self.factors)
        columns = [place for place, found in enumerate(self.space.parameters.values()) if found.kind != CATEGORICAL]
        if len(self._gains) < LEAST or not columns:
            return config
        names = list(self.space.parameters)
        point = self._best(number, source, columns, draw)
        chosen = {names[column]: float(unit) for column, unit in zip(columns, point, strict=True)}

        def choose(found: Parameter) -> Any:
            if found.name in chosen:
                return found.at(chosen[found.name])
            # A category is unchanged or drawn again; one that becomes active by another's change is drawn.
            return config[found.name] if found.name in config else found.at(float(draw.random()))

        return self.space.build(choose)

    def _best(self, number: int, source: Individual, columns: list[int], draw: np.random.Generator) -> Array:
        """Return the candidate with the highest upper confidence bound, given what other trials run at present."""
        import numpy as np

        now = max(member.intervals for member in self._members.values()) + 1
        rows = np.array([[interval, *place] for interval, place, _ in self._gains])[:, [0, *(c + 1 for c in columns)]]
        values = _standard(np.array([gain for _, _, gain in self._gains]))
        kernel = fit_kernel(rows, values)
        trying = np.array(
            [[now, *self.space.transform(one.config)] for key, one in self._members.items() if key != number]
        )
        trying = trying[:, [0, *(column + 1 for column in columns)]]
        candidates = self._candidates(source, columns, draw)
        asked = np.column_stack([np.full(len(candidates), now), candidates])
        mean, _ = Posterior(kernel, rows, values).at(asked)
        # Running trials reduce the model's deviation, whatever their results will be.
        both = np.vstack([rows, trying])
        _, deviation = Posterior(kernel, both, np.zeros(len(both))).at(asked)
        weight = math.sqrt(C1 + max(math.log(C2 * len(rows)), 0.0))
        best: Array = candidates[int(np.argmax(mean + weight * deviation))]
        return best

    def _candidates(self, source: Individual, columns: list[int], draw: np.random.Generator) -> Array:
        """Return points spread over the space, and points around the source's configuration."""
        import numpy as np

        centre = np.array(self.space.transform(source.config))[columns]
        spread = draw.random((CANDIDATES, len(columns)))
        near = np.clip(centre + 0.1 * draw.normal(size=(CANDIDATES // 2, len(columns))), 0.0, 1.0)
        return np.vstack([spread, near])

    def state(self) -> dict[str, Any]:
        """Return the population and the recorded gains as JSON values, for ``restore``."""
        return {**super().state(), "gains": [list(gain) for gain in self._gains]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""
        super().restore(state)
        self._gains = [(interval, list(place), gain) for interval, place, gain in state["gains"]]


def _standard(gains: Array) -> Array:
    """Return ``gains`` scaled to mean 0 and variance 1; zeros where all are equal."""
    import numpy as np

    largest = float(np.abs(gains).max())
    scaled = gains / largest if largest else gains  # the squares of very large numbers would not be finite
    spread = float(scaled.std())
    return (scaled - scaled.mean()) / spread if spread > 1e-12 else np.zeros_like(gains)


@dataclass(frozen=True)
class TimeVaryingKernel(Kernel):
    """Kernel over points of the unit cube whose values change with time, the first column of a row.

    Bogunovic et al. 2016, "Time-varying Gaussian process bandit optimization", AISTATS: the squared exponential kernel
    times (1 - forgetting)^(|t - t'| / 2). ``forgetting``: 0, time does not matter, to 1, no memory at all.
    """

    forgetting: float = 0.0

    def between(self, rows: Array, others: Array) -> Array:
        """Return the covariance of each row with each of the others, without noise."""
        import numpy as np
        from scipy.spatial.distance import cdist

        apart = np.abs(rows[:, :1] - others[:, 0])
        squared = cdist(rows[:, 1:] / self.lengths[0], others[:, 1:] / self.lengths[0], "sqeuclidean")
        covariance: Array = self.variance * np.exp(-0.5 * squared) * (1.0 - self.forgetting) ** (0.5 * apart)
        return covariance


def fit_kernel(rows: Array, values: Array) -> TimeVaryingKernel:
    """Return the kernel of a grid under which the observations are most likely.

    Its hyper-parameters are chosen by the marginal likelihood (Rasmussen and Williams 2006, equation 5.8), from a grid:
    the observations are few and noisy, and many small matrices at once cost less than a search along gradients. The
    best variance for given other hyper-parameters is known in closed form (the likelihood is concentrated on it).

    Args:
        rows: array (observations, 1 + parameters); time is the first column.
        values: observed values, of mean 0.
    """
    import numpy as np
    from scipy.spatial.distance import cdist

    apart = np.abs(rows[:, :1] - rows[:, 0])
    squared = cdist(rows[:, 1:], rows[:, 1:], "sqeuclidean")
    grid = list(itertools.product(LENGTHS, NOISES, FORGETTINGS))
    lengths, noises, forgettings = (np.array(column)[:, None, None] for column in zip(*grid, strict=True))
    shapes = np.exp(-0.5 * squared / lengths**2) * (1.0 - forgettings) ** (0.5 * apart) + noises * np.eye(len(rows))
    factors = np.linalg.cholesky(shapes)
    whitened = np.linalg.solve(factors, np.broadcast_to(values[:, None], (len(grid), len(values), 1)))[..., 0]
    variances = np.clip((whitened**2).mean(axis=1), *VARIANCES)
    determinants = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    unlikely = determinants + 0.5 * len(rows) * np.log(variances) + 0.5 * (whitened**2).sum(axis=1) / variances
    place = int(np.argmin(unlikely))
    length, noise, forgetting = grid[place]
    variance = float(variances[place])
    return TimeVaryingKernel(variance, (length,), noise * variance, forgetting)
