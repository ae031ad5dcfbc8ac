"""Module ``maggy.searchspace``: the search space under Maggy's name."""

from hopsml.search.space.space import Searchspace

__all__ = ["Searchspace"]
