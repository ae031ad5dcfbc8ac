"""Reduction of a bucket of gradients by the run's settings, as a sequence of transfers that any collective carries out.

``GradientCompression.reduce`` is a generator: it yields a ``BucketTransfer``, is sent what the group made of it, and leaves
the group's gradients in the bucket. The same code runs over hopsml's collective (``gradients``) and in a communication
hook of a DistributedDataParallel over gloo and NCCL (``ddp_hooks``). The state that a method retains between passes
belongs to this worker; it is in no commit and no checkpoint, and restarts from zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hopsml.cluster.shared.spec import DEFAULT_POWERSGD_RANK, DEFAULT_TOPK, GradientSettings

if TYPE_CHECKING:
    import torch

WIRES: dict[str | None, str] = {"fp16": "float16", "bf16": "bfloat16"}
SMALL = 1024  # number of entries up to which a gradient is sent whole


@dataclass(frozen=True)
class BucketTransfer:
    """One operation of the group: the element-wise mean of a tensor, or the rows of all members.

    ``wire`` is the type in which a float32 mean is sent, "same" for its own. While the last transfer of a reduction is
    in progress, the caller may do other work.
    """

    operation: Literal["mean", "gather"]
    tensor: torch.Tensor
    wire: str = "same"
    label: str = ""
    is_last: bool = False


Transfers = Generator[BucketTransfer, "torch.Tensor", None]  # receives the mean, or the rows along a new first axis


def run_transfers(transfers: Transfers, carry_out: Callable[[BucketTransfer], torch.Tensor]) -> None:
    """Carry out the transfers of a reduction one after another."""
    try:
        transfer = next(transfers)
        while True:
            transfer = transfers.send(carry_out(transfer))
    except StopIteration:
        return


@dataclass(frozen=True)
class Part:
    """A parameter, and its gradient's part of a bucket as a one-dimensional tensor of real numbers."""

    parameter: torch.Tensor
    values: torch.Tensor


@dataclass
class Remainder:
    """What compression retains of one parameter between passes.

    ``left`` is added to the next gradient; ``right`` is PowerSGD's matrix, equal on all workers.
    """

    left: torch.Tensor
    right: torch.Tensor | None = None


