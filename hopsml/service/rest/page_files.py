"""The files of the page, compressed once, known by their content: a browser asks whether they have changed.

Its modules are sent as one script, its styles as one sheet: forty small files take a browser longer than all else.
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
ENTRY, SHEET, FOREIGN_SHEET = "app.js", "style.css", "lib/uPlot.css"  # the last one stands before ours
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
    """One file, as it is sent."""

    content: bytes
    compressed: bytes
    media_type: str
    tag: str


class PlaceOfPage(Convertor[str]):
    """Where a file of the page may be: nothing below api/, whose addresses say themselves which methods they take."""

    regex = "(?!api/).*"

    def convert(self, value: str) -> str:
        """As it stands."""
        return value

    def to_string(self, value: str) -> str:
        """As it stands."""
        return value


register_url_convertor("place_of_page", PlaceOfPage())


def read(folder: Path = WEB) -> dict[str, PageFile]:
    """All files below a folder, by their paths in it."""
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
    """The page at the root, its files below it. Only what was there at the start is ever sent."""
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
