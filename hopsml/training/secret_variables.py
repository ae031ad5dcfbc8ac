"""Variables of a worker that hold secrets though their names do not tell: masked in errors that its process writes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from hopsml import redact


def masked(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """The function, which each worker calls with the values of these variables known as secrets."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in names:
            redact.register(name, os.environ.get(name, ""))
        return function(*args, **kwargs)

    return call if names else function
