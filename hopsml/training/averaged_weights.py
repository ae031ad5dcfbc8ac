"""Exchange of weights between workers that train independently, by an algorithm of ``hopsml/training/averaging.py``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hopsml.cluster.worker.context import WorkerContext
from hopsml.errors import ArgumentError
from hopsml.training import collective
from hopsml.training.averaging import Averaging

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Variables(Protocol):
    """Some variables of a model, of any framework."""

    def values(self) -> list[NDArray[Any]]:
        """Return copies of the values."""

    def assign(self, values: Sequence[Any]) -> None:
        """Set the variables to these values."""


@dataclass(frozen=True)
class _Paused:
    """Weights between two calls of ``run``, as lists of arrays.

    Attributes:
        own: this worker's weights.
        others: its statistics.
        mean: mean of all workers' weights.
        shown: the trained model's weights, which the user sees.
    """

    own: list[NDArray[Any]]
    others: list[NDArray[Any]]
    mean: list[NDArray[Any]]
    shown: list[NDArray[Any]]


class AveragedWeights:
    """A model's weights, which all workers combine every few steps; between calls of ``run`` the trained model's."""

    def __init__(self, averaging: Averaging, trained: Variables, others: Variables) -> None:
        """Start all workers with the chief's weights.

        Args:
            averaging: the algorithm.
            trained: the trained variables.
            others: other variables whose mean is meaningful, such as statistics of normalisations.
        """
        self._averaging, self._trained, self._others = averaging, trained, others
        self._steps = 0
        self._paused: _Paused | None = None
        self._begin()

    def count_step(self, is_last: bool) -> None:
        """Combine the weights after a step if it is due; after the last one of a call ``pause`` does."""
        self._steps += 1
        if self._averaging.is_due(self._steps) and not is_last:
            self._trained.assign(self._averaging.combine_weights(self._trained.values(), self._mean()))

    def pause(self) -> None:
        """Set the model to the weights trained so far, and store the worker's own weights for the next call."""
        own, others = self._trained.values(), self._others.values()
        mean = self._mean()
        self._trained.assign(self._averaging.final_weights(mean))
        self._paused = _Paused(own, others, mean, self._trained.values())

    def resume(self) -> None:
        """Restore the stored weights if no worker has changed the model's since; otherwise start from the chief's."""
        import numpy as np

        paused, self._paused = self._paused, None
        if paused is None:
            return
        pairs = zip(paused.shown, self._trained.values(), strict=True)
        untouched = all(np.array_equal(shown, now, equal_nan=True) for shown, now in pairs)
        if not int(collective.all_reduce(np.array(int(untouched)), "min")):
            self._steps = 0
            self._begin()
        elif self._averaging.is_due(self._steps):
            self._trained.assign(self._averaging.combine_weights(paused.own, paused.mean))
        else:
            self._trained.assign(paused.own)
            self._others.assign(paused.others)

    def _begin(self) -> None:
        """Start all workers with the chief's weights."""
        for variables in (self._trained, self._others):
            variables.assign(_each(variables.values(), collective.broadcast))
        self._averaging.begin(self._trained.values(), collective.rank_and_size()[1])

    def _mean(self) -> list[NDArray[Any]]:
        """Return the mean of the trained variables over all workers, and set the other variables to their mean."""
        trained = self._trained.values()
        mean = _each([*trained, *self._others.values()], collective.all_reduce)
        self._others.assign(mean[len(trained) :])
        return mean[: len(trained)]


def check_group_is_fixed(context: WorkerContext | None, algorithm: str) -> None:
    """Raise ArgumentError in a run whose group may change, for an algorithm that averages weights."""
    if context is not None and context.spec.group.regroups:
        raise ArgumentError(
            f"algorithm={algorithm!r} in a group that may change: a newcomer would not have the weights of the others' "
            "blocks; give num_workers= instead of min_workers= and max_workers="
        )


def _each(arrays: Sequence[NDArray[Any]], act: Callable[[NDArray[Any]], NDArray[Any]]) -> list[NDArray[Any]]:
    """Apply ``act`` to all arrays of one type together, and return the results in the arrays' shapes."""
    import numpy as np

    found: dict[int, NDArray[np.generic]] = {}
    for kind in dict.fromkeys(array.dtype for array in arrays):
        chosen = [number for number, array in enumerate(arrays) if array.dtype == kind]
        joined = act(np.concatenate([arrays[number].reshape(-1) for number in chosen]))
        ends = itertools.accumulate(arrays[number].size for number in chosen)
        parts = np.split(joined, list(ends)[:-1])
        found |= {number: part.reshape(arrays[number].shape) for number, part in zip(chosen, parts, strict=True)}
    return [found[number] for number in range(len(arrays))]
