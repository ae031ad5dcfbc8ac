"""Tests of a group's operations on GPU memory; with one GPU the group has one member."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hopsml.cluster.shared import gpus
from hopsml.collective import Group
from hopsml.collective.nccl import REDUCTIONS
from hopsml.errors import ArgumentError, CollectiveEnded
from hopsml.training.torch import gpu_collective
from tests.helpers.clock import END_S
from tests.helpers.collective.together import group

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not gpus.host_gpus(), reason="no GPU on this host")]
TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")


@pytest.fixture(scope="module", autouse=True)
def initialise_cuda() -> None:
    """Initialise CUDA and NCCL once, as both leave resources in the process."""
    import torch

    with group(1) as (member,):
        gpu_collective.all_reduce(member, torch.ones(1, device="cuda"), "sum", "")
        assert gpu_collective._formed is not None
        gpu_collective._formed[1].end()


@pytest.fixture
def single_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    """A group of one."""
    monkeypatch.setattr(gpu_collective, "_formed", None)
    with group(1) as (member,):
        yield member
        formed = gpu_collective._formed
        if formed is not None:
            formed[1].end()


def reduced(group: Group, tensor: Any, reduction: str) -> Any:
    return gpu_collective.all_reduce(group, tensor, reduction, "x")


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_supported_by_nccl_operations(single_group: Group, name: str) -> None:
    import torch

    x = torch.arange(12, device="cuda").to(getattr(torch, name)).reshape(3, 4)
    operations: dict[str, Callable[[Any], Any]] = {
        **{kind: functools.partial(reduced, single_group, reduction=kind) for kind in REDUCTIONS},
        "broadcast": lambda x: gpu_collective.broadcast(single_group, x, 0, "x"),
        "all_gather": lambda x: gpu_collective.all_gather(single_group, x, "x")[0],
    }
    for operation, call in operations.items():
        for given in (x, x.t(), x[:0]):  # also strided, and empty
            found = call(given)
            assert found.device == x.device and found.dtype == x.dtype and found.shape == given.shape, operation
            assert torch.equal(found, given) and (not x.numel() or found.data_ptr() != x.data_ptr()), operation


def test_operation_waits_for_the_current_stream(single_group: Group) -> None:
    """A product that takes long is under way in another stream when the operation is called in that."""
    import torch

    a = b = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(50):
            a = (a @ b).tanh()
        found = gpu_collective.all_reduce(single_group, a, "sum", "product")
    assert torch.equal(found, a)


def test_tensor_with_a_gradient_is_reduced_without_it(single_group: Group) -> None:
    import torch

    x = torch.ones(3, device="cuda", requires_grad=True)
    assert not gpu_collective.all_reduce(single_group, x, "sum", "").requires_grad


def test_unsupported_type_and_ended_group_raise(single_group: Group) -> None:
    import torch

    for reduction in ("sum", "mean"):
        with pytest.raises(ArgumentError, match="type 'complex64' is none of uint8"):
            gpu_collective.all_reduce(single_group, torch.ones(2, device="cuda", dtype=torch.complex64), reduction, "")
    gpu_collective.all_reduce(single_group, torch.ones(2, device="cuda"), "sum", "")
    assert gpu_collective._formed is not None
    gpu_collective._formed[1].end("the test has ended it")
    with pytest.raises(CollectiveEnded, match="the test has ended it"):
        gpu_collective.all_reduce(single_group, torch.ones(2, device="cuda"), "sum", "")


TWO_ON_ONE = """
from hopsml.collective.nccl import GpuGroup
from tests.helpers.collective.together import each, group

with group(2) as members:
    for found in each(members, GpuGroup):
        print(type(found).__name__, found)
"""


def test_two_members_on_one_gpu_get_an_error_that_each_needs_its_own() -> None:
    """In a subprocess: NCCL leaves a listening thread if members do not form a group."""
    environment = os.environ | {"NCCL_SOCKET_IFNAME": "=lo"}
    done = subprocess.run(
        [sys.executable, "-c", TWO_ON_ONE], env=environment, capture_output=True, text=True, timeout=END_S
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and "Duplicate GPU" in done.stdout, done
    for line in lines:
        assert re.match("ArgumentError .*each worker needs a separate GPU", line), done
