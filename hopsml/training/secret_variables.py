"""Masking of environment variables that the user has declared secret, in errors that a worker writes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from hopsml.core import redact


def masked(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Wrap a function so that each worker registers the values of the named variables as secrets first.

    Args:
        function: function to wrap.
        names: environment variables whose names do not show that they hold secrets.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in names:
            redact.register(name, os.environ.get(name, ""))
        return function(*args, **kwargs)

    return call if names else function
