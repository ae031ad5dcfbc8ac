"""Tests of LARS and LAMB against optax's, in float64 over 100 steps with a warm-up."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest

from hopsml.training.large_batch import rules
from tests.helpers.training import references

pytestmark = pytest.mark.local
STEPS = 100
RATES = [0.1 * min(1.0, (step + 1) / 20) for step in range(STEPS)]


def optax_variables(kind: str, chosen: list[int], **options: Any) -> references.Arrays:
    """Return the chosen variables of the problem, trained by optax in a subprocess: JAX leaves threads."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(train_by_optax, kind, chosen, options).result()


def train_by_optax(kind: str, chosen: list[int], options: dict[str, Any]) -> references.Arrays:
    """Train the chosen variables by optax in this process."""
    import jax
    import optax

    jax.config.update("jax_enable_x64", True)
    problem = references.problem()
    weights = [jax.numpy.asarray(problem[index]) for index in chosen]
    rates = jax.numpy.asarray(RATES)
    optimizer = getattr(optax, kind)(lambda step: rates[step], **options)
    state = optimizer.init(weights)
    for step in range(STEPS):
        given = [references.gradients(step, index, problem[index].shape) for index in chosen]
        updates, state = optimizer.update([jax.numpy.asarray(each) for each in given], state, weights)
        weights = optax.apply_updates(weights, updates)
    return [np.asarray(each) for each in weights]


def ours(rule: Any, chosen: list[int]) -> references.Arrays:
    """The same by a rule of hopsml's."""
    weights = references.problem()
    states: dict[int, Any] = {}
    for step in range(STEPS):
        for index in chosen:
            weight = weights[index]
            gradient = references.gradients(step, index, weight.shape)
            weights[index], *states[index] = rule(step, weight, gradient, states.get(index) or [weight * 0, weight * 0])
    return [weights[index] for index in chosen]


@pytest.mark.variant
def test_lars_without_decay_equals_optax() -> None:
    """With decay they differ: optax takes the norm of the sum of gradient and decay, the paper the sum of the norms."""
    every = list(range(len(references.problem())))
    layers = [each.ndim > 1 for each in references.problem()]

    def of_hopsml(step: int, weight: Any, gradient: Any, state: Any) -> Any:
        return rules.lars(
            weight, gradient, state[0], RATES[step], np, eta=0.02, layerwise=weight.ndim > 1, absorbs=True
        )

    theirs = optax_variables("lars", every, trust_coefficient=0.02, trust_ratio_mask=layers, momentum=0.9)
    assert references.error(ours(of_hopsml, every), theirs) <= 1e-12


@pytest.mark.variant
def test_lamb_of_layerwise_variables_equals_optax() -> None:
    """Biases and scales have none here, and one there."""
    layers = [index for index, each in enumerate(references.problem()) if each.ndim > 1]

    def of_hopsml(step: int, weight: Any, gradient: Any, state: Any) -> Any:
        return rules.lamb(weight, gradient, state[0], state[1], RATES[step], step + 1, np, weight_decay=1e-2)

    assert references.error(ours(of_hopsml, layers), optax_variables("lamb", layers, weight_decay=1e-2)) <= 1e-12
