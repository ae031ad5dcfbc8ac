"""In what order a fork server imports what several functions want of it."""

from __future__ import annotations

from collections.abc import Iterable

_TENSORFLOWS = frozenset({"tensorflow", "keras", "tf_keras"})
_TORCH_FIRST = ("torch", "torch._dynamo")


def in_order(modules: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the order given, but for torch before TensorFlow.

    Triton's library, which torch's optimizers import, crashes a process that has loaded TensorFlow's before; the other way
    round both work. A module of somebody's own may import either: torch's come before all others, then.
    """
    given = tuple(dict.fromkeys(modules))
    of_torch = [name for name in given if name.partition(".")[0] == "torch"]
    if "torch" in of_torch and not _TENSORFLOWS.isdisjoint(given):
        of_torch = [*_TORCH_FIRST, *of_torch]
    return tuple(dict.fromkeys((*of_torch, *given)))
