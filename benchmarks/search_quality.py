"""Quality of the searchers: the best value after equally many trials, against the reference implementation.

Each searcher and its reference minimise Branin, Hartmann 6 and Rosenbrock (in 2 and 6 dimensions) with separate seeds.
A figure is the share of pairs (function, seed) in which hopsml found at least as good a value; chance alone gives 0.5.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import warnings
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from benchmarks import environments
from benchmarks.figures import Figure, Report
from benchmarks.landscapes import ALL, Landscape
from benchmarks.options import Options

TRIALS = 40  # for searchers that learn from few trials
TRIALS_OF_POPULATIONS = 150  # for searchers that need generations
POPULATION = 12  # of differential evolution
POINTS = {2: 7, 6: 2}  # of a grid, by dimension
OURS_FIRST_SEED = 10_000  # different seeds than the reference's, as some would draw the same numbers

Minimise = Callable[[Landscape, int], float]  # returns the smallest value found with a seed


def run(options: Options) -> Report:
    """Compare every searcher with its reference on every function."""
    seeds = options.rounds_of(20, 3)
    report = Report(
        notes=[f"search.quality: shares of {seeds} seeds x {len(ALL)} functions; low and high: by function"]
    )
    with _quiet():
        for name, (ours, theirs, peer) in pairs().items():
            mine, others = found(ours, seeds, OURS_FIRST_SEED), found(theirs, seeds, 0)
            report.figures.append(figure_of(name, mine, others, peer, options))
        mine = found(by_hopsml("gp", TRIALS), seeds, OURS_FIRST_SEED)
        try:
            others = by_optuna_gp(TRIALS, seeds, options.say)
        except RuntimeError as error:
            report.note_of("optuna's GPSampler")(str(error))
        else:
            report.figures.append(figure_of("gp", mine, others, "optuna GPSampler", options))
    return report


def pairs() -> dict[str, tuple[Minimise, Minimise, str]]:
    """Return name -> hopsml's searcher, the reference, and the reference's name."""
    import optuna

    samplers = optuna.samplers

    def sampler(make: Callable[[int], Any], trials: int) -> Minimise:
        return lambda landscape, seed: by_optuna(landscape, make(seed), trials)

    few, many = TRIALS, TRIALS_OF_POPULATIONS
    return {
        "random": (
            by_hopsml("random", few),
            sampler(lambda s: samplers.RandomSampler(seed=s), few),
            "optuna RandomSampler",
        ),
        "sobol": (
            by_hopsml("random", few, sobol=True),
            sampler(lambda s: samplers.QMCSampler(qmc_type="sobol", scramble=True, seed=s), few),
            "optuna QMCSampler",
        ),
        "grid": (on_our_grid, on_optunas_grid, "optuna GridSampler"),
        "tpe": (by_hopsml("tpe", few), sampler(lambda s: samplers.TPESampler(seed=s), few), "optuna TPESampler"),
        "cmaes": (
            by_hopsml("cmaes", many),
            sampler(lambda s: samplers.CmaEsSampler(seed=s), many),
            "optuna CmaEsSampler",
        ),
        "differential_evolution": (
            by_hopsml("differential_evolution", many, population=POPULATION, mutation=0.5, crossover=0.7),
            by_scipy,
            "scipy differential_evolution",
        ),
    }


def found(minimise: Minimise, seeds: int, first: int) -> dict[str, list[float]]:
    """Return the smallest values by function, one per seed."""
    return {one.name: [minimise(one, first + seed) for seed in range(seeds)] for one in ALL}


def figure_of(
    name: str, ours: dict[str, list[float]], theirs: dict[str, list[float]], peer: str, options: Options
) -> Figure:
    """Return the share of pairs in which hopsml's value is at least as good."""
    shares = {one: share(ours[one], theirs[one]) for one in ours}
    for one in ours:
        text = f"{median(ours[one]):.4g}, {peer} {median(theirs[one]):.4g}; share {shares[one]:.2f}"
        options.say(f"search.quality.{name}: {one}: median of ours {text}")
    count = sum(len(values) for values in ours.values())
    overall = sum(shares[one] * len(ours[one]) for one in ours) / count
    low, high = min(shares.values()), max(shares.values())
    return Figure(f"search.quality.{name}", round(overall, 3), "ratio", count, round(low, 3), round(high, 3), peer)


