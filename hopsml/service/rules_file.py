"""YAML files with the rules of a server, such as queues and nodes, which are validated as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from hopsml.errors import ArgumentError

Rules = TypeVar("Rules")
SHOWN = 10  # most errors in a message


def read(option: str, path: Path, check: Callable[[Any], Rules], fields: str) -> Rules:
    """Read a YAML file, and return what ``check`` makes of its content.

    Args:
        option: Command-line option that names the file, for messages.
        path: The file.
        check: Converts the content; raises pydantic's ValidationError.
        fields: List of the valid fields, for messages.

    Raises:
        ArgumentError: The file cannot be read or is invalid; the message names the option, the file and each wrong
            field.
    """
    try:
        return check(yaml.safe_load(path.read_bytes()))
    except OSError as error:
        raise ArgumentError(f"{option} {path}: it cannot be read: {error.strerror}; name a file") from error
    except yaml.YAMLError as error:
        raise ArgumentError(f"{option} {path}: this is no YAML: {_problem(error)}; correct it") from error
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:SHOWN])
        raise ArgumentError(f"{option} {path}: {said}; {fields}") from error


def _problem(error: yaml.YAMLError) -> str:
    """Return one line that describes a YAML error, with the line number in the file if it is known."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).partition("\n")[0]
