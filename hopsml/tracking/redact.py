"""Keeping secrets out of records: whatever is named like one is not written, and what is hidden inside a value is masked.

Settings and variables are judged by their whole name, rather once too often than once too little. Arguments of the
training function are judged more closely: ``max_tokens`` and ``keypoints`` are no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

REDACTED = "(redacted)"

_SETTING = re.compile(r"password|passwd|passphrase|secret|token|credential|key", re.IGNORECASE)
_ARGUMENT = re.compile(
    r"(^|_)(password|passwd|passphrase|secret|token|credentials?|apikey|(api|access|secret|private|account)_?key)$",
    re.IGNORECASE,
)
# In a longer text: -Djavax.net.ssl.trustStorePassword=abc, --token=abc, https://user:abc@host
_ASSIGNED = re.compile(
    r"((?:password|passwd|passphrase|secret|token|credential|(?:api|access|secret|private|account)[._-]?key)[\w.-]*=)"
    r"[^\s&;,'\"]+",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")


def is_secret(name: str) -> bool:
    """Whether a setting or variable of this name is not written down."""
    return _SETTING.search(name) is not None


def settings(values: Mapping[str, str]) -> dict[str, str]:
    """Settings or environment variables, by name; the values of secret ones replaced by ``REDACTED``."""
    return {name: REDACTED if is_secret(name) else text(values[name]) for name in sorted(values)}


def arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the training function: text under a secret's name is replaced, at any depth; numbers stay."""
    return {name: _argument(name, value) for name, value in values.items()}


def command(words: Sequence[str]) -> list[str]:
    """A command line: ``--token=abc`` and ``--token abc`` lose the value."""
    cleaned: list[str] = []
    hide = False
    for word in words:
        cleaned.append(REDACTED if hide else text(word))
        hide = word.startswith("-") and "=" not in word and _ARGUMENT.search(word.replace("-", "_")) is not None
    return cleaned


def text(value: str) -> str:
    """Any text: passwords in URLs and values behind ``...password=`` are masked."""
    return _IN_URL.sub(rf"\1:{REDACTED}@", _ASSIGNED.sub(rf"\1{REDACTED}", value))


def _argument(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _argument(str(key), item) for key, item in value.items()}
    if isinstance(value, str):
        return REDACTED if _ARGUMENT.search(name) else text(value)
    return value
