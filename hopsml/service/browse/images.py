"""Detection of pictures that a page may display, by the first bytes of the file and not by its name."""

from __future__ import annotations

import re

import msgspec

from hopsml.errors import ArgumentError
from hopsml.service.browse import files
from hopsml.storage.filesystem import for_url

MOST_BYTES = 16 << 20
HEAD = 1024  # bytes that identify the format
_BYTE_ORDER = b"\xef\xbb\xbf"
_BEGINS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
_SVG = re.compile(rb"<svg[\s>]")
_BEFORE_SVG = re.compile(rb"\s+|<\?xml[^>]*>|<!--.*?-->|<!DOCTYPE svg[^>\[]*>", re.DOTALL)


class Picture(msgspec.Struct, frozen=True):
    """A picture of a run.

    Attributes:
        media_type: Media type, by the content.
        bytes: Length of the file.
    """

    media_type: str
    bytes: int


def picture(url: str) -> Picture:
    """Return the media type and length of a picture.

    Raises:
        ArgumentError: The file is not a picture, or too large to be displayed.
        StorageError: The file cannot be read.
    """
    length = files.length(url)
    name = url.rpartition("/")[2][:80]
    if length is None or length > MOST_BYTES:
        raise ArgumentError(f"path={name!r}: pictures up to {MOST_BYTES >> 20} MiB are shown here; download it")
    found = media_type(for_url(url).read_range(url, 0, min(HEAD, length)) if length else b"")
    if not found:
        raise ArgumentError(f"path={name!r}: this is no PNG, JPEG, GIF or SVG; download it")
    return Picture(found, length)


def media_type(head: bytes) -> str:
    """Return the media type that the first bytes of a file indicate; "" if it is not a picture."""
    known = next((kind for begin, kind in _BEGINS.items() if head.startswith(begin)), "")
    return known or ("image/svg+xml" if _is_svg(head) else "")


def _is_svg(head: bytes) -> bool:
    """Return True if a file begins with an SVG element, after comments and declarations."""
    at = len(_BYTE_ORDER) if head.startswith(_BYTE_ORDER) else 0
    while before := _BEFORE_SVG.match(head, at):  # a single expression would backtrack over all ways to divide comments
        at = before.end()
    return _SVG.match(head, at) is not None
