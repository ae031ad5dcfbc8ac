"""TensorFlow is imported before a test begins: its import sets variables of the environment, which no test is to blame for."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="package")
def frameworks() -> None:
    """Imported once, the environment as it was."""
    before = dict(os.environ)
    import keras  # noqa: F401
    import torch  # noqa: F401

    for name in set(os.environ) - set(before):
        del os.environ[name]
