"""Successive halving: the steps at which trials are compared, and the ranking of the trials of a rung.

Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS. A rung
is a step at which trials are compared with all that reached it before; one in ``factor`` of them continues to the next
rung.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from hopsml.errors import ArgumentError

Key = tuple[float, int, int]  # (-score, place in the order of arrival, number): ascending is from best to worst


class Rung:
    """Scores of one rung from best to worst; among equals the one that arrived first is better."""

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._key_of: dict[int, Key] = {}
        self._arrived = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, number: int, score: float) -> Key:
        """Record a trial's score at this rung, once for each trial, and return its sort key."""
        key = (-score, self._arrived, number)
        self._arrived += 1
        self._key_of[number] = key
        insort(self._keys, key)
        return key

    def remove(self, number: int) -> None:
        """Remove a trial and its score from the comparison, as if it had never reached this rung."""
        key = self._key_of.pop(number)
        del self._keys[bisect_left(self._keys, key)]

    def key(self, number: int) -> Key:
        """Return the sort key of a trial: better scores first, among equal ones the earlier arrival."""
        return self._key_of[number]

    def rank(self, number: int) -> int:
        """Return the number of trials at this rung that are better than this one."""
        return bisect_left(self._keys, self._key_of[number])

    def is_among(self, count: int, key: Key) -> bool:
        """Return True if the trial with this key is one of the ``count`` best."""
        return count > 0 and key <= self._worst(count)

    def is_as_good_as(self, count: int, key: Key) -> bool:
        """Return True if its score is at least that of the ``count``-th best, regardless of the order of arrival."""
        return count > 0 and key[0] <= self._worst(count)[0]

    def _worst(self, count: int) -> Key:
        return self._keys[min(count, len(self._keys)) - 1]

    def best(self, count: int) -> list[int]:
        """Return the numbers of the ``count`` best trials, best first; of all if there are fewer."""
        return [number for _, _, number in self._keys[: max(count, 0)]]

    def state(self) -> list[list[float]]:
        """Return a [number, score] pair for each trial in the order of arrival, for ``restored``."""
        return [[number, -negative] for negative, _, number in sorted(self._keys, key=lambda key: key[1])]

    @classmethod
    def restored(cls, state: list[list[float]]) -> Rung:
        """Return a rung made from another one's ``state()``."""
        rung = cls()
        for number, score in state:
            rung.add(int(number), score)
        return rung


def rung_steps(min_step: int, max_step: int, factor: int) -> tuple[int, ...]:
    """Return the steps of all rungs from ``min_step`` to ``max_step``.

    They are ``min_step``, then ``max_step`` divided by ``factor`` as often as that is greater, rounded down, then
    ``max_step``. (1, 10, 2) has the rungs 1, 2, 5, 10: each is about ``factor`` times the one before, up to the last.
    """
    most = halvings(min_step, max_step, factor)
    above = (max_step // factor**left for left in range(most - 1, -1, -1))
    return (min_step, *above) if most else (max_step,)


def halvings(min_step: int, max_step: int, factor: int) -> int:
    """Return how often ``max_step`` can be divided by ``factor`` without falling below ``min_step``.

    This is s_max of Hyperband.
    """
    count = 0
    while min_step * factor ** (count + 1) <= max_step:
        count += 1
    return count


def check_ladder(min_step: int, max_step: int | None, factor: int, names: tuple[str, str, str]) -> None:
    """Raise ArgumentError unless these are valid steps and a valid factor.

    Args:
        min_step: step of the first rung.
        max_step: step of the last rung; None: there is none.
        factor: reduction factor.
        names: names of the arguments in the user's interface, for messages.
    """
    for name, value, least in zip(names, (min_step, max_step, factor), (1, 1, 2), strict=True):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ArgumentError(f"{name}={value!r}: an integer of {least} or more was expected")
    if max_step is not None and max_step < min_step:
        raise ArgumentError(
            f"{names[0]}={min_step} is above {names[1]}={max_step}: a trial would be over before it is compared; swap them"
        )
