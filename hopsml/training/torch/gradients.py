"""Averaging of a module's gradients over the workers, overlapped with the backward pass that computes them.

Gradients are collected in buckets in the order in which the backward pass is likely to compute them; a bucket is sent
as soon as it and those before it are complete (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3). All
workers exchange the same buckets in the same order, whatever parameters their own pass has used: a missing gradient
counts as zero. Of several modules in one backward pass the one that was prepared last comes first, and the others'
buckets are sent when the pass has ended, because it is not known before which of them take part. Sparse gradients of
embeddings are sent as rows with their indices. With hopsml's own collective the loss of a worker ends no pass: the
mean is then that of the remaining workers.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hopsml.cluster.worker import collective_stats
from hopsml.training.torch import late_parameters
from hopsml.training.torch.backend import communication_thread
from hopsml.training.torch.state_tensors import array_of, gather_tensors, sparse_sum

if TYPE_CHECKING:
    import torch

    from hopsml.collective.group import Group

FIRST_BYTES = 1 << 20  # the first bucket is small, so that it can be sent early
BUCKET_BYTES = 25 << 20
# Codes in place of a number of rows: a worker has no gradient of this parameter, or a dense one.
_ABSENT, _DENSE = -1, -2
_CHANGED = "hopsml.torch.prepare() has not seen them (new, replaced, or of another shape since)"
_exchanges: weakref.WeakKeyDictionary[Any, GradientAverager] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)
_newest: BackwardPass | None = None


@dataclass(eq=False)
class Bucket:
    """Parameters of one type, and the buffer in which their gradients are reduced.

    After the gradients, two numbers for each parameter show if it has a gradient, and if it has a dense one.
    """

    number: int
    parameters: list[torch.Tensor]
    memory: torch.Tensor
    # Identities of parameters whose gradient this backward pass has not computed yet.
    missing: set[int] = field(default_factory=set)
    future: Any = None

    def reset(self) -> None:
        """Reset the bucket for another backward pass."""
        self.missing, self.future = {id(one) for one in self.parameters}, None

    def parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield each parameter with its part of the buffer, and the part with its two numbers."""
        offset, present = 0, self.memory[-2 * len(self.parameters) :].view(-1, 2)
        for index, one in enumerate(self.parameters):
            size = one.numel() * (2 if one.is_complex() else 1)
            yield one, _as_is(one, self.memory[offset : offset + size]), present[index]
            offset += size

    def copy_gradients_in(self) -> None:
        """Copy the gradients of the parameters into the buffer."""
        for one, place, present in self.parts():
            if one.grad is None:
                place.zero_()
            else:
                place.copy_(one.grad.to_dense() if one.grad.is_sparse else one.grad)
            present[0], present[1] = one.grad is not None, one.grad is not None and not one.grad.is_sparse

    def copy_gradients_out(self) -> None:
        """Set the gradients from the buffer; a parameter for which no worker has a gradient gets None."""
        for one, place, present in self.parts():
            if not present[0]:
                one.grad = None
            # All gradients are sparse, so the result is sparse, as optimizers for sparse gradients require.
            elif not present[1]:
                one.grad = place.to_sparse(1).to(one.device)
            elif one.grad is None or one.grad.is_sparse:
                one.grad = place.to(one.device, copy=True)
            else:
                one.grad.copy_(place)


class BackwardPass:
    """Backward pass in progress, and the modules whose gradients it computes.

    torch does not report the end of a pass that raises: it only drops its ``PassEndCallback``, to which there is no
    other reference, not even from the frames of the error.
    """

    def __init__(self) -> None:
        self.parts: list[GradientAverager] = []
        self._has_ended = False
        self._end: weakref.ref[PassEndCallback] | None = None

    def begin(self) -> None:
        """Register the callback for the end of the pass; called in a hook of a gradient."""
        from torch.autograd import Variable

        end = PassEndCallback(self)
        self._end = weakref.ref(end)
        Variable._execution_engine.queue_callback(end)

    @property
    def is_under_way(self) -> bool:
        """True until the pass has ended or raised."""
        return not self._has_ended and self._end is not None and self._end() is not None

    def finish(self) -> None:
        """Average what has not been averaged yet, in an order that is the same on all workers."""
        self._has_ended = True
        for one in sorted(self.parts, key=lambda part: -part.number):
            one.finish()


class PassEndCallback:
    """Callback that torch calls at the end of a backward pass."""

    def __init__(self, of_pass: BackwardPass) -> None:
        self._pass = of_pass

    def __call__(self) -> None:
        """Finish the backward pass that this callback belongs to."""
        self._pass.finish()


def _current_pass() -> BackwardPass:
    """Return the backward pass in progress; called in a hook of one of its gradients."""
    global _newest
    if _newest is None or not _newest.is_under_way:
        _newest = BackwardPass()
        _newest.begin()
    return _newest


