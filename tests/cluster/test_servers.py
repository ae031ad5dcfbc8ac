"""Tests of a chief and its servers on the local backend, without a framework."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hopsml.errors import WorkerFailed
from tests.cluster.roles_contract import PLAYS, answers, submit
from tests.cluster.server_run import process_of
from tests.cluster.workloads import WAIT_S
from tests.experiment.conftest import store

__all__ = ["store"]
pytestmark = pytest.mark.local


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_roles(store: Path, tmp_path: Path, play: Callable[[Path], None]) -> None:
    play(tmp_path)


def test_who_dies_again_and_again_is_given_up(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path / "told", fruitless_limit=2)
    answers(run, worker0=0, ps0=0)
    os.kill(process_of(run, 1), signal.SIGKILL)
    answers(run, worker0=1)
    os.kill(process_of(run, 1), signal.SIGKILL)
    with pytest.raises(WorkerFailed, match="the last worker, was lost: 2 times in a row, the last of: killed"):
        run.result(WAIT_S)
