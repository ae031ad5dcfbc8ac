"""Test that the distributed job differs from the single-machine one in at most six lines."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

JOBS = Path(__file__).parents[3] / "spark_jobs"


def code(name: str) -> list[str]:
    """The lines of a script without its docstring and without blank ones."""
    lines = (JOBS / name).read_text().splitlines()
    return [line for line in lines[1:] if line.strip()]


def test_distributed_job_differs_in_at_most_six_lines() -> None:
    alone, distributed = code("digits_single_machine.py"), code("train_digits.py")
    added = [line[2:] for line in difflib.ndiff(alone, distributed) if line.startswith("+ ")]
    assert 0 < len(added) <= 6, added
    readme = (JOBS.parent / "README.md").read_text()
    shown = [line for line in readme.splitlines() if line.startswith("▶ ")]
    assert len(shown) == len(added)
    for line in added:
        assert any(line.strip().split("  #")[0] in marked for marked in shown), f"not in the README: {line}"
