"""Supported versions of TensorFlow and Keras; pure.

The repairs use private parts of both, so a version that has not been tested causes one warning, and one that is known
to fail is refused at once, before a run is spent on it.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass

from hopsml.errors import UnsupportedVersion

Version = tuple[int, ...]


@dataclass(frozen=True)
class KnownVersions:
    """Tested versions of one package; only the first two numbers of a version count."""

    package: str
    working: tuple[Version, ...]
    oldest: Version
    why_not_older: str


TENSORFLOW = KnownVersions(
    "tensorflow",
    # 2.21: all of tests/training; the others: its Keras 3 and reduction tests
    working=((2, 16), (2, 18), (2, 20), (2, 21)),
    oldest=(2, 16),
    why_not_older="Keras 3 needs TensorFlow 2.16 or later",
)
KERAS = KnownVersions(
    "keras",
    working=((3, 12), (3, 15)),
    oldest=(3, 11),  # 3.5, 3.8 and 3.10 were tried: fit fails on the first batch
    why_not_older="its trainer differs in the parts that hopsml repairs, and fit fails (for Keras 2 use tf_keras)",
)

_warned: set[str] = set()


def parse_version(text: str) -> Version:
    """Return the leading numbers of a version: "2.21.0-rc1" is (2, 21, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def verdict(known: KnownVersions, version: str) -> str:
    """Classify ``version`` as "works", "unknown" (not tested) or "broken" (older than the oldest that works)."""
    parsed = parse_version(version)
    if parsed[:2] in known.working:
        return "works"
    return "broken" if parsed < known.oldest else "unknown"


def check_version(known: KnownVersions, version: str) -> None:
    """Raise UnsupportedVersion for a broken version; warn, once for each process, for an untested one."""
    found = verdict(known, version)
    names = ", ".join(".".join(map(str, working)) for working in known.working)
    if found == "broken":
        raise UnsupportedVersion(
            f"{known.package} {version} does not work with hopsml: {known.why_not_older}. "
            f"Known to work: {names}. Remedy: pip install '{known.package}=={names.split(', ')[-1]}.*'"
        )
    if found == "unknown" and known.package not in _warned:
        _warned.add(known.package)
        warnings.warn(
            f"{known.package} {version} has not been tried with hopsml; known to work: {names}. "
            "Training goes on; if it fails in a strange way, try one of these first.",
            RuntimeWarning,
            stacklevel=2,
        )
