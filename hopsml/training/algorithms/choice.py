"""Selection of a training algorithm by its name, with its settings; pure."""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_args

from hopsml.core.suggestions import instead
from hopsml.errors import ArgumentError
from hopsml.training.algorithms.averaging import Averaging, BlockMomentum, ElasticAveraging, LocalSGD

Algorithm = Literal["sync_sgd", "local_sgd", "block_momentum", "elastic_averaging", "async_sgd"]
AVERAGING: dict[str, type[Averaging]] = {
    "local_sgd": LocalSGD,
    "block_momentum": BlockMomentum,
    "elastic_averaging": ElasticAveraging,
}


def averaging(name: str, settings: dict[str, Any]) -> Averaging | None:
    """Return the weight-averaging algorithm of this name; None for those that reduce gradients or use servers.

    Args:
        name: one of ``Algorithm``.
        settings: its arguments; ``every`` is 8 by default.

    Raises:
        ArgumentError: the name is unknown, or a setting is unknown to the algorithm or out of range.
    """
    if name not in get_args(Algorithm):
        raise ArgumentError(f"algorithm={name!r} is unknown; {instead(name, get_args(Algorithm), '')}")
    kind = AVERAGING.get(name)
    known = [] if kind is None else list(inspect.signature(kind).parameters)
    if unknown := sorted(set(settings) - set(known)):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ArgumentError(f"{', '.join(unknown)}: no setting of algorithm={name!r}; {has}")
    return None if kind is None else kind(**{"every": 8} | settings)
