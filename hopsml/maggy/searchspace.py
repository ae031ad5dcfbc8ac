"""``maggy.searchspace``."""

from __future__ import annotations

from hopsml.search.space.space import Searchspace

__all__ = ["Searchspace"]
