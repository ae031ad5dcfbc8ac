"""A profile as boxes to be drawn: what the samples of all threads have in common stands once. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from hopsml.errors import ArgumentError

MOST_BOXES = 4_000
LEAST = 0.001  # of the whole: what is narrower nobody could see
LONGEST_NAME = 200  # characters


class FlameBox(msgspec.Struct, frozen=True, array_like=True):
    """One function below those that called it; ``begin`` and ``width`` are parts of the whole, ``depth`` counts from 0."""

    depth: int
    begin: float
    width: float
    name: str


class FlameGraph(msgspec.Struct, frozen=True):
    """``seconds``: of all samples together, of several threads more than the clock's. Callers stand before the called."""

    seconds: float
    boxes: list[FlameBox]


class _Sampled(msgspec.Struct):
    samples: list[list[int]]
    weights: list[float]


class _Frame(msgspec.Struct):
    name: str
    file: str | None = None
    line: int | None = None


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _Speedscope(msgspec.Struct):
    shared: _Shared
    profiles: list[_Sampled]


_decoder = msgspec.json.Decoder(_Speedscope)


def flame_graph(content: bytes) -> FlameGraph:
    """Of a profile in speedscope's form. Raises ArgumentError for anything else."""
    try:
        profile = _decoder.decode(content)
        tree, total = _merged(profile)
    except (msgspec.MsgspecError, IndexError, ValueError) as error:
        raise ArgumentError(f"this is no profile of speedscope's ({str(error)[:200]}); download it instead") from error
    names = [_name(frame) for frame in profile.shared.frames]
    return FlameGraph(total, _boxes(tree, total, names) if total > 0 else [])


def _merged(profile: _Speedscope) -> tuple[dict[int, Any], float]:
    """Frame -> (its seconds, the same of those that it called), and the seconds of all."""
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
    """Level by level, so that what is left out, if there are too many, is what lies deepest."""
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
    place = f" ({frame.file}:{frame.line})" if frame.file and frame.line is not None else ""
    return f"{frame.name}{place}"[:LONGEST_NAME]
