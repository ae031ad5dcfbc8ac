"""Tests of the rules by which measurements pass the preflight."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from hopsml.cluster.driver.preflight import rules
from hopsml.cluster.driver.preflight.rules import SlotLimits
from hopsml.cluster.shared.protocol import GpuFacts, PeerProbed, PreflightFacts

pytestmark = pytest.mark.fast
GOOD = PreflightFacts(
    clock=1000.0,
    host="10.0.0.1",
    door=4000,
    folder="/scratch",
    open_files=65536,
    stack_mb=8.0,
    shared_memory_mb=64.0,
    disk_mb=5000.0,
    write_mb_s=80.0,
    disk_problem="",
    versions={"python": "3.11.7", "hopsml": "0.1.0", "tensorflow": "2.21.0"},
    gpus=(GpuFacts(0, 0, 50, 0),),
)


def facts_with(**changed: Any) -> PreflightFacts:
    return msgspec.structs.replace(GOOD, **changed)


def test_good_slot_and_unlimited_resources_have_no_fault() -> None:
    assert rules.own_faults(GOOD, 999.9, 1000.1) == []
    assert rules.own_faults(facts_with(open_files=-1, stack_mb=-1.0), 999.9, 1000.1) == []
    assert rules.group_faults(GOOD, 8) == rules.group_faults(facts_with(open_files=-1), 100_000) == []


@pytest.mark.parametrize(
    ("changed", "rule", "figure"),
    [
        ({"stack_mb": 0.5}, "stack size", "0.5 MB, at least 1"),
        ({"shared_memory_mb": 3.7}, "shared memory", "4 MB free in /dev/shm, at least 32"),
        ({"disk_mb": 12.0}, "disk space", "12 MB free in /scratch, at least 512"),
        ({"disk_problem": "No space left on device after 0.5 MB"}, "disk write", "No space left on device"),
        ({"write_mb_s": 0.25}, "disk speed", "0.25 MB/s into /scratch, at least 1"),
        ({"clock": 993.0}, "clock skew", "-7.0 s from the driver's clock, at most 5"),
        ({"clock": 1007.0}, "clock skew", "+7.0 s"),
        ({"gpus": (GpuFacts(0, 0, 50, 0), GpuFacts(3, 2, 50, 0))}, "GPU ECC", "GPU 3: 2 uncorrected"),
        ({"gpus": (GpuFacts(0, 0, 97, 0),)}, "GPU temperature", "97 °C, at most 90"),
        ({"gpus": (GpuFacts(1, 0, 50, 2),)}, "GPU processes", "GPU 1: 2 processes of other users"),
        (
            {"gpus": (GpuFacts(0, 0, 50, 0, "535.183.01", 12020),), "needed_cuda": 13},
            "GPU driver",
            "driver 535.183.01 supports CUDA 12.2, the installed frameworks need CUDA 13",
        ),
        ({"gpus": (GpuFacts(2, 0, 50, 0, xids=(79, 94)),)}, "GPU Xid", "GPU 2: the kernel's log has Xid 79, 94"),
        ({"gpus": (GpuFacts(0, 0, 50, 0, rows_pending=True),)}, "GPU memory rows", "replaced at the next reset"),
        ({"gpus": (GpuFacts(0, 0, 50, 0, rows_failed=True),)}, "GPU memory rows", "could not be replaced"),
        ({"gpus": (GpuFacts(0, 0, 50, 0, throttling=("power brake",)),)}, "GPU throttling", "(power brake)"),
    ],
)
def test_fault_names_the_figure_and_the_rule(changed: dict[str, Any], rule: str, figure: str) -> None:
    (fault,) = rules.own_faults(facts_with(**changed), 1000.0, 1000.0)
    assert fault.rule == rule and figure in fault.text and fault.text.startswith(rule)


@pytest.mark.parametrize(("driver_cuda", "needed_cuda"), [(12020, 12), (13000, 12), (0, 13), (12020, 0)])
def test_driver_of_the_same_or_a_newer_cuda_or_of_an_unknown_one_is_no_fault(
    driver_cuda: int, needed_cuda: int
) -> None:
    gpu = GpuFacts(0, 0, 50, 0, "535.183.01", driver_cuda)
    assert rules.own_faults(facts_with(gpus=(gpu,), needed_cuda=needed_cuda), 1000.0, 1000.0) == []


def test_driver_without_persistence_mode_is_a_warning_and_no_fault() -> None:
    off, on, unknown = (
        facts_with(host=f"h{one}", gpus=(GpuFacts(0, 0, 50, 0, persistent=one),)) for one in (False, True, None)
    )
    assert list(rules.driver_warnings((off, on, unknown))) == ["hFalse"]
    assert "nvidia-smi -pm 1" in rules.driver_warnings((off,))["hFalse"]
    assert rules.own_faults(off, 1000.0, 1000.0) == []


@pytest.mark.parametrize(("members", "needed"), [(1, 258), (2, 260), (384, 1024), (1024, 2304)])
def test_open_files_needed_grow_with_the_members_of_the_group(members: int, needed: int) -> None:
    assert rules.open_files_of_worker(members) == needed
    assert rules.group_faults(facts_with(open_files=needed), members) == []
    (fault,) = rules.group_faults(facts_with(open_files=needed - 1), members)
    assert fault.rule == "open-file limit"
    group = "a group of 1 worker" if members == 1 else f"a group of {members} workers"
    assert f"{needed - 1}, at least {needed} are needed in {group}; raise it (ulimit -n" in fault.text


COMPARED = ("pair_mb_s", "core_share", "open_files", "files_per_member")


@pytest.mark.parametrize(
    "field", [field.name for field in dataclasses.fields(SlotLimits) if field.name not in COMPARED]
)
def test_every_limit_is_checked(field: str) -> None:
    """A limit that is moved past the good slot's figure makes it a bad one."""
    beyond = {"clock_skew_s": -1.0, "gpu_temperature_c": 1}.get(field, 1e9)
    assert len(rules.own_faults(GOOD, 1000.0, 1000.0, dataclasses.replace(SlotLimits(), **{field: beyond}))) == 1


