"""Searcher without a search: repeats a trial for a function without hyper-parameters (Maggy's optimizer 'none')."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.contract import Outcome, Searcher, Suggestion, Wait
from hopsml.search.space.space import Searchspace


class SingleRunSearcher(Searcher):
    """Searcher that suggests the empty configuration for every trial.

    Raises ArgumentError if the space has parameters.
    """

    def __init__(self, space: Searchspace | None = None, seed: int | None = None) -> None:
        if space is not None and len(space):
            names = ", ".join(space.keys())
            raise ArgumentError(
                f"without a searcher there are no parameters, but the space has {names}; name a searcher"
            )

    def ask(self, number: int) -> Suggestion | Wait:
        """Return the empty configuration for each trial."""
        return Suggestion({})

    def tell(self, number: int, outcome: Outcome) -> None:
        """Do nothing: results are not used."""
        pass

    def state(self) -> dict[str, Any]:
        """Return an empty dict: there is no state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""
        pass
