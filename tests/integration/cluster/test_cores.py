"""Tests of workers' exclusive cores: number, selection, no sharing between processes; on simulated hosts."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hopsml.cluster.agent import core_lock
from hopsml.cluster.agent.core_lock import NAME, HostCore, Share, SlotCores, WorkerCores, choose_cores, share_of_cores
from hopsml.cluster.shared.protocol import Formation, Launch
from hopsml.cluster.shared.spec import IndependentGroup, RunSpec, ServerGroup
from hopsml.core.variables import Settings
from hopsml.errors import ArgumentError
from tests.unit.cluster.test_gpus import as_stranger, locks, open_locks

pytestmark = pytest.mark.local
__all__ = ["locks", "open_locks"]

ROOT = Path(__file__).parents[3]
EIGHT = [HostCore(number // 4, number // 4, number % 4, number) for number in range(8)]  # on two nodes
THREADS = sorted(HostCore(0, 0, number % 4, number) for number in range(8))  # four cores with two threads each
FORMATION = Formation(
    run_id="run", generation=0, spec=RunSpec(), payload=b"", run_url="file:///run", cluster_json="", leader="", world_size=2
)  # fmt: skip

# An agent's side: acquires its worker's cores, prints them, and holds them until its input ends.
AGENT = """
import os, sys
from pathlib import Path
from tests.integration.cluster.test_cores import FORMATION, launch
from hopsml.cluster.agent.core_lock import SlotCores
directory, cores, workers, place = sys.argv[1:]
os.sched_getaffinity = lambda pid: set(range(int(cores)))
slot = SlotCores(0, [Path(directory)])
print(*slot.acquire_for(FORMATION, launch(int(workers), int(place))).numbers, flush=True)
sys.stdin.read()
"""


def launch(workers: int = 2, place: int = 0, role: str = "worker", gpus: tuple[int, ...] = ()) -> Launch:
    return Launch(
        run_id="run", generation=0, rank=place, local_rank=place, role=role, task_index=0, gpu_indices=gpus, ring_order="",
        environment={"LOCAL_WORLD_SIZE": str(workers)},
    )  # fmt: skip


def run_with(**variables: str) -> Formation:
    return msgspec.structs.replace(FORMATION, spec=RunSpec(environment=variables))


class Agent:
    """A process that holds cores."""

    def __init__(self, directory: Path, cores: int, workers: int, place: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, *map(str, (directory, cores, workers, place))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
        )  # fmt: skip

    def numbers(self) -> tuple[int, ...]:
        """Waits until it has them."""
        assert self.process.stdout is not None
        return tuple(map(int, self.process.stdout.readline().split()))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(core_lock, "cpu_quota", lambda: float("inf"))


@pytest.fixture
def slots(locks: Path) -> Iterator[list[SlotCores]]:
    """Three agents' of one host."""
    made = [SlotCores(0, [locks]) for _ in range(3)]
    yield made
    for slot in made:
        slot.release()


# -- how many


@pytest.mark.parametrize(
    ("available", "workers", "settings", "expected"),
    [
        (2, 2, {}, Share(1, own=True)),
        (8, 2, {}, Share(4, own=True)),
        (2, 3, {}, Share(1, own=False)),  # one would wait for another's core while a third one rests
        (8, 1, {}, None),
        (8, 4, {"slot": 2}, Share(2, own=True)),
        (8, 2, {"slot": 2}, Share(2, own=True)),
        (8, 1, {"slot": 2}, Share(2, own=False)),  # others may be in a container with invisible locks
        (2, 2, {"slot": 2}, Share(2, own=False)),
        (8, 1, {"asked": 3}, Share(3, own=True)),
        (2, 1, {"asked": 3}, Share(2, own=False)),
        (8, 2, {"asked": 1, "slot": 2}, Share(1, own=True)),
    ],
)
def test_share_of_cores_follows_from_cores_workers_and_settings(
    available: int, workers: int, settings: dict[str, int], expected: Share | None
) -> None:
    assert share_of_cores(available, workers, **settings) == expected