class GradientAverager:
    """Averaging of one module's gradients over ``group``.

    ``number`` is the module's position among the prepared ones.
    """

    def __init__(self, module: torch.nn.Module, group: Group, number: int = 0) -> None:
        self.enabled, self.number = True, number
        self._group = group
        self._module = weakref.ref(module)
        self._watch = late_parameters.watch_parameters(
            module, module.parameters(), _CHANGED, hooked=True, any_type=True
        )
        self._sparse: list[torch.Tensor] = []
        self._buckets: list[Bucket] = []
        self._labels: list[str] = []
        self._of: dict[int, Bucket | None] = {}  # by the parameter's identity; None: it is sent as rows
        self._types: dict[int, torch.dtype] = {}
        # Trained parameters, and their version counters before this pass.
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._lay_out(module)
        self._next = 0  # index of the next bucket to send
        self._is_first = True  # otherwise modules that were prepared later come first, if the pass reaches them
        self._hooks = [late_parameters.register_gradient_hook(one, self._made) for one in module.parameters()]

    def remove_hooks(self) -> None:
        """Stop averaging the module's gradients by removing the hooks."""
        for hook in filter(None, self._hooks):
            hook.remove()

    def _lay_out(self, module: torch.nn.Module) -> None:
        """Create buckets for all parameters that are trained, or were at any time."""
        trained = [one for one in module.parameters() if one.requires_grad or id(one) in self._of]
        rows = sparse_weights(module)
        self._sparse = [one for one in trained if id(one) in rows]
        self._buckets = make_buckets([one for one in trained if id(one) not in rows])
        self._labels = bucket_labels(module, self._buckets)
        self._of = {id(one): None for one in self._sparse}
        self._of |= {id(one): bucket for bucket in self._buckets for one in bucket.parameters}
        self._types = {id(one): one.dtype for one in trained}
        collective_stats.record_reduction(len(trained), len(self._buckets) + len(self._sparse), 0, "collective")

    def _made(self, parameter: torch.Tensor) -> None:
        """Handle a new gradient of the backward pass: send all buckets that are complete."""
        if not self.enabled:
            self._watch.kept_back = True
            return
        under_way = _current_pass()
        if self not in under_way.parts:
            self._begin()
            under_way.parts.append(self)
        bucket = self._of.get(id(parameter))
        if bucket is None:
            return
        bucket.missing.discard(id(parameter))
        while self._is_first and self._next < len(self._buckets) - 1 and not self._buckets[self._next].missing:
            self._send(self._buckets[self._next])

    def _begin(self) -> None:
        """Start a backward pass, at its first gradient of the module."""
        for bucket in self._buckets[: self._next]:  # buckets of a pass that raised
            with suppress(Exception):  # the result is not used any more, but the operation has to end
                bucket.future.wait()
        module = self._module()
        if module is not None:
            self._watch.check_parameters()
            trained = [one for one in module.parameters() if one.requires_grad]
            # Parameters were unfrozen or converted.
            if any(self._types.get(id(one)) is not one.dtype for one in trained):
                self._lay_out(module)
            self._versions = [(one, one._version) for one in trained]
        for bucket in self._buckets:
            bucket.reset()
        self._next = 0
        self._is_first = all(one.number <= self.number for one in list(_exchanges.values()))

    def _send(self, bucket: Bucket) -> None:
        """Fill a bucket and submit its reduction."""
        bucket.copy_gradients_in()
        bucket.future = communication_thread().submit(lambda: self._mean(bucket))
        self._next += 1

    def _mean(self, bucket: Bucket) -> None:
        """Reduce a bucket's buffer."""
        self._reduce(bucket.memory, self._labels[bucket.number - 1])

    def _reduce(self, memory: torch.Tensor, name: str) -> None:
        """Replace a buffer's values by their mean over the workers."""
        with array_of(memory) as array:
            self._group.all_reduce(array, "mean", out=array, name=name)

    def finish(self) -> None:
        """Handle the end of the backward pass: send the remaining buckets, and set the gradients from all results."""
        module = self._module()
        others, last = self._buckets[:-1], self._buckets[-1:]
        try:
            while self._next < len(others):
                self._send(others[self._next])
            for bucket in last:
                bucket.copy_gradients_in()
            for bucket in others:
                bucket.future.wait()
                bucket.copy_gradients_out()
            for bucket in last:
                # There is nothing left to compute in parallel: no other thread is needed, unless one is active.
                communication_thread().call(partial(self._mean, bucket))
                bucket.copy_gradients_out()
            if self._sparse:
                communication_thread().call(self._average_rows)
            self._average_statistics()
        finally:
            self._next = 0
        self._watch.kept_back = False
        if changed := {id(one) for one, version in self._versions if one._version != version}:
            names = [name for name, one in module.named_parameters() if id(one) in changed] if module else []
            late_parameters.refuse_change_in_backward(f"{', '.join(names[:10])} are changed")

    def _average_rows(self) -> None:
        """Average the sparse gradients one after another; a dense gradient on any worker makes the mean dense."""
        import torch

        of_it = type(self._module()).__name__
        while True:
            own = torch.tensor([_rows_of(one.grad) for one in self._sparse])
            counts = gather_tensors(self._group, own, f"sizes of sparse gradients of {of_it}")
            found = [
                self._averaged(one, counts[:, index].tolist(), f"sparse gradient {index + 1} of {of_it}")
                for index, one in enumerate(self._sparse)
            ]
            if all(size in (0, len(counts)) for size, _ in found):
                break  # otherwise a member failed between two calls, which all workers see alike
        for one, (_, gradient) in zip(self._sparse, found, strict=True):
            one.grad = gradient

    def _averaged(self, parameter: torch.Tensor, counts: list[int], name: str) -> tuple[int, torch.Tensor | None]:
        """Return the number of members (0 if it is not needed) and the mean gradient of a parameter."""
        import torch

        own = parameter.grad
        if max(counts) == min(counts) == _ABSENT:
            return 0, None
        if min(counts) == _DENSE:
            dense = torch.zeros_like(parameter) if own is None else own.to_dense() if own.is_sparse else own.clone()
            self._reduce(dense, name)
            return 0, dense.detach()
        if own is None:
            nothing = torch.empty((1, 0), dtype=torch.int64), parameter.new_empty((0, *parameter.shape[1:]))
            own = torch.sparse_coo_tensor(*nothing, parameter.shape, check_invariants=False)
        size, total = sparse_sum(self._group, own.detach().coalesce(), [max(0, one) for one in counts], name)
        return size, total / size

    def _average_statistics(self) -> None:
        """Average the module's floating-point buffers, such as statistics of each worker's own share."""
        import torch

        module = self._module()
        if module is None or not module.training:
            return
        counted = [one for one in module.buffers() if one.is_floating_point() and one.numel()]
        if counted:
            # In float64: the mean is computed from a sum, which could overflow where a mask holds the lowest number.
            flat = torch.cat([one.detach().reshape(-1).double() for one in counted])
            name = f"statistics of {type(module).__name__}"
            communication_thread().call(lambda: self._reduce(flat, name))
            for one, part in zip(counted, flat.split([one.numel() for one in counted]), strict=True):
                one.data.copy_(part.view(one.shape))


