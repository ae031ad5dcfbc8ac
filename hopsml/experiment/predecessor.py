"""The predecessor's searches and names: ``grid_search``, ``random_search``, ``differential_evolution``, ``begin``, ``end``.

Each search is an ``experiment.search`` with the predecessor's arguments, folders and files:

    <run>/a=1&b=5/{.hparams.json,.outputs.json,.metric,output.log}       one combination
    <run>/generation.0/a=1&b=5/                                          of differential evolution
    <run>/.summary.json                                                  all of them

and returns what unpacks as ``best_dir, best_config, best_outputs``. Work of the driver between ``begin`` and ``end`` is
recorded as a run. Names that are gone raise errors that name their replacements.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
from collections.abc import Mapping
from typing import Any

from hopsml.cluster.shared import checks
from hopsml.errors import ArgumentError, ArgumentTypeError, RuleError, RunError
from hopsml.experiment import plan, verbs
from hopsml.experiment.collective import ORDERS, build
from hopsml.experiment.options import (
    EvolutionOptions,
    GridOptions,
    PredecessorOptions,
    RandomOptions,
    RunOptions,
    SearchOptions,
    convert_options,
)
from hopsml.experiment.recorded import Recorded, recorded
from hopsml.experiment.result import Result
from hopsml.experiment.searches import call as calls
from hopsml.experiment.searches import start
from hopsml.experiment.searches.call import NameOf
from hopsml.experiment.searches.result import SearchResult
from hopsml.experiment.verbs import Verb
from hopsml.search.algorithms.evolution import DifferentialEvolution
from hopsml.search.space.space import Searchspace
from hopsml.tracking import inputs

_open: list[tuple[contextlib.AbstractContextManager[Recorded], Recorded]] = []  # at most one


@Verb(RunOptions, "horovod", orders=ORDERS, renamed={"notebook": "train_fn"})
def horovod(options: RunOptions) -> Result:
    """Run the function on all workers by ``collective_all_reduce``, without MPI.

    Raises:
        ArgumentTypeError: for the path of a notebook, which the predecessor accepted: the horovod that it uses is not
            available; otherwise as ``collective_all_reduce``.
    """
    return plan.start(build(options)).result()


def begin(
    name: str = "", local_logdir: bool = False, versioned_resources: Any = None, description: str | None = None
) -> str:
    """Record the driver's work from now on until ``end``; returns the run's directory.

    New code should use ``with experiment.recorded(name) as run:``.

    Args:
        name: run name, shown where runs are listed; by default that of the script.
        local_logdir: of the predecessor; raises an error, as work of the driver has no such folder.
        versioned_resources: paths of files and folders, which are copied into the folder ``resources`` of the run
            directory.
        description: free text, shown where runs are listed.

    Raises:
        RunError: (a RuntimeError) while another one is open.
        ArgumentError: ``local_logdir`` is given.
        PathNotFound: a file of ``versioned_resources`` does not exist.
    """
    if _open:
        raise RunError("an experiment is already running; call experiment.end() first", _open[0][1].run_dir)
    if local_logdir:
        raise ArgumentError(
            f"begin(local_logdir={local_logdir!r:.80}): the driver has no such folder; write below the directory that "
            "begin() returns"
        )
    resources = inputs.resource_urls(versioned_resources)
    manager = recorded(name, description=description)
    run = manager.__enter__()
    inputs.copy_resources(resources, run.run_dir)
    _open.append((manager, run))
    atexit.register(_left_open)
    return run.run_dir


def end(metric: Any = None) -> None:
    """End the run that ``begin`` started, with a metric if one is given; raises RunError if there is none."""
    if not _open:
        raise RunError("no experiment is running; call experiment.begin() first")
    manager, run = _open.pop()
    atexit.unregister(_left_open)
    if metric is not None:
        run.metrics["metric"] = metric
    manager.__exit__(None, None, None)


def _left_open() -> None:
    """End an open run as cancelled, at the program's exit without ``end``."""
    while _open:
        manager, _ = _open.pop()
        with contextlib.suppress(KeyboardInterrupt):
            manager.__exit__(KeyboardInterrupt, KeyboardInterrupt("the program ended without experiment.end()"), None)


LONGEST_NAME = 200  # characters of a folder's name; file systems take 255 bytes


class Direction:
    """Constants for the direction of a search: the largest or the smallest value of the metric is the best."""

    MAX = "MAX"
    MIN = "MIN"


# Order of arguments after the function. Before 1.4 the resources came before the description, and the argument on
# generations before the name.
_COMMON = ("name", "local_logdir", "description", "optimization_key")
_OLDER = ("name", "local_logdir", "versioned_resources", "description")
_SAMPLING = ("boundary_dict", "direction", "samples")
_EVOLVING = ("boundary_dict", "direction", "generations", "population", "mutation", "crossover")

