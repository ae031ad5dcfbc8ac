"""Tests of the cost model: all-reduces against the bounds of their papers, and the duration of a step."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import gradient_sets
from benchmarks import scaling as published
from hopsml.errors import ArgumentError
from hopsml.tuning import scaling
from hopsml.tuning.scaling import AllReduceMeasurement, Cluster, LinkCosts, StepSettings, TrainingCost

HOCKNEY = LinkCosts(alpha_s=1e-4, beta_s=1e-9)
members = st.integers(2, 2048)
sizes = st.floats(1, 1e9)
MEMORY = LinkCosts(alpha_s=1e-6, beta_s=1e-11, per_message_s=1e-7)
pytestmark = pytest.mark.fast
LINK = LinkCosts(alpha_s=1e-4, beta_s=1e-9)
CLUSTER = Cluster(LinkCosts(1e-6, 1e-11), LINK)
gradients = st.lists(st.integers(4, 8 << 20), min_size=1, max_size=60).map(tuple)
# A step of 9 s has 3 s of forward pass; of three layers' gradients the last is there at 5 s, then at 7 s and at 9 s.
OVERLAPPED = [
    ((1.0, 1.0, 1.0), 10.0),  # each is over before the next is there: but the last one
    ((3.0, 1.0, 1.0), 10.0),  # over at 8, at 9 and at 10
    ((3.0, 2.0, 1.0), 11.0),  # over at 8, the next one waits for it until 10
    ((6.0, 1.0, 1.0), 13.0),
    ((1.0, 4.0, 1.0), 12.0),
    ((0.0, 0.0, 0.5), 9.5),
    ((1.0, 1.0, 0.0), 9.0),
]


def bandwidth_bound(count: int, size: float) -> float:
    """No all-reduce sends fewer bytes of each member (Patarasuk and Yuan, 2009)."""
    return 2 * (count - 1) / count * size * HOCKNEY.beta_s


@pytest.mark.parametrize("count", [0, 1])
def test_all_reduce_of_one_member_costs_nothing(count: int):
    assert [of(HOCKNEY, count, 1e6) for of in scaling.ALGORITHMS.values()] == [0, 0, 0, 0]


def test_two_members_exchange_two_messages_or_one_with_all_bytes():
    both, undivided = pytest.approx(2 * 1e-4 + 1e-3), pytest.approx(1e-4 + 1e-3)
    paid = {name: of(HOCKNEY, 2, 1e6) for name, of in scaling.ALGORITHMS.items()}
    assert paid == {"ring": both, "halving-doubling": both, "doubling": undivided, "direct": both}


@pytest.mark.parametrize(
    ("count", "rounds", "share", "outside"),
    [(3, 2, 1.0, 1), (4, 4, 1.5, 0), (7, 4, 1.5, 1), (8, 6, 1.75, 0), (9, 6, 1.75, 1)],
)
def test_members_beyond_a_power_of_two_send_before_and_receive_after(
    count: int, rounds: int, share: float, outside: int
):
    found = scaling.halving_doubling_s(HOCKNEY, count, 1e6)
    assert found == pytest.approx(rounds * 1e-4 + share * 1e-3 + outside * 2 * (1e-4 + 1e-3))


@pytest.mark.parametrize(("count", "rounds"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_doubling_sends_all_bytes_in_each_round(count: int, rounds: int):
    assert scaling.doubling_s(HOCKNEY, count, 1e6) == pytest.approx(rounds * (1e-4 + 1e-3))


@pytest.mark.parametrize(("count", "further", "share"), [(2, 0, 1.0), (3, 2, 4 / 3), (4, 4, 1.5), (8, 12, 1.75)])
def test_direct_costs_each_message_beyond_the_first_of_a_step(count: int, further: int, share: float):
    found = scaling.direct_s(LinkCosts(1e-4, 1e-9, 1e-5), count, 1e6)
    assert found == pytest.approx(2e-4 + further * 1e-5 + share * 1e-3)
    assert scaling.direct_s(HOCKNEY, count, 1e6) == pytest.approx(2e-4 + share * 1e-3)


def test_algorithm_costs_equal_known_values():
    assert scaling.ring_s(HOCKNEY, 4, 1e6) == pytest.approx(6 * 1e-4 + 1.5 * 1e-3)
    assert scaling.halving_doubling_s(HOCKNEY, 4, 1e6) == pytest.approx(4 * 1e-4 + 1.5 * 1e-3)
    assert scaling.halving_doubling_s(HOCKNEY, 5, 1e6) == pytest.approx(4 * 1e-4 + 1.5e-3 + 2 * (1e-4 + 1e-3))
    assert scaling.doubling_s(HOCKNEY, 5, 1e6) == pytest.approx(3 * (1e-4 + 1e-3))
    assert scaling.direct_s(LinkCosts(1e-4, 1e-9, 1e-5), 5, 1e6) == pytest.approx(2e-4 + 6e-5 + 1.6e-3)


@given(members, sizes)
def test_no_algorithm_is_faster_than_the_bandwidth_bound(count: int, size: float):
    assert all(
        of(HOCKNEY, count, size) >= bandwidth_bound(count, size) * (1 - 1e-9) for of in scaling.ALGORITHMS.values()
    )


@given(st.integers(2, 11))
def test_cost_of_few_bytes_depends_on_the_number_of_rounds(power: int):
    count = 1 << power
    assert (
        scaling.doubling_s(HOCKNEY, count, 1)
        <= scaling.halving_doubling_s(HOCKNEY, count, 1)
        <= scaling.ring_s(HOCKNEY, count, 1)
    )


@given(members, sizes, st.integers(1, 16))
def test_hierarchical_ring_is_never_slower_than_the_flat_ring(workers: int, size: float, each: int):
    cluster = Cluster(LinkCosts(0, 0), HOCKNEY, workers_per_host=each)
    assert (
        scaling.hierarchical_s(cluster, workers, size, "ring") <= scaling.flat_s(cluster, workers, size, "ring") + 1e-12
    )


@pytest.mark.parametrize(("workers", "hosts"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_hosts_are_filled_one_after_the_other(workers: int, hosts: int):
    assert Cluster(HOCKNEY, HOCKNEY, workers_per_host=4).host_count(workers) == hosts
    assert Cluster(HOCKNEY, HOCKNEY).host_count(workers) == workers


def test_workers_with_separate_cores_take_no_longer():
    assert [Cluster(HOCKNEY, HOCKNEY, 4).workers_per_core(workers) for workers in (1, 4, 8)] == [1, 1, 1]
    assert [Cluster(HOCKNEY, HOCKNEY, 4, 8).workers_per_core(workers) for workers in (1, 4, 8)] == [1, 1, 1]
    assert [Cluster(HOCKNEY, HOCKNEY, 4, 1).workers_per_core(workers) for workers in (1, 3, 9)] == [1, 3, 4]


@pytest.mark.parametrize("algorithm", list(scaling.ALGORITHMS))
def test_flat_all_reduce_uses_memory_on_one_host_and_network_on_several(algorithm: scaling.Algorithm):
    cluster = Cluster(MEMORY, HOCKNEY, workers_per_host=4, cores_per_host=2)
    of = scaling.ALGORITHMS[algorithm]
    assert scaling.flat_s(cluster, 2, 1e6, algorithm) == of(MEMORY, 2, 1e6)
    assert scaling.flat_s(cluster, 4, 1e6, algorithm) == 2 * of(MEMORY, 4, 1e6)  # two share a core
    assert scaling.flat_s(cluster, 5, 1e6, algorithm) == 2 * of(HOCKNEY, 5, 1e6)
    assert scaling.flat_s(cluster, 8, 1e6, algorithm) == 2 * of(HOCKNEY, 8, 1e6)


@pytest.mark.parametrize("algorithm", list(scaling.ALGORITHMS))
@pytest.mark.parametrize(("workers", "here", "hosts"), [(2, 2, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2), (13, 4, 4)])
def test_hierarchical_all_reduce_sums_in_memory_and_sends_one_share_per_host(
    algorithm: scaling.Algorithm, workers: int, here: int, hosts: int
):
    cluster = Cluster(MEMORY, HOCKNEY, workers_per_host=4, cores_per_host=2)
    within = scaling.direct_s(MEMORY, here, 1e6) * here / 2  # where four are there, two share a core
    between = scaling.ALGORITHMS[algorithm](HOCKNEY, hosts, 1e6)
    assert scaling.hierarchical_s(cluster, workers, 1e6, algorithm) == pytest.approx(within + between, rel=1e-12)


def test_workers_that_share_a_core_take_longer():
    cluster = Cluster(HOCKNEY, HOCKNEY, workers_per_host=4, cores_per_host=2)
    assert [cluster.workers_per_core(workers) for workers in (1, 2, 3, 4, 8)] == [1, 1, 1.5, 2, 2]
    assert scaling.flat_s(cluster, 4, 1e6, "ring") == 2 * scaling.ring_s(HOCKNEY, 4, 1e6)


@given(st.floats(1e-6, 1e-2), st.floats(1e-12, 1e-8), st.integers(2, 64))
def test_link_costs_are_recovered_from_simulated_measurements(alpha: float, beta: float, count: int):
    link = LinkCosts(alpha, beta)
    found = scaling.fit_link_costs(
        [AllReduceMeasurement(count, size, scaling.direct_s(link, count, size)) for size in (4096, 1 << 20, 1 << 24)]
    )
    for size in (1 << 14, 1 << 22):
        assert scaling.direct_s(found, count, size) == pytest.approx(scaling.direct_s(link, count, size), rel=1e-3)


def test_fitted_costs_are_never_negative():
    falling = [AllReduceMeasurement(2, 1024, 3.0), AllReduceMeasurement(2, 2048, 1.0)]
    assert scaling.fit_link_costs(falling).beta_s == 0.0 < scaling.fit_link_costs(falling).alpha_s
    steep = [AllReduceMeasurement(2, 1024, 1e-6), AllReduceMeasurement(2, 2048, 1.0)]
    assert scaling.fit_link_costs(steep).alpha_s == 0.0 < scaling.fit_link_costs(steep).beta_s


def test_link_costs_are_fitted_to_groups_of_several_sizes():
    sizes = [(2, 1 << 12), (3, 1 << 20), (8, 1 << 16), (8, 1 << 24)]
    found = scaling.fit_link_costs(
        [AllReduceMeasurement(count, size, scaling.direct_s(HOCKNEY, count, size)) for count, size in sizes], 3e-6
    )
    assert (found.alpha_s, found.beta_s) == (pytest.approx(1e-4, rel=1e-9), pytest.approx(1e-9, rel=1e-9))
    assert (
        found.per_message_s == 3e-6
        and scaling.fit_link_costs([AllReduceMeasurement(2, 1, 1.0), AllReduceMeasurement(2, 2, 2.0)]).per_message_s
        == 0.0
    )


def test_measurements_are_weighted_by_relative_differences():
    """2, 4 and 8 bytes between two, where (2 alpha + n beta) / seconds should be 1: the normal equations by hand."""
    found = scaling.fit_link_costs(
        [AllReduceMeasurement(2, 2, 4.0), AllReduceMeasurement(2, 4, 5.0), AllReduceMeasurement(2, 8, 8.0)]
    )
    # Rows (1/2, 1/2), (2/5, 4/5), (1/4, 1): squares 0.4725 and 1.89, products 0.82, sums 1.15 and 2.3.
    determinant = 0.4725 * 1.89 - 0.82**2
    assert found.alpha_s == pytest.approx((1.89 * 1.15 - 0.82 * 2.3) / determinant)
    assert found.beta_s == pytest.approx((0.4725 * 2.3 - 0.82 * 1.15) / determinant)


def test_remaining_cost_explains_all_measurements_when_the_other_is_0():
    falling = scaling.fit_link_costs([AllReduceMeasurement(2, 1024, 3.0), AllReduceMeasurement(2, 2048, 1.0)])
    assert (falling.alpha_s, falling.beta_s) == (pytest.approx(0.6), 0.0)  # (2/3 + 2) / (4/9 + 4)
    steep = scaling.fit_link_costs([AllReduceMeasurement(2, 1, 0.25), AllReduceMeasurement(2, 2, 1.0)])
    assert (steep.alpha_s, steep.beta_s) == (0.0, pytest.approx(0.3))  # (4 + 2) / (16 + 4)


def test_fit_with_one_message_size_is_refused():
    for measured in ([], [AllReduceMeasurement(2, 1024, 1.0), AllReduceMeasurement(3, 1024, 1.1)]):
        with pytest.raises(ArgumentError) as caught:
            scaling.fit_link_costs(measured)
        assert str(caught.value) == (
            "the cost per message and the cost per byte can be separated only with all-reduces of two sizes or more"
        )


RESNET = tuple(gradient_sets.bytes_of([shape]) for shape in gradient_sets.shapes_of("resnet-50"))
TRAINING = TrainingCost(0.2, RESNET)


@given(gradients, st.one_of(st.none(), st.integers(1, 64)), st.one_of(st.none(), st.integers(1, 8 << 20)))
def test_every_gradient_is_in_exactly_one_pack(sizes: tuple[int, ...], scope: int | None, most: int | None):
    packs = scaling.group_gradients(sizes, StepSettings(merge_scope=scope, pack_bytes=most))
    assert sorted(chain.from_iterable(packs)) == list(range(len(sizes)))
    if most is None and scope is not None:
        assert max(map(len, packs)) <= scope
    if most is not None:
        assert all(len(pack) == 1 or sum(sizes[i] for i in pack) <= most for pack in packs)


def test_packs_equal_those_of_the_library():
    sizes = (3 << 20, 400, 2 << 10, 1 << 20, 4 << 20)
    assert scaling.group_gradients(sizes, StepSettings(pack_bytes=scaling.PACK_BYTES)) == [[1, 2], [0], [3], [4]]


@pytest.mark.parametrize(
    ("sizes", "most", "packs"),
    [
        ((), 100, []),
        ((10, 20, 30), 100, [[0, 1, 2]]),
        (
            (60, 50, 40, 61),
            100,
            [[0], [1, 2], [3]],
        ),  # a tensor that does not fit starts the next pack, which is filled from 0
        ((200, 10, 20), 100, [[0], [1, 2]]),  # a single tensor larger than a pack
        ((10, 200, 20), 100, [[0], [1], [2]]),
        ((scaling.ALONE_BYTES - 1, 1), 4 << 20, [[0, 1]]),
        ((scaling.ALONE_BYTES, 1), 4 << 20, [[1], [0]]),  # large ones behind all packs, in the order of the layers
        ((5 << 20, 1, 2 << 20, 2, 3 << 20), 4 << 20, [[1, 3], [0], [2], [4]]),
        ((2 << 20, 3 << 20), 4 << 20, [[0], [1]]),
    ],
)
def test_small_gradients_are_packed_up_to_a_limit_and_large_ones_are_separate(
    sizes: tuple[int, ...], most: int, packs: list[list[int]]
):
    assert scaling.group_gradients(sizes, StepSettings(pack_bytes=most)) == packs
    assert scaling.group_gradients(sizes, StepSettings(pack_bytes=most, merge_scope=1)) == packs


@pytest.mark.parametrize(
    ("scope", "packs"),
    [
        (None, [[4, 3, 2, 1, 0]]),
        (5, [[4, 3, 2, 1, 0]]),
        (9, [[4, 3, 2, 1, 0]]),
        (4, [[4, 3, 2, 1], [0]]),
        (2, [[4, 3], [2, 1], [0]]),
        (1, [[4], [3], [2], [1], [0]]),
    ],
)
def test_gradients_are_merged_from_the_last_layer_on(scope: int | None, packs: list[list[int]]):
    assert scaling.group_gradients((1, 2, 3, 4, 5), StepSettings(merge_scope=scope)) == packs


@pytest.mark.parametrize("most", [None, 4 << 20])
@pytest.mark.parametrize("overlapped", [False, True])
def test_step_without_gradients_has_no_communication(most: int | None, overlapped: bool):
    options = StepSettings(pack_bytes=most, overlapped=overlapped)
    assert scaling.group_gradients((), options) == []
    step = scaling.predict_step(TrainingCost(0.1, (), per_step_s=0.5), CLUSTER, 4, options)
    assert step.communication_s == 0.0 and step.seconds == step.compute_s


def test_step_of_one_worker_has_no_communication():
    assert scaling.predict_step(TRAINING, CLUSTER, 1) == scaling.StepPrediction(0.2, 0.2, 0.0)
    shared = Cluster(LINK, LINK, workers_per_host=2, cores_per_host=1)
    assert scaling.predict_step(TrainingCost(0.2, (8,), per_step_s=1.0), shared, 1) == scaling.StepPrediction(
        0.2, 0.2, 0.0
    )
    assert scaling.predict_step(TrainingCost(0.2, (8,), per_step_s=1.0), shared, 2).compute_s == 0.4


@pytest.mark.parametrize("algorithm", list(scaling.ALGORITHMS))
@pytest.mark.parametrize("hierarchical", [False, True])
def test_each_pack_costs_an_all_reduce_of_its_wire_bytes(algorithm: scaling.Algorithm, hierarchical: bool):
    """Three gradients in two packs, sent as 2 bytes of 4, by 6 workers on two machines."""
    cluster = Cluster(LinkCosts(1e-6, 1e-11, 1e-7), LINK, workers_per_host=4)
    training = TrainingCost(0.1, (1000, 2000, 4000), per_gradient_s=1e-3, per_byte_s=1e-7, per_step_s=5e-3)
    settings = StepSettings(algorithm, merge_scope=2, wire_bytes=2, convert_s=2e-7, hierarchical=hierarchical)
    reduce = scaling.hierarchical_s if hierarchical else scaling.flat_s
    wire = reduce(cluster, 6, 3000, algorithm) + reduce(cluster, 6, 500, algorithm)
    step = scaling.predict_step(training, cluster, 6, settings)
    assert step.communication_s == pytest.approx(wire + 3 * 1e-3 + 7000 * 3e-7 + 5e-3, rel=1e-12)
    assert step.compute_s == 0.1 and step.seconds == pytest.approx(0.1 + step.communication_s, rel=1e-12)


def test_default_settings_merge_all_gradients_into_a_float32_ring():
    training = TrainingCost(0.1, (1000, 2000))
    step = scaling.predict_step(training, CLUSTER, 4)
    assert step == scaling.predict_step(
        training, CLUSTER, 4, StepSettings("ring", None, None, 4, 0.0, False, False, False, 0.0)
    )
    assert step.communication_s == scaling.ring_s(LINK, 4, 3000) and step.seconds == 0.1 + step.communication_s


@pytest.mark.parametrize(("taken", "end"), OVERLAPPED)
def test_overlapped_pack_starts_when_gradients_and_previous_pack_are_complete(
    taken: tuple[float, float, float], end: float
):
    """Bytes cost a second each, so that the last layer's gradient, which is sent first, takes as many seconds."""
    cluster = Cluster(LinkCosts(0.0, 0.0), LinkCosts(0.0, 0.0))
    sizes = tuple(int(10 * seconds) for seconds in reversed(taken))
    training = TrainingCost(9.0, sizes, per_byte_s=0.1)
    step = scaling.predict_step(training, cluster, 2, StepSettings(merge_scope=1, overlapped=True))
    assert step.seconds == pytest.approx(end) and step.communication_s == pytest.approx(sum(taken))
    assert step.compute_s == 9.0


