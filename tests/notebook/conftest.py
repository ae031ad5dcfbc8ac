"""Fixture of the local application of tests/experiment, for this folder."""

from __future__ import annotations

from tests.experiment.conftest import store

__all__ = ["store"]
