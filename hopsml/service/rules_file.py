"""Files of rules that a server is started with: YAML, checked as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from hopsml.errors import ArgumentError

Rules = TypeVar("Rules")
SHOWN = 10  # mistakes


def read(option: str, path: Path, check: Callable[[Any], Rules], fields: str) -> Rules:
    """What ``check`` makes of a file's content; it raises pydantic's ValidationError.

    Raises ArgumentError that names the option, the file, each field that is wrong, and which ``fields`` there are.
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
    """What is wrong, in one line, and where that is known the number of the file's."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).partition("\n")[0]