def test_merged_gradients_are_sent_when_the_last_one_is_computed():
    free = Cluster(LinkCosts(0.0, 0.0), LinkCosts(0.0, 0.0))

    def end(scope: int | None) -> float:
        training = TrainingCost(9.0, (1, 1, 1), per_byte_s=1.0)
        return scaling.predict_step(training, free, 2, StepSettings(merge_scope=scope, overlapped=True)).seconds

    assert (end(1), end(2), end(3), end(None)) == pytest.approx((10.0, 10.0, 12.0, 12.0))


def test_overlapped_hopsml_packs_are_sent_in_order_of_completion():
    """The packs of the first layers come first in its list, and their gradients last."""
    free = Cluster(LinkCosts(0.0, 0.0), LinkCosts(0.0, 0.0))
    mega = scaling.ALONE_BYTES
    training = TrainingCost(9.0, (8, mega, mega), per_byte_s=2.0 / mega)
    step = scaling.predict_step(training, free, 2, StepSettings(pack_bytes=4 << 20, overlapped=True))
    assert step.seconds == pytest.approx(9.0 + 8 * 2.0 / mega)  # 5 to 7, 7 to 9, and the few bytes behind 9


def test_cost_per_step_is_added_to_the_first_pack():
    free = Cluster(LinkCosts(0.0, 0.0), LinkCosts(0.0, 0.0))
    training = TrainingCost(9.0, (0, 0, 0), per_step_s=3.5)
    step = scaling.predict_step(training, free, 2, StepSettings(merge_scope=1, overlapped=True))
    assert (step.seconds, step.communication_s) == pytest.approx((9.0, 3.5))  # from 5 to 8.5, while others are computed


