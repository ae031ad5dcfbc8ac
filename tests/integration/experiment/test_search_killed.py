"""Tests of killed drivers, lanes and agents of a search: no report is lost, no finished trial runs again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.local

DRIVER = """
    import sys, time
    from pathlib import Path
    from hopsml import experiment

    def train(x, notes):
        time.sleep(0.15)
        with open(f"{notes}/ended", "a") as file:
            file.write(f"{x}\\n")
        return x / 10

    experiment.search(
        train, {"x": ("DISCRETE", list(range(12)))}, searcher="random", num_trials=None, seed=1, name="killed",
        args={"notes": sys.argv[1]}, progress=False, deadline=100, max_executors=2,
    )
"""


def ended(notes: Path) -> list[str]:
    return (notes / "ended").read_text().split() if (notes / "ended").exists() else []


def test_search_continues_after_its_driver_was_killed(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    driver = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    try:
        wait_until(lambda: len(ended(tmp_path)) >= 4, "four trials to end")
    finally:
        driver.kill()
        driver.wait()
    (root,) = (store / "Experiments").iterdir()
    reported = {row["number"]: row["value"] for row in journal_ends(root)}
    result = experiment.continue_search(root.name, progress=False)
    assert result.counts["completed"] == 12 and result.value == 1.1
    times = Counter(map(int, ended(tmp_path)))
    rows = {row["number"]: row for row in result.rows}
    assert (
        len(reported) >= 2 and set(times) == set(range(12)) and times.total() <= 14
    )  # what ran on two lanes may run again
    for number, value in reported.items():  # no reported result is lost, and no reported trial ran again
        assert rows[number]["value"] == value and times[rows[number]["config"]["x"]] == 1
    assert json.loads((root / "status.json").read_text())["state"] == "FINISHED"


def journal_ends(root: Path) -> list[dict[str, Any]]:
    """Return the ends of trials that the driver received, from its event log."""
    lines = [line for path in sorted((root / "journal").iterdir()) for line in path.read_text().splitlines()]
    entries = [json.loads(line) for line in lines]
    return [
        {"number": entry[1], "value": entry[3]} for entry in entries if isinstance(entry, list) and entry[0] == "end"
    ]


def test_search_completes_although_a_runner_and_a_lane_are_killed(store: Path, tmp_path: Path) -> None:
    def train(x: int, notes: str) -> float:
        import time

        mark = Path(notes, f"begun-{x}-{os.getpid()}-{os.getppid()}")
        mark.touch()
        time.sleep(0.1)
        return float(x)

    run = experiment.submit_search(
        train, {"x": ("DISCRETE", list(range(10)))}, searcher="grid", num_trials=None, args={"notes": str(tmp_path)},
        progress=False, max_executors=2, retries=2,
    )  # fmt: skip
    wait_until(lambda: list(tmp_path.glob("begun-2-*")), "the third trial to begin")
    (mark,) = tmp_path.glob("begun-2-*")
    runner, _ = map(int, mark.name.split("-")[2:])
    os.kill(runner, signal.SIGKILL)
    wait_until(lambda: list(tmp_path.glob("begun-5-*")), "the sixth trial to begin")
    _, lane = map(int, next(tmp_path.glob("begun-5-*")).name.split("-")[2:])
    os.kill(lane, signal.SIGKILL)  # the lane's process, with its runner
    result = run.result(END_S)
    assert result.counts["completed"] == 10 and result.value == 9.0
    rows = {row["config"]["x"]: row for row in result.rows}
    assert rows[2]["failures"] == 1 and rows[2]["state"] == "completed"
    assert sum(row["lost"] for row in result.rows) >= 1
