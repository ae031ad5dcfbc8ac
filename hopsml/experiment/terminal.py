"""Lines for a person's terminal, written by a thread that may have to wait for it."""

from __future__ import annotations

from typing import TextIO

from hopsml.delivery import wait_for

PIECE = 1024  # characters: what a pipe takes at once whenever it takes anything (4096 bytes)


def write_line(stream: TextIO, line: str) -> None:
    """One line. Waits until the terminal, or the pipe, takes it: outside of the stream, whose lock a program's end needs."""
    text = f"{line}\n"
    for start in range(0, len(text), PIECE):
        wait_for(stream)
        stream.write(text[start : start + PIECE])
        stream.flush()
