"""A command whose output somebody stops reading."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from hopsml.cli import main

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("buffering", [1, -1], ids=["while it prints", "at its end"])
def test_a_reader_that_has_seen_enough_is_no_error(
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
