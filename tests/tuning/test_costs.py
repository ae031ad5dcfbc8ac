"""Tests of the alpha-beta model's costs of each all-reduce against its papers' bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.errors import ArgumentError
from hopsml.tuning import scaling
from hopsml.tuning.scaling import Cluster, LinkCosts, Measured

pytestmark = pytest.mark.fast

LINK = LinkCosts(alpha_s=1e-4, beta_s=1e-9)
members = st.integers(2, 2048)
sizes = st.floats(1, 1e9)


def bandwidth_bound(count: int, size: float) -> float:
    """No all-reduce sends fewer bytes of each member (Patarasuk and Yuan, 2009)."""
    return 2 * (count - 1) / count * size * LINK.beta_s


@pytest.mark.parametrize("count", [0, 1])
def test_who_is_alone_pays_nothing(count: int):
    assert [of(LINK, count, 1e6) for of in scaling.ALGORITHMS.values()] == [0, 0, 0, 0]


def test_two_members_pay_for_two_messages_or_for_one_with_everything():
    both, whole = pytest.approx(2 * 1e-4 + 1e-3), pytest.approx(1e-4 + 1e-3)
    paid = {name: of(LINK, 2, 1e6) for name, of in scaling.ALGORITHMS.items()}
    assert paid == {"ring": both, "halving-doubling": both, "doubling": whole, "direct": both}


@pytest.mark.parametrize(
    ("count", "rounds", "share", "outside"),
    [(3, 2, 1.0, 1), (4, 4, 1.5, 0), (7, 4, 1.5, 1), (8, 6, 1.75, 0), (9, 6, 1.75, 1)],
)
def test_members_beyond_a_power_of_two_hand_over_before_and_get_the_sum_after(
    count: int, rounds: int, share: float, outside: int
):
    found = scaling.halving_doubling(LINK, count, 1e6)
    assert found == pytest.approx(rounds * 1e-4 + share * 1e-3 + outside * 2 * (1e-4 + 1e-3))


@pytest.mark.parametrize(("count", "rounds"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_doubling_sends_everything_in_each_of_its_rounds(count: int, rounds: int):
    assert scaling.doubling(LINK, count, 1e6) == pytest.approx(rounds * (1e-4 + 1e-3))


@pytest.mark.parametrize(("count", "further", "share"), [(2, 0, 1.0), (3, 2, 4 / 3), (4, 4, 1.5), (8, 12, 1.75)])
def test_direct_pays_for_each_message_beyond_the_first_of_a_step(count: int, further: int, share: float):
    found = scaling.direct(LinkCosts(1e-4, 1e-9, 1e-5), count, 1e6)
    assert found == pytest.approx(2e-4 + further * 1e-5 + share * 1e-3)
    assert scaling.direct(LINK, count, 1e6) == pytest.approx(2e-4 + share * 1e-3)


def test_known_costs():
    assert scaling.ring(LINK, 4, 1e6) == pytest.approx(6 * 1e-4 + 1.5 * 1e-3)
    assert scaling.halving_doubling(LINK, 4, 1e6) == pytest.approx(4 * 1e-4 + 1.5 * 1e-3)
    assert scaling.halving_doubling(LINK, 5, 1e6) == pytest.approx(4 * 1e-4 + 1.5e-3 + 2 * (1e-4 + 1e-3))
    assert scaling.doubling(LINK, 5, 1e6) == pytest.approx(3 * (1e-4 + 1e-3))
    assert scaling.direct(LinkCosts(1e-4, 1e-9, 1e-5), 5, 1e6) == pytest.approx(2e-4 + 6e-5 + 1.6e-3)


@given(members, sizes)
def test_nothing_is_faster_than_the_bytes_allow(count: int, size: float):
    assert all(of(LINK, count, size) >= bandwidth_bound(count, size) * (1 - 1e-9) for of in scaling.ALGORITHMS.values())


@given(st.integers(2, 11))
def test_few_bytes_are_a_matter_of_rounds(power: int):
    count = 1 << power
    assert scaling.doubling(LINK, count, 1) <= scaling.halving_doubling(LINK, count, 1) <= scaling.ring(LINK, count, 1)


@given(members, sizes, st.integers(1, 16))
def test_hosts_spare_the_network(workers: int, size: float, each: int):
    cluster = Cluster(LinkCosts(0, 0), LINK, workers_per_host=each)
    assert scaling.hierarchical(cluster, workers, size, "ring") <= scaling.flat(cluster, workers, size, "ring") + 1e-12


@pytest.mark.parametrize(("workers", "hosts"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_machines_are_filled_one_after_the_other(workers: int, hosts: int):
    assert Cluster(LINK, LINK, workers_per_host=4).hosts(workers) == hosts
    assert Cluster(LINK, LINK).hosts(workers) == workers


def test_workers_that_have_their_cores_take_no_longer():
    assert [Cluster(LINK, LINK, 4).load(workers) for workers in (1, 4, 8)] == [1, 1, 1]
    assert [Cluster(LINK, LINK, 4, 8).load(workers) for workers in (1, 4, 8)] == [1, 1, 1]
    assert [Cluster(LINK, LINK, 4, 1).load(workers) for workers in (1, 3, 9)] == [1, 3, 4]


MEMORY = LinkCosts(alpha_s=1e-6, beta_s=1e-11, per_message_s=1e-7)


@pytest.mark.parametrize("algorithm", list(scaling.ALGORITHMS))
def test_all_workers_go_through_memory_on_one_machine_and_over_the_network_on_several(algorithm: scaling.Algorithm):
    cluster = Cluster(MEMORY, LINK, workers_per_host=4, cores_per_host=2)
    of = scaling.ALGORITHMS[algorithm]
    assert scaling.flat(cluster, 2, 1e6, algorithm) == of(MEMORY, 2, 1e6)
    assert scaling.flat(cluster, 4, 1e6, algorithm) == 2 * of(MEMORY, 4, 1e6)  # two share a core
    assert scaling.flat(cluster, 5, 1e6, algorithm) == 2 * of(LINK, 5, 1e6)
    assert scaling.flat(cluster, 8, 1e6, algorithm) == 2 * of(LINK, 8, 1e6)


@pytest.mark.parametrize("algorithm", list(scaling.ALGORITHMS))
@pytest.mark.parametrize(("workers", "here", "hosts"), [(2, 2, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2), (13, 4, 4)])
def test_machines_sum_up_in_memory_and_one_worker_of_each_goes_over_the_network(
    algorithm: scaling.Algorithm, workers: int, here: int, hosts: int
):
    cluster = Cluster(MEMORY, LINK, workers_per_host=4, cores_per_host=2)
    within = scaling.direct(MEMORY, here, 1e6) * here / 2  # where four are there, two share a core
    between = scaling.ALGORITHMS[algorithm](LINK, hosts, 1e6)
    assert scaling.hierarchical(cluster, workers, 1e6, algorithm) == pytest.approx(within + between, rel=1e-12)


def test_workers_that_share_a_core_take_longer():
    cluster = Cluster(LINK, LINK, workers_per_host=4, cores_per_host=2)
    assert [cluster.load(workers) for workers in (1, 2, 3, 4, 8)] == [1, 1, 1.5, 2, 2]
    assert scaling.flat(cluster, 4, 1e6, "ring") == 2 * scaling.ring(LINK, 4, 1e6)


@given(st.floats(1e-6, 1e-2), st.floats(1e-12, 1e-8), st.integers(2, 64))
def test_a_link_is_found_again_from_what_it_took(alpha: float, beta: float, count: int):
    link = LinkCosts(alpha, beta)
    found = scaling.fitted(
        [Measured(count, size, scaling.direct(link, count, size)) for size in (4096, 1 << 20, 1 << 24)]
    )
    for size in (1 << 14, 1 << 22):
        assert scaling.direct(found, count, size) == pytest.approx(scaling.direct(link, count, size), rel=1e-3)


def test_neither_cost_is_below_nothing():
    falling = [Measured(2, 1024, 3.0), Measured(2, 2048, 1.0)]
    assert scaling.fitted(falling).beta_s == 0.0 < scaling.fitted(falling).alpha_s
    steep = [Measured(2, 1024, 1e-6), Measured(2, 2048, 1.0)]
    assert scaling.fitted(steep).alpha_s == 0.0 < scaling.fitted(steep).beta_s


def test_a_link_is_found_from_all_reduces_of_groups_of_several_sizes():
    sizes = [(2, 1 << 12), (3, 1 << 20), (8, 1 << 16), (8, 1 << 24)]
    found = scaling.fitted([Measured(count, size, scaling.direct(LINK, count, size)) for count, size in sizes], 3e-6)
    assert (found.alpha_s, found.beta_s) == (pytest.approx(1e-4, rel=1e-9), pytest.approx(1e-9, rel=1e-9))
    assert (
        found.per_message_s == 3e-6 and scaling.fitted([Measured(2, 1, 1.0), Measured(2, 2, 2.0)]).per_message_s == 0.0
    )


def test_measurements_count_by_their_relative_differences():
    """2, 4 and 8 bytes between two, where (2 alpha + n beta) / seconds should be 1: the normal equations by hand."""
    found = scaling.fitted([Measured(2, 2, 4.0), Measured(2, 4, 5.0), Measured(2, 8, 8.0)])
    # Rows (1/2, 1/2), (2/5, 4/5), (1/4, 1): squares 0.4725 and 1.89, products 0.82, sums 1.15 and 2.3.
    determinant = 0.4725 * 1.89 - 0.82**2
    assert found.alpha_s == pytest.approx((1.89 * 1.15 - 0.82 * 2.3) / determinant)
    assert found.beta_s == pytest.approx((0.4725 * 2.3 - 0.82 * 1.15) / determinant)


def test_where_one_cost_is_nothing_the_other_explains_all():
    falling = scaling.fitted([Measured(2, 1024, 3.0), Measured(2, 2048, 1.0)])
    assert (falling.alpha_s, falling.beta_s) == (pytest.approx(0.6), 0.0)  # (2/3 + 2) / (4/9 + 4)
    steep = scaling.fitted([Measured(2, 1, 0.25), Measured(2, 2, 1.0)])
    assert (steep.alpha_s, steep.beta_s) == (0.0, pytest.approx(0.3))  # (4 + 2) / (16 + 4)


def test_one_size_says_nothing_of_bytes():
    for measured in ([], [Measured(2, 1024, 1.0), Measured(3, 1024, 1.1)]):
        with pytest.raises(ArgumentError) as caught:
            scaling.fitted(measured)
        assert str(caught.value) == (
            "the cost of a message and that of a byte are told apart by all-reduces of two sizes or more"
        )
