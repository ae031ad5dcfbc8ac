"""pytest plugin of `make mutants`: run tests that draw examples last, and do not shrink failing examples.

Most mutants are detected by a test that takes a millisecond; searching for the smallest failing example takes seconds.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Draw the same examples each time, and report failing ones without shrinking them."""
    settings.register_profile("mutants", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests that draw examples to the end."""
    items.sort(key=lambda item: getattr(getattr(item, "obj", None), "is_hypothesis_test", False))
