"""Files in a run's directory: validation of their names, listing, reading, and detection of pictures by their bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import urls
from hopsml.storage.filesystem import exists, for_url
from hopsml.storage.run_dir import EXPERIMENTS, RunDir

_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")


def checked_name(name: str, what: str) -> str:
    """Return one component of a path unchanged, if it is safe.

    Args:
        name: The component.
        what: Name of the parameter, for messages.

    Raises:
        ArgumentError: The name could refer to anything else, such as ``..`` or ``a/b``.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ArgumentError(f"{what}={name[:80]!r}: it is one name, without slashes; take it from the list")
    return name


def run_directory(project_url: str, run_id: str, trial: str = "") -> RunDir:
    """Return the directory of a run, or of one trial of a search. Raises ArgumentError, PathNotFound."""
    url = urls.join(project_url, EXPERIMENTS, checked_name(run_id, "run"))
    if not exists(RunDir(url).run_json):
        raise PathNotFound(f"there is no run {run_id!r} in this project; it may have been deleted", url)
    if not trial:
        return RunDir(url)
    folder = urls.join(url, "trials", checked_name(trial, "trial"))
    if not exists(folder):
        raise PathNotFound(f"run {run_id!r} has no folder of a trial {trial!r}; it may not have begun", folder)
    return RunDir(folder)


def below(directory: RunDir, path: str) -> str:
    """Return the URL of a file or folder below a run's directory; "" is the directory itself.

    Symbolic links are checked when the file is opened.

    Args:
        directory: The run's directory.
        path: Relative path.

    Raises:
        ArgumentError: A component of the path leaves the directory.
    """
    parts = [checked_name(part, "path") for part in path.strip("/").split("/")] if path.strip("/") else []
    return urls.join(directory.url, *parts)


CHUNK = 1 << 20


class Entry(msgspec.Struct, frozen=True):
    """One file or folder of a run.

    Attributes:
        name: Name within its folder.
        is_folder: True for a folder.
        bytes: Length of a file.
        modified: Time of the last change, in seconds since 1970.
    """

    name: str
    is_folder: bool
    bytes: int
    modified: float


def entries(url: str) -> list[Entry]:
    """Return the entries of a folder, folders first, then by name; none for a file. Raises PathNotFound."""
    system = for_url(url)
    if not system.status(url).is_dir:
        return []
    found = [one for one in system.list_dir(url) if not urls.is_temporary(one.url)]
    listed = [Entry(one.name, one.is_dir, one.length, one.modified_s) for one in found]
    return sorted(listed, key=lambda entry: (not entry.is_folder, entry.name))


def length(url: str) -> int | None:
    """Return the length of a file in bytes; None for a folder. Raises PathNotFound."""
    status = for_url(url).status(url)
    return None if status.is_dir else status.length


def pieces(url: str, begin: int, end: int) -> Iterator[bytes]:
    """Yield a file's bytes from ``begin`` up to ``end``, a megabyte at a time. Raises StorageError."""
    system = for_url(url)
    while begin < end:
        data = system.read_range(url, begin, min(CHUNK, end - begin))
        if not data:
            return
        yield data
        begin += len(data)


MOST_PICTURE_BYTES = 16 << 20
PICTURE_HEAD = 1024  # bytes that identify the format
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
    size = length(url)
    name = url.rpartition("/")[2][:80]
    if size is None or size > MOST_PICTURE_BYTES:
        raise ArgumentError(f"path={name!r}: pictures up to {MOST_PICTURE_BYTES >> 20} MiB are shown here; download it")
    found = media_type(for_url(url).read_range(url, 0, min(PICTURE_HEAD, size)) if size else b"")
    if not found:
        raise ArgumentError(f"path={name!r}: this is no PNG, JPEG, GIF or SVG; download it")
    return Picture(found, size)


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
