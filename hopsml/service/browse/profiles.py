"""Profiles of a run's workers: their list, the newest request, and flame graphs with the samples of all threads merged."""

from __future__ import annotations

from typing import Any

import msgspec

from hopsml.errors import ArgumentError
from hopsml.service.browse import files
from hopsml.storage import mailbox, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.mailbox import ProfileRequest
from hopsml.storage.run_dir import RunDir

MOST_BOXES = 4_000
LEAST = 0.001  # fraction of the whole below which a box would be invisible
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


_decoder = msgspec.json.Decoder(_Speedscope)


def flame_graph(content: bytes) -> FlameGraph:
    """Convert a profile in speedscope's format. Raises ArgumentError for any other content."""
    try:
        profile = _decoder.decode(content)
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
        below = []
        for begin, nodes in level:
            at = begin
            for frame, (weight, called) in sorted(nodes.items(), key=lambda item: -item[1][0]):
                if weight / total < LEAST:
                    break
                if len(found) == MOST_BOXES:
                    return found
                found.append(FlameBox(depth, at, weight / total, names[frame]))
                below.append((at, called))
                at += weight / total
        level, depth = below, depth + 1
    return found


def _name(frame: _Frame) -> str:
    """Return a function's name with its file and line."""
    place = f" ({frame.file}:{frame.line})" if frame.file and frame.line is not None else ""
    return f"{frame.name}{place}"[:LONGEST_NAME]


MOST_BYTES = 32 << 20  # most bytes of a profile that is read as a whole


class ProfileList(msgspec.Struct, frozen=True):
    """Profiles of a run.

    Attributes:
        wish: The newest request for a profile, with its state; None if there is none.
        profiles: The stored profiles, the newest first.
    """

    wish: ProfileRequest | None
    profiles: list[files.Entry]


def listed(directory: RunDir) -> ProfileList:
    """Return the profiles and the newest request of a run. Raises StorageError."""
    found = mailbox.kept_profiles(directory)
    entries = [files.Entry(one.name, False, one.length, one.modified_s) for one in found]
    return ProfileList(mailbox.read_profile_request(directory), entries)


def drawn(directory: RunDir, name: str) -> FlameGraph:
    """Return the flame graph of one profile. Raises PathNotFound, and ArgumentError if it cannot be drawn."""
    files.checked_name(name, "profile")
    ending = mailbox.ENDINGS["speedscope"]
    if not name.endswith(ending):
        raise ArgumentError(f"profile={name[:80]!r}: only *{ending} are drawn here; download it")
    url = files.below(directory, urls.join("profiles", name))
    if (length := files.length(url)) is None or length > MOST_BYTES:
        raise ArgumentError(f"profile={name[:80]!r}: it is larger than {MOST_BYTES >> 20} MiB; download it")
    return flame_graph(for_url(url).read_bytes(url))
