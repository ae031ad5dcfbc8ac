"""A plugin of pytest for `make mutants`: tests that draw examples come last, and one that fails is not made smaller.

Most changes are noticed by a test that takes a millisecond; to search for the smallest example of one takes seconds.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Draw the same examples each time, and tell nothing more of one that fails."""
    settings.register_profile("mutants", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what is cheap before what draws examples."""
    items.sort(key=lambda item: getattr(getattr(item, "obj", None), "is_hypothesis_test", False))
