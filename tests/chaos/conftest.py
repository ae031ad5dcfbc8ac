"""Fixtures that collect the results of the rounds, print them, and write them to $HOPSML_CHAOS_RESULTS."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.core.variables import Settings
from tests.chaos import table
from tests.chaos.runner import Outcome

_OUTCOMES = pytest.StashKey[list[Outcome]]()
RESULTS = os.environ.get("HOPSML_CHAOS_RESULTS", "")
ROUNDS = int(os.environ.get("HOPSML_CHAOS_ROUNDS", "1"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat all tests for several rounds if requested."""
    if "played" in metafunc.fixturenames and ROUNDS > 1:
        metafunc.parametrize("played", range(1, ROUNDS + 1), ids=lambda number: f"round {number}")


@pytest.fixture(autouse=True)
def played() -> int:
    """Number of the round."""
    return 1


@pytest.fixture(autouse=True)
def default_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play the scenarios with the lease that users have."""
    monkeypatch.delenv(Settings.lease_s.name, raising=False)


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> Iterator[list[Outcome]]:
    """List to which each test adds its outcome; written after each test, so that an interrupted session has some."""
    found = request.config.stash.setdefault(_OUTCOMES, [])
    yield found
    if found and RESULTS:
        rows = [outcome.as_json() for outcome in found]
        Path(RESULTS).write_text(json.dumps({"rows": rows}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print a row for each scenario."""
    outcomes = config.stash.get(_OUTCOMES, [])
    if not outcomes or not RESULTS:
        return
    for line in table.text(outcomes):
        terminalreporter.write_line(line)
