"""Tests of the lookup of searchers and stoppers by name."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.core import extras
from hopsml.errors import ArgumentError, UnknownName
from hopsml.search import registry
from hopsml.search.algorithms.evolution import DifferentialEvolution
from hopsml.search.algorithms.random import GridSearcher, RandomSearcher, SingleRunSearcher
from hopsml.search.algorithms.tpe import Tpe
from hopsml.search.contract import Suggestion
from hopsml.search.space.space import Searchspace
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast

SPACE = Searchspace(a=("INTEGER", [1, 4]))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("random", RandomSearcher), ("randomsearch", RandomSearcher), ("RandomSearch", RandomSearcher),
        ("random_search", RandomSearcher),
        ("gridsearch", GridSearcher), ("GRID", GridSearcher), ("TPE", Tpe),
        ("Differential Evolution", DifferentialEvolution),
        ("differential_evolution", DifferentialEvolution), ("differential-evolution", DifferentialEvolution),
        ("none", SingleRunSearcher), ("None", SingleRunSearcher), (None, SingleRunSearcher),
        ("SingleRun", SingleRunSearcher),
    ],
)  # fmt: skip
def test_searcher_names_are_found_in_any_spelling(name: str | None, found: type) -> None:
    assert registry.searcher_class(name) is found
    assert isinstance(registry.searcher(name, Searchspace() if found is SingleRunSearcher else SPACE), found)


@pytest.mark.parametrize("name", ["bayes", "", 3])
def test_unknown_searcher_name_raises_a_key_error_with_the_known_names(name: object) -> None:
    """A KeyError, as callers of Maggy expect; its text is not quoted as a KeyError's would be."""
    with pytest.raises(KeyError) as caught:
        registry.searcher(name, SPACE)  # type: ignore[arg-type]
    assert isinstance(caught.value, ArgumentError)
    there = "asha, bohb, cmaes, differential_evolution, gp, grid, hyperband, none, random, tpe"
    assert str(caught.value) == f"there is no searcher {name!r}; there are {there}"
    with pytest.raises(
        UnknownName, match="there is no stopper 'random'; there are asha, hyperband, median, none, pb2, pbt"
    ):
        registry.stopper("random")


def test_stopper_none_takes_no_arguments() -> None:
    assert (
        registry.stopper("none") is None and registry.stopper(None) is None and registry.stopper_class("NONE") is None
    )
    with pytest.raises(ArgumentError, match="without a stopper there is no use for es_min"):
        registry.stopper(None, es_min=3)


def test_invalid_searcher_arguments_are_named() -> None:
    with pytest.raises(
        ArgumentError, match=r"the searcher 'TPE': got an unexpected keyword argument 'gamma'; it takes num_war"
    ):
        registry.searcher("TPE", SPACE, gamma=0.2)
    with pytest.raises(ArgumentError, match="num_warmup_trials=0: it must be 1 or more"):
        registry.searcher("tpe", SPACE, num_warmup_trials=0)
    with pytest.raises(ArgumentError, match="random_fraction=2: it must be a fraction"):
        registry.searcher("gp", SPACE, random_fraction=2)


def test_maggy_arguments_of_tpe_and_gp_are_accepted() -> None:
    for name in ("tpe", "gp"):
        searcher = registry.searcher(name, SPACE, num_warmup_trials=15, random_fraction=0.33)
        assert isinstance(searcher.ask(0), Suggestion)


def test_searcher_none_suggests_empty_configurations_and_refuses_parameters() -> None:
    searcher = registry.searcher(None, Searchspace())
    assert [searcher.ask(number) for number in range(3)] == [Suggestion({})] * 3
    with pytest.raises(ArgumentError, match="the space has a; name a searcher"):
        registry.searcher("none", SPACE)


def test_cmaes_refuses_categories() -> None:
    with pytest.raises(
        ArgumentError, match="CMA-ES supports numbers only, but act are categories or have a condition; use 'tpe'"
    ):
        registry.searcher("cmaes", Searchspace(act=("CATEGORICAL", ["relu", "gelu"])))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"population": 3}, "population=3: it must be 4 or more"),
        ({"generations": 0}, "generations=0: it must be 1 or more"),
        ({"mutation": 0}, "mutation=0: it must be a factor greater than 0"),
        ({"crossover": 1.5}, "crossover=1.5: it must be a probability"),
    ],
)
def test_invalid_differential_evolution_arguments_are_refused(arguments: dict[str, float], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        registry.searcher("differential_evolution", SPACE, **arguments)


@pytest.mark.parametrize("name", sorted(set(registry.STOPPERS) - {"none"}))
def test_search_page_lists_the_arguments_of_each_stopper_with_defaults(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/search.md").read_text()
    listed: dict[str, str] = {}
    owners: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[1].startswith("`"):
            owners = re.findall(r"`(\w+)`", cells[0]) or owners
            if name in owners:
                listed[cells[1].strip("`")] = cells[2].strip("`")
    found = registry.stopper_class(name)
    assert found is not None
    parameters = inspect.signature(found).parameters
    assert listed.keys() == parameters.keys() - {"space", "seed"}
    for argument, default in listed.items():
        if default not in ("none", "required", "num_trials"):
            given = ast.literal_eval(default)
            assert given == parameters[argument].default or list(given) == list(parameters[argument].default)


def test_stopper_argument_of_another_package_is_answered_with_ours() -> None:
    with pytest.raises(ArgumentError, match="did you mean min_step"):
        registry.stopper("asha", grace_period=3)


def test_search_registry_imports_no_heavy_package() -> None:
    code = (
        "import sys; from hopsml.search import registry; from hopsml.search.space import space\n"
        "s = registry.searcher('random', space.Searchspace(a=('DOUBLE', [0, 1])))\n"
        "print([name for name in ('optuna', 'scipy', 'sklearn', 'cmaes', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=END_S, check=True)
    assert done.stdout == "[]\n"


def test_missing_library_of_a_searcher_is_named_with_its_install_command() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('optuna', 'scipy', 'cmaes')))\n"
        "from hopsml.search import registry; from hopsml.search.space import space\n"
        "for name, more in (('tpe', {}), ('gp', {}), ('cmaes', {}), ('random', {'sobol': True}), ('random', {})):\n"
        "    try: registry.searcher(name, space.Searchspace(a=('DOUBLE', [0, 1])), seed=1, **more).ask(0)\n"
        "    except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=END_S, check=True)
    how = extras.install_command("search")
    assert how.startswith("pip install ") and "/" in how and how.endswith("[search]'")
    assert done.stdout.splitlines() == [
        f"TPE needs optuna, scipy: {how}",
        f"the Gaussian process needs scipy: {how}",
        f"CMA-ES needs cmaes: {how}",
        f"Sobol's sequence needs scipy: {how}",
    ]
