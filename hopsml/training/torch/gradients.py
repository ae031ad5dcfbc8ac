"""Averages a module's gradients over the workers, beside the backward pass that makes them.

Gradients are put together in buckets in the order in which the backward pass is likely to make them; a bucket travels as
soon as it and those before it are complete (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3). All workers
exchange the same buckets in the same order, whatever their own pass has used: what it has not counts as zero. Over hopsml's
own collective the loss of a worker ends no pass: the mean is then that of those who are left.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopsml.cluster.worker import in_force
from hopsml.training.torch.arrays import array_of
from hopsml.training.torch.backend import communication

if TYPE_CHECKING:
    import torch

    from hopsml.collective.group import Group

FIRST_BYTES = 1 << 20  # the first bucket is small: it can travel early
BUCKET_BYTES = 25 << 20
_exchanges: weakref.WeakKeyDictionary[Any, GradientAverage] = weakref.WeakKeyDictionary()


@dataclass(eq=False)
class Bucket:
    """Some parameters of one type, and the memory in which their gradients travel: first they, then who has one."""

    number: int
    parameters: list[torch.Tensor]
    memory: torch.Tensor
    missing: set[int] = field(default_factory=set)  # of the parameters, by identity, in this backward pass
    future: Any = None

    def begin(self) -> None:
        """For another backward pass."""
        self.missing, self.future = {id(one) for one in self.parameters}, None

    def parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Each parameter with its place in the memory, and the place that says whether it has a gradient."""
        offset, present = 0, self.memory[-len(self.parameters) :]
        for index, one in enumerate(self.parameters):
            yield one, self.memory[offset : offset + one.numel()].view(one.shape), present[index]
            offset += one.numel()

    def fill(self) -> None:
        """Copy the gradients into the memory."""
        for one, place, present in self.parts():
            if one.grad is None:
                place.zero_()
            else:
                place.copy_(one.grad.to_dense() if one.grad.is_sparse else one.grad)
            present.fill_(one.grad is not None)

    def empty(self) -> None:
        """Make the memory's content the gradients; a parameter for which no worker has one keeps none."""
        for one, place, present in self.parts():
            if one.grad is None or one.grad.is_sparse:
                one.grad = place.clone() if present else None
            else:
                one.grad.copy_(place)


class GradientAverage:
    """The gradients of one module; ``group`` reduces them."""

    def __init__(self, module: torch.nn.Module, group: Group) -> None:
        self.enabled = True
        self._group = group
        self._module = weakref.ref(module)
        trained = [one for one in module.parameters() if one.requires_grad]
        self._buckets = buckets(trained)
        self._labels = labels(module, self._buckets)
        self._of = {id(one): bucket for bucket in self._buckets for one in bucket.parameters}
        self._next: int | None = None  # bucket to travel; None: no backward pass is under way
        self._hooks = [one.register_post_accumulate_grad_hook(self._made) for one in trained]
        self._hooks.append(module.register_forward_pre_hook(self._before_forward))
        in_force.reduced(len(trained), len(self._buckets), 0, "collective")

    def remove(self) -> None:
        """Leave the module's gradients alone from now on."""
        for hook in self._hooks:
            hook.remove()

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        """A backward pass that raised has no end that anybody is told of: the next one begins anew.

        A forward pass within a backward one, as checkpointing makes them, is none of the next step's.
        """
        import torch

        if self._next is None or torch._C._current_graph_task_id() != -1:
            return
        for bucket in self._buckets[: self._next]:
            with suppress(Exception):  # what is on its way is nobody's any more, but has to arrive
                bucket.future.wait()
        self._next = None

    def _made(self, parameter: torch.Tensor) -> None:
        """The backward pass has made this gradient."""
        if not self.enabled:
            return
        if self._next is None:
            from torch.autograd import Variable

            Variable._execution_engine.queue_callback(self._finish)
            for bucket in self._buckets:
                bucket.begin()
            self._next = 0
        self._of[id(parameter)].missing.discard(id(parameter))
        while self._next < len(self._buckets) - 1 and not self._buckets[self._next].missing:
            self._send(self._buckets[self._next])

    def _send(self, bucket: Bucket) -> None:
        bucket.fill()
        bucket.future = communication().submit(lambda: self._mean(bucket))
        assert self._next is not None
        self._next += 1

    def _mean(self, bucket: Bucket) -> None:
        self._reduce(bucket.memory, self._labels[bucket.number - 1])

    def _reduce(self, memory: torch.Tensor, name: str) -> None:
        with array_of(memory) as array:
            self._group.all_reduce(array, "mean", out=array, name=name)

    def _finish(self) -> None:
        """The backward pass has ended: send what is left, and take what has come."""
        *others, last = self._buckets
        try:
            while self._next is not None and self._next < len(others):
                self._send(others[self._next])
            last.fill()
            for bucket in others:
                bucket.future.wait()
                bucket.empty()
            self._mean(last)  # there is nothing more to compute beside it: no other thread is needed
            last.empty()
            self._average_statistics()
        finally:
            self._next = None

    def _average_statistics(self) -> None:
        """Of normalisations, for instance: what each worker has counted over its own share of the batch."""
        import torch

        module = self._module()
        if module is None or not module.training:
            return
        counted = [one for one in module.buffers() if one.is_floating_point() and one.numel()]
        if counted:
            # Twice as wide as most: the mean is that of a sum, and a mask holds the least number that there is.
            flat = torch.cat([one.detach().reshape(-1).double() for one in counted])
            self._reduce(flat, f"statistics of {type(module).__name__}")
            for one, part in zip(counted, flat.split([one.numel() for one in counted]), strict=True):
                one.data.copy_(part.view(one.shape))


def buckets(parameters: Sequence[torch.Tensor], first: int = FIRST_BYTES, most: int = BUCKET_BYTES) -> list[Bucket]:
    """Parameters in buckets of one type each, in the reverse of their order; sizes in bytes."""
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
    return [
        Bucket(number, group, torch.zeros(sum(map(torch.numel, group)) + len(group), dtype=group[0].dtype))
        for number, group in enumerate(groups, 1)
    ]


def labels(module: torch.nn.Module, made: Sequence[Bucket]) -> list[str]:
    """What each bucket is to people, and to the other workers: those that reduce other gradients than this one are told.

    By the module's class and the parameters' names, which are the same in a process that comes later.
    """
    names = {id(one): name for name, one in module.named_parameters()}
    found = []
    for bucket in made:
        *_, first = own = [names[id(one)] for one in bucket.parameters]  # they are in reverse
        found.append(f"gradients of {type(module).__name__}: {first}" + (f" to {own[0]}" if len(own) > 1 else ""))
    return found


def exchange(module: torch.nn.Module, group: Group) -> None:
    """Average the module's gradients from now on; a module that has changed since is looked at anew."""
    if before := _exchanges.pop(module, None):
        before.remove()
    _exchanges[module] = GradientAverage(module, group)


@contextmanager
def kept_back(module: torch.nn.Module) -> Iterator[None]:
    """Leave gradients where they are, as in the first of several backward passes of one step."""
    found = _exchanges.get(module)
    if found is None:
        yield
        return
    found.enabled = False
    try:
        yield
    finally:
        found.enabled = True
