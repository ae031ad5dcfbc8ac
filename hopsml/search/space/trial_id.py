"""Trial ids, computed from configurations as Maggy does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def trial_id(config: Mapping[str, Any], repeat: int = 0) -> str:
    """Return the id of a configuration: sixteen hex digits of its MD5, as in Maggy.

    They are the first digits of the MD5 of the configuration as JSON with sorted keys. Values that JSON does not
    support are written as follows: numbers and arrays of numpy as Python's, functions and classes as
    ``module.qualname``, anything else as its ``repr``.

    Args:
        config: the configuration.
        repeat: how often the same configuration was tried before; above 0 it makes another id.
    """
    text = json.dumps(dict(config), sort_keys=True, default=_written)
    if repeat:
        text += f"#{repeat}"
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()[:16]


def _written(value: Any) -> Any:
    tolist = getattr(value, "tolist", None)
    if callable(tolist) and not isinstance(value, type):
        return tolist()
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else f"{getattr(value, '__module__', '')}.{name}"
