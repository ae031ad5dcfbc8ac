"""Tests of the parser of nvidia-smi's matrix and of the ring over it, with handwritten fixtures."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.shared.gpus import (
    EXACT_LIMIT,
    Topology,
    best_ring,
    link_strength,
    parse_topology,
    ring_quality,
)
from hopsml.errors import ArgumentError

pytestmark = pytest.mark.fast

FIXTURES = Path(__file__).parent / "fixtures" / "topology"


def read(name: str) -> Topology:
    topology = parse_topology((FIXTURES / f"{name}.txt").read_text())
    assert topology is not None
    return topology


# -- the rings of known machines


def test_dgx1_ring_uses_double_nvlinks_only() -> None:
    """Each V100 of the cube mesh has two neighbours by double NVLink: those links are the best ring."""
    topology = read("dgx1_v100")
    ring = topology.ring()
    assert ring == (0, 3, 2, 1, 5, 6, 7, 4)
    links = [topology.links[a][b] for a, b in itertools.pairwise([*ring, ring[0]])]
    assert links == ["NV2"] * 8


def test_ring_of_half_a_dgx1_avoids_single_nvlinks_where_possible() -> None:
    """Among 0..3 the double links are the path 0-3-2-1; a single link (1-0) must close the ring."""
    assert read("dgx1_v100").ring([0, 1, 2, 3]) == (0, 3, 2, 1)


def test_ring_of_an_uneven_dgx1_subset_uses_two_double_nvlinks() -> None:
    """4 reaches only 0 by NVLink: one PCIe link is unavoidable, and 0-4, 4-1, 1-2, 2-0 has two double links.

    0,1,2,4 and 0,4,2,1 have the same sum: rings closed by a single link precede those closed by a double one,
    and of the remaining two 0,4,1,2 is smaller.
    """
    topology = read("dgx1_v100")
    assert topology.ring([0, 1, 2, 4]) == (0, 4, 1, 2)


def test_ring_of_a_dgx_a100_is_the_numeric_order() -> None:
    """Behind NVSwitch all links are equal, so the ring is the numeric order."""
    topology = read("dgx_a100")
    assert topology.ring() == tuple(range(8))
    assert {link for row in topology.links for link in row} == {"X", "NV12"}


def test_ring_of_a_pcie_host_crosses_the_sockets_only_twice() -> None:
    """0 and 2 share a switch, 1 and 3 the other: 0,1,2,3 would cross the sockets four times, 0,2,1,3 twice.

    So would 0,1,3,2; but a ring over several hosts leaves out the closing link, which here is a crossing too.
    """
    topology = read("pcie_two_sockets")
    assert topology.ring() == (0, 2, 1, 3)
    assert topology.ring([1, 3]) == (1, 3)


def test_rings_of_hosts_with_one_and_two_gpus() -> None:
    assert read("workstation_2").ring() == (0, 1)
    assert read("workstation_2").links == (("X", "PHB"), ("PHB", "X"))
    assert read("single") == Topology((0,), (("X",),))
    assert read("single").ring() == (0,)


def test_ring_over_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(ArgumentError, match="GPU 7 is not in the topology"):
        read("pcie_two_sockets").ring([0, 7])


# -- reading


@pytest.mark.parametrize("name", ["dgx1_v100", "dgx_a100", "pcie_two_sockets", "workstation_2", "single"])
def test_topology_parser_ignores_tabs_colours_and_surrounding_lines(name: str) -> None:
    text = (FIXTURES / f"{name}.txt").read_text()
    assert parse_topology(text.replace("\x1b[4m", "").replace("\x1b[0m", "")) == read(name)
    assert parse_topology(text.replace("\t", "    ")) == read(name)
    assert parse_topology("some banner\n\n" + text.replace("\n", "\r\n")) == read(name)


@pytest.mark.parametrize("text", ["", "\n\n", "No devices were found", "bash: nvidia-smi: command not found"])
def test_text_without_a_matrix_has_no_topology(text: str) -> None:
    assert parse_topology(text) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\n", "no row of that name"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\n", "has 1 of 2 links"),
        ("\tGPU0\tGPU1\nGPU0\t X \tWIFI\nGPU1\tWIFI\t X \n", "'WIFI' is not a link between GPUs"),
        ("\tGPU0\tGPU1\nGPU0\t X \t X \nGPU1\tPIX\t X \n", "'X' between GPU0 and GPU1"),
        ("\tGPU0\tGPU0\nGPU0\t X \tPIX\n", "names a GPU twice"),
    ],
)
def test_broken_topology_matrix_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        parse_topology(text)


def test_link_strengths_ascend_as_in_the_legend() -> None:
    ascending = ["SYS", "NODE", "PHB", "PXB", "PIX", "NV1", "NV2", "NV4", "NV12", "NV18"]
    strengths = [link_strength(link) for link in ascending]
    assert strengths == sorted(set(strengths))
    assert link_strength("SOC") == link_strength("SYS")


@given(st.integers(1, 16), st.data())
def test_topology_that_is_formatted_is_parsed_back(count: int, data: st.DataObject) -> None:
    names = st.sampled_from(["NV1", "NV2", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])
    links = [["X"] * count for _ in range(count)]
    for a, b in itertools.combinations(range(count), 2):
        links[a][b] = links[b][a] = data.draw(names)
    nics = data.draw(st.integers(0, 3))
    header = [*(f"GPU{i}" for i in range(count)), *(f"NIC{i}" for i in range(nics)), "CPU Affinity"]
    lines = ["\t\x1b[4m" + "\t".join(header) + "\x1b[0m"]
    for i, row in enumerate(links):
        cells = [f" {link} " if link == "X" else link for link in row]
        lines.append("\t".join([f"GPU{i}", *cells, *["SYS"] * nics, "0-7"]))
    assert parse_topology("\n".join(lines)) == Topology(tuple(range(count)), tuple(map(tuple, links)))


# -- the ring itself


@st.composite
def matrices(draw: st.DrawFn, low: int, high: int) -> list[list[int]]:
    n = draw(st.integers(low, high))
    matrix = [[0] * n for _ in range(n)]
    for a, b in itertools.combinations(range(n), 2):
        matrix[a][b] = matrix[b][a] = draw(st.integers(1, 4))
    return matrix


def brute_force(matrix: list[list[int]]) -> tuple[int, ...]:
    """Every order, best quality first, then the smallest: the definition itself."""
    rings = [(0, *rest) for rest in itertools.permutations(range(1, len(matrix)))]
    best = max(ring_quality(ring, matrix) for ring in rings)
    return min(ring for ring in rings if ring_quality(ring, matrix) == best)


@settings(deadline=None, max_examples=80)
@given(matrices(2, 6))
def test_exact_ring_equals_brute_force(matrix: list[list[int]]) -> None:
    assert best_ring(matrix) == brute_force(matrix)


@settings(deadline=None, max_examples=15)
@given(matrices(EXACT_LIMIT + 1, 13))
def test_searched_ring_is_valid_and_no_worse_than_numeric_order(matrix: list[list[int]]) -> None:
    ring = best_ring(matrix)
    n = len(matrix)
    assert ring[0] == 0
    assert sorted(ring) == list(range(n))
    assert ring_quality(ring, matrix) >= ring_quality(range(n), matrix)
    assert best_ring(matrix) == ring


def test_searched_ring_finds_a_hidden_ring_of_sixteen() -> None:
    """NVLinks along one shuffled ring, PCIe elsewhere: the one order without PCIe must be found."""
    hidden = [0, 9, 4, 13, 2, 7, 15, 1, 11, 6, 3, 14, 8, 5, 12, 10]
    matrix = [[link_strength("SYS")] * 16 for _ in range(16)]
    for a, b in itertools.pairwise([*hidden, hidden[0]]):
        matrix[a][b] = matrix[b][a] = link_strength("NV2")
    assert list(best_ring(matrix)) == hidden


def test_ring_of_ten_gpus_takes_less_than_a_second() -> None:
    matrix = [[1 + (a * b + a + b) % 5 for b in range(10)] for a in range(10)]
    start_s = time.process_time()
    best_ring(matrix)
    assert time.process_time() - start_s < 1.0
