"""What the alpha-beta model says of each all-reduce, against what its papers prove."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.errors import ArgumentError
from hopsml.tuning import costs
from hopsml.tuning.costs import Cluster, LinkCosts, Measured

pytestmark = pytest.mark.fast

LINK = LinkCosts(alpha_s=1e-4, beta_s=1e-9)
members = st.integers(2, 2048)
sizes = st.floats(1, 1e9)


def bandwidth_bound(count: int, size: float) -> float:
    """No all-reduce sends fewer bytes of each member (Patarasuk and Yuan, 2009)."""
    return 2 * (count - 1) / count * size * LINK.beta_s


def test_one_member_pays_nothing():
    assert [of(LINK, 1, 1e6) for of in costs.ALGORITHMS.values()] == [0, 0, 0, 0]


def test_known_costs():
    assert costs.ring(LINK, 4, 1e6) == pytest.approx(6 * 1e-4 + 1.5 * 1e-3)
    assert costs.halving_doubling(LINK, 4, 1e6) == pytest.approx(4 * 1e-4 + 1.5 * 1e-3)
    assert costs.halving_doubling(LINK, 5, 1e6) == pytest.approx(4 * 1e-4 + 1.5e-3 + 2 * (1e-4 + 1e-3))
    assert costs.doubling(LINK, 5, 1e6) == pytest.approx(3 * (1e-4 + 1e-3))
    assert costs.direct(LinkCosts(1e-4, 1e-9, 1e-5), 5, 1e6) == pytest.approx(2e-4 + 6e-5 + 1.6e-3)


@given(members, sizes)
def test_nothing_is_faster_than_the_bytes_allow(count: int, size: float):
    assert all(of(LINK, count, size) >= bandwidth_bound(count, size) * (1 - 1e-9) for of in costs.ALGORITHMS.values())


@given(st.integers(2, 11))
def test_few_bytes_are_a_matter_of_rounds(power: int):
    count = 1 << power
    assert costs.doubling(LINK, count, 1) <= costs.halving_doubling(LINK, count, 1) <= costs.ring(LINK, count, 1)


@given(members, sizes, st.integers(1, 16))
def test_hosts_spare_the_network(workers: int, size: float, each: int):
    cluster = Cluster(LinkCosts(0, 0), LINK, workers_per_host=each)
    assert costs.hierarchical(cluster, workers, size, "ring") <= costs.flat(cluster, workers, size, "ring") + 1e-12


def test_workers_that_share_a_core_take_longer():
    cluster = Cluster(LINK, LINK, workers_per_host=4, cores_per_host=2)
    assert [cluster.load(workers) for workers in (1, 2, 3, 4, 8)] == [1, 1, 1.5, 2, 2]
    assert costs.flat(cluster, 4, 1e6, "ring") == 2 * costs.ring(LINK, 4, 1e6)


@given(st.floats(1e-6, 1e-2), st.floats(1e-12, 1e-8), st.integers(2, 64))
def test_a_link_is_found_again_from_what_it_took(alpha: float, beta: float, count: int):
    link = LinkCosts(alpha, beta)
    found = costs.fitted([Measured(count, size, costs.direct(link, count, size)) for size in (4096, 1 << 20, 1 << 24)])
    for size in (1 << 14, 1 << 22):
        assert costs.direct(found, count, size) == pytest.approx(costs.direct(link, count, size), rel=1e-3)


def test_neither_cost_is_below_nothing():
    falling = [Measured(2, 1024, 3.0), Measured(2, 2048, 1.0)]
    assert costs.fitted(falling).beta_s == 0.0 < costs.fitted(falling).alpha_s
    steep = [Measured(2, 1024, 1e-6), Measured(2, 2048, 1.0)]
    assert costs.fitted(steep).alpha_s == 0.0 < costs.fitted(steep).beta_s


def test_one_size_says_nothing_of_bytes():
    with pytest.raises(ArgumentError, match="two sizes or more"):
        costs.fitted([Measured(2, 1024, 1.0), Measured(2, 1024, 1.1)])