@dataclass
class GradientCompression:
    """Compression of one module's gradients, with what it retains between passes.

    ``numbers`` are the positions of parameters in the module, by identity: workers derive equal first matrices of
    PowerSGD from them.
    """

    settings: GradientSettings
    numbers: dict[int, int] = field(default_factory=dict)
    _remainders: dict[int, Remainder] = field(default_factory=dict)

    @classmethod
    def of_module(cls, settings: GradientSettings, module: torch.nn.Module) -> GradientCompression:
        """Return the compression for a module, without remainders."""
        return cls(settings, {id(one): number for number, one in enumerate(module.parameters())})

    def reset(self) -> None:
        """Drop all remainders, as before the first pass."""
        self._remainders.clear()

    def reduce(self, flat: torch.Tensor, parts: Sequence[Part], tail: torch.Tensor | None = None) -> Transfers:
        """Replace the gradients in a bucket by those of the group.

        Args:
            flat: the whole bucket, of one type.
            parts: its gradients.
            tail: further numbers at the end of ``flat``, of which only the mean is defined, for each part two: a
                compressed gradient whose first number is 0 on all workers is dropped, and what was sent of it retained.
        """
        if self.settings.reduction == "adasum" and flat.is_floating_point():
            return self._adasum(flat, parts, tail)
        compressed = [index for index, one in enumerate(parts) if self._is_compressed(one)]
        if not compressed:
            return _whole(flat, self._wire(flat), tail)
        return self._compressed(parts, compressed, tail)

    def _wire(self, flat: torch.Tensor) -> str:
        """Return the type in which a bucket is sent."""
        import torch

        return WIRES.get(self.settings.compression, "same") if flat.dtype is torch.float32 else "same"

    def _is_compressed(self, part: Part) -> bool:
        """Return True if a part is sent as its largest entries, or as two matrices."""
        if self.settings.compression == "topk":
            return is_compressible(part.parameter)
        return self.settings.compression == "powersgd" and is_compressible(part.parameter, self._rank)

    @property
    def _rank(self) -> int:
        return self.settings.powersgd_rank or DEFAULT_POWERSGD_RANK

    def _compressed(self, parts: Sequence[Part], chosen: Sequence[int], tail: torch.Tensor | None) -> Transfers:
        """Compress the chosen parts; the others, and the tail, are sent whole."""
        others = [one.values for index, one in enumerate(parts) if index not in set(chosen)]
        others += [tail] if tail is not None else []
        if others:
            yield from _several_means(others, "small gradients")
        of_them = [parts[index] for index in chosen]
        # None on a worker is a zero here; None on all workers sends nothing but a remainder, which then stays.
        used = [True if tail is None else bool(tail[2 * index]) for index in chosen]
        method = self._topk if self.settings.compression == "topk" else self._powersgd
        yield from method(of_them, used)

    def _topk(self, parts: Sequence[Part], used: Sequence[bool]) -> Transfers:
        """Send the largest entries of each part; NaN and infinity count as largest, the others wait for the next pass."""
        import torch

        share = self.settings.topk or DEFAULT_TOPK
        counts = [math.ceil(one.values.numel() * share) for one in parts]
        values, places = [], []
        for one, count in zip(parts, counts, strict=True):
            remainder = self._remainder(one)
            whole = one.values + remainder.left
            chosen = torch.topk(torch.where(whole.isfinite(), whole.abs(), math.inf), count, sorted=False).indices
            values.append(whole[chosen])
            places.append(chosen.to(torch.int32))
            remainder.left = whole.index_fill(0, chosen, 0.0)
        sent = torch.stack([torch.cat(values), torch.cat(places).view(torch.float32)])
        rows = yield BucketTransfer("gather", sent, label="largest entries", is_last=True)
        for index, (one, pairs) in enumerate(zip(parts, rows.split(counts, dim=2), strict=True)):
            if not used[index]:
                self._remainder(one).left[places[index].long()] = values[index]
                continue
            one.values.zero_()
            for pair in pairs:  # in rank order, so that sums are equal on all workers
                one.values.index_add_(0, pair[1].contiguous().view(torch.int32).long(), pair[0] / len(rows))

    def _powersgd(self, parts: Sequence[Part], used: Sequence[bool]) -> Transfers:
        """Send two thin matrices for each part (Vogels et al. 2019); the error waits for the next pass."""
        import torch

        wholes, bases = [], []
        for one in parts:
            rows, columns = matrix_sides(one.parameter)
            wholes.append((one.values + self._remainder(one).left).view(rows, columns))
            bases.append(wholes[-1] @ self._right(one))
        yield from _several_means(bases, "first matrices")
        bases = [torch.linalg.qr(one).Q for one in bases]
        sent = [whole.t() @ base for whole, base in zip(wholes, bases, strict=True)]
        yield from _several_means(sent, "second matrices", is_last=True)
        for one, whole, base, right, is_used in zip(parts, wholes, bases, sent, used, strict=True):
            remainder = self._remainder(one)
            mean = base @ right.t() if is_used else torch.zeros_like(whole)
            remainder.left, remainder.right = (whole - mean).view(-1), right
            one.values.copy_(mean.view(-1))

    def _adasum(self, flat: torch.Tensor, parts: Sequence[Part], tail: torch.Tensor | None) -> Transfers:
        """Combine all workers' gradients by the adaptive sum (Maleki et al. 2021), each part separately."""
        import torch

        sizes = [one.values.numel() for one in parts] + ([tail.numel()] if tail is not None else [])
        wire = self._wire(flat)
        sent = flat if wire == "same" else _scaled(flat.split(sizes), getattr(torch, wire))
        rows = yield BucketTransfer("gather", sent, label="gradients of all workers", is_last=True)
        if wire != "same":
            rows = _unscaled(rows, sizes, flat.dtype)
        begin = 0
        for one in parts:
            end = begin + one.values.numel()
            one.values.copy_(adaptive_sum(rows[:, begin:end]))
            begin = end
        if tail is not None:
            tail.copy_(rows[:, begin:].mean(0))

    def _remainder(self, part: Part) -> Remainder:
        """Return what is retained of a parameter; zeros at first, and after its shape or device has changed."""
        import torch

        found = self._remainders.get(id(part.parameter))
        if found is None or found.left.shape != part.values.shape or found.left.device != part.values.device:
            found = self._remainders[id(part.parameter)] = Remainder(torch.zeros_like(part.values))
        return found

    def _right(self, part: Part) -> torch.Tensor:
        """Return PowerSGD's matrix of the last pass; at first one that is equal on all workers."""
        import torch

        remainder = self._remainder(part)
        if remainder.right is None:
            rows, columns = matrix_sides(part.parameter)
            drawn = torch.Generator().manual_seed(self.numbers.get(id(part.parameter), 0))
            first = torch.randn(columns, min(self._rank, rows, columns), generator=drawn)
            remainder.right = first.to(part.values)
        return remainder.right


