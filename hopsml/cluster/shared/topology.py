"""Links between the GPUs of one host, and the best static ring over them.

Pure: text in, order out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from hopsml.errors import ArgumentError

EXACT_LIMIT = 10  # GPUs up to which the best ring is found exactly (2^9 subsets)

# Links other than NVLink, slowest first, by the names of nvidia-smi's legend; SOC is an earlier name of SYS.
_PCIE_STRENGTH = {"SOC": 1, "SYS": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5}
_NVLINK_BASE = 5  # one NVLink is worth more than any PCIe path; n bonded links are worth n times one

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU_LABEL = re.compile(r"GPU([0-9]+)")
_NVLINK = re.compile(r"NV([0-9]+)")

Matrix = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Topology:
    """Links between every two GPUs of a host, as reported by nvidia-smi.

    ``gpus`` holds the indices in nvidia-smi's order; ``links[i][j]`` is the link between ``gpus[i]`` and ``gpus[j]`` as
    nvidia-smi writes it (``NV2``, ``PIX``, ``SYS`` ...), ``X`` on the diagonal.
    """

    gpus: tuple[int, ...]
    links: tuple[tuple[str, ...], ...]

    def strength(self, first: int, second: int) -> int:
        """Return the strength of the link between two GPU indices.

        Larger is better, comparable only within one host.
        """
        row, column = self.gpus.index(first), self.gpus.index(second)
        # The matrix should be symmetric; where it is not, the lower value is the safe one.
        return min(link_strength(self.links[row][column]), link_strength(self.links[column][row]))

    def ring(self, gpus: Iterable[int] | None = None) -> tuple[int, ...]:
        """Return the best ring over ``gpus`` (default: all of the host), starting with the lowest index.

        Raises:
            ArgumentError: for an index that the host does not have.
        """
        chosen = sorted(set(self.gpus if gpus is None else gpus))
        unknown = [gpu for gpu in chosen if gpu not in self.gpus]
        if unknown:
            raise ArgumentError(f"GPU {unknown[0]} is not in the topology, which has {list(self.gpus)}")
        matrix = [[self.strength(a, b) if a != b else 0 for b in chosen] for a in chosen]
        return tuple(chosen[i] for i in best_ring(matrix))


def link_strength(link: str) -> int:
    """Return the strength of a link as nvidia-smi names it; larger is better.

    The order is SYS < NODE < PHB < PXB < PIX < NV1 < NV2 ...

    Raises:
        ArgumentError: for an unknown name.
    """
    nvlink = _NVLINK.fullmatch(link)
    if nvlink:
        return _NVLINK_BASE * (1 + int(nvlink.group(1)))
    if link in _PCIE_STRENGTH:
        return _PCIE_STRENGTH[link]
    known = ", ".join(sorted(_PCIE_STRENGTH, key=lambda name: (_PCIE_STRENGTH[name], name)))
    raise ArgumentError(f"{link!r} is no link between GPUs: one of {known} or NV and a number was expected")


def parse_topology(text: str) -> Topology | None:
    """Parse the output of ``nvidia-smi topo -m``; return None if it contains no matrix.

    Text without a matrix is empty, or an error message of nvidia-smi.

    Raises:
        ArgumentError: for a matrix that cannot be parsed: a missing row or cell, or an unknown link.
    """
    rows = [line.split() for line in _ANSI.sub("", text).splitlines()]
    header_at = next((i for i, row in enumerate(rows) if _is_header(row)), None)
    if header_at is None:
        return None
    gpus = _header_gpus(rows[header_at])
    cells = {row[0]: row[1:] for row in rows[header_at + 1 :] if row and _GPU_LABEL.fullmatch(row[0])}
    links = tuple(_row_links(gpu, cells.get(f"GPU{gpu}"), gpus) for gpu in gpus)
    return Topology(gpus, links)


def _is_header(row: Sequence[str]) -> bool:
    """Return True for a header line.

    There a GPU is followed by another device or an affinity; in a row, by a link or X.
    """
    return bool(row) and _GPU_LABEL.fullmatch(row[0]) is not None and not (len(row) > 1 and _is_link(row[1]))


def _is_link(word: str) -> bool:
    return word == "X" or word in _PCIE_STRENGTH or _NVLINK.fullmatch(word) is not None


def _header_gpus(header: Sequence[str]) -> tuple[int, ...]:
    """Return the GPU columns, which come first; network cards and affinities follow and are not needed here."""
    gpus: list[int] = []
    for name in header:
        label = _GPU_LABEL.fullmatch(name)
        if label is None:
            break
        gpus.append(int(label.group(1)))
    if len(set(gpus)) != len(gpus):
        raise ArgumentError(f"the header of the GPU topology names a GPU twice: {' '.join(header)}")
    return tuple(gpus)


def _row_links(gpu: int, cells: Sequence[str] | None, gpus: Sequence[int]) -> tuple[str, ...]:
    """Return the links of one row, checked."""
    if cells is None:
        raise ArgumentError(f"the GPU topology has a column GPU{gpu} but no row of that name")
    links = tuple(cells[: len(gpus)])
    for other, link in zip(gpus, links, strict=False):
        if (link == "X") != (gpu == other):
            raise ArgumentError(f"the GPU topology has {link!r} between GPU{gpu} and GPU{other}")
        if link != "X":
            link_strength(link)
    if len(links) < len(gpus):
        raise ArgumentError(f"the row GPU{gpu} of the GPU topology has {len(links)} of {len(gpus)} links")
    return links


def best_ring(strengths: Matrix) -> tuple[int, ...]:
    """Return the order in which a ring should visit 0..n-1: the strongest weakest link, then the largest sum of links.

    ``strengths`` is symmetric; its diagonal is not read. The ring starts at 0. Of equally good ones that with the
    weakest closing link is chosen, because a ring over several hosts leaves this host there; then the lexicographically
    smallest, so that equal links give 0, 1, 2 ... Exact up to ``EXACT_LIMIT`` nodes; above that a local search (2-opt
    and moved nodes, from several starts) that is never worse than 0, 1, 2 ...
    """
    n = len(strengths)
    levels = sorted({strengths[a][b] for a, b in combinations(range(n), 2)}, reverse=True)
    if len(levels) <= 1:
        return tuple(range(n))
    if n > EXACT_LIMIT:
        return _searched_ring(strengths)
    rings = (_exact_ring(strengths, weakest) for weakest in levels)
    return next(ring for ring in rings if ring is not None)  # the lowest level contains every ring


def ring_quality(ring: Sequence[int], strengths: Matrix) -> tuple[int, int, int]:
    """Return (weakest link, sum of links, minus the closing link) of a closed ring; larger is better."""
    links = [strengths[a][b] for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
    return min(links), sum(links), -links[-1]


def _exact_ring(strengths: Matrix, weakest: int) -> tuple[int, ...] | None:
    """Find the best ring without links below ``weakest``, by Held and Karp's dynamic programme; None if there is none.

    ``best[visited, last]`` is the largest value of the path from ``last`` through all unvisited nodes back to 0; so
    walking forward from 0, by the smallest index that attains it, yields the smallest of the best orders. A path's
    value is its sum of links, scaled such that the weakness of its closing link decides between equal sums.
    """
    n = len(strengths)
    scale = 1 + max(max(row) for row in strengths)
    full = (1 << n) - 1
    best = {(full, last): strengths[last][0] * (scale - 1) for last in range(1, n) if strengths[last][0] >= weakest}
    for visited in range(full - 2, 0, -2):  # odd bit sets only: 0 is always visited
        for last in _members(visited):
            steps = _steps(strengths, scale, weakest, best, visited, last)
            if steps:
                best[visited, last] = max(value for _, value in steps)
    if (1, 0) not in best:
        return None
    ring, visited = [0], 1
    while visited != full:
        steps = _steps(strengths, scale, weakest, best, visited, ring[-1])
        ring.append(next(step for step, value in steps if value == best[visited, ring[-1]]))
        visited |= 1 << ring[-1]
    return tuple(ring)


def _members(bits: int) -> list[int]:
    return [i for i in range(bits.bit_length()) if bits >> i & 1]


def _steps(
    strengths: Matrix, scale: int, weakest: int, best: dict[tuple[int, int], int], visited: int, last: int
) -> list[tuple[int, int]]:
    """Return the nodes that can follow ``last``, ascending, each with the value of the path home over it."""
    return [
        (step, link * scale + best[visited | 1 << step, step])
        for step, link in enumerate(strengths[last])
        if link >= weakest and not visited >> step & 1 and (visited | 1 << step, step) in best
    ]


def _searched_ring(strengths: Matrix) -> tuple[int, ...]:
    """Find a good ring by local search from several starts."""
    n = len(strengths)
    starts = [list(range(n)), *(_nearest_neighbours(strengths, start) for start in range(n))]
    found = [_improved(ring, strengths) for ring in starts]
    rings = [ring for start in found for ring in _from_zero(start)]
    best = max(ring_quality(ring, strengths) for ring in rings)
    return min(ring for ring in rings if ring_quality(ring, strengths) == best)


def _nearest_neighbours(strengths: Matrix, start: int) -> list[int]:
    """Build a ring by following the strongest link to an unvisited node."""
    ring, left = [start], set(range(len(strengths))) - {start}
    while left:
        following = min(left, key=lambda node: (-strengths[ring[-1]][node], node))
        ring.append(following)
        left.remove(following)
    return ring


def _improved(ring: list[int], strengths: Matrix) -> list[int]:
    """Reverse sections and move single nodes while that improves the ring."""
    quality, n = ring_quality(ring, strengths), len(ring)
    improved = True
    while improved:
        improved = False
        for first, second in combinations(range(n), 2):
            for candidate in _neighbours(ring, first, second):
                candidate_quality = ring_quality(candidate, strengths)
                if candidate_quality > quality:
                    ring, quality, improved = candidate, candidate_quality, True
    return ring


def _neighbours(ring: list[int], first: int, second: int) -> tuple[list[int], list[int], list[int]]:
    """Return three variations of a ring: a reversed section, and one node moved in either direction."""
    before, stretch, after = ring[:first], ring[first : second + 1], ring[second + 1 :]
    reversed_stretch = [*before, *stretch[::-1], *after]
    first_moved_back = [*before, *stretch[1:], stretch[0], *after]
    last_moved_forward = [*before, stretch[-1], *stretch[:-1], *after]
    return reversed_stretch, first_moved_back, last_moved_forward


def _from_zero(ring: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the same closed ring started at 0, in both directions."""
    start = ring.index(0)
    turned = (*ring[start:], *ring[:start])
    return turned, (0, *turned[:0:-1])
