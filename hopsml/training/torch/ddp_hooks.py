"""Settings of the gradient exchange over gloo and NCCL, as a communication hook of a DistributedDataParallel.

The hook reduces DDP's buckets by the same transfers as hopsml's collective does (``gradient_compression``). The last
transfer of a bucket overlaps with the backward pass; a transfer that others need is waited for in the hook, so that all
workers submit operations in the same order. Gradients that are withheld are stored for each parameter, as DDP arranges its
buckets again after the first pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.spec import GradientSettings
from hopsml.cluster.worker import collective_stats
from hopsml.errors import ArgumentError
from hopsml.training.torch.gradient_buckets import sparse_weights
from hopsml.training.torch.gradient_compression import BucketTransfer, GradientCompression, Part, Transfers

if TYPE_CHECKING:
    import torch

_hooks: weakref.WeakKeyDictionary[Any, GradientHook] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Reduction:
    """Reduction in progress: the parameters, their parts of its buffer, and a future of its end."""

    parameters: Sequence[torch.Tensor]
    parts: Sequence[torch.Tensor]
    future: Any

    def set_gradients(self) -> None:
        """Wait for the results, and set the gradients to them."""
        import torch

        self.future.wait()
        for one, part in zip(self.parameters, self.parts, strict=True):
            # DDP arranges a gradient in a bucket as its parameter; ``GradBucket.gradients`` does not show that.
            one.grad = part.as_strided(one.shape, torch.empty_like(one).stride(), part.storage_offset())


class GradientHook:
    """Communication hook of one module, called by DDP with each bucket of a backward pass that is complete."""

    def __init__(self, module: torch.nn.Module, settings: GradientSettings) -> None:
        self.settings = settings
        self._compression = GradientCompression.of_module(settings, module)
        self._parameters = [one for one in module.parameters() if one.requires_grad]
        self._passes = 0  # number of passes that have been added up in ``_sums``
        self._sums: dict[int, torch.Tensor] = {}
        self._previous: list[Reduction] = []
        self._present: list[Reduction] = []
        self._in_pass = False

    def __call__(self, bucket: Any) -> Any:
        """Reduce a bucket; return a future of its buffer, from which DDP sets the gradients."""
        flat, parameters = bucket.buffer(), bucket.parameters()
        if self.settings.accumulate == 1 and not self.settings.double_buffering:
            return self._start(flat, parameters)
        self._call_after_pass()
        reduces = self._passes + 1 >= self.settings.accumulate
        if self.settings.accumulate > 1:
            self._add_up(flat, parameters, reduces)
        if reduces and not self.settings.double_buffering:
            return self._start(flat, parameters)
        if reduces:
            for one in self._previous:
                one.future.wait()  # they end with the remainders that this reduction begins with
            own = flat.clone()
            self._present.append(Reduction(parameters, _split(own, parameters), self._start(own, parameters)))
        return _completed(flat)

    def _add_up(self, flat: torch.Tensor, parameters: Sequence[torch.Tensor], reduces: bool) -> None:
        """Add gradients to the sums of earlier passes; if they are to be reduced, replace them by the mean instead."""
        for one, gradient in zip(parameters, _split(flat, parameters), strict=True):
            if reduces:
                gradient.add_(self._sums.pop(id(one), 0.0)).div_(self._passes + 1)
            elif id(one) in self._sums:
                self._sums[id(one)].add_(gradient)
            else:
                self._sums[id(one)] = gradient.clone()

    def _call_after_pass(self) -> None:
        """Call ``_end_pass`` when DDP has set the gradients of the present backward pass."""
        from torch.autograd import Variable

        if not self._in_pass:
            self._in_pass = True
            queue = Variable._execution_engine.queue_callback
            queue(lambda: queue(self._end_pass))  # DDP queues its own callback with the last bucket

    def _end_pass(self) -> None:
        """Replace the gradients that DDP has set by those which the optimizer is to use, or by None."""
        self._in_pass = False
        if self._passes + 1 < self.settings.accumulate:
            self._passes += 1
            self._clear()
            return
        self._passes = 0
        if self.settings.double_buffering:
            self._set_previous()
            self._previous, self._present = self._present, []

    def _clear(self) -> None:
        for one in self._parameters:
            one.grad = None

    def _set_previous(self) -> None:
        """Set the gradients of the previous reduction; None without one."""
        self._clear()
        for one in self._previous:
            one.set_gradients()
        self._previous = []

    @property
    def withholds(self) -> bool:
        """True if gradients of earlier passes have not been set yet."""
        return bool(self._previous or self._passes)

    def trains_any(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Return True if any of these parameters belongs to the module."""
        own = set(map(id, self._parameters))
        return any(id(one) in own for one in parameters)

    def set_withheld(self) -> bool:
        """Set the oldest gradients that are withheld, reduced; return False, with gradients of None, if there are none."""
        if self._previous:
            self._set_previous()
            return True
        self._clear()
        passes, self._passes = self._passes, 0
        for one in self._parameters if passes else ():
            own = self._sums.pop(id(one)).div_(passes)
            Reduction([one], [own], self._start(own, [one])).set_gradients()
        return passes > 0

    def _start(self, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Any:
        """Start the reduction of a bucket; return a future of the same tensor with the group's gradients."""
        parts = [Part(one, values) for one, values in zip(parameters, _split(flat, parameters), strict=True)]
        transfers = self._compression.reduce(flat, parts)
        transfer = next(transfers)
        while not transfer.is_last:
            transfer = transfers.send(_begin(transfer).wait())
        return _begin(transfer).then(lambda received: _finish(transfers, received.value(), flat))


def _split(flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the parameters' parts of a bucket, in the order of its memory."""
    return flat.split([one.numel() for one in parameters])


def _begin(transfer: BucketTransfer) -> Any:
    """Submit one operation of the default process group; return a future of its result."""
    import torch
    import torch.distributed as dist

    tensor, size = transfer.tensor, dist.get_world_size()
    if transfer.operation == "gather":
        sent = tensor.contiguous().view(-1).view(torch.uint8)
        rows = sent.new_empty((size, sent.numel()))

        def gathered(done: Any) -> torch.Tensor:
            done.value()  # raises its error
            return rows.view(tensor.dtype).view(size, *tensor.shape)

        return dist.all_gather(list(rows.unbind()), sent, async_op=True).get_future().then(gathered)

    def mean(done: Any) -> torch.Tensor:
        (total,) = done.value()
        return total.div_(size) if transfer.wire == "same" else tensor.copy_(total)

    # Divided before the sum where that could overflow.
    small = tensor if transfer.wire == "same" else (tensor / size).to(getattr(torch, transfer.wire))
    return dist.all_reduce(small, async_op=True).get_future().then(mean)


def _finish(transfers: Transfers, received: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """Complete a reduction with the result of its last transfer."""
    with suppress(StopIteration):
        transfers.send(received)
    return flat


def _completed(tensor: torch.Tensor) -> Any:
    """Return a completed future with a tensor."""
    import torch

    future: Any = torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else None)
    future.set_result(tensor)
    return future


def check_supported(module: torch.nn.Module, settings: GradientSettings) -> None:
    """Raise ArgumentError for a module that DDP cannot reduce by a communication hook."""
    rows = sparse_weights(module)
    names = [name for name, one in module.named_parameters() if id(one) in rows]
    if names:
        given = " and ".join(settings.changed_names)
        raise ArgumentError(
            f"{given} over gloo or nccl with the sparse gradients of {', '.join(names[:10])}: "
            "communication hooks of DistributedDataParallel get dense gradients only; use backend='hopsml', or "
            "Embedding(sparse=False)"
        )


def reduce_by(wrapped: torch.nn.parallel.DistributedDataParallel, settings: GradientSettings) -> GradientHook:
    """Reduce the gradients of a DistributedDataParallel by these settings from now on; return the hook."""
    hook = _hooks[wrapped.module] = GradientHook(wrapped.module, settings)
    # DDP refuses annotations that it does not know, as texts are.
    wrapped.register_comm_hook(None, lambda _, bucket: hook(bucket))
    collective_stats.record_settings(settings.description)
    return hook


def hooks() -> list[GradientHook]:
    """Return the hooks of all prepared modules."""
    return list(_hooks.values())
