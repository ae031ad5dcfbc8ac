"""The table of what was survived: shown at the end, and written to the file that $HOPSML_CHAOS_RESULTS names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.runner import Outcome

_OUTCOMES = pytest.StashKey[list[Outcome]]()


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> list[Outcome]:
    """To which each test adds its own."""
    return request.config.stash.setdefault(_OUTCOMES, [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """A row for each scenario, and one line of JSON."""
    outcomes = config.stash.get(_OUTCOMES, [])
    results = os.environ.get("HOPSML_CHAOS_RESULTS")
    if not outcomes or not results:
        return
    for line in table(outcomes):
        terminalreporter.write_line(line)
    Path(results).parent.mkdir(parents=True, exist_ok=True)
    rows = [outcome.as_json() for outcome in outcomes]
    Path(results).write_text(json.dumps({"rows": rows, **totals(outcomes)}, indent=1) + "\n")
    terminalreporter.write_line(json.dumps(totals(outcomes)))


def table(outcomes: list[Outcome]) -> list[str]:
    """For people."""
    width = max(len(outcome.scenario) for outcome in outcomes)
    head = f"{'scenario':{width}}  backend  state     recovered  lost  repeated  skipped  left over"
    rows = [
        f"{one.scenario:{width}}  {one.backend:7}  {one.state:8}  {_seconds(one.recovered_s):>9}  {one.steps_lost:4}  "
        f"{one.samples_repeated:8}  {one.samples_skipped:7}  {one.left_over:9}{'' if one.passed else '  ' + one.problem}"
        for one in outcomes
    ]
    return [head, *rows]


def totals(outcomes: list[Outcome]) -> dict[str, Any]:
    """For scripts."""
    return {
        "scenarios": len(outcomes),
        "failed": [f"{one.scenario} ({one.backend})" for one in outcomes if not one.passed],
        "left_over": sum(one.left_over for one in outcomes),
        "samples_repeated": sum(one.samples_repeated for one in outcomes),
        "samples_skipped": sum(one.samples_skipped for one in outcomes),
    }


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
