"""Pictures among a run's files that a page may show, told by their first bytes and not by their names."""

from __future__ import annotations

import re

import msgspec

from hopsml.errors import ArgumentError
from hopsml.service.browse import files
from hopsml.storage.filesystem import for_url

MOST_BYTES = 16 << 20
HEAD = 1024  # bytes that tell what it is
_BYTE_ORDER = b"\xef\xbb\xbf"
_BEGINS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
_SVG = re.compile(rb"<svg[\s>]")
_BEFORE_SVG = re.compile(rb"\s+|<\?xml[^>]*>|<!--.*?-->|<!DOCTYPE svg[^>\[]*>", re.DOTALL)


class Picture(msgspec.Struct, frozen=True):
    """``media_type``: what it is by its content."""

    media_type: str
    bytes: int


def picture(url: str) -> Picture:
    """What a file is. Raises ArgumentError where it is no picture, or a large one; StorageError."""
    length = files.length(url)
    name = url.rpartition("/")[2][:80]
    if length is None or length > MOST_BYTES:
        raise ArgumentError(f"path={name!r}: pictures up to {MOST_BYTES >> 20} MiB are shown here; download it")
    found = media_type(for_url(url).read_range(url, 0, min(HEAD, length)) if length else b"")
    if not found:
        raise ArgumentError(f"path={name!r}: this is no PNG, JPEG, GIF or SVG; download it")
    return Picture(found, length)


def media_type(head: bytes) -> str:
    """By the first bytes; "" for anything that is no picture."""
    known = next((kind for begin, kind in _BEGINS.items() if head.startswith(begin)), "")
    return known or ("image/svg+xml" if _is_svg(head) else "")


def _is_svg(head: bytes) -> bool:
    at = len(_BYTE_ORDER) if head.startswith(_BYTE_ORDER) else 0
    while before := _BEFORE_SVG.match(head, at):  # one expression for all would try each way to divide comments
        at = before.end()
    return _SVG.match(head, at) is not None
