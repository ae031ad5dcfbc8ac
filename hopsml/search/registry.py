"""Registry of searchers and stoppers by name; a module is imported only when its algorithm is used."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from hopsml.core import extras
from hopsml.errors import ArgumentError, UnknownName
from hopsml.search.contract import Searcher, Stopper
from hopsml.search.space.space import Searchspace

SEARCHERS = {
    "random": "hopsml.search.algorithms.random:RandomSearcher",
    "grid": "hopsml.search.algorithms.random:GridSearcher",
    "differential_evolution": "hopsml.search.algorithms.evolution:DifferentialEvolution",
    "tpe": "hopsml.search.algorithms.tpe:Tpe",
    "gp": "hopsml.search.algorithms.gp:Gp",
    "cmaes": "hopsml.search.algorithms.evolution:CmaEs",
    "bohb": "hopsml.search.algorithms.tpe:Bohb",
    # For functions that report nothing while they run: configurations are repeated with a greater parameter 'budget'.
    "asha": "hopsml.search.algorithms.asha:AshaSearcher",
    "hyperband": "hopsml.search.algorithms.hyperband:HyperbandSearcher",
    "none": "hopsml.search.algorithms.random:SingleRunSearcher",
}
STOPPERS = {
    "none": "",
    "median": "hopsml.search.algorithms.median:MedianStop",
    "asha": "hopsml.search.algorithms.asha:AshaStopper",
    "hyperband": "hopsml.search.algorithms.hyperband:Hyperband",
    "pbt": "hopsml.search.algorithms.pbt:PopulationBased",
    "pb2": "hopsml.search.algorithms.pbt:PB2",
}
# Other spellings, in lower case and without '_', '-' and blanks.
SPELLINGS = {
    "randomsearch": "random",
    "gridsearch": "grid",
    "differentialevolution": "differential_evolution",
    "de": "differential_evolution",
    "singlerun": "none",
    "medianstop": "median",
    "populationbased": "pbt",
    "populationbasedtraining": "pbt",
}
# Names of stoppers' arguments in other packages.
ARGUMENTS_ELSEWHERE = {"grace_period": "min_step", "max_t": "max_step", "min_resource": "min_step"}
LIBRARIES = {"optuna", "cmaes", "sklearn", "scipy", "numpy"}  # packages of the extra 'search'


def searcher(name: str | None, space: Searchspace, seed: int | None = None, **arguments: Any) -> Searcher:
    """Return the searcher called ``name``, constructed with the space, the seed and its own arguments.

    Args:
        name: name in any spelling and case; None is "none".
        space: search space.
        seed: seed of its random numbers; None: a random one.
        **arguments: the algorithm's own arguments.

    Raises:
        UnknownName: (a KeyError) the name is not registered.
        ArgumentError: an argument is unknown or invalid, or a library is missing.
    """
    found = searcher_class(name)
    return _made(found, f"the searcher {name!r}", space, seed=seed, **arguments)  # type: ignore[no-any-return]


def stopper(name: str | None, **arguments: Any) -> Stopper | None:
    """Return the stopper called ``name``, in any spelling and case; None for "none".

    Raises:
        UnknownName: (a KeyError) the name is not registered.
        ArgumentError: an argument is unknown or invalid, or a library is missing.
    """
    place = STOPPERS[_canonical(name, "stopper", STOPPERS)]
    if not place:
        if arguments:
            raise ArgumentError(
                f"without a stopper there is no use for {', '.join(arguments)}; name one, or leave them out"
            )
        return None
    return _made(_loaded(place), f"the stopper {name!r}", **arguments)  # type: ignore[no-any-return]


def searcher_class(name: str | None) -> type[Searcher]:
    """Return the class of the searcher called ``name``; raises UnknownName."""
    found: type[Searcher] = _loaded(SEARCHERS[_canonical(name, "searcher", SEARCHERS)])
    return found


def stopper_class(name: str | None) -> type[Stopper] | None:
    """Return the class of the stopper called ``name``; None for "none"; raises UnknownName."""
    place = STOPPERS[_canonical(name, "stopper", STOPPERS)]
    return _loaded(place) if place else None


def _canonical(name: str | None, what: str, known: dict[str, str]) -> str:
    given = "none" if name is None else name
    if isinstance(given, str):
        plain = given.lower().translate(str.maketrans("", "", "_- "))
        found = SPELLINGS.get(plain, plain)
        if found in known:
            return found
    raise UnknownName(f"there is no {what} {name!r}; there are {', '.join(sorted(known))}")


def _loaded(place: str) -> Any:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def _made(found: type, what: str, /, *positional: Any, **arguments: Any) -> Any:
    try:
        inspect.signature(found).bind(*positional, **arguments)
    except TypeError as error:
        known = [name for name in inspect.signature(found).parameters if name not in ("space", "seed")]
        meant = next((ARGUMENTS_ELSEWHERE[name] for name in arguments if name in ARGUMENTS_ELSEWHERE), "")
        hint = f"; did you mean {meant}?" if meant in known else ""
        raise ArgumentError(f"{what}: {error}; it takes {', '.join(known) or 'nothing'}{hint}") from None
    try:
        return found(*positional, **arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LIBRARIES:
            raise
        raise ArgumentError(f"{what} needs {error.name}: {extras.install_command('search')}") from error
