"""Joining of the page's modules to one script, as a browser would load forty modules six at a time; pure.

Each module becomes the body of a function that returns its exports. Only the forms of import and export that the page's
files use are supported; any other one is an error when the server starts, and in a test.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import\s*(\w+|\{[\w\s,$]*\})\s*from\s*"(\.[^"]+)";', re.MULTILINE)
_EXPORT = re.compile(r"export\s*\{([\w\s,$]*)\};?\s*\Z")
_DEFAULT = re.compile(r"\bexport default (?=function\b)")
_LEFT = re.compile(r"^\s*(?:import|export)\b|[;}]export\b", re.MULTILINE)


def joined(contents: Mapping[str, bytes], entry: str) -> bytes:
    """Join a module with all its imports, each once and after its own imports.

    Args:
        contents: Contents of all files, by path.
        entry: Path of the module to start from.

    Raises:
        ValueError: Modules import each other in a circle, or use an unsupported form of import or export.
    """
    order = modules(contents, entry)
    names = {name: f"module{number}" for number, name in enumerate(order)}
    return "".join(_function(name, contents[name].decode(), names) for name in order).encode()


def modules(contents: Mapping[str, bytes], entry: str) -> list[str]:
    """Return the paths of a module and all its imports, in the order of their execution."""
    found: list[str] = []
    _visit(entry, contents, found, ())
    return found


def _visit(name: str, contents: Mapping[str, bytes], found: list[str], above: tuple[str, ...]) -> None:
    """Add a module after its imports to ``found``; ``above`` are the modules that import it."""
    if name in above:
        raise ValueError(f"these modules of the page import each other: {' -> '.join((*above, name))}")
    if name in found:
        return
    for _, said in _IMPORT.findall(contents[name].decode()):
        _visit(_target(name, said), contents, found, (*above, name))
    found.append(name)


def _target(name: str, said: str) -> str:
    """Return the path of an imported module, relative to the importing module ``name``."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), said))


def _function(name: str, text: str, names: Mapping[str, str]) -> str:
    """Convert a module to a function that returns its exports."""

    def taken(found: re.Match[str]) -> str:
        what, module = found[1], names[_target(name, found[2])]
        wanted = what.replace(" as ", ": ") if what.startswith("{") else f"{{ default: {what} }}"
        return f"const {wanted} = {module};"

    given = "{}"

    def returned(found: re.Match[str]) -> str:
        nonlocal given
        pairs = (one.split(" as ") for one in found[1].split(",") if one.strip())
        given = "{ " + ", ".join(f"{pair[-1].strip()}: {pair[0].strip()}" for pair in pairs) + " }"
        return ""

    body = _EXPORT.sub(returned, _IMPORT.sub(taken, text))
    body, defaults = _DEFAULT.subn("const exported = ", body)
    if defaults:
        given = "{ default: exported }"
    if _LEFT.search(body):
        raise ValueError(f"{name} imports or exports in a way that the page's modules cannot be joined by")
    return f"const {names[name]} = (() => {{\n{body}\nreturn {given};\n}})();\n"