def share(ours: list[float], theirs: list[float]) -> float:
    """Return the share of pairs in which hopsml's value is not greater; a difference by rounding is a tie."""
    good = [one <= other or math.isclose(one, other, rel_tol=1e-9) for one, other in zip(ours, theirs, strict=True)]
    return sum(good) / len(good)


def by_hopsml(name: str, trials: int, **arguments: Any) -> Minimise:
    """Return a minimisation with one of hopsml's searchers, by its name."""
    from hopsml.search.contract import End, Outcome, Suggestion
    from hopsml.search.registry import searcher
    from hopsml.search.space.space import Searchspace

    def minimise(landscape: Landscape, seed: int) -> float:
        bounds = zip(landscape.names, landscape.bounds, strict=True)
        space = Searchspace(**{parameter: ("DOUBLE", list(pair)) for parameter, pair in bounds})
        search, best = searcher(name, space, seed=seed, **arguments), math.inf
        for number in range(trials):
            answer = search.ask(number)
            if not isinstance(answer, Suggestion):
                break  # the grid is complete
            height = landscape.height([answer.config[parameter] for parameter in landscape.names])
            search.tell(number, Outcome(End.COMPLETED, -height))
            best = min(best, height)
        return best

    return minimise


def by_optuna(landscape: Landscape, sampler: Any, trials: int) -> float:
    """Return the best value of an optuna sampler, one trial after another."""
    import optuna

    def height(trial: Any) -> float:
        bounds = zip(landscape.names, landscape.bounds, strict=True)
        return landscape.height([trial.suggest_float(name, *pair) for name, pair in bounds])

    study = optuna.create_study(sampler=sampler)
    study.optimize(height, n_trials=trials)
    return float(study.best_value)


def on_our_grid(landscape: Landscape, seed: int) -> float:
    """Return the best value of hopsml's grid, with as many points of each parameter as the budget allows."""
    points = POINTS[len(landscape.bounds)]
    return by_hopsml("grid", points ** len(landscape.bounds), points=points)(landscape, seed)


def on_optunas_grid(landscape: Landscape, seed: int) -> float:
    """Return the best value of optuna's sampler on the same grid."""
    import optuna

    points = POINTS[len(landscape.bounds)]
    grid = {
        name: [low + (high - low) * place / (points - 1) for place in range(points)]
        for name, (low, high) in zip(landscape.names, landscape.bounds, strict=True)
    }
    return by_optuna(landscape, optuna.samplers.GridSampler(grid, seed=seed), points ** len(landscape.bounds))


def by_scipy(landscape: Landscape, seed: int) -> float:
    """Return the best value of SciPy with the same strategy, factor, probability, population and calls."""
    from scipy.optimize import differential_evolution

    generations = math.ceil(TRIALS_OF_POPULATIONS / POPULATION) - 1
    heights: list[float] = []

    def height(x: Any) -> float:
        heights.append(landscape.height(x))
        return heights[-1]

    differential_evolution(
        height,
        landscape.bounds,
        strategy="rand1bin",
        maxiter=generations,
        popsize=max(1, POPULATION // len(landscape.bounds)),
        mutation=0.5,
        recombination=0.7,
        rng=seed,
        polish=False,
        tol=0.0,
        init="latinhypercube",
        updating="deferred",
    )
    return min(heights[:TRIALS_OF_POPULATIONS])


def by_optuna_gp(trials: int, seeds: int, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the best values of optuna's Gaussian process, run in the environment that has torch.

    Raises:
        RuntimeError: that process failed.
    """
    python = environments.ensure("optuna", say)
    asked = json.dumps({"trials": trials, "seeds": seeds})
    command = [str(python), "-m", "benchmarks.scripts.optuna_gp", asked]
    environment = {**os.environ, "PYTHONPATH": str(environments.ROOT)}
    done = subprocess.run(command, env=environment, cwd=environments.ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:] or f"it ended with {done.returncode}")
    values: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return values


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress optuna's log and its warnings about experimental features."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)
