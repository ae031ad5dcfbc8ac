"""Tests of the members of a run that hold GPUs, on local agents whose nvidia-smi reports two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsml.cluster.shared.spec import Roles
from hopsml.errors import NotEnoughSlots
from tests.cluster.role_gpus import held_by_role
from tests.cluster.roles_contract import submit
from tests.experiment.conftest import store

__all__ = ["store"]
pytestmark = pytest.mark.local

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
    folder: Path = request.getfixturevalue("store")  # the application looks for GPUs when it begins
    return folder


def test_servers_and_the_evaluator_hold_no_gpu(two_gpus: Path, tmp_path: Path) -> None:
    held = held_by_role(submit(tmp_path / "told"), tmp_path / "told")
    assert sorted(held["chief"] + held["worker"]) == [((0,), "0"), ((1,), "1")]
    assert held["ps"] == held["evaluator"] == [((), "-1")]
    with pytest.raises(NotEnoughSlots, match="at most 4 slots"):
        submit(tmp_path / "more", Roles(4), size=6)