def test_delayed_measurements_are_no_clock_skew() -> None:
    """The clock was read between the agent's connection and the receipt of the measurements."""
    assert rules.own_faults(GOOD, 999.0, 1019.2) == []
    (fault,) = rules.own_faults(facts_with(clock=993.0), 1000.0, 1020.0)
    assert "-7.0 s from the driver's clock" in fault.text
    (fault,) = rules.own_faults(facts_with(clock=1027.0), 1000.0, 1020.0)
    assert "+7.0 s" in fault.text


def test_members_are_compared_with_the_most_frequent_versions() -> None:
    other = facts_with(versions={**GOOD.versions, "tensorflow": "2.20.0"})
    without = facts_with(versions={"python": "3.11.7", "hopsml": "0.1.0"})
    assert rules.version_faults({"a": GOOD, "b": GOOD}) == {}
    (fault,) = rules.version_faults({"a": other, "b": GOOD, "c": GOOD})["a"]
    assert fault.text.startswith("version: tensorflow 2.20.0, the other members have 2.21.0")
    assert list(rules.version_faults({"a": GOOD, "b": other})) == ["b"]
    assert "tensorflow none" in rules.version_faults({"a": GOOD, "b": GOOD, "c": without})["c"][0].text


def test_core_speed_is_compared_with_the_median_member() -> None:
    members = {
        name: facts_with(core_mb_s=speed) for name, speed in (("a", 400.0), ("b", 90.0), ("c", 410.0), ("d", 300.0))
    }
    found = rules.core_faults(members)
    assert list(found) == ["b"] and found["b"][0].text.startswith(
        "core speed: 90 MB/s of SHA-256, the median member has 350"
    )
    assert rules.core_faults({name: members[name] for name in "ab"}) == {}  # which of the two is unusual?
    assert rules.core_faults({**members, "b": facts_with(core_mb_s=0.0)}) == {}  # an agent that did not measure
    assert rules.core_faults(members, SlotLimits(core_share=0.1)) == {}


def test_failed_probe_is_blamed_on_the_member_with_more_failures() -> None:
    failed = "did not answer"
    ring = [
        ("a", PeerProbed("b", 0.0, failed)),
        ("b", PeerProbed("c", 0.0, failed)),
        ("c", PeerProbed("d", 500.0)),
        ("d", PeerProbed("a", 500.0)),
    ]
    faults = rules.pair_faults(ring, str.upper, str)
    assert list(faults) == ["b"] and len(faults["b"]) == 2
    assert "between it and A: did not answer" in faults["b"][0].text
    assert list(rules.pair_faults([("a", PeerProbed("b", 0.0, failed))], str, str)) == ["b"]  # it did not answer


def test_slow_pair_is_a_fault_with_its_figure() -> None:
    faults = rules.pair_faults([("a", PeerProbed("b", 1.25))], str, str)
    assert "1.2 MB/s, at least 5 are needed" in faults["b"][0].text
    assert rules.pair_faults([("a", PeerProbed("b", 50.0))], str, str) == {}


def test_slow_pair_on_one_host_is_not_blamed_on_a_cable() -> None:
    slow = [("a", PeerProbed("b", 4.7))]
    (fault,) = rules.pair_faults(slow, str, lambda one: "10.0.0.1")["b"]
    assert "4.7 MB/s" in fault.text and "load its processors" in fault.text and "cable" not in fault.text
    (fault,) = rules.pair_faults(slow, str, str)["b"]
    assert "cable" in fault.text and "processors" not in fault.text
