"""Tests of a worker's output in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.core.tracebacks import ELSEWHERE
from hopsml.experiment.progress import FIRST_LINES, LAST_LINES, OVER_S, TELL_EVERY_S, ShownOutput
from tests.helpers.clock import END_S

pytestmark = pytest.mark.local

FLOOD = 300_000
TRACEBACK = "Traceback (most recent call last):\n  File train.py, line 3\nValueError: no\n"
SCRIPT = """
import sys
import hopsml

def train(how):
    import sys, time
    if how == "flood":
        for number in range(300_000):
            print("line", number)
    if how == "raise":
        print("before", flush=True)
        raise ValueError("a bad rate")
    if how == "ask":
        input("your name? ")
    if how == "import":
        import xgboost_of_mine
    if how == "shape":
        import keras, numpy
        with hopsml.tensorflow.strategy().scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(numpy.zeros((8, 5)), numpy.zeros((8, 1)), verbose=0)

if __name__ == "__main__":
    hopsml.experiment.collective_all_reduce(train, args={"how": sys.argv[1]}, num_workers=1)
"""


def shown_output() -> ShownOutput:
    return ShownOutput(lambda: "/runs/r/logs/g0-rank0.log")


def test_output_is_split_into_lines_at_any_boundary() -> None:
    output = shown_output()
    assert output.add_text("a\nb", 0.0) == ["a"]
    assert output.add_text("c\n\n10 %\r20 %\r", 0.0) == ["bc", "10 %", "20 %"]
    assert output.add_text("rest", 0.0) == []
    assert output.remaining_lines("", 1.0) == ["rest"]
    assert output.remaining_lines("", 1.0) == []


def test_flood_of_output_shows_first_and_last_lines_and_the_log_path() -> None:
    output, shown = shown_output(), []
    for begin in range(0, FLOOD, 1000):
        shown += output.add_text("".join(f"{number}\n" for number in range(begin, begin + 1000)), begin / FLOOD)
    assert len(shown) < 2 * FIRST_LINES
    assert shown[:FIRST_LINES] == [str(number) for number in range(FIRST_LINES)]
    rest = output.remaining_lines("", 2.0)
    assert rest[1:] == [str(number) for number in range(FLOOD - LAST_LINES, FLOOD)]
    left_out = FLOOD - sum(line.isdigit() for line in shown + rest)
    assert rest[0] == f"... {left_out} lines are not shown; the whole output is in /runs/r/logs/g0-rank0.log"


def test_end_of_a_flood_is_shown_while_the_run_continues() -> None:
    output = shown_output()
    output.add_text("x\n" * 1000, 0.0)
    assert output.flush_waiting(0.5 * OVER_S) == []
    assert len(output.flush_waiting(1.5 * OVER_S)) == 1 + LAST_LINES
    assert output.add_text("again\n", 1.6 * OVER_S) == ["again"]


def test_endless_flood_is_counted_periodically() -> None:
    output, notes = shown_output(), []
    for second in range(int(3 * TELL_EVERY_S)):
        notes += [line for line in output.add_text("x\n" * 1000, float(second)) if line != "x"]
    assert len(notes) == 3 and notes[0].startswith("... too much output") and "lines are not shown" in notes[1]


def test_steady_output_is_shown_completely() -> None:
    output = shown_output()
    for second in range(100):
        assert len(output.add_text("x\n" * 40, float(second))) == 40


def test_overlong_line_is_split() -> None:
    output = shown_output()
    shown = [line for _ in range(100) for line in output.add_text("x" * 1000, 0.0)]
    assert max(map(len, shown)) < 6000 and sum(line.count("x") for line in shown) > 90_000


def test_traceback_of_the_final_error_is_not_shown_before_it() -> None:
    output = shown_output()
    assert output.add_text("one\nname? " + TRACEBACK, 0.0) == ["one"]
    assert output.change_phase(True, 0.1) == []
    assert output.add_text(f"{ELSEWHERE}/runs/r/logs/g0-rank0.traceback.log\nafter it\n", 0.2) == []
    assert output.remaining_lines(TRACEBACK, 0.3) == ["name? ", "after it"]


def test_traceback_of_a_caught_error_is_shown() -> None:
    output = shown_output()
    lines = TRACEBACK.splitlines()
    assert output.add_text(TRACEBACK, 0.0) == []
    assert output.flush_waiting(1.0) == lines  # the error was caught, and the run continues
    output.add_text(TRACEBACK, 2.0)
    assert output.add_text("next\n", 2.1) == [*lines, "next"]
    output.change_phase(True, 3.0)
    output.add_text(TRACEBACK, 3.1)
    assert output.change_phase(False, 3.2) == lines  # another generation starts
    output.add_text(TRACEBACK, 4.0)
    assert output.remaining_lines(TRACEBACK.replace("no", "of another rank"), 4.1) == lines


@pytest.mark.parametrize(
    ("how", "once", "expected"),
    [
        ("raise", "raise ValueError(", ["[rank 0] before", "Remedy: correct the cause above"]),
        pytest.param(
            "ask",
            'input("your name? ")',
            ["[rank 0] your name?", "a worker has no keyboard"],
            marks=pytest.mark.variant,
        ),
        pytest.param(
            "import",
            "import xgboost_of_mine",
            ["'xgboost_of_mine' is not on", "pip install"],
            marks=pytest.mark.variant,
        ),
        pytest.param(
            "shape",
            "model.fit(",
            ["expected axis -1 of input shape to have value 4", "Remedy: correct the cause above"],
            marks=pytest.mark.tensorflow,
        ),
    ],
)
def test_terminal_shows_an_error_once(store: Path, tmp_path: Path, how: str, once: str, expected: list[str]) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, how], env=os.environ, capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 1
    assert "hopsml/training" not in done.stderr and "\x1b" not in done.stderr
    assert done.stderr.count(once) == 1
    assert done.stderr.count("Traceback (most recent call last):") == 2  # of the call, and of the worker
    assert "concurrent" not in done.stderr
    for words in expected:
        assert words in done.stderr


def test_terminal_output_is_limited_and_the_log_complete(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, "flood"], env=os.environ, capture_output=True, text=True, timeout=END_S
    )
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) < 1000
    assert "[rank 0] line 0" in lines and "[rank 0] line 299999" in lines
    (note,) = [line for line in lines if "lines are not shown" in line][-1:]
    log = Path(note.rpartition(" ")[2].removeprefix("file://"))
    assert len(log.read_text().splitlines()) == FLOOD
