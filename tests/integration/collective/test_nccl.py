"""Tests of NCCL in a group's operations, as far as possible without a GPU; tests/integration/gpu has the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from hopsml.collective import nccl
from hopsml.errors import CollectiveUnavailable
from tests.helpers.clock import END_S
from tests.helpers.collective.together import group

pytestmark = pytest.mark.torch  # whose wheel brings NCCL's


WITHOUT_A_GPU = """
from hopsml.collective.nccl import GpuGroup
from tests.helpers.collective.together import each, group

with group(2) as members:
    for found in each(members, GpuGroup):
        print(type(found).__name__, found)
    print(each(members, lambda member: float(member.all_reduce([1.0])[0])))
"""


def test_each_member_gets_an_error_without_a_gpu_and_the_group_continues() -> None:
    """In a subprocess: NCCL's thread for forming its group remains in the process."""
    environment = os.environ | {"NCCL_SOCKET_IFNAME": "=lo", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_GPU], env=environment, capture_output=True, text=True, timeout=END_S
    )
    first, second, reduced = done.stdout.splitlines()
    for line in (first, second):
        assert re.match(r"CollectiveError NCCL failed in the forming of its group: .*(CUDA|Cuda)", line), done
    assert reduced == "[2.0, 2.0]", done


def test_missing_nccl_library_is_named_with_its_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "LIBRARY", "libnccl-of-nobody.so.2")
    nccl._load.cache_clear()
    try:
        with (
            group(1) as (member,),
            pytest.raises(CollectiveUnavailable, match="install nvidia-nccl-cu12 or nvidia-nccl"),
        ):
            nccl.GpuGroup(member)
    finally:
        nccl._load.cache_clear()
