"""Order in which a fork server imports the modules that several functions need."""

from __future__ import annotations

from collections.abc import Iterable

_TENSORFLOWS = frozenset({"tensorflow", "keras", "tf_keras"})
_TORCH_FIRST = ("torch", "torch._dynamo")


def in_order(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the modules in the given order without duplicates, but torch before TensorFlow.

    Triton's library, which torch's optimizers import, crashes a process that has loaded TensorFlow's before; the other
    order works. Since a user's module may import either, torch's modules then precede all others.
    """
    given = tuple(dict.fromkeys(modules))
    of_torch = [name for name in given if name.partition(".")[0] == "torch"]
    if "torch" in of_torch and not _TENSORFLOWS.isdisjoint(given):
        of_torch = [*_TORCH_FIRST, *of_torch]
    return tuple(dict.fromkeys((*of_torch, *given)))
