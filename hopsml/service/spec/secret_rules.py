"""What a secret may be called, in which variable the user's code finds it, and which values can be kept."""

from __future__ import annotations

from hopsml import redact
from hopsml.errors import ArgumentError

MOST_BYTES = 32 << 10  # of a value: all variables of a process have to fit


def variable(name: str) -> str:
    """The variable of a secret: ``s3-key`` is S3_KEY."""
    return name.upper().replace("-", "_")


def check_value(name: str, value: str) -> None:
    """Raise ArgumentError for a value that no variable can hold, or that could not be masked where it turns up."""
    if (
        len(value.encode(errors="replace")) > MOST_BYTES
        or "\0" in value
        or value != value.encode(errors="replace").decode()
    ):
        raise ArgumentError(
            f"secret {name}: a value is text of at most {MOST_BYTES} bytes, without NUL: keep what is larger in a file that "
            "only you can read"
        )
    if not redact.is_telling(value):
        raise ArgumentError(
            f"secret {name}: its value is too short, a usual word or a path, and could not be masked in records and "
            f"messages: a secret has {redact.SHORTEST} characters at least, 8 if they are all digits or lower-case letters"
        )