_grid = Verb(
    GridOptions,
    "grid_search",
    orders=(("grid_dict", "direction", *_COMMON), ("grid_dict", "direction", *_OLDER)),
    renamed={"args_dict": "grid_dict"},
)
_random = Verb(RandomOptions, "random_search", orders=((*_SAMPLING, *_COMMON), (*_SAMPLING, *_OLDER)))
_evolution = Verb(
    EvolutionOptions,
    "differential_evolution",
    orders=((*_EVOLVING, *_COMMON), (*_EVOLVING, "cleanup_generations", *_OLDER)),
    renamed={"search_dict": "boundary_dict", "popsize": "population"},
)


@_grid
def grid_search(options: GridOptions) -> SearchResult:
    """Try every combination of ``grid_dict``, a dict of lists, and return the best."""
    return start.start_search(grid_call(options)).result()


def grid_call(options: GridOptions) -> calls.SearchCall:
    """Return the search that a call of ``grid_search`` describes; nothing is started."""
    space = Searchspace.from_grid(_table("grid_search", "grid_dict", options.grid_dict))
    return _call("grid_search", space, options, options.optimization_key, searcher="grid", num_trials=None)


@_random
def random_search(options: RandomOptions) -> SearchResult:
    """Try ``samples`` combinations between the bounds of ``boundary_dict``, each once, and return the best.

    Two integers are the ends of a range of integers; if one of them is a float, every number between them is possible.
    """
    return start.start_search(random_call(options)).result()


def random_call(options: RandomOptions) -> calls.SearchCall:
    """Return the search that a call of ``random_search`` describes; nothing is started."""
    samples = checks.whole_number("samples", options.samples)
    space = Searchspace.from_boundaries(_table("random_search", "boundary_dict", options.boundary_dict))
    return _call("random_search", space, options, options.optimization_key, searcher="random", num_trials=samples)


@_evolution
def differential_evolution(options: EvolutionOptions) -> SearchResult:
    """Evolve a population of combinations over several generations, and return the best combination of all.

    The type of the first bound decides: integers, floats, else a choice between the two values.
    """
    return start.start_search(evolution_call(options)).result()


evolutionary_search = differential_evolution  # its oldest name


def evolution_call(options: EvolutionOptions) -> calls.SearchCall:
    """Return the search that a call of ``differential_evolution`` describes; nothing is started."""
    population = checks.whole_number("population", options.population)
    generations = checks.whole_number("generations", options.generations)
    if population <= 3:
        raise RuleError(
            f"population={population}: it must be more than 3, since each member moves by the difference of others"
        )
    if generations <= 1:
        raise RuleError(f"generations={generations}: the number must be more than 1")
    table = _table("differential_evolution", "boundary_dict", options.boundary_dict)
    space = Searchspace.from_boundaries(table, categories=True)
    own = {
        "generations": generations,
        "population": population,
        "mutation": options.mutation,
        "crossover": options.crossover,
    }
    return _call(
        "differential_evolution",
        space,
        options,
        options.optimization_key,
        searcher="differential_evolution",
        num_trials=None,
        searcher_args=own,
    )


# ---------------------------------------------------------------------------------------------------- common part


def _table(verb: str, name: str, table: Any) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise ArgumentTypeError(
            f"{verb}(): {name}={table!r:.80} is a {type(table).__name__}; it must be a dict of lists"
        )
    return table


def _call(verb: str, space: Searchspace, given: PredecessorOptions, key: str, **own: Any) -> calls.SearchCall:
    options = convert_options(given, SearchOptions, space=space, metric=checks.text("optimization_key", key), **own)
    call = calls.checked_call(verb, options, inputs.choose_seed(options.environment or {}, os.environ))
    call.folder, call.with_summary = "", True
    call.resources = tuple(given.versioned_resources or ())
    call.notes += verbs.ignored_argument_notes({"cleanup_generations": given.cleanup_generations})
    call.name_of = (
        _in_generations(call.searcher) if isinstance(call.searcher, DifferentialEvolution) else combination_name
    )
    return call


def combination_name(config: Mapping[str, Any], number: int, repeat: int) -> str:
    """Return the predecessor's folder name of a combination, ``a=1&b=5``; invalid characters become ``%2F`` etc."""
    text = "&".join(f"{name}={value}" for name, value in config.items())
    text = text.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    if len(text.encode()) > LONGEST_NAME:
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        text = text.encode()[: LONGEST_NAME - 17].decode(errors="ignore") + "-" + digest
    return text if not repeat else f"{text}.{repeat + 1}"


def _in_generations(searcher: DifferentialEvolution) -> NameOf:
    def name(config: Mapping[str, Any], number: int, repeat: int) -> str:
        return f"generation.{searcher.generation_of(number)}/{combination_name(config, number, repeat)}"

    return name
