"""Files of the web page, compressed once, with a content hash by which browsers check for changes.

Modules are joined to one script and styles to one sheet, as a browser loads forty small files more slowly.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response
from starlette.routing import Route

from hopsml.errors import PathNotFound
from hopsml.service.rest import page_script

if TYPE_CHECKING:
    from starlette.requests import Request

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


class PlaceOfPage(Convertor[str]):
    """Path of a file of the page: any path not below api/, whose routes list their methods themselves."""

    regex = "(?!api/).*"

    def convert(self, value: str) -> str:
        """Return the path unchanged, as routing needs no conversion."""
        return value

    def to_string(self, value: str) -> str:
        """Return the path unchanged, as URLs need no conversion."""
        return value


register_url_convertor("place_of_page", PlaceOfPage())


def read(folder: Path = WEB) -> dict[str, PageFile]:
    """Read all files of a folder, by relative path, with modules and styles joined."""
    contents = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in _TYPES
    }
    if ENTRY in contents:
        script = page_script.joined(contents, ENTRY)
        for name in page_script.modules(contents, ENTRY):
            del contents[name]
        contents[ENTRY], contents[SHEET] = script, contents.pop(FOREIGN_SHEET) + contents[SHEET]
    found = {}
    for name, content in contents.items():
        tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
        found[name] = PageFile(content, gzip.compress(content, mtime=0), _TYPES[Path(name).suffix], tag)
    return found


def routes() -> list[Route]:
    """Return the routes of the page and its files, which are read once at the start."""
    files = read()

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