@pytest.mark.parametrize(("text", "found"), [("", None), ("auto", None), ("0", 0), ("2", 2)])
def test_hopsml_cores_is_auto_or_a_number(text: str, found: int | None) -> None:
    assert Settings({"HOPSML_CORES": text}).cores == found


@pytest.mark.parametrize("text", ["-1", "all", "1.5"])
def test_invalid_number_of_cores_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"HOPSML_CORES=.*the number of cores"):
        _ = Settings({"HOPSML_CORES": text}).cores


# -- which ones


def test_each_worker_of_a_host_gets_adjacent_cores() -> None:
    found = [choose_cores(EIGHT, range(8), 2, place) for place in range(4)]
    assert found == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_worker_gets_cores_of_one_numa_node_where_possible() -> None:
    assert [choose_cores(EIGHT, range(8), 3, place) for place in range(2)] == [(0, 1, 2), (4, 5, 6)]
    assert choose_cores(EIGHT, {3, 7}, 2, 0) == (3, 7)


def test_hardware_threads_of_one_core_go_to_one_worker() -> None:
    assert [choose_cores(THREADS, range(8), 2, place) for place in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_workers_with_one_thread_each_use_different_cores_first() -> None:
    assert [choose_cores(THREADS, range(8), 1, place) for place in range(5)] == [(0,), (1,), (2,), (3,), (4,)]


def test_only_free_cores_are_chosen() -> None:
    assert choose_cores(EIGHT, {2, 3, 4, 5}, 2, 0) == (2, 3)
    assert choose_cores(EIGHT, {1, 3}, 2, 0) == (1, 3)
    assert choose_cores(EIGHT, {1}, 2, 0) == ()


def test_core_topology_is_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5})
    for number, (node, core) in enumerate([(1, 0), (0, 0), (1, 0)]):
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology.parent / f"node{node}").mkdir()
        (topology / "physical_package_id").write_text(f"{node}\n")
        (topology / "core_id").write_text(f"{core}\n")
    assert [core.number for core in core_lock.host_cores(tmp_path)] == [1, 5, 0, 2]


@pytest.mark.parametrize(
    ("line", "files", "cores"),
    [
        ("0::/pod/own", {"cpu.max": "max 100000", "pod/cpu.max": "250000 100000", "pod/own/cpu.max": "max 100000"}, 2.5),
        ("0::/", {}, float("inf")),
        ("3:cpu,cpuacct:/c", {"cpu,cpuacct/c/cpu.cfs_quota_us": "400000", "cpu,cpuacct/c/cpu.cfs_period_us": "100000"}, 4.0),
        ("3:cpu:/c", {"cpu/c/cpu.cfs_quota_us": "-1", "cpu/c/cpu.cfs_period_us": "100000"}, float("inf")),
        ("4:cpuset:/c", {"cpuset/c/cpu.max": "100000 100000"}, float("inf")),
    ],
)  # fmt: skip
def test_cpu_quota_is_read_from_the_control_group(
    tmp_path: Path, line: str, files: dict[str, str], cores: float
) -> None:
    for name, content in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{content}\n")
    (tmp_path / "own").write_text(f"{line}\n")
    assert core_lock.cpu_quota(tmp_path / "groups", tmp_path / "own") == cores


# -- taking them


@pytest.mark.usefixtures("two_cores")
def test_two_workers_on_two_cores_get_one_each(slots: list[SlotCores]) -> None:
    taken = [slot.acquire_for(FORMATION, launch(2, place)) for place, slot in enumerate(slots[:2])]
    assert taken == [WorkerCores((0,), 1), WorkerCores((1,), 1)]


@pytest.mark.usefixtures("two_cores")
def test_three_workers_on_two_cores_get_none(slots: list[SlotCores]) -> None:
    assert [slot.acquire_for(FORMATION, launch(3, place)) for place, slot in enumerate(slots)] == [
        WorkerCores((), 1)
    ] * 3


