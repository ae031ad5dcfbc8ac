"""Answers with the files below a folder: its entries, downloads, pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from hopsml.errors import ArgumentError
from hopsml.service.browse import files
from hopsml.service.browse.files import Entry
from hopsml.service.rest.errors import JsonAnswer
from hopsml.service.rest.threads import DOWNLOADS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def folder_or_download(request: Request, url: str, path: str, entries: Sequence[Entry]) -> Response:
    """Return the entries of a folder, or send a file as a download, or the part of it that the request names.

    Args:
        request: The request.
        url: URL of the file or folder.
        path: Its path as the client knows it.
        entries: Entries of a folder.
    """
    length = await run_in_threadpool(files.file_length, url)
    if length is None:
        return JsonAnswer({"path": path, "entries": entries})
    begin, end = _range(request, length)
    headers = {
        "content-disposition": _attachment(url),
        "content-length": str(end - begin),
        "accept-ranges": "bytes",
        "cache-control": "no-store",
    }
    if (begin, end) != (0, length):
        headers["content-range"] = f"bytes {begin}-{end - 1}/{length}"
    status = 206 if "content-range" in headers else 200
    return StreamingResponse(
        DOWNLOADS.iterate(files.read_pieces(url, begin, end)), status, headers, "application/octet-stream"
    )


async def picture(url: str) -> Response:
    """Send a picture for an image element; opened as a page it is a download."""
    found = await run_in_threadpool(files.picture, url)
    headers = {
        "content-disposition": _attachment(url),
        "content-length": str(found.bytes),
        "cache-control": "no-store",
    }
    return StreamingResponse(DOWNLOADS.iterate(files.read_pieces(url, 0, found.bytes)), 200, headers, found.media_type)


def quoted(name: str) -> str:
    """Quote a file name for the header Content-Disposition."""
    return quote(name, safe="")


def _attachment(url: str) -> str:
    """Return the header Content-Disposition of a file that browsers store instead of showing it."""
    return f"attachment; filename*=UTF-8''{quoted(url.rpartition('/')[2])}"


def _range(request: Request, length: int) -> tuple[int, int]:
    """Return start and end of the requested byte range; the whole file if the request has no valid range.

    Raises:
        ArgumentError: The range begins after the end of the file.
    """
    unit, _, wanted = request.headers.get("range", "").partition("=")
    first, dash, last = wanted.partition("-")
    if unit != "bytes" or not dash or not re.fullmatch("[0-9]{1,18}", first + last):
        return 0, length
    if first and last and int(first) > int(last):  # not a valid range by RFC 9110
        return 0, length
    begin = int(first) if first else max(0, length - int(last))
    if begin >= length:
        raise ArgumentError(f"range={wanted[:40]!r}: the file has {length} bytes; ask for some of them")
    return begin, min(length, int(last) + 1) if first and last else length
