"""Fixture that imports frameworks before a test, so that their environment variables do not count as leaks."""

from __future__ import annotations

import importlib
import os

import pytest

from hopsml.model.flavors.torch import hide_triton


def _import(name: str) -> None:
    before = dict(os.environ)
    importlib.import_module(name)
    for added in set(os.environ) - set(before):
        del os.environ[added]


@pytest.fixture(scope="session")
def keras_imported() -> None:
    """Import Keras with TensorFlow; the environment is restored."""
    _import("keras")


@pytest.fixture(scope="session")
def torch_imported() -> None:
    """Import torch and what its optimizers need; the environment is restored.

    Triton is left out: it would crash a process in which another test has loaded TensorFlow.
    """
    with hide_triton():
        _import("torch._dynamo")
