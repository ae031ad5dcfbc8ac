"""GPUs of a host: names in Spark and CUDA, variables that assign them to a process, links, and the best ring over them.

Exclusive locks of GPUs are in ``hopsml.cluster.agent.gpu_lock``.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

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
    raise ArgumentError(f"{link!r} is not a link between GPUs; it must be one of {known}, or NV and a number")


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


logger = logging.getLogger(__name__)

NVIDIA_SMI_TIMEOUT_S = 20.0  # seconds; a broken driver blocks nvidia-smi indefinitely

_ADDRESS = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True)
class HostGpu:
    """GPU of this host.

    ``index`` counts in PCI bus order, as NVML, nvidia-smi and CUDA (if configured so) do.
    """

    index: int
    uuid: str = ""  # GPU-xxxxxxxx-..., "" if unknown
    bus_id: str = ""  # 00000000:3B:00.0, "" if unknown
    processes: int = 0  # compute processes on it, of any user

    @property
    def key(self) -> str:
        """Name of its lock file: the same in every process and container that sees this GPU."""
        return re.sub(r"[^A-Za-z0-9.-]", "_", self.uuid or self.bus_id or f"index-{self.index}")


def environment_for(gpu_indices: Sequence[int]) -> dict[str, str]:
    """Return the variables that give a process exactly these GPUs, numbered 0, 1, ... in the given order.

    Without GPUs the variable is "-1", not absent and not "": a CPU slot on a GPU host must not touch a GPU, and some
    launchers and shells treat an empty value as "not set".
    """
    visible = ",".join(str(index) for index in gpu_indices) or "-1"
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}


def parse_address(address: str, host: Iterable[HostGpu] = ()) -> int:
    """Return the index for a resource address of Spark: a decimal number, or the UUID of a GPU of ``host``.

    Raises:
        ArgumentError: for anything else ("1abc", "-1", "").
    """
    text = address.strip()
    if _ADDRESS.fullmatch(text):
        return int(text)
    for gpu in host:
        if gpu.uuid and gpu.uuid == text:
            return gpu.index
    raise ArgumentError(
        f"{address!r} is not a GPU address; it must be an index such as '0', or the UUID of a GPU of this host. "
        "Correct the script of spark.executor.resource.gpu.discoveryScript"
    )


def visible_gpus(host: Sequence[HostGpu], cuda_visible_devices: str) -> tuple[HostGpu, ...]:
    """Return the GPUs that CUDA would show under this value of CUDA_VISIBLE_DEVICES, in its order.

    As in CUDA the list ends at the first entry that identifies no GPU ("-1", "7" of 4); an entry is an index or the
    prefix of exactly one UUID. Parts of a GPU (MIG) are not counted.
    """
    shown: list[HostGpu] = []
    for entry in (part.strip() for part in cuda_visible_devices.split(",")):
        if entry.isdecimal():
            matches = [gpu for gpu in host if gpu.index == int(entry)]
        else:
            matches = [gpu for gpu in host if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        if len(matches) != 1 or matches[0] in shown:
            break
        shown.append(matches[0])
    return tuple(shown)


# -- GPUs of the host


def host_gpus() -> tuple[HostGpu, ...]:
    """Return all NVIDIA GPUs of this host (or container), by NVML, else by nvidia-smi; () without a driver."""
    found = _gpus_by_nvml()
    return _gpus_by_nvidia_smi() if found is None else found


def topology_text(timeout_s: float = NVIDIA_SMI_TIMEOUT_S) -> str:
    """Return the output of ``nvidia-smi topo -m``, for ``topology.parse_topology``; "" without a driver."""
    return _nvidia_smi(["topo", "-m"], timeout_s)


def _gpus_by_nvml() -> tuple[HostGpu, ...] | None:
    """Return the GPUs listed by NVML; None if it is not installed or does not work."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.debug("NVML cannot be started: %s", error)
        return None
    try:
        return tuple(_gpu_by_nvml(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        logger.warning("NVML started but lists no GPUs (%s); nvidia-smi is used instead", error)
        return None
    finally:
        pynvml.nvmlShutdown()


def _gpu_by_nvml(pynvml: Any, index: int) -> HostGpu:
    """Return one GPU as NVML describes it."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    try:
        processes = len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:  # not permitted in some containers
        processes = 0
    return HostGpu(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        bus_id=str(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        processes=processes,
    )


def _gpus_by_nvidia_smi(timeout_s: float = NVIDIA_SMI_TIMEOUT_S) -> tuple[HostGpu, ...]:
    """Return the GPUs that nvidia-smi lists."""
    text = _nvidia_smi(["--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"], timeout_s)
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[0].isdecimal():
            gpus.append(HostGpu(index=int(cells[0]), uuid=cells[1], bus_id=cells[2]))
    return tuple(gpus)


def _nvidia_smi(arguments: list[str], timeout_s: float) -> str:
    """Return the output of nvidia-smi; "" if it is not installed, fails, or does not end in time."""
    try:
        process = subprocess.Popen(
            ["nvidia-smi", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:  # not installed, or not executable
        return ""
    with process.stdout:  # type: ignore[union-attr]  # PIPE was asked for
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()  # no unlimited wait: inside the driver it may be unkillable
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                pass
            logger.warning("nvidia-smi did not answer within %.0f s; this host's GPUs are not used", timeout_s)
            return ""
    if process.returncode != 0:
        logger.debug("nvidia-smi %s ended with status %d", " ".join(arguments), process.returncode)
        return ""
    return output.decode("utf-8", "replace")
