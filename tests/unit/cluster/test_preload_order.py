"""Tests of a fork server's imports for successive functions: torch always before TensorFlow."""

from __future__ import annotations

import itertools

import pytest

from hopsml.cluster.forking.fork_server import preload_order


@pytest.mark.fast
def test_preload_order_has_torch_before_tensorflow() -> None:
    for given in itertools.permutations(("numpy", "tensorflow", "keras", "torch", "torch.distributed.tensor")):
        found = preload_order(given)
        assert max(found.index(name) for name in found if "torch" in name) < found.index("tensorflow")
        assert set(found) == {*given, "torch._dynamo"} and len(set(found)) == len(found)


@pytest.mark.fast
def test_preload_order_keeps_the_order_of_other_modules() -> None:
    assert preload_order(("numpy", "keras", "numpy", "jax")) == ("numpy", "keras", "jax")
    assert preload_order(("numpy", "torch", "pandas")) == ("torch", "numpy", "pandas")
    assert preload_order(()) == ()
