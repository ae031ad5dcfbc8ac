"""The predecessor's searches, as existing code calls them: ``grid_search``, ``random_search``, ``differential_evolution``.

Each is an ``experiment.search`` with the predecessor's arguments, folders and files:

    <run>/a=1&b=5/{.hparams.json,.outputs.json,.metric,output.log}       one combination
    <run>/generation.0/a=1&b=5/                                          of differential evolution
    <run>/.summary.json                                                  all of them

and returns what unpacks as ``best_dir, best_config, best_outputs``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.experiment import arguments
from hopsml.experiment.searches import call as calls
from hopsml.experiment.searches.handle import SearchRun
from hopsml.experiment.searches.names import NameOf
from hopsml.experiment.searches.result import SearchResult
from hopsml.experiment.searches.start import begin
from hopsml.search.differential_evolution import DifferentialEvolution
from hopsml.search.space import Searchspace
from hopsml.tracking import seeds

LONGEST_NAME = 200  # characters of a folder's name; file systems take 255 bytes


class Direction:
    """Whether the metric shall be large or small."""

    MAX = "MAX"
    MIN = "MIN"


@dataclass(frozen=True)
class _Verb:
    """Its positional arguments behind the function, with their defaults; ``old`` names of them."""

    name: str
    parameters: Mapping[str, Any]
    old: Mapping[str, str] = field(default_factory=dict)


_COMMON = {
    "name": "no-name", "local_logdir": False, "description": None, "optimization_key": "metric",
}  # fmt: skip
_GRID = _Verb(
    "grid_search", {"grid_dict": None, "direction": Direction.MAX, **_COMMON}, {"args_dict": "grid_dict"}
)  # fmt: skip
_RANDOM = _Verb("random_search", {"boundary_dict": None, "direction": Direction.MAX, "samples": 10, **_COMMON})
_EVOLUTION = _Verb(
    "differential_evolution",
    {
        "boundary_dict": None, "direction": Direction.MAX, "generations": 4, "population": 6, "mutation": 0.5,
        "crossover": 0.7, **_COMMON,
    },
    {"search_dict": "boundary_dict", "popsize": "population"},
)  # fmt: skip
# Accepted, and said to have no effect, as they were about the predecessor's own services.
_IGNORED = ("versioned_resources", "cleanup_generations")
_OURS = tuple(
    option.name
    for option in fields(calls.Options)
    if option.name
    not in (*_COMMON, "searcher", "searcher_args", "num_trials", "direction", "metric", "workers_per_trial")
)


def grid_search(*positional: Any, **named: Any) -> SearchResult:
    """Try every combination of ``grid_dict``, a dict of lists, and give the best.

    ``grid_search(train_fn, grid_dict, direction="MAX", name="no-name", local_logdir=False, description=None,
    optimization_key="metric")``; besides, the keyword arguments of ``search`` that are not about the searcher.
    """
    return submit_grid_search(*positional, **named).result()


def submit_grid_search(*positional: Any, **named: Any) -> SearchRun:
    """As ``grid_search``, but returns at once with a handle."""
    function, values, options = _parse(_GRID, positional, named)
    space = Searchspace.from_grid(_table(_GRID, values, "grid_dict"))
    return _begin(_GRID, function, space, values, options, searcher="grid", num_trials=None)


def random_search(*positional: Any, **named: Any) -> SearchResult:
    """Try ``samples`` combinations between the bounds of ``boundary_dict``, each once, and give the best.

    ``random_search(train_fn, boundary_dict, direction="MAX", samples=10, name="no-name", local_logdir=False,
    description=None, optimization_key="metric")``. Two integers are the ends of a range of integers; with a float among
    the two every number between them counts.
    """
    return submit_random_search(*positional, **named).result()


def submit_random_search(*positional: Any, **named: Any) -> SearchRun:
    """As ``random_search``, but returns at once with a handle."""
    function, values, options = _parse(_RANDOM, positional, named)
    samples = arguments.whole_number("samples", values["samples"])
    space = Searchspace.from_boundaries(_table(_RANDOM, values, "boundary_dict"))
    return _begin(_RANDOM, function, space, values, options, searcher="random", num_trials=samples)


def differential_evolution(*positional: Any, **named: Any) -> SearchResult:
    """Move a population through the space, a generation after the other, and give the best combination of all.

    ``differential_evolution(train_fn, boundary_dict, direction="MAX", generations=4, population=6, mutation=0.5,
    crossover=0.7, name="no-name", local_logdir=False, description=None, optimization_key="metric")``. The type of the first
    bound decides: integers, floats, else a choice between the two values.
    """
    return submit_differential_evolution(*positional, **named).result()


evolutionary_search = differential_evolution  # its oldest name


def submit_differential_evolution(*positional: Any, **named: Any) -> SearchRun:
    """As ``differential_evolution``, but returns at once with a handle."""
    function, values, options = _parse(_EVOLUTION, positional, named)
    population = arguments.whole_number("population", values["population"])
    generations = arguments.whole_number("generations", values["generations"])
    if population <= 3:
        raise ArgumentError(f"population={population}: it must be more than 3, as a member moves by three others")
    if generations <= 1:
        raise ArgumentError(f"generations={generations}: there must be more than 1")
    space = Searchspace.from_boundaries(_table(_EVOLUTION, values, "boundary_dict"), categories=True)
    own = {"generations": generations, "population": population}
    own |= {name: values[name] for name in ("mutation", "crossover")}
    return _begin(_EVOLUTION, function, space, values, options, "differential_evolution", None, own)


# ---------------------------------------------------------------------------------------------------- one for all


def _parse(
    verb: _Verb, positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The function, the verb's own arguments, and those of ``search``."""
    named = {verb.old.get(name, name): value for name, value in named.items()}
    if "objective_function" in named:
        named["train_fn"] = named.pop("objective_function")
    function, rest = arguments.training_function(positional, named, verb.name)
    arguments.take_by_position(verb.name, rest, named, (tuple(verb.parameters), _older_order(verb)))
    known = (*verb.parameters, *_IGNORED, *_OURS)
    arguments.refuse_unknown(verb.name, {name: named[name] for name in named if name not in known}, known)
    values = {name: named.get(name, default) for name, default in verb.parameters.items()}
    values["notes"] = arguments.without_effect({name: named.get(name) for name in _IGNORED})
    return function, values, {name: named[name] for name in named if name in _OURS}


