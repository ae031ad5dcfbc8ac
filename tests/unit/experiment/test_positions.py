"""Tests that positional arguments have the names of both releases of the predecessor."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.experiment import collective, predecessor

pytestmark = pytest.mark.fast

GRID, BOUNDS = {"a": [1]}, {"a": [1, 2]}


def train(a: int = 1) -> int:
    return a


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (("n", True, "text", True, "acc"), {"description": "text", "evaluator": True, "metric_key": "acc"}),
        (("n", False, None, False, "acc"), {"description": None, "evaluator": False, "metric_key": "acc"}),
        (("n", False, ["hdfs:///x"], "text"), {"versioned_resources": ["hdfs:///x"], "description": "text"}),
        (("n", False, None, "text"), {"description": "text", "evaluator": False}),
        (("n", False, None, "text", True), {"description": "text", "evaluator": True}),
        (("n", False, "text"), {"description": "text", "versioned_resources": None}),
    ],
)
def test_positional_arguments_of_a_training_follow_both_releases(
    rest: tuple[Any, ...], expected: dict[str, Any]
) -> None:
    options = collective._verb.options(train, *rest)
    assert options.name == "n" and {name: getattr(options, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("verb", "rest", "expected"),
    [
        (predecessor._grid, (GRID, "min", "n", True, "text", "acc"), {"local_logdir": True, "optimization_key": "acc"}),
        (predecessor._grid, (GRID, "min", "n", False, ["x"], "text"), {"optimization_key": "metric"}),
        (predecessor._random, (BOUNDS, "min", 5, "n", True, "text", "acc"), {"samples": 5, "optimization_key": "acc"}),
        (predecessor._random, (BOUNDS, "min", 5, "n", False, ["x"], "text"), {"samples": 5}),
        (predecessor._evolution, (BOUNDS, "min", 2, 4, 0.5, 0.7, "n", False, "text", "acc"), {"population": 4}),
        (predecessor._evolution, (BOUNDS, "min", 2, 4, 0.5, 0.7, True, "n", False, ["x"], "text"), {"crossover": 0.7}),
    ],
)
def test_positional_arguments_of_a_search_follow_both_releases(
    verb: Any, rest: tuple[Any, ...], expected: dict[str, Any]
) -> None:
    options = verb.options(train, *rest)
    assert (options.name, options.description, options.direction) == ("n", "text", "min")
    assert {name: getattr(options, name) for name in expected} == expected
    of = {"grid_search": predecessor.grid_call, "random_search": predecessor.random_call}
    notes = " ".join(of.get(verb._called, predecessor.evolution_call)(options).notes)
    assert options.versioned_resources == (["x"] if ["x"] in rest else None)
    assert ("cleanup_generations=True has no effect" in notes) is (True in rest and len(rest) == 11)
