"""Fuzz target: a reader, the errors that it documents, and its seed corpus; check of one input.

The contract of a reader: for any bytes it returns a value or raises one of its documented errors. Any other exception is
a finding. Findings with the same exception at the same place of hopsml count as one, of which the shortest input is
stored.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Target:
    """Reader under test.

    Attributes:
        read: Reads an input.
        documented: Errors that it may raise.
        seeds: Inputs to begin with, most of them made by the writers of hopsml; the first one is valid.
    """

    read: Callable[[bytes], object]
    documented: tuple[type[BaseException], ...]
    seeds: tuple[bytes, ...]


@dataclass(frozen=True)
class Finding:
    """Undocumented exception of a reader: the input, the place of hopsml that raised it, and the traceback."""

    place: str
    error: str
    data: bytes = field(repr=False)
    trace: str = field(repr=False)

    @property
    def signature(self) -> str:
        """Type of the exception and its place; the same for inputs with the same fault."""
        return f"{self.error.partition(':')[0]} at {self.place}"


def check(target: Target, data: bytes) -> Finding | None:
    """Read an input; return a finding if the reader raises an error that it does not document."""
    try:
        target.read(data)
    except target.documented:
        return None
    except Exception as error:  # noqa: BLE001 any other error is the finding
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(ROOT / "hopsml")] or frames
        place = f"{Path(own[-1].filename).name}:{own[-1].name}:{own[-1].lineno}"
        text = f"{type(error).__name__}: {error}"[:300]
        return Finding(place, text, data, "".join(traceback.format_exception(error))[-8000:])
    return None
