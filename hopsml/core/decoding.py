"""Decoding of messages and records with one class of error for all invalid input."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from hopsml.errors import ArgumentError, HopsmlError

# Errors of reading valid JSON whose values have unexpected types: any user with write access can write any JSON.
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

T = TypeVar("T")


def checked(decode: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return the decoder with msgspec.DecodeError as the only error of content that it cannot read.

    msgspec itself raises UnicodeDecodeError for text that is not UTF-8, and RecursionError for values that are nested
    too deeply.

    Args:
        decode: The method ``decode`` or ``decode_lines`` of one of msgspec's decoders.
    """

    def decode_checked(content: Any) -> T:
        """Decode the content; raise msgspec.DecodeError if it cannot be read."""
        try:
            return decode(content)
        except (UnicodeDecodeError, RecursionError) as error:
            raise msgspec.DecodeError(f"the content cannot be read: {error}") from error

    return decode_checked


@contextlib.contextmanager
def understood(what: str, remedy: str) -> Iterator[None]:
    """Convert errors of malformed records within this context to ArgumentError; errors of hopsml pass.

    Args:
        what: The records, as the beginning of the message: "the records of run a_1 are".
        remedy: What the reader of the message can do.
    """
    try:
        yield
    except HopsmlError:
        raise
    except MALFORMED as error:
        raise ArgumentError(
            f"{what} not as hopsml writes them ({type(error).__name__}: {str(error)[:200]}); {remedy}"
        ) from error