@pytest.mark.parametrize(("share", "seconds"), [(0.0, 4.0), (0.25, 4.0), (0.5, 4.0), (0.75, 5.0), (1.0, 6.0)])
def test_double_buffering_takes_the_longer_of_both_plus_its_processor_share(share: float, seconds: float):
    free = Cluster(LinkCosts(0.0, 0.0), LinkCosts(0.0, 0.0))
    settings = StepSettings(double_buffering=True, overlapped=True, processor_share=share)
    step = scaling.predict_step(TrainingCost(2.0, (4,), per_byte_s=1.0), free, 2, settings)
    assert step == scaling.StepPrediction(seconds, 2.0, 4.0)


def test_processor_share_matters_only_with_double_buffering():
    free = Cluster(LinkCosts(0.0, 0.0), LinkCosts(0.0, 0.0))
    training = TrainingCost(2.0, (4,), per_byte_s=1.0)
    assert scaling.predict_step(training, free, 2, StepSettings(processor_share=0.5)).seconds == 6.0


def test_each_collective_costs_its_messages():
    one = scaling.predict_step(TRAINING, CLUSTER, 8, StepSettings()).communication_s
    each = scaling.predict_step(TRAINING, CLUSTER, 8, StepSettings(merge_scope=1)).communication_s
    assert each - one == pytest.approx((len(RESNET) - 1) * 14 * LINK.alpha_s)