def _rows_of(gradient: torch.Tensor | None) -> int:
    """Return the number of rows of a sparse gradient, or the code for an absent or dense one."""
    return _ABSENT if gradient is None else int(gradient.coalesce()._nnz()) if gradient.is_sparse else _DENSE


def _as_is(parameter: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return a buffer of real numbers as a view in the parameter's shape and type."""
    import torch

    if parameter.is_complex():
        return torch.view_as_complex(memory.view(*parameter.shape, 2))
    return memory.view(parameter.shape)


def sparse_weights(module: torch.nn.Module) -> set[int]:
    """Return the identities of the weights of embeddings with sparse gradients."""
    import torch

    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {id(one.weight) for one in module.modules() if isinstance(one, kinds) and one.sparse}


def make_buckets(
    parameters: Sequence[torch.Tensor], first: int = FIRST_BYTES, most: int = BUCKET_BYTES
) -> list[Bucket]:
    """Distribute parameters over buckets of one type each, in the reverse of their order.

    Args:
        parameters: the parameters in the order of the module.
        first: largest size of the first bucket, in bytes.
        most: largest size of the others, in bytes.
    """
    import torch

    groups: list[list[torch.Tensor]] = []
    room = 0
    for one in reversed(parameters):
        size = one.numel() * one.element_size()
        if not groups or size > room or groups[-1][0].dtype is not one.dtype:
            room = most if groups else first
            groups.append([])
        groups[-1].append(one)
        room -= size
    made = []
    for number, group in enumerate(groups, 1):
        kind = group[0].dtype.to_real() if group[0].is_complex() else group[0].dtype
        numbers = sum(map(torch.numel, group)) * (2 if group[0].is_complex() else 1)
        made.append(Bucket(number, group, torch.zeros(numbers + 2 * len(group), dtype=kind)))
    return made


def bucket_labels(module: torch.nn.Module, made: Sequence[Bucket]) -> list[str]:
    """Return a label for each bucket, by which workers that reduce different gradients are detected and reported.

    A label consists of the module's class and parameter names, which are the same in a process that joins later.
    """
    names = {id(one): name for name, one in module.named_parameters()}
    found = []
    for bucket in made:
        *_, first = own = [names[id(one)] for one in bucket.parameters]  # the parameters are in reverse order
        found.append(f"gradients of {type(module).__name__}: {first}" + (f" to {own[0]}" if len(own) > 1 else ""))
    return found


def average_gradients(module: torch.nn.Module, group: Group) -> None:
    """Average the module's gradients from now on; call it again after the module has changed."""
    before = _exchanges.pop(module, None)
    if before is not None:
        before.remove_hooks()
    # A module keeps its number, because a process that joins later prepares it only once.
    _exchanges[module] = GradientAverager(module, group, before.number if before is not None else next(_numbers))


@contextmanager
def without_averaging(module: torch.nn.Module) -> Iterator[None]:
    """Leave gradients unaveraged inside the block, as in the first of several backward passes of one step."""
    found = _exchanges.get(module)
    if found is None:
        yield
        return
    found.enabled = False
    try:
        yield
    finally:
        found.enabled = True