def _whole(flat: torch.Tensor, wire: str, tail: torch.Tensor | None) -> Transfers:
    """Send a bucket whole; the tail separately if gradients are rounded, which have another magnitude."""
    if wire != "same" and tail is not None:
        yield from _mean_into(tail, "same", "which are there")
        flat = flat[: -tail.numel()]
    yield from _mean_into(flat, wire, "", is_last=True)


def _mean_into(tensor: torch.Tensor, wire: str, label: str, is_last: bool = False) -> Transfers:
    """Replace a tensor by its mean over the workers."""
    mean = yield BucketTransfer("mean", tensor, wire, label, is_last)
    if mean is not tensor:
        tensor.copy_(mean)


def _several_means(tensors: Sequence[torch.Tensor], label: str, is_last: bool = False) -> Transfers:
    """Replace several tensors of one type by their means, in one transfer."""
    import torch

    together = torch.cat([one.reshape(-1) for one in tensors])
    yield from _mean_into(together, "same", label, is_last)
    for one, mean in zip(tensors, together.split([one.numel() for one in tensors]), strict=True):
        one.copy_(mean.view(one.shape))


def adaptive_sum(rows: torch.Tensor) -> torch.Tensor:
    """Return the adaptive sum of all rows: pairs are combined, then pairs of pairs; one without a partner is unchanged.

    Products are computed in float64, because squares of float32 may overflow.
    """
    import torch

    while len(rows) > 1:
        paired = len(rows) // 2 * 2
        a, b = rows[:paired:2].double(), rows[1:paired:2].double()
        common = (a * b).sum(1, keepdim=True)
        combined = sum(one * (1 - _share(common, one)) for one in (a, b))
        rows = torch.cat([combined.to(rows.dtype), rows[paired:]])
    return rows[0]


def _share(common: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return half of the common part's share of each row; 0 for a row of zeros."""
    import torch

    square = (rows * rows).sum(1, keepdim=True)
    return torch.where(square > 0, common / (2 * square), torch.zeros_like(square))


def _scaled(pieces: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return pieces in a type of two bytes, each scaled by a power of two, followed by the exponents' bits."""
    import torch

    exponents = [_exponent(one) if dtype is torch.float16 else one.new_zeros(()) for one in pieces]
    small = [(one / torch.exp2(exponent)).to(dtype) for one, exponent in zip(pieces, exponents, strict=True)]
    return torch.cat([*small, torch.stack(exponents).to(torch.int16).view(dtype)])


def _unscaled(rows: torch.Tensor, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return rows made of ``_scaled`` tensors with pieces of these sizes in their own type."""
    import torch

    exponents = rows[:, sum(sizes) :].contiguous().view(torch.int16).to(dtype)
    pieces = rows[:, : sum(sizes)].to(dtype).split(list(sizes), dim=1)
    return torch.cat([one * torch.exp2(exponents[:, index, None]) for index, one in enumerate(pieces)], 1)


def _exponent(values: torch.Tensor) -> torch.Tensor:
    """Return the exponent of two that scales finite values to just below float16's largest number."""
    import torch

    size = torch.where(values.isfinite(), values.abs(), 0.0)
    largest = size.max() if size.numel() else values.new_zeros(())
    return torch.floor(torch.log2(largest.clamp(min=2.0**-100))) - 14.0


def matrix_sides(parameter: torch.Tensor) -> tuple[int, int]:
    """Return the sides of a gradient as a matrix: its first dimension, and the product of the others."""
    return int(parameter.shape[0]), parameter.numel() // int(parameter.shape[0])


def is_compressible(parameter: torch.Tensor, rank: int | None = None) -> bool:
    """Return True if compressing a parameter's gradient saves data.

    Args:
        parameter: the parameter.
        rank: rank of PowerSGD's matrices; None for other methods.
    """
    import torch

    if parameter.dtype is not torch.float32 or parameter.numel() <= SMALL:
        return False
    if rank is None:
        return True
    rows, columns = matrix_sides(parameter)
    return rank * (rows + columns) < rows * columns


def retains_state(settings: GradientSettings) -> bool:
    """Return True if a worker retains something of its gradients between two passes, which no commit contains."""
    withheld = settings.double_buffering or settings.accumulate > 1
    return withheld or settings.compression in ("topk", "powersgd")


def parts_of(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[Part]:
    """Return the parts for pairs of a parameter and its part of a bucket, in any shape."""
    import torch

    return [
        Part(one, (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)) for one, values in pairs
    ]
