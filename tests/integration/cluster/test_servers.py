"""Tests of a chief and its servers on the local backend, without a framework, and of the GPUs that they hold."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hopsml.cluster.shared.spec import Roles
from hopsml.errors import NotEnoughSlots, WorkerFailed
from tests.helpers.clock import END_S
from tests.helpers.cluster.role_gpus import held_by_role
from tests.helpers.cluster.roles_contract import PLAYS, answers, submit
from tests.helpers.cluster.server_run import process_of

NVIDIA_SMI = """#!/bin/sh
case "$1" in
--query-gpu=index,uuid,pci.bus_id) echo "0, GPU-roles-a, 00000000:3B:00.0"; echo "1, GPU-roles-b, 00000000:AF:00.0" ;;
*) exit 1 ;;
esac
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    folder: Path = request.getfixturevalue("store")  # the application detects GPUs when it starts
    return folder


@pytest.mark.variant
def test_servers_and_the_evaluator_hold_no_gpu(two_gpus: Path, tmp_path: Path) -> None:
    held = held_by_role(submit(tmp_path / "told"), tmp_path / "told")
    assert sorted(held["chief"] + held["worker"]) == [((0,), "0"), ((1,), "1")]
    assert held["ps"] == held["evaluator"] == [((), "-1")]
    with pytest.raises(NotEnoughSlots, match="at most 4 slots"):
        submit(tmp_path / "more", Roles(4), size=6)


pytestmark = pytest.mark.local


@pytest.mark.parametrize(
    "play",
    [
        pytest.param(PLAYS[0], marks=pytest.mark.variant),  # as on Spark's executors
        PLAYS[1],
        pytest.param(PLAYS[2], marks=pytest.mark.variant),  # as in tests/unit/cluster/test_server_gang.py
        PLAYS[3],
    ],
    ids=lambda play: play.__name__,
)
def test_server_group_fulfils_the_roles_contract(store: Path, tmp_path: Path, play: Callable[[Path], None]) -> None:
    play(tmp_path)


@pytest.mark.variant
def test_worker_that_fails_repeatedly_is_not_restarted(store: Path, tmp_path: Path) -> None:
    run = submit(tmp_path / "told", fruitless_limit=2)
    answers(run, worker0=0, ps0=0)
    os.kill(process_of(run, 1), signal.SIGKILL)
    answers(run, worker0=1)
    os.kill(process_of(run, 1), signal.SIGKILL)
    with pytest.raises(WorkerFailed, match="the last worker, was lost: 2 times in a row, the last of: killed"):
        run.result(END_S)
