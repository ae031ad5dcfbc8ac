"""Tests of members killed and stopped during calls: the others continue with equal and complete results."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.collective.together import TRANSPORTS

pytestmark = pytest.mark.local


def play(transport: str, size: int, seed: int, rounds: int) -> None:
    """What does not fit together is the failure."""
    command = [sys.executable, "-m", "tests.collective.resuming", transport, *map(str, (size, seed, rounds))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("size", "seed"), [(2, 1), (3, 2), (4, 3)])
def test_harm_of_any_kind(transport: str, size: int, seed: int) -> None:
    play(transport, size, seed, rounds=4)


@pytest.mark.variant
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("seed", range(10, 20))
def test_harm_of_any_kind_for_long(transport: str, seed: int) -> None:
    play(transport, 2 + seed % 3, seed, rounds=8)
