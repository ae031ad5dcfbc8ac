"""Conversion of a profile to the boxes of a flame graph, in which the samples of all threads are merged; pure."""

from __future__ import annotations

from typing import Any

import msgspec

from hopsml.errors import ArgumentError

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
