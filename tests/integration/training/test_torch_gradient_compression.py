"""Tests of PyTorch's gradient compression in a simulated group, whose members exchange transfers in lockstep."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.cluster.shared.spec import GradientSettings
from hopsml.training.torch.gradient_compression import (
    BucketTransfer,
    GradientCompression,
    adaptive_sum,
    parts_of,
)

pytestmark = pytest.mark.torch

ROWS, COLUMNS, SMALL = 50, 40, 10


class Member:
    """One worker's bucket of a weight, a bias, and the numbers after them, with its compression."""

    def __init__(self, settings: GradientSettings) -> None:
        import torch

        self.parameters = [torch.nn.Parameter(torch.zeros(ROWS, COLUMNS)), torch.nn.Parameter(torch.zeros(SMALL))]
        module = torch.nn.ParameterList(self.parameters)
        self.compression = GradientCompression.of_module(settings, module)
        self.flat = torch.zeros(ROWS * COLUMNS + SMALL + 4)
        self.tail = self.flat[-4:]

    def begin(self, weight: Any, bias: Any) -> Any:
        """Fill the bucket, None for a gradient that this worker has not; return its reduction."""
        self.flat.zero_()
        views = self.flat[: ROWS * COLUMNS], self.flat[ROWS * COLUMNS : -4]
        for index, (view, gradient) in enumerate(zip(views, (weight, bias), strict=True)):
            if gradient is not None:
                view.copy_(gradient.reshape(-1))
                self.tail[2 * index : 2 * index + 2] = 1.0
        pairs = zip(self.parameters, (views[0].view(ROWS, COLUMNS), views[1]), strict=True)
        return self.compression.reduce(self.flat, parts_of(pairs), self.tail)

    def left(self) -> Any:
        """Return what the worker has not sent of the weight."""
        return self.compression._remainders[id(self.parameters[0])].left

    def weight(self) -> Any:
        return self.flat[: ROWS * COLUMNS]


def reduce_all(members: list[Member], gradients: list[tuple[Any, Any]]) -> list[BucketTransfer]:
    """Reduce the members' gradients; return the transfers of the first one."""
    import torch

    running = [member.begin(*given) for member, given in zip(members, gradients, strict=True)]
    waiting, found = [next(one) for one in running], []
    while waiting:
        found.append(waiting[0])
        sent = torch.stack([one.tensor for one in waiting])
        assert len({(one.operation, one.wire, one.is_last) for one in waiting}) == 1
        result = sent if waiting[0].operation == "gather" else sent.mean(0)
        last, waiting = waiting[0].is_last, []
        for one in running:
            try:
                waiting.append(one.send(result.clone()))
            except StopIteration:
                assert last, "no other transfer follows the one that is marked as the last"
    assert all(torch.equal(one.flat, members[0].flat) for one in members)
    return found


def drawn(count: int, seed: int = 1) -> list[tuple[Any, Any]]:
    import torch

    by = torch.Generator().manual_seed(seed)
    return [(torch.randn(ROWS, COLUMNS, generator=by), torch.randn(SMALL, generator=by)) for _ in range(count)]


def test_half_precision_is_sent_for_gradients_alone() -> None:
    for compression, wire in (("fp16", "float16"), ("bf16", "bfloat16")):
        members = [Member(GradientSettings(compression=compression)) for _ in range(2)]  # type: ignore[arg-type]
        transfers = reduce_all(members, drawn(2))
        assert [(one.wire, one.tensor.numel()) for one in transfers] == [("same", 4), (wire, ROWS * COLUMNS + SMALL)]


@pytest.mark.parametrize("settings", [
    GradientSettings(compression="topk", topk=0.05), GradientSettings(compression="powersgd", powersgd_rank=2),
])  # fmt: skip
def test_what_is_not_sent_is_sent_later(settings: GradientSettings) -> None:
    import torch

    members = [Member(settings) for _ in range(3)]
    applied, total = torch.zeros(ROWS * COLUMNS), torch.zeros(ROWS * COLUMNS)
    for seed in range(5):
        gradients = drawn(3, seed)
        transfers = reduce_all(members, gradients)
        sent = sum(one.tensor.numel() for one in transfers)
        assert sent < 0.2 * ROWS * COLUMNS
        applied += members[0].weight()
        total += torch.stack([weight for weight, _ in gradients]).mean(0).reshape(-1)
        bias = torch.stack([bias for _, bias in gradients]).mean(0)
        assert torch.allclose(members[0].flat[ROWS * COLUMNS : -4], bias, atol=1e-6), "small ones are sent whole"
        left = torch.stack([member.left() for member in members]).mean(0)
        assert torch.allclose(applied + left, total, atol=1e-4), "nothing is lost"


@pytest.mark.parametrize("compression", ["topk", "powersgd"])
def test_remainder_of_a_gradient_that_no_worker_has_is_retained(compression: Any) -> None:
    import torch

    members = [Member(GradientSettings(compression=compression)) for _ in range(2)]
    reduce_all(members, drawn(2))
    before = [member.left().clone() for member in members]
    reduce_all(members, [(None, bias) for _, bias in drawn(2, 7)])
    assert members[0].tail.tolist() == [0, 0, 1, 1]
    for member, left in zip(members, before, strict=True):
        assert torch.allclose(member.left(), left, atol=1e-6)
    reduce_all(members, [drawn(2, 8)[0], (None, None)])  # one worker alone has it
    assert members[0].tail.tolist() == [0.5, 0.5, 0.5, 0.5] and members[0].weight().abs().sum() > 0


@pytest.mark.parametrize("compression", [None, "fp16", "bf16"])
def test_adaptive_sum_of_large_and_small_gradients_does_not_overflow(compression: Any) -> None:
    import torch

    members = [Member(GradientSettings(reduction="adasum", compression=compression)) for _ in range(3)]
    gradients = [(1e7 * weight, 1e-6 * bias) for weight, bias in drawn(3)]
    reduce_all(members, gradients)
    for values, found in zip(
        (torch.stack([one.reshape(-1) for one in of_each]) for of_each in zip(*gradients, strict=True)),
        (members[0].weight(), members[0].flat[ROWS * COLUMNS : -4]),
        strict=True,
    ):
        expected = adaptive_sum(values)
        assert (found - expected).abs().max() < (1e-2 if compression else 1e-6) * expected.abs().max()
    same = torch.ones(4, 5)
    assert torch.equal(adaptive_sum(same), same[0]), "equal gradients count once"
    assert adaptive_sum(torch.eye(3)).tolist() == [1.0, 1.0, 1.0], "different ones are added"


def test_nan_is_sent_by_topk() -> None:
    import torch

    members = [Member(GradientSettings(compression="topk", topk=0.01)) for _ in range(2)]
    first, second = drawn(2)
    first[0][3, 4] = float("nan")
    running = [member.begin(*given) for member, given in zip(members, (first, second), strict=True)]
    small, other = (next(one) for one in running)
    mean = (small.tensor + other.tensor) / 2
    transfers = [one.send(mean.clone()) for one in running]
    rows = torch.stack([one.tensor for one in transfers])
    for one in running:
        with pytest.raises(StopIteration):
            one.send(rows)
    assert torch.isnan(members[0].weight()[3 * COLUMNS + 4]) and torch.isnan(members[0].weight()).sum() == 1
