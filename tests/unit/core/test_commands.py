"""Tests of the cause that a failed command has written."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from hopsml.core.commands import CommandFailed, run_command

pytestmark = pytest.mark.fast
HEADER = "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("status", "written", "cause", "traceback"),
    [
        (
            1,
            f"x\n{HEADER}\n  File 'a', line 1\nValueError: no\n",
            "ValueError: no",
            f"{HEADER}\n  File 'a', line 1\nValueError: no\n",
        ),
        (
            1,
            f"[rank0]: {HEADER}\n[rank0]:   File 'a'\n[rank0]: KeyError: 'x'\n[W9] destroy_process_group() was not called\n",
            "KeyError: 'x'",
            f"{HEADER}\n  File 'a'\nKeyError: 'x'\n[W9] destroy_process_group() was not called\n",
        ),
        (1, f"{HEADER}\n  caught\nA\n{HEADER}\n  b\nB: b\n", "B: b", f"{HEADER}\n  b\nB: b\n"),
        (
            1,
            f"{HEADER}\n  a\nA\n\nDuring handling of the above exception, another exception occurred:\n\n{HEADER}\n  b\nB\n",
            "B",
            f"{HEADER}\n  a\nA\n\nDuring handling of the above exception, another exception occurred:\n\n{HEADER}\n  b\nB\n",
        ),
        (2, f"{HEADER}\n  caught\nA\nusage: x\nx: error: no\n", "x: error: no", ""),
        (-6, "terminate called\n\n", "terminate called", ""),
        (3, "", "", ""),
    ],
)
def test_cause_is_the_error_that_was_written_last(status: int, written: str, cause: str, traceback: str) -> None:
    failed = CommandFailed(status, "run it", written)
    assert failed.remote_traceback == (traceback or failed.cause)
    if cause:
        assert failed.cause.startswith(f"{cause} (Command 'run it' ")
    else:
        assert failed.cause == "Command 'run it' returned non-zero exit status 3."


def test_process_that_is_left_behind_and_writes_on_does_not_prolong_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = "yes >&2 & echo $! >writer; echo last words >&2; exit 3"
    with pytest.raises(CommandFailed, match="returned non-zero exit status 3"):
        run_command(("sh", "-c", command), "run it", os.environ, tmp_path)
    with contextlib.suppress(ProcessLookupError):  # ended, as nothing reads what it writes
        os.kill(int((tmp_path / "writer").read_text()), signal.SIGKILL)
    assert "last words\n" in capfd.readouterr().err


def test_all_errors_of_a_command_are_copied(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("seq 100000 >&2", "exec 2>&-; sleep 0.2", "sleep 60 & echo $! >writer; seq 5 >&2"):
        run_command(("sh", "-c", command), "run it", os.environ, tmp_path)
    os.kill(int((tmp_path / "writer").read_text()), signal.SIGKILL)
    assert capfd.readouterr().err.split() == [str(number + 1) for number in (*range(100_000), *range(5))]
