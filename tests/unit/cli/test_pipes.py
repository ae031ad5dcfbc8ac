"""Tests of a command whose output pipe is closed by the reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from hopsml.cli import main
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("buffering", [1, -1], ids=["during output", "at exit"])
def test_closed_output_pipe_ends_the_command_without_an_error_message(
    buffering: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=buffering) as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", sys.stderr)  # typer wraps both
        monkeypatch.setattr(sys, "argv", ["hopsml", "profiles"])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 128 + signal.SIGPIPE
    assert capfd.readouterr().err == ""


# Interrupts the process when a given module is imported.
INTERRUPTED = """
import os, signal, sys

class Hurry:
    def find_spec(self, name, *more):
        if name == sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGINT)

from hopsml.cli import main
sys.meta_path.insert(0, Hurry())
main()
"""


@pytest.mark.parametrize("module", ["typer", "hopsml.cli.submit"])
def test_interrupt_during_the_start_prints_no_traceback(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "--help", module], capture_output=True, text=True, timeout=END_S
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")