def test_half_the_wire_bytes_take_half_the_time_on_a_bandwidth_bound_link():
    free = Cluster(LINK, LinkCosts(0.0, 1e-9))
    full, half = (
        scaling.predict_step(TRAINING, free, 8, StepSettings(wire_bytes=wire)).communication_s for wire in (4, 2)
    )
    assert half == pytest.approx(full / 2)


@given(gradients, st.integers(2, 64), st.integers(1, 64))
def test_overlapped_step_is_between_the_longer_part_and_the_sum(sizes: tuple[int, ...], workers: int, scope: int):
    training = TrainingCost(0.01, sizes)
    plain, overlapped, doubled = (
        scaling.predict_step(training, CLUSTER, workers, settings)
        for settings in (
            StepSettings(merge_scope=scope),
            StepSettings(merge_scope=scope, overlapped=True),
            StepSettings(merge_scope=scope, double_buffering=True),
        )
    )
    assert plain.seconds == pytest.approx(plain.compute_s + plain.communication_s)
    assert max(plain.compute_s, plain.communication_s) <= overlapped.seconds + 1e-12 <= plain.seconds + 2e-12
    assert doubled.seconds == pytest.approx(max(plain.compute_s, plain.communication_s))


def test_processor_share_of_communication_is_not_hidden():
    step = scaling.predict_step(TRAINING, CLUSTER, 8, StepSettings(double_buffering=True, processor_share=0.5))
    assert step.seconds == pytest.approx(0.2 + 0.5 * step.communication_s)


