"""What a rank has printed, over all generations of a group that changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir

PIECE_BYTES = 4 << 20
_NAME = re.compile(r"g(\d+)-rank(\d+)\.log")


def of_rank(directory: RunDir, rank: int, generation: int | None = None) -> list[tuple[int, str]]:
    """(generation, URL) of each log of this rank, the oldest first; ``generation``: of that one alone."""
    try:
        entries = for_url(directory.logs).list_dir(directory.logs)
    except PathNotFound:
        return []
    found = [(match, entry.url) for entry in entries if (match := _NAME.fullmatch(urls.name(entry.url)))]
    logs = sorted((int(match[1]), url) for match, url in found if int(match[2]) == rank)
    return [(number, url) for number, url in logs if generation in (None, number)]


def pieces(directory: RunDir, rank: int, generation: int | None = None) -> Iterator[bytes]:
    """The logs' content, a line between those of several generations. Raises ArgumentError where there is none."""
    logs = of_rank(directory, rank, generation)
    if not logs:
        wanted = f"rank {rank}" + (f" of generation {generation}" if generation is not None else "")
        raise ArgumentError(f"run {directory.run_id} has no log of {wanted}; what there is lies in {directory.logs}")
    for number, url in logs:
        if len(logs) > 1:
            yield f"==> rank {rank}, generation {number} <==\n".encode()
        last = b""
        for last in _content(url):
            yield last
        if len(logs) > 1 and last and not last.endswith(b"\n"):
            yield b"\n"


def _content(url: str) -> Iterator[bytes]:
    """Piece by piece: a log may be longer than the memory."""
    system, offset = for_url(url), 0
    while piece := system.read_range(url, offset, PIECE_BYTES):
        yield piece
        offset += len(piece)
