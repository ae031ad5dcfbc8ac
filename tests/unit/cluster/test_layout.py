"""Tests of layouts: ring order, roles, TF_CONFIG and the variables of other frameworks."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.agent import worker_files
from hopsml.cluster.driver.active_run import RunRequest, formation_of, launch_of
from hopsml.cluster.shared.layout import (
    GROUP_NAMES,
    OURS,
    Layout,
    Member,
    Placement,
    Roles,
    arrange,
    check_environment,
    form,
    group_variables,
    insert,
    reorder,
    ring_task_indices,
)
from hopsml.cluster.shared.protocol import Formation
from hopsml.cluster.shared.spec import RunSpec
from hopsml.errors import ArgumentError, EnvironmentConflict

pytestmark = pytest.mark.fast

TOPOLOGIES = Path(__file__).parent / "fixtures" / "topology"
TORN = "\tGPU0\tGPU1\nGPU0\t X \n"  # its second half is missing


def member(host: str = "10.0.0.1", port: int = 4000, **facts: object) -> Member:
    return Member(f"agent-{host}-{port}", host, port, port + 1, hostname=f"host-{host}", **facts)  # type: ignore[arg-type]


def order(layout: Layout) -> list[str]:
    return [placement.agent_id.removeprefix("agent-") for placement in layout.placements]


# -- ring order


def test_addresses_are_sorted_as_numbers() -> None:
    hosts = ["10.0.0.10", "10.0.0.9", "node10", "node9", "fd00::10", "fd00::9", "9.0.0.1"]
    expected = ["9.0.0.1", "10.0.0.9", "10.0.0.10", "fd00::9", "fd00::10", "node9", "node10"]
    assert order(form([member(host) for host in hosts])) == [f"{host}-4000" for host in expected]


def test_racks_stay_together_in_numeric_order() -> None:
    racks = {"10.0.0.1": "/rack10", "10.0.0.2": "/rack2", "10.0.0.3": "/rack10", "10.0.0.4": "/rack2"}
    layout = form([member(host, rack=rack) for host, rack in racks.items()])
    assert order(layout) == ["10.0.0.2-4000", "10.0.0.4-4000", "10.0.0.1-4000", "10.0.0.3-4000"]


def test_members_of_a_host_stay_together_by_slot() -> None:
    members = [member(f"10.0.0.{host}", 5000 - slot, slot=slot) for slot in (1, 0) for host in (2, 1)]
    layout = form(members)
    assert order(layout) == ["10.0.0.1-5000", "10.0.0.1-4999", "10.0.0.2-5000", "10.0.0.2-4999"]
    assert [p.local_rank for p in layout.placements] == [0, 1, 0, 1]


def test_host_with_two_rack_names_is_not_divided() -> None:
    members = [
        member(port=1, rack="/a"),
        member(port=2, rack="/z"),
        member("10.0.0.2", rack="/m"),
    ]
    assert order(form(members)) == ["10.0.0.1-1", "10.0.0.1-2", "10.0.0.2-4000"]


def test_newcomers_follow_the_members_of_their_host_and_the_leader_stays() -> None:
    ring = [member("10.0.0.2", slot=1), member("10.0.0.3")]
    grown = insert(ring, [member("10.0.0.1"), member("10.0.0.2", 4100, slot=0), member("10.0.0.1", 4100)])
    layout = arrange(grown)
    assert order(layout) == ["10.0.0.2-4000", "10.0.0.2-4100", "10.0.0.3-4000", "10.0.0.1-4000", "10.0.0.1-4100"]
    assert (layout.leader, layout.collective[0]) == ("10.0.0.2:4000", "10.0.0.2:4001")
    assert [(one.rank, one.local_rank) for one in layout.placements] == [(0, 0), (1, 1), (2, 0), (3, 0), (4, 1)]
    assert arrange(ring).placements == form(ring).placements  # of members in ring order they are the same
    with pytest.raises(ArgumentError, match="different numbers of GPUs"):
        arrange([*ring, member("10.0.0.4", gpu_indices=(0,))])


def of_hosts(*hosts: str) -> list[Member]:
    return [member(host, port) for port in (1, 2) for host in hosts]


def test_given_order_of_hosts_keeps_the_members_of_each_together() -> None:
    members = of_hosts("10.0.0.1", "10.0.0.2", "10.0.0.3")
    layout = form(members, order=["10.0.0.3", "host-10.0.0.1", "10.0.0.2"])
    assert order(layout) == [f"{host}-{port}" for host in ("10.0.0.3", "10.0.0.1", "10.0.0.2") for port in (1, 2)]
    assert layout.leader == "10.0.0.3:1" and [one.local_rank for one in layout.placements] == 3 * [0, 1]
    assert layout.notes[0].startswith("ring order as given: host-10.0.0.3 (rank 0), host-10.0.0.3 (rank 1), host-10")


@given(st.permutations(range(6)))
def test_given_order_of_ranks_permutes_the_usual_layout(ranks: list[int]) -> None:
    members = of_hosts("10.0.0.1", "10.0.0.2", "10.0.0.3")
    usual = order(form(members))
    layout = form(members, order=ranks)
    assert order(layout) == [usual[rank] for rank in ranks]
    assert [one.rank for one in layout.placements] == list(range(6))
    assert tensorflow_ring(layout) == [f"{name.split('-')[0]}:{name.split('-')[1]}" for name in order(layout)]


@pytest.mark.parametrize(
    ("given_order", "words"),
    [
        ([0, 1], "each rank from 0 to 3 once"),
        ([0, 1, 2, 4], "each rank from 0 to 3 once"),
        (["10.0.0.1"], "each host of the group once, which are host-10.0.0.1, host-10.0.0.2"),
        (["10.0.0.1", "10.0.0.2", "node7"], "each host of the group once"),
    ],
)
def test_incomplete_ring_order_of_a_fixed_group_is_refused(given_order: list[int | str], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        form(of_hosts("10.0.0.1", "10.0.0.2"), order=given_order)
    form(of_hosts("10.0.0.1", "10.0.0.2"), order=given_order, is_complete=False)


def test_ring_order_does_not_move_servers_and_evaluator() -> None:
    layout = form([member(f"10.0.0.{host}") for host in range(1, 6)], Roles(1, True), order=[2, 0, 1])
    assert [(one.role, one.agent_id[-6]) for one in layout.placements] == [
        ("chief", "3"), ("worker", "1"), ("worker", "2"), ("ps", "5"), ("evaluator", "4"),
    ]  # fmt: skip


def test_newcomers_take_their_places_in_a_given_order_and_the_leader_stays() -> None:
    ring = [member("10.0.0.2"), member("10.0.0.5")]
    newcomers = [member("10.0.0.4"), member("10.0.0.3"), member("10.0.0.2", 4100)]
    by_hosts = reorder(ring, newcomers, ["10.0.0.3", "10.0.0.2", "10.0.0.5"])
    assert order(arrange(by_hosts)) == [
        "10.0.0.2-4000", "10.0.0.3-4000", "10.0.0.2-4100", "10.0.0.5-4000", "10.0.0.4-4000",
    ]  # fmt: skip
    by_ranks = reorder(ring, newcomers, [1, 0])
    assert order(arrange(by_ranks))[:3] == ["10.0.0.2-4000", "10.0.0.5-4000", "10.0.0.4-4000"]
    assert reorder(ring, newcomers, []) == insert(ring, newcomers)


def one_gpu_each(topology: str, count: int) -> list[Member]:
    return [member(port=4000 + i, gpu_indices=(i,), topology=topology) for i in range(count)]


def test_members_with_one_gpu_each_follow_the_nvlinks() -> None:
    layout = form(one_gpu_each((TOPOLOGIES / "dgx1_v100.txt").read_text(), 8))
    assert [p.gpu_indices for p in layout.placements] == [(0,), (3,), (2,), (1,), (5,), (6,), (7,), (4,)]
    assert [p.env["CUDA_VISIBLE_DEVICES"] for p in layout.placements] == list("03215674")
    assert {p.ring_order for p in layout.placements} == {""}  # the ring is the order of the workers


def test_one_member_with_eight_gpus_gets_them_in_ring_order() -> None:
    topology = (TOPOLOGIES / "dgx1_v100.txt").read_text()
    (placement,) = form([member(gpu_indices=tuple(range(8)), topology=topology)]).placements
    assert placement.gpu_indices == (0, 3, 2, 1, 5, 6, 7, 4)
    assert placement.env["CUDA_VISIBLE_DEVICES"] == "0,3,2,1,5,6,7,4"
    assert placement.ring_order == "0,1,2,3,4,5,6,7"  # as the worker numbers what it sees


@pytest.mark.parametrize(("count", "ring_order"), [(0, ""), (1, ""), (2, "0,1"), (3, "0,1,2")])
def test_ring_order_requires_two_gpus(count: int, ring_order: str) -> None:
    (placement,) = form([member(gpu_indices=tuple(range(count)))]).placements
    assert placement.ring_order == ring_order


def test_one_ring_order_serves_hosts_with_different_wiring() -> None:
    dgx, pcie = ((TOPOLOGIES / f"{name}.txt").read_text() for name in ("dgx1_v100", "pcie_two_sockets"))
    layout = form(
        [
            member("10.0.0.1", gpu_indices=(0, 1, 2, 3), topology=dgx),
            member("10.0.0.2", gpu_indices=(0, 1, 2, 3), topology=pcie),
        ]
    )
    assert [p.gpu_indices for p in layout.placements] == [(0, 3, 2, 1), (0, 2, 1, 3)]
    assert {p.ring_order for p in layout.placements} == {"0,1,2,3"}


def test_members_with_two_gpus_each_are_ordered_by_the_links_between_them() -> None:
    """On the DGX-1, {0,1} has links to {2,3} and {4,5} but none to {6,7}: the ring follows the cube."""
    topology = (TOPOLOGIES / "dgx1_v100.txt").read_text()
    pairs = [(0, 1), (4, 5), (2, 3), (6, 7)]
    layout = form([member(port=4000 + i, gpu_indices=p, topology=topology) for i, p in enumerate(pairs)])
    assert [set(p.gpu_indices) for p in layout.placements] == [{0, 1}, {2, 3}, {6, 7}, {4, 5}]


def test_isolated_containers_are_ordered_by_bus() -> None:
    """Each container numbers its single GPU 0: only the bus distinguishes them."""
    buses = ["00000000:AF:00.0", "00000000:3B:00.0", "0000:5e:00.0"]
    single = (TOPOLOGIES / "single.txt").read_text()
    members = [
        member(port=4000 + i, gpu_indices=(0,), gpu_bus_ids=(bus,), topology=single) for i, bus in enumerate(buses)
    ]
    layout = form(members)
    assert order(layout) == ["10.0.0.1-4001", "10.0.0.1-4002", "10.0.0.1-4000"]
    assert layout.notes == ()


def test_members_are_ordered_by_bus_and_those_without_a_bus_are_first() -> None:
    buses = {1: ("0000:AF:00.0",), 2: ("MIG-7",), 3: (), 4: ("0000:3b:00.0",)}
    isolated = [member(port=port, gpu_indices=(0,), gpu_bus_ids=ids) for port, ids in buses.items()]
    assert order(form(isolated)) == [f"10.0.0.1-{port}" for port in (3, 2, 4, 1)]
    shared = [
        member(port=1, gpu_indices=(0,), gpu_bus_ids=("3B:00.0",)),
        member(port=2, gpu_indices=(1,), gpu_bus_ids=("0A:00.0",)),
    ]
    assert order(form(shared)) == ["10.0.0.1-2", "10.0.0.1-1"]


def test_gpus_of_a_member_without_topology_are_in_bus_order() -> None:
    buses = ("0000:B0:00.0", "0000:0A:00.0", "0000:3B:00.0")
    assert form([member(gpu_indices=(0, 1, 10), gpu_bus_ids=buses)]).placements[0].gpu_indices == (1, 10, 0)
    assert form([member(gpu_indices=(10, 2))]).placements[0].gpu_indices == (2, 10)


def test_unreadable_topology_is_noted_and_ignored() -> None:
    layout = form(one_gpu_each(TORN, 2))
    assert order(layout) == ["10.0.0.1-4000", "10.0.0.1-4001"]
    note = "the GPU topology of host-10.0.0.1 is ignored: the row GPU0 of the GPU topology has 1 of 2 links"
    assert layout.notes == (note,)
    assert form([member(gpu_indices=(1, 0), topology=TORN)]).notes == (note,)


def test_topology_text_with_all_gpus_of_a_host_is_preferred() -> None:
    dgx, two = ((TOPOLOGIES / f"{name}.txt").read_text() for name in ("dgx1_v100", "workstation_2"))
    no_matrix = "Failed to initialize NVML"
    good = "Links:\n" + dgx
    assert max(two, TORN, no_matrix, good) == good, "it is looked at last"
    members = one_gpu_each("", 4)
    texts = (good, TORN, two, no_matrix)
    layout = form([dataclasses.replace(one, topology=text) for one, text in zip(members, texts, strict=True)])
    assert [p.gpu_indices for p in layout.placements] == [(0,), (3,), (2,), (1,)] and len(layout.notes) == 1
    for text in (two, no_matrix):
        layout = form([dataclasses.replace(one, topology=text) for one in members])
        assert [p.gpu_indices for p in layout.placements] == [(0,), (1,), (2,), (3,)] and not layout.notes


def test_members_without_gpus_follow_those_with_gpus_by_slot() -> None:
    trainers = one_gpu_each((TOPOLOGIES / "workstation_2.txt").read_text(), 2)
    servers = [member(port=5000 - slot, slot=slot) for slot in (2, 0, 1)]
    layout = form([*servers, *trainers], Roles(parameter_servers=3))
    assert layout.cluster["ps"] == ["10.0.0.1:5000", "10.0.0.1:4999", "10.0.0.1:4998"]
    assert [p.local_rank for p in layout.placements] == [0, 1, 2, 3, 4]


# -- TF_CONFIG


def variables(layout: Layout, placement: Placement) -> dict[str, str]:
    """All that the worker of this placement finds in its environment."""
    task = placement.role, placement.task_index
    return placement.env | group_variables(layout.cluster_json, layout.leader, placement.world_size, *task)


def config(layout: Layout, rank: int) -> dict[str, dict[str, object]]:
    loaded: dict[str, dict[str, object]] = json.loads(variables(layout, layout.placements[rank])["TF_CONFIG"])
    return loaded


def test_tf_config_of_three_members_has_a_chief_and_two_workers() -> None:
    layout = form([member(f"10.0.0.{i}") for i in (1, 2, 3)])
    cluster = {"chief": ["10.0.0.1:4000"], "worker": ["10.0.0.2:4000", "10.0.0.3:4000"]}
    assert config(layout, 0) == {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    assert config(layout, 2) == {"cluster": cluster, "task": {"type": "worker", "index": 1}}
    assert layout.leader == "10.0.0.1:4000"


def test_tf_config_of_one_member_has_only_a_chief() -> None:
    layout = form([member("fd00::1")])
    assert config(layout, 0) == {
        "cluster": {"chief": ["[fd00::1]:4000"]},
        "task": {"type": "chief", "index": 0},
    }


def test_eleventh_worker_has_the_task_index_of_its_position_in_tensorflows_ring() -> None:
    """Ring position 3 is the third task name in text order, worker 10: it is given to the third worker."""
    layout = form([member(f"10.0.0.{i}") for i in range(1, 13)])
    assert [p.task_index for p in layout.placements] == [0, 0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9]
    assert layout.cluster["worker"][10] == "10.0.0.4:4000"


def tensorflow_ring(layout: Layout) -> list[str]:
    """The addresses in the order in which TensorFlow connects them: task names sorted as text."""
    tasks = {
        f"/job:{role}/replica:0/task:{index}": address
        for role in ("chief", "worker")
        for index, address in enumerate(layout.cluster.get(role, []))
    }
    return [tasks[name] for name in sorted(tasks)]


@st.composite
def clusters(draw: st.DrawFn, max_members: int = 300) -> list[Member]:
    """Hosts of several racks with a few members each, every one with the same number of GPUs."""
    count = draw(st.integers(1, max_members))
    per_host = draw(st.integers(1, 8))
    gpus = draw(st.sampled_from([0, 1, 2]))
    racks = draw(st.integers(1, 4))
    shuffled = random.Random(draw(st.integers(0, 2**32)))
    members = []
    for i in range(count):
        host, slot = divmod(i, per_host)
        members.append(
            member(
                f"10.{host // 200}.{host % 7}.{host % 200}",
                4000 + slot,
                rack=f"/r{host % racks}",
                slot=slot,
                gpu_indices=tuple(range(slot * gpus, (slot + 1) * gpus)),
            )
        )
    shuffled.shuffle(members)
    return members


@settings(deadline=None, max_examples=40)
@given(clusters())
def test_tensorflows_ring_equals_the_layouts_ring(members: list[Member]) -> None:
    by_agent = {m.agent_id: m.address for m in members}
    layout = form(members)
    assert tensorflow_ring(layout) == [by_agent[p.agent_id] for p in layout.placements]


@settings(deadline=None, max_examples=40)
@given(clusters(max_members=60), st.randoms(use_true_random=False))
def test_layout_does_not_depend_on_the_order_of_the_members(members: list[Member], chance: random.Random) -> None:
    shuffled = list(members)
    chance.shuffle(shuffled)
    assert form(shuffled) == form(members)


@settings(deadline=None, max_examples=40)
@given(clusters(max_members=60), st.integers(0, 59), st.booleans())
def test_layout_invariants_hold_for_all_roles(members: list[Member], servers: int, evaluator: bool) -> None:
    roles = Roles(servers, evaluator)
    if servers >= len(members) or (evaluator and len(members) - servers < 3):
        with pytest.raises(ArgumentError):
            form(members, roles)
        return
    layout = form(members, roles)
    placements = layout.placements
    by_agent = {m.agent_id: m for m in members}
    assert [p.rank for p in placements] == list(range(len(members)))
    assert sorted(p.agent_id for p in placements) == sorted(by_agent)
    trainers = [p for p in placements if p.role in ("chief", "worker")]
    assert trainers == list(placements[: len(trainers)])
    assert {p.world_size for p in placements} == {len(trainers)}
    assert len(trainers) == len(members) - servers - evaluator
    for placement in placements:  # each member is in the cluster at its own position
        address = by_agent[placement.agent_id].address
        assert layout.cluster[placement.role][placement.task_index] == address
    assert sum(map(len, layout.cluster.values())) == len(members)
    hosts = [by_agent[p.agent_id].host for p in trainers]
    assert len(list(itertools.groupby(hosts))) == len(set(hosts))  # each host in one piece
    local = [(by_agent[p.agent_id].host, p.local_rank) for p in placements]
    assert len(set(local)) == len(local)


def test_ring_task_indices_ascend_as_text() -> None:
    assert ring_task_indices(0) == ()
    for count in (1, 10, 11, 101, 300):
        indices = ring_task_indices(count)
        assert sorted(indices) == list(range(count))
        assert [f"task:{i}" for i in indices] == sorted(f"task:{i}" for i in indices)


def test_layout_of_a_thousand_members_takes_less_than_a_second() -> None:
    members = [member(f"10.0.{i // 200}.{i % 200}") for i in range(1024)]
    start_s = time.process_time()
    layout = form(members)
    configs = [variables(layout, placement)["TF_CONFIG"] for placement in layout.placements]
    assert time.process_time() - start_s < 1.0
    assert json.loads(configs[1023])["cluster"] == layout.cluster


# -- roles


def test_last_members_become_parameter_servers_and_evaluator() -> None:
    layout = form([member(f"10.0.0.{i}") for i in range(1, 7)], Roles(2, evaluator=True))
    assert [(p.role, p.task_index) for p in layout.placements] == [
        ("chief", 0),
        ("worker", 0),
        ("worker", 1),
        ("ps", 0),
        ("ps", 1),
        ("evaluator", 0),
    ]
    assert layout.cluster["evaluator"] == ["10.0.0.4:4000"]
    assert layout.cluster["ps"] == ["10.0.0.5:4000", "10.0.0.6:4000"]
    assert list(layout.cluster) == ["chief", "worker", "ps", "evaluator"]


def test_members_without_gpus_become_parameter_servers_first() -> None:
    members = [member("10.0.0.1"), *(member(f"10.0.0.{i}", gpu_indices=(0,)) for i in (2, 3))]
    layout = form(members, Roles(parameter_servers=1))
    assert layout.cluster["ps"] == ["10.0.0.1:4000"]
    assert layout.leader == "10.0.0.2:4000"


def test_parameter_servers_see_no_gpu() -> None:
    layout = form([member(f"10.0.0.{i}", gpu_indices=(0,)) for i in (1, 2)], Roles(parameter_servers=1))
    assert layout.placements[1].env == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "-1", "HOPSML_ADDRESS": "10.0.0.2:4000",
    }  # fmt: skip


def servers_refused(servers: int, possible: str) -> str:
    rule = f"at least one member must train; use 0 to {possible} parameter servers"
    return f"parameter_servers={servers} with 2 member(s): {rule}"


def test_separate_evaluator_has_its_own_cluster() -> None:
    members, roles = [member(f"10.0.0.{i}") for i in range(1, 6)], Roles(1, evaluator=True)
    layout = form(members, roles, evaluator_apart=True)
    assert list(layout.cluster) == ["chief", "worker", "ps"]
    *others, evaluator = layout.placements
    assert json.loads(evaluator.env["TF_CONFIG"]) == {
        "cluster": {"evaluator": [form(members, roles).cluster["evaluator"][0]]},
        "task": {"type": "evaluator", "index": 0},
    }
    assert not any("TF_CONFIG" in one.env for one in others)


def evaluator_refused(workers: int) -> str:
    remedy = "request more workers, or omit the evaluator"
    return f"evaluator=True with {workers} worker(s): the evaluator is the last of at least 3 workers; {remedy}"


@pytest.mark.parametrize(
    ("count", "roles", "complaint"),
    [
        (2, Roles(parameter_servers=2), servers_refused(2, "1")),
        (2, Roles(parameter_servers=-1), servers_refused(-1, "1")),
        (2, Roles(evaluator=True), evaluator_refused(2)),
        (4, Roles(2, True), evaluator_refused(2)),
    ],
)
def test_roles_without_enough_members_are_refused(count: int, roles: Roles, complaint: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        form([member(f"10.0.0.{i}") for i in range(count)], roles)
    assert str(refused.value) == complaint


@pytest.mark.parametrize(
    ("count", "roles", "trainers"), [(2, Roles(1), 1), (3, Roles(0, True), 2), (5, Roles(2, True), 2)]
)
def test_minimum_number_of_members_can_fill_the_roles(count: int, roles: Roles, trainers: int) -> None:
    layout = form([member(f"10.0.0.{i}") for i in range(count)], roles)
    assert layout.placements[0].world_size == trainers


# -- what is refused


def test_layout_without_members_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^a layout needs at least one member; none was given$"):
        form([])


@pytest.mark.parametrize(("first", "second"), [("10.0.0.1", "10.0.0.1"), ("::1", "0:0::1"), ("N1.lan", "n1.lan.")])
def test_two_members_with_one_address_are_refused(first: str, second: str) -> None:
    twins = [member(first), dataclasses.replace(member(second), agent_id="twin")]
    with pytest.raises(ArgumentError, match=r"two members have the address .*, agent-.* and twin"):
        form(twins)


def test_two_members_with_one_agent_id_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"two members have the agent id agent-10\.0\.0\.1-4000"):
        form([member(), dataclasses.replace(member(), port=4001)])


@pytest.mark.parametrize("bad", [{"host": ""}, {"port": 0}, {"port": 65536}])
def test_invalid_host_or_port_is_refused(bad: dict[str, object]) -> None:
    one = dataclasses.replace(member(), **bad)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError) as refused:
        form([one])
    rule = "a host and a port from 1 to 65535 are needed"
    assert str(refused.value) == f"agent {one.agent_id} has the address '{one.address}': {rule}"


@pytest.mark.parametrize("port", [1, 65535])
def test_lowest_and_highest_port_are_accepted(port: int) -> None:
    assert form([member(port=port)]).leader == f"10.0.0.1:{port}"


def test_workers_with_different_numbers_of_gpus_are_refused() -> None:
    members = [member("10.0.0.1", gpu_indices=(0, 1)), member("10.0.0.2", gpu_indices=(0,))]
    with pytest.raises(ArgumentError) as refused:
        form(members)
    assert str(refused.value) == (
        "the workers hold different numbers of GPUs (agent-10.0.0.1-4000 on host-10.0.0.1: 2, agent-10.0.0.2-4000 on "
        "host-10.0.0.2: 1), but all need the same number; set the same spark.executor.resource.gpu.amount for all"
    )
    assert form(members, Roles(parameter_servers=1)).leader == "10.0.0.1:4000"  # a server needs none


@pytest.mark.parametrize(("count", "is_shortened"), [(20, False), (21, True)])
def test_error_about_different_numbers_of_gpus_lists_at_most_twenty_workers(count: int, is_shortened: bool) -> None:
    members = [member(port=port, gpu_indices=tuple(range(1 + (port == 1)))) for port in range(1, count + 1)]
    with pytest.raises(ArgumentError) as refused:
        form(members)
    assert str(refused.value).count(" on host-") == 20 and (", ...)" in str(refused.value)) == is_shortened


def test_mismatched_or_duplicate_gpu_indices_are_refused() -> None:
    with pytest.raises(ArgumentError, match="1 GPU indices and 2 bus ids"):
        form([member(gpu_indices=(0,), gpu_bus_ids=("a", "b"))])
    with pytest.raises(ArgumentError, match="lists a GPU twice"):
        form([member(gpu_indices=(1, 1))])


def test_evaluator_sees_its_gpus() -> None:
    layout = form([member(f"10.0.0.{i}", gpu_indices=(0,)) for i in range(1, 5)], Roles(evaluator=True))
    assert layout.placements[3].role == "evaluator" and layout.placements[3].gpu_indices == (0,)
    assert layout.placements[3].env["CUDA_VISIBLE_DEVICES"] == "0"


# -- PyTorch


def test_node_ranks_follow_the_ring_order() -> None:
    hosts = ("2.0.0.1", "10.0.0.1", "node9", "node10")
    layout = form([member(host) for host in reversed(hosts)])
    nodes = {p.agent_id: variables(layout, p)["NODE_RANK"] for p in layout.placements}
    assert nodes == {f"agent-{host}-4000": str(node) for node, host in enumerate(hosts)}


def test_parameter_server_does_not_count_in_local_world_size() -> None:
    layout = form([member("10.0.0.1", 4000 + slot, slot=slot) for slot in range(3)], Roles(parameter_servers=1))
    assert variables(layout, layout.placements[0])["LOCAL_WORLD_SIZE"] == "2"


def torch_variables(layout: Layout, rank: int) -> dict[str, str]:
    return {n: v for n, v in variables(layout, layout.placements[rank]).items() if n in GROUP_NAMES}


def test_torch_variables_are_set_for_training_members_only() -> None:
    members = [member(f"10.0.0.{host}", 4000 + slot, slot=slot) for host in (1, 2) for slot in (0, 1)]
    layout = form([*members, member("10.0.0.3")], Roles(parameter_servers=1))
    assert torch_variables(layout, 3) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
    }
    assert torch_variables(layout, 4) == {}


@pytest.mark.parametrize("host", ["fd00::1", "XEON-X"])
def test_torch_master_is_an_address_without_brackets(host: str) -> None:
    layout = form([member(host)])
    assert variables(layout, layout.placements[0])["MASTER_ADDR"] == host


def test_agent_derives_the_variables_of_the_layout_from_its_messages() -> None:
    members = [member(f"10.0.0.{i}", gpu_indices=(i,)) for i in range(1, 5)]
    layout = form(members, Roles(parameter_servers=1, evaluator=True))
    request = RunRequest("run", RunSpec(), b"", "file:///run")
    for placement in layout.placements:
        sent = formation_of(request, layout, 0, b"key"), launch_of(request, placement, 0)
        expected = variables(layout, placement)
        ours = ",".join(name for name in GROUP_NAMES if name in expected)
        found = worker_files._environment(*sent, {})
        assert found.pop("no_proxy") == found.pop("NO_PROXY") == ",".join(dict.fromkeys(_hosts(sent[0])))
        assert found == {**expected, OURS: ours}


def _hosts(formation: Formation) -> list[str]:
    tasks = json.loads(formation.cluster_json).values()
    return [address.partition(":")[0] for addresses in tasks for address in addresses]


def test_run_without_tf_config_has_only_the_torch_variables() -> None:
    assert group_variables("", "10.0.0.1:4000", 2, "worker", 0) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000",
        "WORLD_SIZE": "2",
    }
    assert group_variables("", "10.0.0.1:4000", 2, "ps", 0) == {}


# -- the user's environment


def test_clean_environment_is_accepted() -> None:
    check_environment({"PATH": "/bin", "TF_CONFIG": "  "})


@pytest.mark.parametrize(
    ("name", "value"), [("TF_CONFIG", "{}"), ("CUDA_VISIBLE_DEVICES", "0"), ("CUDA_VISIBLE_DEVICES", "")]
)
def test_variables_set_by_the_user_are_refused(name: str, value: str) -> None:
    with pytest.raises(EnvironmentConflict) as refused:
        check_environment({name: value})
    assert str(refused.value) == (
        f"{name} is already set ('{value}'), but hopsml must set it for every worker; unset it, or pass "
        "honour_environment=True to use its value"
    )


@pytest.mark.parametrize(("length", "shown"), [(60, "7" * 60), (61, "7" * 57 + "...")])
def test_long_value_of_a_variable_is_shortened_in_the_error(length: int, shown: str) -> None:
    with pytest.raises(EnvironmentConflict) as refused:
        check_environment({"RANK": "7" * length})
    assert f"('{shown}')" in str(refused.value)


def test_honour_environment_accepts_variables_of_the_user() -> None:
    own = '{"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":0}}'
    check_environment({"TF_CONFIG": own, "CUDA_VISIBLE_DEVICES": "2,0"}, honour=True)


@pytest.mark.parametrize("value", ["{", "[1]", "chief"])
def test_invalid_tf_config_of_the_user_is_refused(value: str) -> None:
    with pytest.raises(EnvironmentConflict, match="not a JSON object"):
        check_environment({"TF_CONFIG": value}, honour=True)


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_torch_variables_of_the_user_are_refused_unless_honoured(name: str) -> None:
    with pytest.raises(EnvironmentConflict, match=rf"{name} is already set .* honour_environment=True"):
        check_environment({name: "7"})
    check_environment({name: "7"}, honour=True)
    check_environment({name: "7", "HOPSML_GROUP_VARIABLES": f"X,{name}"})  # set by hopsml for the worker that this is


def test_collective_has_the_training_members_in_rank_order_on_separate_ports() -> None:
    members = [member(f"10.0.0.{i}", gpu_indices=(i,)) for i in (3, 1, 2, 4)] + [member("fd00::1", 5000)]
    layout = form(members, Roles(parameter_servers=1, evaluator=True))
    assert layout.collective == tuple(f"10.0.0.{i}:4001" for i in (1, 2, 3))
    assert form([member("fd00::1", 5000)]).collective == ("[fd00::1]:5001",)
