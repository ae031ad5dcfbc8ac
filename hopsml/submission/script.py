"""What is wrong with a script, seen before anything is submitted."""

from __future__ import annotations

import ast
from pathlib import Path

from hopsml.errors import ArgumentError


def read(script: str) -> ast.Module:
    """The script's syntax tree. ArgumentError where it is not there, is no text, or has a syntax error."""
    path = Path(script)
    if not path.is_file():
        raise ArgumentError(f"there is no script {script}")
    try:
        return ast.parse(path.read_bytes(), script)
    except SyntaxError as error:
        raise ArgumentError(f"{script}, line {error.lineno}: {error.msg}; nothing was submitted") from error
    except ValueError as error:
        raise ArgumentError(f"{script}: {error}; nothing was submitted") from error