def test_hierarchical_step_is_faster_with_fast_memory():
    cluster = Cluster(LinkCosts(1e-6, 1e-11), LINK, workers_per_host=8)
    flat, by_host = (
        scaling.predict_step(TRAINING, cluster, 64, StepSettings(hierarchical=hierarchical)).seconds
        for hierarchical in (False, True)
    )
    assert by_host < flat


def test_model_reproduces_the_published_v100_efficiency():
    """32 V100 on 25 Gbit/s: 95 % with fp16 and double buffering, 2.1 times what there was without (ChainerMN, GTC 2018)."""
    training = TrainingCost(published.V100_STEP_S, published.RESNET_50)
    cluster = Cluster(published.NVLINK, published.ONE_FLOW, workers_per_host=8)
    both = scaling.predict_step(training, cluster, 32, published.V100_WAYS["both"]).seconds
    plain = scaling.predict_step(training, cluster, 32, published.V100_WAYS["float32"]).seconds
    assert published.V100_STEP_S / both >= 0.95
    assert 1.6 <= plain / both <= 2.4
    assert published.table().count("\n") == 14


def test_step_time_never_falls_with_more_workers():
    steps = [scaling.predict_step(TRAINING, CLUSTER, workers).seconds for workers in (1, 2, 4, 8, 64, 1024)]
    assert steps == sorted(steps)
    assert scaling.ring_s(LINK, 1024, sum(RESNET)) == pytest.approx(steps[-1] - 0.2)


