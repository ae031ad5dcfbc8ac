"""Fixture that runs the command line in this process, with its output and exit status."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Ended:
    """Output and exit status of a command."""

    status: int
    out: str
    err: str


Cli = Callable[..., Ended]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """Call as ``cli("runs", "ls", "--json")``; ``answer`` is the input of a person at a terminal, None without one."""

    def call(*arguments: str, answer: str | None = None) -> Ended:
        from hopsml.cli import main

        class Keyboard(io.StringIO):
            def isatty(self) -> bool:
                return answer is not None

        monkeypatch.setattr(sys, "argv", ["hopsml", *arguments])
        monkeypatch.setattr(sys, "stdin", Keyboard(answer or ""))
        capfdbinary.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        captured = capfdbinary.readouterr()
        return Ended(code if isinstance(code, int) else int(bool(code)), captured.out.decode(), captured.err.decode())

    return call
