"""Reading and validation of job files."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from hopsml.errors import JobFileError
from hopsml.service.spec import limits
from hopsml.service.spec.document import Document, Problem, read
from hopsml.service.spec.job import JobSpec
from hopsml.service.spec.problems import problems


def load(path: str | Path) -> JobSpec:
    """Read a job file and validate it.

    Args:
        path: The file.

    Raises:
        JobFileError: The file is invalid; the error lists all mistakes with file, line, field and remedy.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(limits.FILE_BYTES + 1)
    except OSError as error:
        raise JobFileError([f"{path}: it cannot be read: {error.strerror}; name a job file"]) from error
    except ValueError as error:  # the path contains a NUL character
        raise JobFileError([f"{path!r}: it cannot be read: {error}; name a job file"]) from error
    return loads(content, str(path))


def loads(content: bytes | str, source: str = "job.yaml") -> JobSpec:
    """Read a job from YAML text and validate it.

    Args:
        content: The text, or its bytes.
        source: Name of the text in messages.

    Raises:
        JobFileError: The text is invalid; the error lists all mistakes with line, field and remedy.
    """
    document = read(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    found = list(document.problems)
    job = None if document.value is None else _checked(document, found)
    if found or job is None:
        raise JobFileError(_lines(found, source))
    return job


def _checked(document: Document, found: list[Problem]) -> JobSpec | None:
    """Validate the document as a job; mistakes are appended to ``found``."""
    if not isinstance(document.value, dict):
        found.append(Problem(1, (), "a job file is a table of fields, such as name and tasks: write name: digits"))
        return None
    try:
        return JobSpec.model_validate_json(json.dumps(document.value))
    except ValidationError as error:
        known = {problem.path for problem in found}  # mistakes that the YAML reader has reported are not repeated
        found += problems(error, JobSpec, document, known)
        return None


def _lines(found: list[Problem], source: str) -> list[str]:
    """Return the messages for the first problems, ordered by line."""
    listed = [_line(problem, source) for problem in sorted(found, key=lambda problem: problem.line)[: limits.PROBLEMS]]
    more = len(found) - len(listed)
    return [*listed, *([f"{source}: and {more} more"] if more else [])]


def _line(problem: Problem, source: str) -> str:
    """Return one message with source, line and field."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step:.64}" for step in problem.path).lstrip(".")
    return f"{source}:{problem.line}: {path}{': ' if path else ''}{problem.text}"