def _older_order(verb: _Verb) -> tuple[str, ...]:
    """Before 1.4 the resources stood before the description, and what becomes of generations before the name."""
    order = [name for name in verb.parameters if name not in ("description", "optimization_key")]
    if verb is _EVOLUTION:
        order.insert(order.index("name"), "cleanup_generations")
    return (*order, "versioned_resources", "description")


def _table(verb: _Verb, values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values[name]
    if not isinstance(table, Mapping):
        raise ArgumentTypeError(
            f"{verb.name}(): {name}={table!r:.80} is a {type(table).__name__}; it must be a dict of lists"
        )
    return table


def _begin(
    verb: _Verb,
    function: Any,
    space: Searchspace,
    values: Mapping[str, Any],
    given: dict[str, Any],
    searcher: str,
    num_trials: int | None,
    own: Mapping[str, Any] | None = None,
) -> SearchRun:
    options = calls.Options(
        **given,
        searcher=searcher,
        searcher_args=own,
        num_trials=num_trials,
        direction=values["direction"],
        metric=arguments.text("optimization_key", values["optimization_key"]),
        name=values["name"],
        description=values["description"],
        local_logdir=values["local_logdir"],
    )
    call = calls.checked(verb.name, function, space, options, seeds.choose(options.environment or {}, os.environ))
    call.folder, call.with_summary, call.notes = "", True, values["notes"]
    call.name_of = _in_generations(call.searcher) if isinstance(call.searcher, DifferentialEvolution) else combination
    return begin(call)


def combination(config: Mapping[str, Any], number: int, repeat: int) -> str:
    """The predecessor's name for a combination's folder: ``a=1&b=5``; what no name may hold becomes ``%2F`` and the like."""
    text = "&".join(f"{name}={value}" for name, value in config.items())
    text = text.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    if len(text.encode()) > LONGEST_NAME:
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        text = text.encode()[: LONGEST_NAME - 17].decode(errors="ignore") + "-" + digest
    return text if not repeat else f"{text}.{repeat + 1}"


def _in_generations(searcher: DifferentialEvolution) -> NameOf:
    def name(config: Mapping[str, Any], number: int, repeat: int) -> str:
        return f"generation.{searcher.generation_of(number)}/{combination(config, number, repeat)}"

    return name