def test_each_cost_of_a_step_is_counted_once_with_shared_cores():
    """Two gradients of 1 MB in one collective of 4 workers, two on each core, against the sum written out."""
    size, workers = 1 << 20, 4
    training = TrainingCost(0.1, (size, size), per_gradient_s=1e-3, per_byte_s=2e-9, per_step_s=5e-3)
    settings = StepSettings(wire_bytes=2, convert_s=3e-9)
    cluster = Cluster(LINK, LINK, workers_per_host=4, cores_per_host=2)  # two workers share a core
    step = scaling.predict_step(training, cluster, workers, settings)
    outside = 2 * 1e-3 + 2 * size * (2e-9 + 3e-9)
    wire = scaling.flat_s(cluster, workers, size, "ring")  # half of two times 1 MB
    assert step.communication_s == pytest.approx(wire + outside * 2 + 5e-3) and step.compute_s == pytest.approx(0.2)
    assert step.seconds == pytest.approx(step.compute_s + step.communication_s)


def test_pack_may_be_filled_to_its_last_byte():
    assert scaling.group_gradients((10, 20, 30, 1), StepSettings(pack_bytes=60)) == [[0, 1, 2], [3]]
    assert scaling.group_gradients((1, 2, 3), StepSettings()) == [[2, 1, 0]]
    assert scaling.group_gradients((1, 2, 3), StepSettings(merge_scope=2)) == [[2, 1], [0]]


def test_overlapped_communication_never_ends_before_the_computation():
    free = Cluster(LinkCosts(0.0, 0.0), LinkCosts(0.0, 0.0))
    step = scaling.predict_step(
        TrainingCost(0.3, (1000, 1000, 1000)), free, 4, StepSettings(merge_scope=1, overlapped=True)
    )
    assert step.seconds == pytest.approx(step.compute_s) == pytest.approx(0.3 * free.workers_per_core(4))


def test_efficiency_is_the_share_of_the_ideal_throughput():
    settings = StepSettings(merge_scope=1)
    step = scaling.predict_step(TRAINING, CLUSTER, 8, settings)
    assert scaling.efficiency(TRAINING, CLUSTER, 8, settings) == pytest.approx(0.2 / step.seconds)
    assert scaling.efficiency(TRAINING, CLUSTER, 1, settings) == 1.0
