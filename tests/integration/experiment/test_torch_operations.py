"""Tests that torch.distributed gives the same results over backend "hopsml" as over gloo, or a named refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopsml.errors import WorkerFailed
from tests.helpers.clock import END_S
from tests.helpers.local_application import warm_application
from tests.integration.experiment.test_torch import submit
from tests.integration.experiment.torch_operations import play

pytestmark = pytest.mark.torch

REFUSED = {  # text of each error
    **dict.fromkeys(
        ("all_reduce PRODUCT", "all_reduce BAND", "all_reduce BOR"), "which has SUM, AVG, MIN and MAX; take"
    ),
    **dict.fromkeys(
        ("send_and_recv", "isend_and_irecv", "batch_isend_irecv", "objects_sent"), "send and recv over backend='hopsml'"
    ),
    "monitored_barrier": "only implemented for GLOO",
    "DDP built-in fp16 hook": "ProcessGroup::allreduce should return TensorList",
}
ONCE_BROKEN = [
    "all_reduce_sparse", "all_to_all", "all_to_all_single_of_unequal_parts", "nn.all_gather", "nn.all_to_all",
    "functional.all_to_all with gradients", "group_of_one", "group_of_gloo", "another_group_of_gloo", "ddp_sparse",
    "fully_sharded_by_the_older_way", "checkpoint", "all_reduce PRODUCT", "send_and_recv",
]  # fmt: skip


project = warm_application(lambda: submit(lambda: None, num_workers=2).result(END_S))


def played(folder: Path, backend: str, only: list[str] | None) -> dict[str, Any]:
    run = submit(play, num_workers=2, backend=backend, args={"folder": str(folder), "only": only})
    found: dict[str, Any] = run.result(END_S).metrics["json"]
    return found


@pytest.mark.parametrize("only", [ONCE_BROKEN, pytest.param(None, marks=pytest.mark.variant, id="all")])
def test_operations_over_hopsml_equal_gloo_or_are_refused_by_name(
    project: Path, tmp_path: Path, only: list[str] | None
) -> None:
    expected, found = (played(tmp_path, backend, only) for backend in ("gloo", "hopsml"))
    assert found.keys() == expected.keys() and len(found) >= (len(only) if only else 90)
    for case, of_ranks in expected.items():
        assert not any(isinstance(one, str) and "Error: " in one for one in of_ranks), (case, of_ranks)
        if case in REFUSED:
            assert all(REFUSED[case] in one for one in found[case]), (case, found[case])
        else:
            assert found[case] == of_ranks, (case, found[case], of_ranks)


def train_uneven_batches(sparse: bool) -> None:
    """Train one batch more on rank 1 than on rank 0."""
    import torch

    import hopsml

    layer = torch.nn.Embedding(3, 2, sparse=True) if sparse else torch.nn.Linear(3, 2)
    model = torch.nn.parallel.DistributedDataParallel(layer)
    for _ in range(2 + hopsml.distributed.rank()):
        model(torch.tensor([0, 2]) if sparse else torch.ones(2, 3)).sum().backward()


@pytest.mark.parametrize("sparse", [False, True])
def test_failed_operation_under_ddp_raises_its_cause(project: Path, sparse: bool) -> None:
    with pytest.raises(
        WorkerFailed, match=r"rank 1 .*PeerLost: rank 0 has ended .*in all_(reduce|gather) 'torch all_reduce"
    ):
        submit(train_uneven_batches, num_workers=2, args={"sparse": sparse}).result(END_S)


def different() -> None:
    import torch
    import torch.distributed as dist

    import hopsml

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    if hopsml.distributed.rank():
        dist.all_reduce(torch.ones(5, dtype=torch.float64))
    model(torch.ones(2, 3)).sum().backward()


def test_different_operations_under_ddp_are_named(project: Path) -> None:
    with pytest.raises(WorkerFailed, match="CollectiveMismatch: members called different operations"):
        submit(different, num_workers=2).result(END_S)
