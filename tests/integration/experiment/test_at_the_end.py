"""Tests of a program's end while the user presses Ctrl-C again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.clock import END_S

pytestmark = pytest.mark.local

INTERRUPTED = """
import signal
from hopsml.experiment import applications
applications.filesystem.close_all = lambda: signal.raise_signal(signal.SIGINT)  # the last of what is given back
"""


def test_second_interrupt_at_exit_shows_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=END_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
