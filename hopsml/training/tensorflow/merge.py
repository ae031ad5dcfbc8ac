"""Grouping of gradients into collectives, and the collectives' keys; without TensorFlow, pure but for a key table.

The merge scope is the number of gradients that one collective carries: 1 = no merging, n = up to n, "all" = one
collective for each element type. Gradients are grouped from the last to the first, because backpropagation finishes
them in that order; a group holds one element type, because a collective has one buffer.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hopsml.errors import ArgumentError, ArgumentTypeError

DEFAULT_MERGE_SCOPE = 32
_KEY_SPACE = 2**30  # instance keys are int32 and positive; a group takes at most 2**30 consecutive ones


def parse_merge_scope(value: int | str) -> int | None:
    """Return the number of gradients that a collective may carry; None for "all".

    Args:
        value: an integer, its digits, or "all".

    Raises:
        ArgumentTypeError: ``value`` is neither an int nor a string.
        ArgumentError: the value is not valid.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ArgumentTypeError(f"merge_scope={value!r}: it must be an int of 1 or more, or 'all'")
    if isinstance(value, str):
        if value == "all":
            return None
        if not value.isdigit():
            raise ArgumentError(f"merge_scope={value!r}: it must be 1 (no merging), a number of gradients, or 'all'")
        value = int(value)
    if value < 1:
        raise ArgumentError(f"merge_scope={value}: it must be 1 (no merging) or more, or 'all'")
    return value


@dataclass(frozen=True)
class MergeGroup:
    """Tensors reduced in one collective: positions in the caller's list, in the order in which they are joined."""

    positions: tuple[int, ...]
    dtype: str


def plan_groups(dtypes: Sequence[str], scope: int | None) -> list[MergeGroup]:
    """Split a list of tensors, given by element type, into groups of at most ``scope`` (None = no limit)."""
    by_dtype: dict[str, list[int]] = {}
    for position in reversed(range(len(dtypes))):
        by_dtype.setdefault(dtypes[position], []).append(position)
    groups: list[MergeGroup] = []
    for dtype, positions in by_dtype.items():
        size = scope or len(positions)
        groups.extend(MergeGroup(tuple(positions[at : at + size]), dtype) for at in range(0, len(positions), size))
    # Whatever its type, the group whose members are ready first goes first.
    return sorted(groups, key=lambda group: -max(group.positions))


Signature = tuple[object, ...]


class InstanceKeys:
    """Keys of the static collectives: a function of the reduced tensors, not of the order of tracing.

    Workers may trace a function at different times and a different number of times (one of them meets a smaller last
    batch and traces again). A counter would then give the same collective different keys on different workers. Here
    the keys follow from the list alone, from the element types and shapes of its groups: the same gradients have the
    same keys on every worker, in every trace and every function. Two functions may share keys without harm, because
    reductions of one process never overlap (see ``reducer``); within a list all keys differ.
    """

    def __init__(self) -> None:
        self._first: dict[Signature, int] = {}

    def of_list(self, groups: Sequence[tuple[str, Sequence[Sequence[int]]]]) -> list[int]:
        """Return for each group of a list (element type, shapes) the first of as many keys as it has members."""
        seen: Counter[Signature] = Counter()
        keys = []
        for dtype, shapes in groups:
            group = (dtype, *(tuple(shape) for shape in shapes))
            # Groups of equal types and shapes may be in progress at the same time.
            keys.append(self._first_key((seen[group], *group), len(shapes)))
            seen[group] += 1
        return keys

    def _first_key(self, signature: Signature, count: int) -> int:
        """Return the first key of a group, assigned on first use."""
        if signature not in self._first:
            attempt = 0
            while self._overlaps(key := _hashed(signature, attempt), count):
                attempt += 1
            self._first[signature] = key
        return self._first[signature]

    def _overlaps(self, start: int, count: int) -> bool:
        """Return True if keys are used already; ``signature[2:]`` are the shapes of the group that uses them."""
        return any(
            start < taken + len(signature[2:]) and taken < start + count for signature, taken in self._first.items()
        )


def _hashed(signature: Signature, attempt: int) -> int:
    """Return a key derived from a signature."""
    digest = hashlib.blake2b(repr((signature, attempt)).encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % _KEY_SPACE
