"""Algorithms that train on each worker independently and combine the weights every few steps; pure.

All of them need only the mean of the workers' weights, so that one exchange serves them all:

    weights of a worker ── mean over workers ──▶ ``combine_weights`` ──▶ the weights with which it continues

With N workers' weights w_1 .. w_N and their mean m:

    local SGD             w_i <- m                                  (Stich, arXiv 1805.09767, algorithm 1)
    block momentum        d <- eta d + zeta (m - s);  g <- g + d;  w_i <- s <- g, or g + eta d with Nesterov's
                                                                    (Chen and Huo, ICASSP 2016, equations 4 to 8)
    elastic averaging     w_i <- w_i - a (w_i - c);  c <- c + a N (m - c)
                                                                    (Zhang et al., arXiv 1412.6651, equations 5 and 6)
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, get_args

from hopsml.cluster.shared import checks
from hopsml.core.suggestions import suggestion_text
from hopsml.errors import ArgumentError

Weights = list[Any]  # arrays of NumPy, or of a type with its operators; one for each variable
Algorithm = Literal["sync_sgd", "local_sgd", "block_momentum", "elastic_averaging", "async_sgd"]


class Averaging(ABC):
    """Base class of weight-averaging algorithms on one worker.

    All workers create the same algorithm and call it with the same means.
    """

    def __init__(self, every: int) -> None:
        """Create the algorithm's state on one worker.

        Args:
            every: steps of a worker between two exchanges, which is the length of a block.
        """
        self.every = checks.whole_number("every", every)

    def is_due(self, step: int) -> bool:
        """Return True if weights are exchanged after step ``step``, counted from 1."""
        return step % self.every == 0

    def begin(self, weights: Sequence[Any], workers: int) -> None:  # noqa: B027 optional for algorithms without state
        """Start the training with these weights, the same on all ``workers`` workers."""

    @abstractmethod
    def combine_weights(self, own: Sequence[Any], mean: Sequence[Any]) -> Weights:
        """Return the weights with which this worker continues."""

    def final_weights(self, mean: Sequence[Any]) -> Weights:
        """Return the trained model's weights for the mean at the end.

        The state does not change, so training may continue.
        """
        return list(mean)


class LocalSGD(Averaging):
    """Local SGD: independent steps on each worker, then the mean of all."""

    def combine_weights(self, own: Sequence[Any], mean: Sequence[Any]) -> Weights:
        """Return the mean of all workers' weights."""
        return list(mean)


class BlockMomentum(Averaging):
    """Blockwise model-update filtering (BMUF): the change of a block is filtered as by momentum, then applied.

    A model that averages N workers moves N times more slowly than the sum of their steps would; the momentum ``1 - 1
    / N`` compensates for that over some blocks.
    """

    def __init__(self, every: int, momentum: float | None = None, rate: float = 1.0, nesterov: bool = True) -> None:
        """Create the algorithm's state on one worker.

        Args:
            every: steps between two exchanges.
            momentum: eta, from 0 to below 1; None: 1 - 1 / N.
            rate: zeta, above 0.
            nesterov: let workers start from the point ahead of the global model.

        Raises:
            ArgumentError: a number is out of range.
        """
        super().__init__(every)
        if momentum is not None and not 0 <= momentum < 1:
            raise ArgumentError(
                f"momentum={momentum!r}: the momentum of block momentum must be at least 0 and less than 1"
            )
        if not rate > 0:
            raise ArgumentError(f"rate={rate!r}: the rate of block momentum must be greater than 0")
        self._given, self._rate, self._nesterov = momentum, rate, nesterov
        self._momentum = 0.0
        self._global: Weights = []
        self._sent: Weights = []  # weights with which the workers started the block
        self._change: Weights = []

    def begin(self, weights: Sequence[Any], workers: int) -> None:
        """Start with these weights as the global model."""
        self._momentum = 1 - 1 / workers if self._given is None else self._given
        self._global, self._change = [one + 0 for one in weights], [one * 0 for one in weights]
        self._sent = self._global

    def combine_weights(self, own: Sequence[Any], mean: Sequence[Any]) -> Weights:
        """Return the global model after this block; with Nesterov's momentum the point ahead of it."""
        self._global, self._change = self.final_weights(mean), self._filtered(mean)
        ahead = self._momentum if self._nesterov else 0.0
        self._sent = [one + ahead * change for one, change in zip(self._global, self._change, strict=True)]
        return [one + 0 for one in self._sent]

    def final_weights(self, mean: Sequence[Any]) -> Weights:
        """Return the global model with this block's change, without a change of state.

        The change counts from the weights with which the workers started the block, whether ahead of the global model
        or not.
        """
        return [before + change for before, change in zip(self._global, self._filtered(mean), strict=True)]

    def _filtered(self, mean: Sequence[Any]) -> Weights:
        """Return the filtered change of this block."""
        return [
            self._momentum * change + self._rate * (one - sent)
            for change, one, sent in zip(self._change, mean, self._sent, strict=True)
        ]


class ElasticAveraging(Averaging):
    """Elastic averaging SGD (EASGD): workers train independently, drawn towards a centre, which follows them."""

    def __init__(self, every: int, beta: float = 0.9) -> None:
        """Create the algorithm's state on one worker.

        Args:
            every: steps between two exchanges.
            beta: strength with which all workers together draw the centre, above 0 to 1; each draws by beta / N.

        Raises:
            ArgumentError: a number is out of range.
        """
        super().__init__(every)
        if not 0 < beta <= 1:
            raise ArgumentError(f"beta={beta!r}: beta of elastic averaging must be greater than 0 and at most 1")
        self._beta, self._alpha = beta, 0.0
        self._centre: Weights = []

    def begin(self, weights: Sequence[Any], workers: int) -> None:
        """Start with these weights, also as the centre."""
        self._alpha, self._centre = self._beta / workers, [one + 0 for one in weights]

    def combine_weights(self, own: Sequence[Any], mean: Sequence[Any]) -> Weights:
        """Return this worker's weights moved towards the previous centre, and move the centre to the mean."""
        kept = [one - self._alpha * (one - centre) for one, centre in zip(own, self._centre, strict=True)]
        self._centre = self.final_weights(mean)
        return kept

    def final_weights(self, mean: Sequence[Any]) -> Weights:
        """Return the centre, which is the trained model, without a change of state."""
        return [centre + self._beta * (one - centre) for one, centre in zip(mean, self._centre, strict=True)]


AVERAGING: dict[str, type[Averaging]] = {
    "local_sgd": LocalSGD,
    "block_momentum": BlockMomentum,
    "elastic_averaging": ElasticAveraging,
}


def create_averaging(name: str, settings: dict[str, Any]) -> Averaging | None:
    """Return the weight-averaging algorithm of this name; None for those that reduce gradients or use servers.

    Args:
        name: one of ``Algorithm``.
        settings: its arguments; ``every`` is 8 by default.

    Raises:
        ArgumentError: the name is unknown, or a setting is unknown to the algorithm or out of range.
    """
    if name not in get_args(Algorithm):
        raise ArgumentError(f"algorithm={name!r} is unknown; {suggestion_text(name, get_args(Algorithm), '')}")
    kind = AVERAGING.get(name)
    known = [] if kind is None else list(inspect.signature(kind).parameters)
    if unknown := sorted(set(settings) - set(known)):
        has = f"it has {', '.join(known)}" if known else "it has no settings"
        raise ArgumentError(f"{', '.join(unknown)}: not a setting of algorithm={name!r}; {has}")
    return None if kind is None else kind(**{"every": 8} | settings)
