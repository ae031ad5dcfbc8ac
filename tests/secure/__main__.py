"""python -m tests.secure [PYTEST-ARGUMENTS]: play all scenarios on Kerberized clusters; the last line is a JSON object.

    {"scenarios": n, "failed": [...], "bytes_lost": 0, "secrets_found": 0}

A scenario is a test in this folder or in tests/integration/secure. The exit status is 1 unless all have passed, nothing
was lost and no secret was found. Skipped scenarios count as failed: without Kerberos nothing was tested. Losses and
secrets are measured when a scenario has ended, also if it failed early (tests/helpers/scenarios.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.scenarios import FOUND, LOST

HERE = Path(__file__).parent
FOLDERS = (HERE, HERE.parent / "integration" / "secure")


class Recorder:
    """Plugin of pytest that collects the outcome of each scenario, and what it recorded."""

    def __init__(self) -> None:
        self.passed: dict[str, bool] = {}
        self.counts = {LOST: 0, FOUND: 0}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a scenario's set-up, call or tear-down into account; called by pytest."""
        self.passed[report.nodeid] = self.passed.get(report.nodeid, True) and report.passed
        if report.when == "teardown":  # whose properties include those of the call
            for name, value in report.user_properties:
                if name in self.counts:
                    self.counts[name] += int(str(value))

    def summary(self) -> dict[str, object]:
        """Return the content of the last line."""
        failed = sorted(name for name, passed in self.passed.items() if not passed)
        return {"scenarios": len(self.passed), "failed": failed, **self.counts}


def main(arguments: list[str], scenarios: Sequence[Path] = FOLDERS) -> int:
    """Run pytest on files or folders, and print the summary; return the exit status."""
    recorder = Recorder()
    status = pytest.main(["-q", "-p", "no:cacheprovider", *map(str, scenarios), *arguments], plugins=[recorder])
    summary = recorder.summary()
    print(json.dumps(summary))
    clean = not (summary["failed"] or summary[LOST] or summary[FOUND]) and bool(summary["scenarios"])
    return 0 if status == pytest.ExitCode.OK and clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
