"""Small disk for a test that fills it: a tmpfs, whose mount needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size_kb: int) -> Iterator[Path]:
    """Mount an empty disk at ``folder``, which is created; skip the test if mounting is not permitted."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k,mode=700", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no mounting here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, name: str = "filler") -> None:
    """Fill the disk completely."""
    with open(folder / name, "wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(1 << 12))
            except OSError:
                return


def refuse_writes(folder: Path) -> None:
    """Make the disk read-only, as a kernel does after an error of the disk; open files for writing would prevent it."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def accept_writes(folder: Path) -> None:
    """Make the disk writable again."""
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
