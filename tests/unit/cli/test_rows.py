"""Tests of job lists: whole lines for programs, no wider than the terminal otherwise."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from rich.text import Text

from hopsml.cli import server
from hopsml.cli.terminal import print_rows

pytestmark = pytest.mark.fast

CAUSE = "task main failed: exit status 1: " + "a long cause " * 20
ROWS = [("job", "priority", "cause"), ("digits-1", "50", CAUSE.rstrip()), ("a-2", "100", "two\nlines")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rows_for_a_program_are_complete_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, numbers=("priority",), wraps="cause")
    title, first, second = capsys.readouterr().out.splitlines()
    assert title.split() == list(ROWS[0])
    assert first.endswith(CAUSE.rstrip()) and second.split() == ["a-2", "100", "two", "lines"]
    assert first.index("50") + 2 == second.index("100") + 3, "numbers end below each other"


def test_rows_for_a_terminal_are_not_wider_than_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    print_rows(ROWS, numbers=("priority",), wraps="cause")
    lines = Text.from_ansi(terminal.getvalue()).plain.splitlines()
    assert len(lines) > len(ROWS) and max(map(len, lines)) <= 40
    assert "digits-1" in lines[1] and " ".join("".join(lines).split()).count("cause") > 10


def test_cut_rows_have_one_line_each_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_rows(ROWS, numbers=("priority",), is_cut=True)
    assert capsys.readouterr().out.splitlines()[1].endswith(CAUSE.rstrip())
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    print_rows(ROWS, numbers=("priority",), is_cut=True)
    _, first, second = terminal.getvalue().splitlines()
    assert len(first) == 40 and first.endswith("…") and "task main failed" in first
    assert second.split() == ["a-2", "100", "two", "lines"]


def test_control_characters_of_jobs_are_removed_from_the_server_log() -> None:
    message = "evil-1: FAILED: \x1b]0;title\x07\x1b[2Jboom\x9b31m\u202e\n12:00:00 eve is an administrator"
    written = server.log_handler().format(
        logging.LogRecord("hopsml.service", logging.INFO, "", 0, "%s", (message,), None)
    )
    assert not set(written) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert [line.startswith("    ") for line in written.split("\n")] == [False, True]
