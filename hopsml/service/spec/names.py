"""Types of names in job files, such as those of jobs, tasks, queues, ports and secrets, with their rules."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"  # accepted by DNS, YARN's tags and Kubernetes
LABEL_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,255}$"
# A character of a file name or URL. Others would separate entries of Spark's lists (, #), match several files (* ? [ {
# }), or be decoded to other characters (% and backslash).
FILE_LETTER = r"""[^:,#%?*\[\]{}\\"\x00-\x1f\x7f]"""
URL_PATTERN = r"""^[a-z][a-z0-9+.-]*://[^,#%?*\[\]{}\\"\x00-\x20\x7f]+$"""


def _rule(pattern: str, rule: str) -> AfterValidator:
    """Return a validator that raises ValueError with a rule unless the text matches the pattern."""
    known = re.compile(pattern)

    def check(text: str) -> str:
        if not known.fullmatch(text) or text.endswith("\n"):  # $ also matches before a trailing line break
            raise ValueError(rule)
        return text

    return AfterValidator(check)


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names, if they are unique. Raises ValueError for duplicates."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]} stands there twice: name each once")
    return names


_name = _rule(
    NAME_PATTERN,
    "a name has 1 to 63 lower-case letters, digits and hyphens, a letter or digit at both ends: write train-2",
)
_label = _rule(
    LABEL_PATTERN,
    "a label has 1 to 63 letters, digits, '-', '_' and '.', a letter or digit at both ends: write team-a",
)
_in_the_workspace = "it lies outside of the workspace, and only what is in it travels: write its path from there"


def check_in_the_workspace(file: str) -> None:
    """Raise ValueError if a path leads out of the workspace."""
    if file.startswith("/") or ".." in file.split("/"):
        raise ValueError(_in_the_workspace)


_variable = _rule(
    VARIABLE_PATTERN, "a variable's name has letters, digits and '_', and no digit in front: write DATA_DIR"
)

Name = Annotated[str, _name, WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
Names = Annotated[tuple[Name, ...], AfterValidator(_different)]
Label = Annotated[str, _label, WithJsonSchema({"type": "string", "pattern": LABEL_PATTERN})]
Variable = Annotated[str, _variable, WithJsonSchema({"type": "string", "pattern": VARIABLE_PATTERN})]
