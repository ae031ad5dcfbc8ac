"""Buckets of gradients, in which they are reduced together, and gradients that are withheld from the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopsml.training.torch.gradient_compression import Part, parts_of

if TYPE_CHECKING:
    import torch

FIRST_BYTES = 1 << 20  # the first bucket is small, so that it can be sent early
BUCKET_BYTES = 25 << 20


@dataclass(eq=False)
class Bucket:
    """Parameters of one type, and the buffer in which their gradients are reduced.

    After the gradients, two numbers for each parameter show if it has a gradient, and if it has a dense one.
    """

    parameters: list[torch.Tensor]
    memory: torch.Tensor
    # Name by which workers that reduce different gradients are detected and reported.
    label: str = ""
    # Identities of parameters whose gradient this backward pass has not computed yet.
    missing: set[int] = field(default_factory=set)
    future: Any = None

    def reset(self) -> None:
        """Reset the bucket for another backward pass."""
        self.missing, self.future = {id(one) for one in self.parameters}, None

    @property
    def tail(self) -> torch.Tensor:
        """The numbers after the gradients."""
        return self.memory[-2 * len(self.parameters) :]

    def gradient_parts(self) -> list[Part]:
        """Return the gradients' parts of the buffer."""
        return parts_of((one, place) for one, place, _ in self.parts())

    def twin(self) -> Bucket:
        """Return a bucket of the same parameters with another buffer."""
        import torch

        return Bucket(self.parameters, torch.zeros_like(self.memory), self.label)

    def parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield each parameter with its part of the buffer, and the part with its two numbers."""
        offset, present = 0, self.tail.view(-1, 2)
        for index, one in enumerate(self.parameters):
            size = one.numel() * (2 if one.is_complex() else 1)
            yield one, _as_is(one, self.memory[offset : offset + size]), present[index]
            offset += size

    def copy_gradients_in(self, adds: bool = False) -> None:
        """Copy the gradients of the parameters into the buffer, or add them to it."""
        for one, place, present in self.parts():
            dense = one.grad.to_dense() if one.grad is not None and one.grad.is_sparse else one.grad
            numbers = dense is not None, dense is not None and dense is one.grad
            if not adds:
                place.copy_(dense) if dense is not None else place.zero_()
                present[0], present[1] = numbers
            elif dense is not None:
                place.add_(dense)
                present[0] += numbers[0]
                present[1] += numbers[1]

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
    for group in groups:
        kind = group[0].dtype.to_real() if group[0].is_complex() else group[0].dtype
        numbers = sum(map(torch.numel, group)) * (2 if group[0].is_complex() else 1)
        made.append(Bucket(group, torch.zeros(numbers + 2 * len(group), dtype=kind)))
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


@dataclass
class WithheldGradients:
    """Gradients of earlier backward passes that the parameters have not got yet.

    ``passes`` is the number of passes whose gradients have been added up in the buckets of the present pass, and in
    ``sums`` if they are sparse. With double buffering, ``buckets`` and ``rows`` are those of the pass before, whose
    reductions have been submitted if ``released``.
    """

    passes: int = 0
    sums: dict[int, torch.Tensor] = field(default_factory=dict)
    buckets: list[Bucket] = field(default_factory=list)
    rows: list[tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=list)
    released: bool = True

    def add_rows(self, parameters: Iterable[torch.Tensor]) -> None:
        """Add the present gradients of parameters with sparse gradients to those of earlier passes."""
        for one in parameters:
            total = sum_of_gradients(self.sums.get(id(one)), one.grad)
            if total is not None:
                self.sums[id(one)] = total

    def take_rows(self, parameters: Iterable[torch.Tensor], passes: int) -> None:
        """Set the gradients of these parameters to the mean of ``passes``, of which one is the present gradient."""
        self.passes = 0
        if passes < 2 and not self.sums:
            return
        self.add_rows(parameters)
        for one in parameters:
            one.grad = self.sums[id(one)] / passes if id(one) in self.sums else None
        self.sums.clear()


def sum_of_gradients(before: torch.Tensor | None, gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Return the sum of two gradients, each of which may be None, dense or sparse."""
    if before is None or gradient is None:
        return before if gradient is None else gradient
    if before.is_sparse == gradient.is_sparse:
        return before + gradient
    return before.to_dense() + gradient.to_dense() if before.is_sparse else before + gradient.to_dense()


def clear_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """Set gradients to None, for which optimizers change nothing."""
    for one in parameters:
        one.grad = None


def wait_for_end(buckets: Iterable[Bucket]) -> None:
    """Wait for the reductions of buckets whose results may not be used any more."""
    for bucket in buckets:
        if bucket.future is not None:
            with suppress(Exception):  # raised to whoever uses the result
                bucket.future.wait()
