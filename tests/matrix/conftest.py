"""Fixtures of the contract: one Spark application of two executors, and a project folder for each test."""

from __future__ import annotations

import importlib.util

import pytest

from tests.integration.spark.conftest import spark, store

__all__ = ["needs", "spark", "store"]


def needs(package: str, reason: str = "") -> pytest.MarkDecorator:
    """Skip a test in a cell without this package, which is not imported here."""
    missing = f"this cell has no {package}" + (f": {reason}" if reason else "")
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=missing)
