"""Tests that a training run serves no other user at any port, and no process without the secret at TensorFlow's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks import foreign_peers
from benchmarks.foreign_peers import BY_HAND, NOBODY, WAYS, WORKERS
from tools import build_native

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    """Build the native server library."""
    build_native.build_server()


# Nothing listens over hopsml's collective: collective/test_strangers.py; who is let in: cluster/test_server_guard.py.
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.variant
def test_ports_of_a_run_refuse_other_users(way: str) -> None:
    found = foreign_peers.doors(way, Path(sys.executable), NOBODY, os.geteuid())
    assert len(found) >= 2 * (1 + WORKERS + (WORKERS if way == "tensorflow" else 0))  # coordinator, doors, servers
    assert [door for door in found if door.served] == []


@pytest.mark.variant  # of the answer to a stranger; who is let in: tests/integration/cluster/test_server_guard.py
def test_unguarded_tensorflow_servers_answer_everybody() -> None:
    """Without the guard, the request of the other test is answered."""
    found = foreign_peers.doors(BY_HAND, Path(sys.executable), NOBODY)
    assert [door.served for door in found] == ["answers calls"] * WORKERS
