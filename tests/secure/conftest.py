"""Fixtures of the scenarios on Kerberized clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hopsml.storage import filesystem


@pytest.fixture(autouse=True)
def no_helpers_left() -> Iterator[None]:
    """End the helper processes for HDFS with the test."""
    yield
    filesystem.close_all()
