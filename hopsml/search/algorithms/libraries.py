"""Optional libraries of some searchers; a missing one is reported when a search is started, not while it runs."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

from hopsml.core import extras
from hopsml.errors import ArgumentError


def require(who: str, *names: str) -> None:
    """Raise ArgumentError unless all packages ``names``, which ``who`` needs, are installed.

    No package is imported.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(f"{who} needs {', '.join(missing)}: {extras.install('search')}")


def optuna() -> Any:
    """Return the module ``optuna``, imported without its warning about progress bars in notebooks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        import optuna
    return optuna
