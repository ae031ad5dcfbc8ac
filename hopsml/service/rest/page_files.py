"""Files of the web page, compressed once, with a content hash by which browsers check for changes.

Modules are joined to one script and styles to one sheet, as a browser loads forty small files more slowly.
"""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response
from starlette.routing import Route

from hopsml.errors import PathNotFound

if TYPE_CHECKING:
    from starlette.requests import Request


_IMPORT = re.compile(r'^import\s*(\w+|\{[\w\s,$]*\})\s*from\s*"(\.[^"]+)";', re.MULTILINE)
_EXPORT = re.compile(r"export\s*\{([\w\s,$]*)\};?\s*\Z")
_DEFAULT = re.compile(r"\bexport default (?=function\b)")
_LEFT = re.compile(r"^\s*(?:import|export)\b|[;}]export\b", re.MULTILINE)


def join_modules(contents: Mapping[str, bytes], entry: str) -> bytes:
    """Join a module with all its imports, each once and after its own imports.

    Args:
        contents: Contents of all files, by path.
        entry: Path of the module to start from.

    Raises:
        ValueError: Modules import each other in a circle, or use an unsupported form of import or export.
    """
    order = modules_in_order(contents, entry)
    names = {name: f"module{number}" for number, name in enumerate(order)}
    return "".join(_function(name, contents[name].decode(), names) for name in order).encode()


def modules_in_order(contents: Mapping[str, bytes], entry: str) -> list[str]:
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


WEB = Path(__file__).resolve().parents[1] / "web"
ENTRY, SHEET, FOREIGN_SHEET = "app.js", "style.css", "lib/uPlot.css"  # the last one precedes our own styles
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class PageFile:
    """One file of the web page, as it is sent."""

    content: bytes
    compressed: bytes
    media_type: str
    tag: str


class PagePathConvertor(Convertor[str]):
    """Path of a file of the page: any path not below api/, whose routes list their methods themselves."""

    regex = "(?!api/).*"

    def convert(self, value: str) -> str:
        """Return the path unchanged, as routing needs no conversion."""
        return value

    def to_string(self, value: str) -> str:
        """Return the path unchanged, as URLs need no conversion."""
        return value


register_url_convertor("place_of_page", PagePathConvertor())


def read_page_files(folder: Path = WEB) -> dict[str, PageFile]:
    """Read all files of a folder, by relative path, with modules and styles joined."""
    contents = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in _TYPES
    }
    if ENTRY in contents:
        script = join_modules(contents, ENTRY)
        for name in modules_in_order(contents, ENTRY):
            del contents[name]
        contents[ENTRY], contents[SHEET] = script, contents.pop(FOREIGN_SHEET) + contents[SHEET]
    found = {}
    for name, content in contents.items():
        tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
        found[name] = PageFile(content, gzip.compress(content, mtime=0), _TYPES[Path(name).suffix], tag)
    return found


def routes() -> list[Route]:
    """Return the routes of the page and its files, which are read once at the start."""
    files = read_page_files()

    async def page_file(request: Request) -> Response:
        name = request.path_params.get("name", "") or "index.html"
        file = files.get(name)
        if file is None:
            raise PathNotFound("there is nothing at this address; open the page at its root")
        headers = {"etag": file.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(file.content, headers=headers, media_type=file.media_type)
        return Response(file.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=file.media_type)

    return [Route("/", page_file), Route("/{name:place_of_page}", page_file)]
