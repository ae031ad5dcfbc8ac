"""Files in a run's directory: validation of their names, listing, reading, pictures, flame graphs of profiles.

Pictures are detected by their bytes. A flame graph has the samples of all threads merged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from hopsml.core.decoding import checked
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import mailbox, urls
from hopsml.storage.filesystem import exists, for_url
from hopsml.storage.mailbox import ProfileRequest
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


def url_below(directory: RunDir, path: str) -> str:
    """Return the URL of a file or folder below a run's directory; "" is the directory itself.

    Symbolic links are checked when the file is opened.

    Args:
        directory: The run's directory.
        path: Relative path.

    Raises:
        ArgumentError: A component of the path leaves the directory.
    """
    return path_below(directory.url, path)


def path_below(url: str, path: str) -> str:
    """Return the URL of a file or folder below a folder, as ``url_below`` does for a run's directory."""
    parts = [checked_name(part, "path") for part in path.strip("/").split("/")] if path.strip("/") else []
    return urls.join(url, *parts)


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


def file_length(url: str) -> int | None:
    """Return the length of a file in bytes; None for a folder. Raises PathNotFound."""
    status = for_url(url).status(url)
    return None if status.is_dir else status.length


def read_pieces(url: str, begin: int, end: int) -> Iterator[bytes]:
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
    size = file_length(url)
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


MOST_BOXES = 4_000
LEAST_SHARE = 0.001  # fraction of the whole below which a box would be invisible
LONGEST_NAME = 200  # characters


class FlameBox(msgspec.Struct, frozen=True, array_like=True):
    """Box of one function in a flame graph, below its callers.

    Attributes:
        depth: Number of callers.
        begin: Start of the box, as a fraction of the whole.
        width: Width of the box, as a fraction of the whole.
        name: Name of the function.
    """

    depth: int
    begin: float
    width: float
    name: str


class FlameGraph(msgspec.Struct, frozen=True):
    """Boxes of a flame graph, in which callers precede the functions that they call.

    Attributes:
        seconds: Time of all samples; of several threads, more than the elapsed time.
        boxes: The boxes.
    """

    seconds: float
    boxes: list[FlameBox]


class _Sampled(msgspec.Struct):
    """Samples of one thread, as in the file."""

    samples: list[list[int]]
    weights: list[float]


class _Frame(msgspec.Struct):
    """A frame of the call stack, as in the file."""

    name: str
    file: str | None = None
    line: int | None = None


class _Shared(msgspec.Struct):
    """Frames that the samples refer to by index."""

    frames: list[_Frame]


class _Speedscope(msgspec.Struct):
    """Parts of a speedscope file that are needed."""

    shared: _Shared
    profiles: list[_Sampled]


_decode = checked(msgspec.json.Decoder(_Speedscope).decode)


def flame_graph(content: bytes) -> FlameGraph:
    """Convert a profile in speedscope's format. Raises ArgumentError for any other content."""
    try:
        profile = _decode(content)
        tree, total = _merged(profile)
    except (msgspec.MsgspecError, IndexError, ValueError) as error:
        raise ArgumentError(f"this is no profile of speedscope's ({str(error)[:200]}); download it instead") from error
    names = [_name(frame) for frame in profile.shared.frames]
    return FlameGraph(total, _boxes(tree, total, names) if total > 0 else [])


def _merged(profile: _Speedscope) -> tuple[dict[int, Any], float]:
    """Return a tree of frames, each with its seconds and the frames it called, and the seconds of all samples."""
    tree: dict[int, Any] = {}
    total, known = 0.0, range(len(profile.shared.frames))
    for thread in profile.profiles:
        for stack, weight in zip(thread.samples, thread.weights, strict=True):
            if not weight >= 0:
                raise ValueError("a sample has no weight")
            total, level = total + weight, tree
            for frame in stack:
                node = level.setdefault(known[frame], [0.0, {}])
                node[0] += weight
                level = node[1]
    return tree, total


def _boxes(tree: dict[int, Any], total: float, names: list[str]) -> list[FlameBox]:
    """Return the boxes level by level, so that the deepest are left out if there are too many."""
    found: list[FlameBox] = []
    level: list[tuple[float, dict[int, Any]]] = [(0.0, tree)]
    depth = 0
    while level:
        deeper = []
        for begin, nodes in level:
            at = begin
            for frame, (weight, called) in sorted(nodes.items(), key=lambda item: -item[1][0]):
                if weight / total < LEAST_SHARE:
                    break
                if len(found) == MOST_BOXES:
                    return found
                found.append(FlameBox(depth, at, weight / total, names[frame]))
                deeper.append((at, called))
                at += weight / total
        level, depth = deeper, depth + 1
    return found


def _name(frame: _Frame) -> str:
    """Return a function's name with its file and line."""
    place = f" ({frame.file}:{frame.line})" if frame.file and frame.line is not None else ""
    return f"{frame.name}{place}"[:LONGEST_NAME]


MOST_PROFILE_BYTES = 32 << 20  # most bytes of a profile that is read as a whole


class ProfileList(msgspec.Struct, frozen=True):
    """Profiles of a run.

    Attributes:
        wish: The newest request for a profile, with its state; None if there is none.
        profiles: The stored profiles, the newest first.
    """

    wish: ProfileRequest | None
    profiles: list[Entry]


def stored_profiles(directory: RunDir) -> ProfileList:
    """Return the profiles and the newest request of a run. Raises StorageError."""
    found = mailbox.list_profiles(directory)
    entries = [Entry(one.name, False, one.length, one.modified_s) for one in found]
    return ProfileList(mailbox.read_profile_request(directory), entries)


def read_flame_graph(directory: RunDir, name: str) -> FlameGraph:
    """Return the flame graph of one profile. Raises PathNotFound, and ArgumentError if it cannot be drawn."""
    checked_name(name, "profile")
    ending = mailbox.ENDINGS["speedscope"]
    if not name.endswith(ending):
        raise ArgumentError(f"profile={name[:80]!r}: only *{ending} are drawn here; download it")
    url = url_below(directory, urls.join("profiles", name))
    if (size := file_length(url)) is None or size > MOST_PROFILE_BYTES:
        raise ArgumentError(f"profile={name[:80]!r}: it is larger than {MOST_PROFILE_BYTES >> 20} MiB; download it")
    return flame_graph(for_url(url).read_bytes(url))
