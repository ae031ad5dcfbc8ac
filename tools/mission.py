"""Check docs/mission.md: that the tests which show each feature exist, and passed when they were last run.

python -m tools.mission                              # results of the last `make test-all` and `make test-secure`
python -m tools.mission --results FOLDER             # JUnit XML files of other test runs
python -m tools.mission --existence                  # without results: only that each named test exists

The last line is one JSON object: the number of rows, how many of them are met, and the tests that are missing, failed or
were not run. A row is met if the page states so and, with results, each of its tests passed. The exit status is 1 if a test
is missing or failed.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "mission.md", ROOT / ".cache" / "test-results"
STATES = ("met", "in part")
_ROW = re.compile(r"\|\s*([HAEC]\d+)\s*\|(.*)\|\s*$")
_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


@dataclass(frozen=True)
class Row:
    """One feature of the page."""

    id: str
    feature: str
    tests: tuple[str, ...]  # ``integration/yarn/test_x.py::test_name``, relative to ``tests``
    backends: str
    state: str  # one of STATES, with the missing part behind it

    @property
    def is_met(self) -> bool:
        """True if the page states that the feature is complete."""
        return self.state == "met"


def parse_rows(page: str) -> list[Row]:
    """Return the rows of the page's tables.

    Raises:
        ValueError: for a row without tests, with an unknown state, or with the id of another row.
    """
    rows = list[Row]()
    for line in page.splitlines():
        if (match := _ROW.match(line)) is None:
            continue
        cells = [cell.strip() for cell in match[2].split("|")]
        if len(cells) != 5:
            raise ValueError(f"row {match[1]} has {len(cells) + 1} cells instead of 6")
        feature, _, shown, backends, state = cells
        tests = tuple(f"{path}::{name}" for path, name in _TEST.findall(shown))
        rows.append(Row(match[1], feature, tests, backends, state))
        if not tests or not state.startswith(STATES):
            raise ValueError(f"row {match[1]} names no test, or has a state other than {', '.join(STATES)}")
    ids = [row.id for row in rows]
    if len(set(ids)) < len(ids):
        raise ValueError("two rows have the same id")
    return rows


def existing_tests(paths: Iterable[str], folder: Path) -> set[str]:
    """Return the test functions of the given files, as ``path::name``; a file that does not exist has none."""
    found = set[str]()
    for path in set(paths):
        if (folder / path).is_file():
            tree = ast.parse((folder / path).read_text(encoding="utf-8"))
            functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{path}::{node.name}" for node in functions}
    return found


def read_results(files: Iterable[Path]) -> dict[str, str]:
    """Return the result of each test function in JUnit XML files: passed, failed or skipped.

    A function with parameters has failed if one of its cases has, and else passed if one of its cases has.
    """
    outcomes = defaultdict[str, set[str]](set)
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            module = case.get("classname", "").removeprefix("tests.").split(".Test")[0]
            name = case.get("name", "").partition("[")[0]
            failed = case.find("failure") is not None or case.find("error") is not None
            outcome = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
            outcomes[f"{module.replace('.', '/')}.py::{name}"].add(outcome)
    return {
        test: next(one for one in ("failed", "passed", "skipped") if one in seen) for test, seen in outcomes.items()
    }


def summary(rows: Sequence[Row], existing: set[str], results: Mapping[str, str] | None) -> dict[str, object]:
    """Return the closing JSON object; without ``results`` it has no entries for failed tests and those that were not run."""
    tests = sorted({test for row in rows for test in row.tests})
    missing = [test for test in tests if test not in existing]
    bad = set(missing)
    report: dict[str, object] = {"rows": len(rows), "met": 0, "tests_missing": missing}
    if results is not None:
        failed = [test for test in tests if results.get(test) == "failed"]
        not_run = [test for test in tests if test not in missing and results.get(test, "skipped") == "skipped"]
        bad |= {*failed, *not_run}
        report |= {"tests_failed": failed, "tests_not_run": not_run}
    report["met"] = sum(row.is_met and not bad.intersection(row.tests) for row in rows)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each row's state and the closing line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.mission", description="Check docs/mission.md.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of JUnit XML files; default: %(default)s")
    parser.add_argument("--existence", action="store_true", help="check only that each named test exists")
    options = parser.parse_args(arguments)
    rows = parse_rows(PAGE.read_text(encoding="utf-8"))
    results = None if options.existence else read_results(sorted(options.results.glob("*.xml")))
    if results is not None and not results:
        print(f"mission: {options.results} has no test results; run `make test-all` first", file=sys.stderr)
        return 1
    existing = existing_tests((test.partition("::")[0] for row in rows for test in row.tests), ROOT / "tests")
    report = summary(rows, existing, results)
    for row in rows:
        print(f"{row.id:4} {row.state}")
    print(json.dumps(report))
    return 1 if report["tests_missing"] or report.get("tests_failed") else 0


if __name__ == "__main__":
    sys.exit(main())
