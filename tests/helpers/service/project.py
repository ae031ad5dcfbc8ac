"""Projects for tests: run directories like those of trainings, written at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


class ProjectOnDisk:
    """A project in a local folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder}"

    def run(self, run_id: str, *, state: str | None = "FINISHED", **record: Any) -> RunOnDisk:
        """Add a run; ``state`` None: it has not ended. ``outputs`` is the function's return value."""
        folder = self.folder / "Experiments" / run_id
        (folder / "logs").mkdir(parents=True)
        outputs, cause = record.pop("outputs", None), record.pop("cause", "")
        known = {"name": "digits", "verb": "collective_all_reduce", "workers": 2, "user": "ana", "started": 1000.0}
        made = RunOnDisk(folder)
        made.write("run.json", {**known, **record})
        if outputs is not None:
            made.write(".outputs.json", outputs)
        if state is not None:
            made.write("status.json", {"state": state, "seconds": 3.5, "cause": cause, "error": cause})
        return made


class RunOnDisk:
    """One run's directory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.id = folder, folder.name

    def write(self, name: str, record: dict[str, Any]) -> None:
        """Write a record, as JSON."""
        (self.folder / name).write_text(json.dumps(record))

    def report(self, step: int, **values: float) -> None:
        """Add one line of the chief's reports."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"time": 1000.0 + step, "step": step, **values}) + "\n")

    def report_all(self, tag: str, values: list[float]) -> None:
        """Add reports of a curve, from step 0 on."""
        lines = [json.dumps({"time": 1000.0 + step, "step": step, tag: value}) for step, value in enumerate(values)]
        (self.folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    def print(self, rank: int, *lines: str, generation: int = 0, end: str = "\n") -> None:
        """Add lines to a rank's log."""
        with (self.folder / "logs" / f"g{generation}-rank{rank}.log").open("a") as file:
            file.write("\n".join(lines) + end)


@pytest.fixture
def project(tmp_path: Path) -> ProjectOnDisk:
    """Yield an empty project."""
    return ProjectOnDisk(tmp_path / "digits")
