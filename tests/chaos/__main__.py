"""python -m tests.chaos [--over WAY ...] [--parts PART ...] [--only K] [--rounds N] [--add] FILE: play it, part by part.

Each part is a separate pytest session, whose rows are added to FILE (.json) and the page next to it when it ends. The
last line is the totals as JSON; the exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.chaos import table
from tests.chaos.runner import Outcome

PARTS = {
    "local": ["test_local.py", "test_mends.py"],
    "fit": ["test_fit.py", "test_fit_mends.py"],
    "torch": ["test_torch.py"],
    "spark": ["test_spark.py::test_spark_training_passes_scenario"],
    "torch-spark": ["test_spark.py::test_torch_on_spark_passes_scenario"],
    "yarn": [
        f"test_yarn.py::{name}"
        for name in (
            "test_yarn_training_passes_scenario",
            "test_yarn_driver_passes_scenario",
            "test_search_on_yarn_continues_after_an_executor_is_killed",
            "test_tensorflow_on_yarn_survives_a_killed_worker",
        )
    ],
    "torch-yarn": ["test_yarn.py::test_torch_on_yarn_passes_scenario"],
    "drain": ["test_yarn_drain.py"],
    "network": ["test_network.py"],
}
HERE = Path(__file__).parent


def play(part: str, over: str, only: str, rounds: int, results: Path) -> int:
    """Run one session of pytest, and return its exit status. ``only``: expression for pytest's -k; empty for all."""
    environment = os.environ | {
        "HOPSML_CHAOS_RESULTS": str(results),
        "HOPSML_CHAOS_ROUNDS": str(rounds),
        "HOPSML_CHAOS_OVER": over,
    }
    files = [str(HERE / name) for name in PARTS[part] if (HERE / name.partition("::")[0]).exists()]
    command = [sys.executable, "-m", "pytest", "-q", *files, *(("-k", only) if only else ())]
    return subprocess.run(command, env=environment, check=False).returncode


def read(path: Path) -> list[Outcome]:
    """Return the rows of a file; none if it does not exist."""
    known = {field.name for field in dataclasses.fields(Outcome)}
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return [Outcome(**{name: value for name, value in row.items() if name in known}) for row in rows]


def write(path: Path, outcomes: list[Outcome], rounds: int) -> None:
    """Write the rows with their totals, and the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [outcome.as_json() for outcome in outcomes]
    path.write_text(json.dumps({"rows": rows, **table.totals(outcomes)}, indent=1) + "\n")
    days = sorted({one.on for one in outcomes}) or [str(datetime.date.today())]
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    about = f"{when}, {os.cpu_count()} cores, {rounds} round{'s' if rounds > 1 else ''}."
    path.with_suffix(".md").write_text(table.page(outcomes, about))


def together(before: list[Outcome], now: list[Outcome]) -> list[Outcome]:
    """Return all rows; a new row replaces the earlier one of the same scenario."""
    played = {_key(one) for one in now}
    return [*(one for one in before if _key(one) not in played), *now]


def _key(one: Outcome) -> tuple[str, str, str]:
    return one.scenario, one.backend, one.over


def main() -> int:
    """Run the parts of the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("file", type=Path)
    parser.add_argument("--over", nargs="+", default=["hopsml", "tensorflow"], choices=["hopsml", "tensorflow"])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--only", default="", help="an expression as of pytest's -k")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--add", action="store_true", help="keep the rows of FILE that are not played this time")
    given = parser.parse_args()
    outcomes, status = read(given.file) if given.add else [], 0
    for over in given.over:
        for part in given.parts:
            results = given.file.with_name(f".{given.file.stem}-{part}-{over}.json")
            results.unlink(missing_ok=True)
            status |= play(part, over, given.only, given.rounds, results) not in (
                0,
                5,
            )  # 5: this part has no scenario for these collectives
            outcomes = together(outcomes, read(results))
            results.unlink(missing_ok=True)
            write(given.file, outcomes, given.rounds)
    print(json.dumps(table.totals(outcomes)))
    return int(status or any(not one.passed for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