@pytest.mark.usefixtures("two_cores")
def test_cores_of_another_run_are_available_once_released(slots: list[SlotCores]) -> None:
    first, second, other = slots
    first.acquire_for(FORMATION, launch(2, 0))
    second.acquire_for(FORMATION, launch(2, 1))
    assert other.acquire_for(FORMATION, launch(2, 0)) == WorkerCores((), 1)
    second.release()
    assert other.acquire_for(FORMATION, launch(2, 0)) == WorkerCores((1,), 1)
    assert first.acquire_for(FORMATION, launch(2, 0)) == WorkerCores((0,), 1)  # its next worker


@pytest.mark.usefixtures("two_cores")
def test_roles_without_exclusive_cores_get_none(slots: list[SlotCores]) -> None:
    independent = msgspec.structs.replace(FORMATION, spec=RunSpec(group=IndependentGroup()))
    servers = msgspec.structs.replace(FORMATION, spec=RunSpec(group=ServerGroup(size=3)))
    for formation, one in (
        (FORMATION, launch(1)),
        (FORMATION, launch(2, role="ps")),
        (FORMATION, launch(2, role="evaluator")),
        (FORMATION, launch(2, gpus=(0,))),
        (independent, launch(2)),
        (servers, launch(2)),
        (run_with(HOPSML_CORES="0"), launch(2)),
    ):
        assert slots[0].acquire_for(formation, one) == WorkerCores()


@pytest.mark.usefixtures("two_cores")
def test_jax_gets_a_single_core_only_if_it_is_requested(slots: list[SlotCores]) -> None:
    of_jax = msgspec.structs.replace(FORMATION, spec=msgspec.structs.replace(FORMATION.spec, framework="jax"))
    requested = msgspec.structs.replace(
        of_jax, spec=msgspec.structs.replace(of_jax.spec, environment={"HOPSML_CORES": "1"})
    )
    assert slots[0].acquire_for(of_jax, launch(2)) == WorkerCores()
    assert slots[0].acquire_for(requested, launch(2)) == WorkerCores((0,), 1)


@pytest.mark.usefixtures("two_cores")
def test_killed_agent_releases_its_cores(locks: Path, slots: list[SlotCores]) -> None:
    agent = Agent(locks, 2, 2, 0)
    try:
        assert agent.numbers() == (0,)
        assert slots[0].acquire_for(FORMATION, launch(2, 0)).numbers == (1,)
        assert slots[1].acquire_for(FORMATION, launch(2, 1)).numbers == ()
    finally:
        agent.kill()
    assert slots[1].acquire_for(FORMATION, launch(2, 1)).numbers == (0,)


def test_agents_that_start_simultaneously_get_different_cores(locks: Path) -> None:
    agents = [Agent(locks, 4, 4, 0) for _ in range(4)]  # as those of two runs: each prefers the first core
    try:
        assert sorted(agent.numbers() for agent in agents) == [(0,), (1,), (2,), (3,)]
    finally:
        for agent in agents:
            agent.kill()


@pytest.mark.usefixtures("two_cores")
def test_cores_locked_by_another_user_are_not_chosen(open_locks: Path) -> None:
    def act() -> None:
        folder = open_locks / NAME
        folder.mkdir(exist_ok=True)
        fcntl.flock(os.open(folder / "core-0", os.O_RDWR | os.O_CREAT, 0o666), fcntl.LOCK_EX)

    slot = SlotCores(0, [open_locks])
    with as_stranger(act):
        assert slot.acquire_for(FORMATION, launch(2, 0)).numbers == (1,)
    slot.release()


@pytest.mark.usefixtures("two_cores")
def test_no_cores_are_assigned_without_a_lock_directory(tmp_path: Path) -> None:
    assert SlotCores(0, [tmp_path / "missing"]).acquire_for(FORMATION, launch(2)) == WorkerCores((), 1)


# -- variables of a worker


def test_thread_counts_follow_the_cores_unless_set_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # Spark's, or the user's
    variables = WorkerCores((0, 1), 2).variables({"TF_NUM_INTEROP_THREADS": "5"})
    assert variables == {"TF_NUM_INTRAOP_THREADS": "2"}
    assert WorkerCores().variables({}) == {}
