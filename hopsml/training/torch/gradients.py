"""Averaging of a module's gradients over the workers, overlapped with the backward pass that computes them.

Gradients are collected in buckets in the order in which the backward pass is likely to compute them; a bucket is sent
as soon as it and those before it are complete (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3). All
workers exchange the same buckets in the same order, whatever parameters their own pass has used: a missing gradient
counts as zero. Of several modules in one backward pass the one that was prepared last comes first, and the others'
buckets are sent when the pass has ended, because it is not known before which of them take part. Sparse gradients of
embeddings are sent as rows with their indices. With hopsml's own collective the loss of a worker ends no pass: the
mean is then that of the remaining workers.

With double buffering the buckets of a pass are reduced from the next forward pass of the module to the end of its
backward pass, so that no operation is in progress between two batches, when workers may join the group.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.spec import GradientSettings
from hopsml.cluster.worker import collective_stats
from hopsml.training import collective
from hopsml.training.torch import late_parameters
from hopsml.training.torch.backend import communication_thread
from hopsml.training.torch.gradient_buckets import (
    Bucket,
    WithheldGradients,
    bucket_labels,
    clear_gradients,
    make_buckets,
    sparse_weights,
    wait_for_end,
)
from hopsml.training.torch.gradient_compression import BucketTransfer, GradientCompression, retains_state, run_transfers
from hopsml.training.torch.state_tensors import array_of, gather_tensors, sparse_sum

if TYPE_CHECKING:
    import torch

    from hopsml.collective.group import Group

# Codes in place of a number of rows: a worker has no gradient of this parameter, or a dense one.
_ABSENT, _DENSE = -1, -2
_CHANGED = "hopsml.torch.prepare() has not seen them (new, replaced, or of another shape since)"
_exchanges: weakref.WeakKeyDictionary[Any, GradientAverager] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)
_newest: BackwardPass | None = None


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

    def __init__(
        self, module: torch.nn.Module, group: Group, number: int = 0, settings: GradientSettings | None = None
    ) -> None:
        self.enabled, self.number, self.settings = True, number, settings or GradientSettings()
        self._compression = GradientCompression.of_module(self.settings, module)
        self._withheld = WithheldGradients()
        self._group = group
        self._module = weakref.ref(module)
        self._watch = late_parameters.watch_parameters(
            module, module.parameters(), _CHANGED, hooked=True, any_type=True
        )
        self._sparse: list[torch.Tensor] = []
        self._buckets: list[Bucket] = []
        self._of: dict[int, int | None] = {}  # index of the bucket by the parameter's identity; None: sent as rows
        self._types: dict[int, torch.dtype] = {}
        # Trained parameters, and their version counters before this pass.
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._lay_out(module)
        self._next = 0  # index of the next bucket to send
        self._under_way = False  # in a backward pass that has not ended
        self._reduces = True  # this pass's gradients are reduced; otherwise they are added up only
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
        for bucket, label in zip(self._buckets, bucket_labels(module, self._buckets), strict=True):
            bucket.label = label
        self._of = {id(one): None for one in self._sparse}
        self._of |= {id(one): index for index, bucket in enumerate(self._buckets) for one in bucket.parameters}
        self._types = {id(one): one.dtype for one in trained}
        collective_stats.record_reduction(len(trained), len(self._buckets) + len(self._sparse), 0, "collective")
        if self.settings.description:
            collective_stats.record_settings(self.settings.description)

    def _made(self, parameter: torch.Tensor) -> None:
        """Handle a new gradient of the backward pass: send all buckets that are complete."""
        if not self.enabled:
            self._watch.kept_back = True
            return
        under_way = _current_pass()
        if self not in under_way.parts:
            self._begin()
            under_way.parts.append(self)
        index = self._of.get(id(parameter))
        if index is None:
            return
        self._buckets[index].missing.discard(id(parameter))
        while self._is_first and self._next < len(self._buckets) - 1 and not self._buckets[self._next].missing:
            self._send(self._buckets[self._next])

    def _begin(self) -> None:
        """Start a backward pass, at its first gradient of the module."""
        if self._under_way:  # the last pass raised
            wait_for_end(self._buckets)
            self._withheld.passes = 0
        self.release()
        module = self._module()
        if module is not None:
            self._watch.check_parameters()
            trained = [one for one in module.parameters() if one.requires_grad]
            # Parameters were unfrozen or converted.
            if any(self._types.get(id(one)) is not one.dtype for one in trained):
                self._lay_out(module)
                self._withheld.passes = 0
            self._versions = [(one, one._version) for one in trained]
        for bucket in self._buckets:
            bucket.reset()
        self._next, self._under_way = 0, True
        self._reduces = self._withheld.passes + 1 >= self.settings.accumulate
        self._is_first = all(one.number <= self.number for one in list(_exchanges.values()))

    def _send(self, bucket: Bucket) -> None:
        """Fill a bucket and submit its reduction, if it is to be reduced now."""
        self._fill(bucket)
        if self._reduces and not self.settings.double_buffering:
            self._submit(bucket)
        self._next += 1

    def _fill(self, bucket: Bucket) -> None:
        """Copy a pass's gradients into a bucket: those of all passes whose gradients are reduced together."""
        passes = self._withheld.passes
        bucket.copy_gradients_in(adds=passes > 0)
        if self._reduces and passes:
            bucket.memory.div_(passes + 1)

    def _submit(self, bucket: Bucket) -> None:
        """Submit a bucket's reduction to the communication thread."""
        bucket.future = communication_thread().submit(lambda: self._mean(bucket))

    def _mean(self, bucket: Bucket) -> None:
        """Reduce a bucket's buffer."""
        transfers = self._compression.reduce(bucket.memory, bucket.gradient_parts(), bucket.tail)
        run_transfers(transfers, partial(self._carry_out, bucket.label))

    def _carry_out(self, label: str, transfer: BucketTransfer) -> torch.Tensor:
        """Carry out one transfer of a bucket's reduction."""
        name = f"{label}: {transfer.label}" if transfer.label else label
        if transfer.operation == "gather":
            return gather_tensors(self._group, transfer.tensor, name)
        self._reduce(transfer.tensor, name, transfer.wire)
        return transfer.tensor

    def _reduce(self, memory: torch.Tensor, name: str, wire: str = "same") -> None:
        """Replace a buffer's values by their mean over the workers."""
        with array_of(memory) as array:
            self._group.all_reduce(array, "mean", wire=wire, out=array, name=name)

    def finish(self) -> None:
        """Handle the end of the backward pass: send the remaining buckets, and set the gradients from all results."""
        module = self._module()
        others, last = self._buckets[:-1], self._buckets[-1:]
        try:
            while self._next < len(others):
                self._send(others[self._next])
            for bucket in last:
                self._fill(bucket)
            if not self._reduces:
                self._withheld.add_rows(self._sparse)
                self._withheld.passes += 1
                clear_gradients(self._parameters())
            elif self.settings.double_buffering:
                self._exchange_with_previous()
            else:
                self._reduce_now(others, last)
            self._average_statistics()
        finally:
            self._next, self._under_way = 0, False
        self._watch.kept_back = False
        if changed := {id(one) for one, version in self._versions if one._version != version}:
            names = [name for name, one in module.named_parameters() if id(one) in changed] if module else []
            late_parameters.refuse_change_in_backward(f"{', '.join(names[:10])} are changed")

    def _parameters(self) -> Iterator[torch.Tensor]:
        """Yield all parameters whose gradients are reduced."""
        yield from self._sparse
        for bucket in self._buckets:
            yield from bucket.parameters

    def _reduce_now(self, others: Sequence[Bucket], last: Sequence[Bucket]) -> None:
        """Set the gradients of this pass from the results of all buckets, the last of which is not submitted yet."""
        for bucket in others:
            bucket.future.wait()
            bucket.copy_gradients_out()
        for bucket in last:
            # There is nothing left to compute in parallel: no other thread is needed, unless one is active.
            communication_thread().call(partial(self._mean, bucket))
            bucket.copy_gradients_out()
        self._reduce_rows(self._withheld.passes + 1)

    def _reduce_rows(self, passes: int) -> None:
        """Average the sparse gradients of the ``passes`` since the last reduction."""
        self._withheld.take_rows(self._sparse, passes)
        if self._sparse:
            communication_thread().call(self._average_rows)

    def _exchange_with_previous(self) -> None:
        """Withhold this pass's gradients until the next one, and set those of the pass before."""
        self._reduce_rows(self._withheld.passes + 1)
        rows = [one.grad for one in self._sparse]
        clear_gradients(self._sparse)
        spare = self._set_previous()
        self._withheld.buckets, self._withheld.rows = self._buckets, list(zip(self._sparse, rows, strict=True))
        self._withheld.released = False
        fits = [one.parameters for one in spare] == [one.parameters for one in self._buckets]
        self._buckets = spare if fits else [one.twin() for one in self._buckets]

    def _set_previous(self) -> list[Bucket]:
        """Set the gradients that were withheld in the pass before, and return their buckets.

        Without any, the gradients become None, for which optimizers change nothing.
        """
        found, rows = self._withheld.buckets, self._withheld.rows
        self.release()
        clear_gradients(self._parameters())
        self._withheld.buckets, self._withheld.rows = [], []
        for bucket in found:
            bucket.future.wait()
            bucket.copy_gradients_out()
        for one, gradient in rows:
            one.grad = gradient
        return found

    def release(self) -> None:
        """Submit the reductions of the gradients that the last pass has withheld."""
        if not self._withheld.released:
            self._withheld.released = True
            for bucket in self._withheld.buckets:
                self._submit(bucket)

    def settle(self) -> None:
        """Wait until no reduction of withheld gradients is in progress."""
        wait_for_end(self._withheld.buckets)

    def drop_withheld(self) -> None:
        """Drop all gradients that are withheld, and the remainders of compression; all members call it."""
        self.settle()
        self._withheld = WithheldGradients()
        self._compression.reset()

    @property
    def withholds(self) -> bool:
        """True if gradients of earlier passes have not been set yet."""
        return bool(self._withheld.buckets or self._withheld.rows or self._withheld.passes)

    def trains_any(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Return True if any of these parameters belongs to the module."""
        return any(id(one) in self._of for one in parameters)

    def set_withheld(self) -> bool:
        """Set the oldest gradients that are withheld, reduced; return False, with gradients of None, if there are none."""
        if self._withheld.buckets or self._withheld.rows:
            self._set_previous()
            return True
        clear_gradients(self._parameters())
        passes = self._withheld.passes
        if not passes:
            return False
        for bucket in self._buckets:
            bucket.memory.div_(passes)
            communication_thread().call(partial(self._mean, bucket))
            bucket.copy_gradients_out()
        self._reduce_rows(passes)
        return True

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


def average_gradients(
    module: torch.nn.Module, group: Group, settings: GradientSettings | None = None
) -> GradientAverager:
    """Average the module's gradients from now on, by the returned object; call it again after the module has changed."""
    before = _exchanges.pop(module, None)
    if before is not None:
        before.drop_withheld()
        before.remove_hooks()
    # A module keeps its number, because a process that joins later prepares it only once.
    number = before.number if before is not None else next(_numbers)
    found = _exchanges[module] = GradientAverager(module, group, number, settings)
    if settings is not None and retains_state(settings):
        collective.set_withheld_values(_settle_all, _drop_all)
        if settings.double_buffering:
            _release_in_forward()
    return found


def averagers() -> list[GradientAverager]:
    """Return the averagers of all prepared modules, in the order in which these were prepared."""
    return sorted(_exchanges.values(), key=lambda one: one.number)


def _settle_all() -> None:
    """Wait until no reduction of withheld gradients is in progress."""
    for one in averagers():
        one.settle()


def _drop_all() -> None:
    """Drop all withheld gradients, because workers have joined that have none; report it once a change."""
    dropped = [one for one in averagers() if retains_state(one.settings)]
    for one in dropped:
        one.drop_withheld()
    for words in sorted({one.settings.description for one in dropped}):
        print(f"hopsml: workers have joined: withheld gradients and remainders ({words}) were dropped", flush=True)


@cache
def _release_in_forward() -> None:
    """Submit the reductions of withheld gradients in the next forward pass of their module, once per process."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    # A hook of the module itself would be part of its copies.
    def before_forward(module: torch.nn.Module, _: Any) -> None:
        found = _exchanges.get(module)
        if found is not None and torch.is_grad_enabled():
            found.release()

    register_module_forward_pre_hook(before_forward)


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
