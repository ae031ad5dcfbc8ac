"""Tests of the list of runs: fitted to the width of a terminal, complete in a pipe."""

from __future__ import annotations

import math
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hopsml.storage.run_dir import RunDir
from hopsml.tracking import catalog, listing
from hopsml.tracking.catalog import StoredRun

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[3]
YARN = "application_1795332000123_0042_17"
CAUSE = "rank 1 on node-17.rack-3.example.com: ValueError: part 7 holds 3 columns, 64 were expected by the model"
WIDTHS = (60, 80, 100, 120, 140, 160, 200, 300)


def make(project: Path, run_id: str, state: str | None, name: str, outputs: dict[str, Any], **status: Any) -> None:
    directory = RunDir(f"file://{project}/Experiments/{run_id}")
    directory.write_run({"name": name, "workers": 16, "started": 1795332000.0 + len(run_id), "driver_process": {}})
    directory.write_json(directory.outputs_json, outputs)
    if state is not None:
        directory.write_status({"state": state, "seconds": 4321.0, **status})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    make(tmp_path, YARN, "FAILED", "ein sehr langer Name für einen Lauf " * 3, {}, error=f"run x\n{CAUSE}", cause=CAUSE)
    make(tmp_path, "local-1_1", "FINISHED", "手書き数字の分類 " * 4, {"accuracy": 0.98765432})
    make(
        tmp_path,
        "app-20261121035638-0000_2",
        "CANCELLED",
        "\x1b[31m[bold]<b>",
        {},
        error="run a was cancelled: enough\nmore",
    )
    make(tmp_path, "app-20261121035638-0000_30", None, "goes on", {})
    return tmp_path


def stored_runs(project: Path) -> list[StoredRun]:
    return catalog.recent_runs(f"file://{project}", None)


@pytest.mark.parametrize("places", WIDTHS)
def test_listing_fits_the_terminal_without_truncated_run_ids(project: Path, places: int) -> None:
    found = stored_runs(project)
    lines = [listing.GAP.join(cells) for cells in listing.fit_runs_to_width(found, places)]
    narrowest = max(map(len, (YARN,))) + 45  # id, four letters of the name, state, time, how long it took
    assert max(map(listing.display_width, lines)) <= max(places, narrowest), lines
    text = "\n".join(lines)
    assert all(run.run_id in text and run.state in text for run in found)
    assert "accuracy=0.987654" in text and "rank 1 on node-17" in text and "cancelled: enough" in text


@pytest.mark.parametrize("places", WIDTHS)
def test_listing_columns_are_aligned_for_wide_characters(project: Path, places: int) -> None:
    rows = [cells for cells in listing.fit_runs_to_width(stored_runs(project), places) if len(cells) > 1]
    assert len(rows) == 5 and len({tuple(map(listing.display_width, cells)) for cells in rows}) == 1


def test_narrow_terminal_shows_names_rather_than_times(project: Path) -> None:
    named = max((run for run in stored_runs(project)), key=lambda run: len(str(run.run.get("name"))))
    for places in (60, 70):
        rows = [cells for cells in listing.fit_runs_to_width([named], places) if len(cells) > 1]
        name = str(named.run.get("name"))[: listing.NAME_LEAST - 1]
        assert rows[1][1].startswith(name) and "started" not in [cell.strip() for cell in rows[0]], rows


def test_wide_terminal_has_one_line_per_run_and_narrow_one_a_result_line(project: Path) -> None:
    found = stored_runs(project)
    assert len(listing.fit_runs_to_width(found, 200)) == 1 + len(found)
    below = [cells for cells in listing.fit_runs_to_width(found, 80) if len(cells) == 1]
    assert [cells[0][:2] for cells in below] == ["  "] * 3  # no details for the running one


def test_cause_of_an_unfinished_run_is_one_line(project: Path) -> None:
    causes = {run.run_id: run.cause for run in stored_runs(project)}
    assert causes[YARN] == CAUSE and causes["local-1_1"] == "" and causes["app-20261121035638-0000_30"] == ""
    assert causes["app-20261121035638-0000_2"] == "run a was cancelled: enough"


def output_in_terminal(project: Path, columns: int) -> str:
    """Return the output of ``hopsml runs ls`` in a terminal with this number of columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    environment.pop("NO_COLOR", None)
    command = [
        sys.executable,
        "-c",
        "from hopsml.cli import main; main()",
        "runs",
        "ls",
        "--project",
        f"file://{project}",
    ]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.STDOUT, env=environment)
    os.close(theirs)
    output = b""
    try:
        while piece := os.read(ours, 65536):
            output += piece
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(ours)
    assert process.wait() == 0, output
    return output.decode()


def test_terminal_listing_is_coloured_by_state_and_fits(project: Path) -> None:
    output = output_in_terminal(project, 80)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in output.splitlines()]
    assert max(map(listing.display_width, plain)) <= 80 and YARN in output
    assert "\x1b[31mFAILED" in output and "\x1b[32mFINISHED" in output and "\x1b[34mRUNNING" in output
    assert not re.search(r"\x1b\[[0-9;]*mCANCELLED", output) and "\x1b[31m[bold]" not in output


def test_piped_listing_is_complete_and_without_colour(project: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from hopsml.cli import main; main()",
        "runs",
        "ls",
        "--project",
        f"file://{project}",
    ]
    environment = {**os.environ, "COLUMNS": "40", "PYTHONPATH": str(ROOT)}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert len(output.splitlines()) == 5 and CAUSE in output and "\x1b" not in output
    assert all(run.run_id in output for run in stored_runs(project))


def test_brief_times_have_11_characters_and_missing_ones_a_dash() -> None:
    assert len(listing.time_text(time.time(), brief=True)) == 11 and listing.time_text(None, brief=True) == "-"


def test_figure_has_six_digits_and_integers_all_digits() -> None:
    figures = [
        listing.number_text(value) for value in (1 / 7, 1e-9 / 3, math.nan, 1234567, True, None, "0.14285714285714285")
    ]
    assert figures == ["0.142857", "3.33333e-10", "nan", "1234567", "true", "-", "0.14285714285714285"]
