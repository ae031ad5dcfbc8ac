"""Tests of the cause that a failed command has written."""

from __future__ import annotations

import pytest

from hopsml.core.commands import CommandFailed

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
