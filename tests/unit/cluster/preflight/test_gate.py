"""Tests of the gate: which acquired agents a run receives, and when."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.driver.preflight import rules
from hopsml.cluster.driver.preflight.gate import (
    FIGURES_S,
    SMALL,
    AdmitAgents,
    ExcludeAgents,
    Gate,
    PublishWarning,
    RefuseRun,
    ReplaceAgents,
    RequestProbe,
)
from hopsml.cluster.shared.protocol import GpuFacts, PeerProbed
from hopsml.cluster.shared.spec import PreflightMode
from tests.helpers.operations import operations
from tests.unit.cluster.preflight.test_rules import facts_with

pytestmark = pytest.mark.fast
NOW = 10.0


def gate(mode: PreflightMode, size: int = 2, whole: bool = True, connected: bool = True) -> Gate:
    found = Gate()
    found.add_run("run", mode, size, whole, connected)
    return found


def report_facts(found: Gate, agent_id: str, **changed: Any) -> list[Any]:
    facts = facts_with(**{"host": f"10.0.0.{agent_id[1:]}", **changed})
    return found.facts_received(agent_id, f"the slot of {agent_id}", facts, facts.clock, facts.clock, NOW)


def answer_probes(found: Gate, actions: list[Any], problem: str = "") -> list[Any]:
    """Answer every probe among ``actions`` with this problem, or with success."""
    probes = [action for action in actions if isinstance(action, RequestProbe)]
    return [
        a
        for p in probes
        for a in found.probe_ended(p.agent_id, PeerProbed(p.peer, 0.0 if problem else 99.0, problem), NOW)
    ]


def test_run_without_preflight_receives_the_granted_agents() -> None:
    assert gate("off").check_granted("run", ("a1", "a2"), NOW) == [AdmitAgents("run", ("a1", "a2"))]


def test_warning_preflight_delays_nothing_and_warns_once() -> None:
    found = gate("warn")
    assert found.check_granted("run", ("a1", "a2"), NOW) == [AdmitAgents("run", ("a1", "a2"))]
    (warning,) = report_facts(found, "a1", open_files=100)
    assert isinstance(warning, PublishWarning) and "the slot of a1: open-file limit: 100" in warning.text
    assert "it is used nevertheless" in warning.text
    assert report_facts(found, "a2") == []
    assert found.tick(NOW + 100) == []


def test_successful_probes_of_many_members_trigger_no_comparison(monkeypatch) -> None:
    found, members = gate("warn", size=40), tuple(f"a{number}" for number in range(40))
    requested = [action for one in members for action in report_facts(found, one)] + found.check_granted(
        "run", members, NOW
    )
    compared: list[int] = []
    judge = rules.pair_faults

    def counted(probes: Any, *others: Any) -> Any:
        compared.append(len(probes))
        return judge(probes, *others)

    monkeypatch.setattr(rules, "pair_faults", counted)
    probes = [action for action in requested if isinstance(action, RequestProbe)]
    assert len(probes) == 40
    for probe in probes[:-1]:
        assert found.probe_ended(probe.agent_id, PeerProbed(probe.peer, 99.0), NOW) == []
    assert compared == []
    (warning,) = found.probe_ended(probes[-1].agent_id, PeerProbed(probes[-1].peer, 0.0, "no route"), NOW)
    assert isinstance(warning, PublishWarning) and "no route" in warning.text


def join(mode: PreflightMode, size: int) -> None:
    """Run a group whose measurements follow the grant and whose probes succeed; then all members leave."""
    found, members = gate(mode, size), tuple(f"a{number}" for number in range(size))
    actions = found.check_granted("run", members, NOW)
    for one in members:
        actions += report_facts(found, one)
    actions += found.tick(NOW + 0.25)
    assert len([action for action in actions if isinstance(action, RequestProbe)]) == size
    actions += answer_probes(found, actions) + found.tick(NOW + 0.5)
    assert [action for action in actions if not isinstance(action, RequestProbe)] == [AdmitAgents("run", members)]
    for one in members:
        found.agent_left(one, NOW + 1)
    assert not (found.facts or found.probes or any(found.peers.values()))


@pytest.mark.parametrize("mode", ["warn", "enforce", "strict"])
def test_preflight_operations_grow_linearly_with_the_group_size(mode: PreflightMode) -> None:
    assert operations(lambda: join(mode, 384)) < 4.5 * operations(lambda: join(mode, 96))


def test_warnings_of_a_large_group_are_sent_at_the_next_tick() -> None:
    found, members = gate("warn", SMALL + 1), tuple(f"a{number}" for number in range(SMALL + 1))
    assert found.check_granted("run", members, NOW) == [AdmitAgents("run", members)]
    assert report_facts(found, "a1", open_files=100) == report_facts(found, "a2", open_files=100) == []
    assert [action.text[:37] for action in found.tick(NOW + 0.25) if isinstance(action, PublishWarning)] == [
        "preflight: the slot of a1: open-file ", "preflight: the slot of a2: open-file "
    ]  # fmt: skip
    assert found.tick(NOW + 0.5) == []


def test_member_that_leaves_during_the_probes_is_not_waited_for() -> None:
    found = gate("enforce", size=3, whole=False)
    found.check_granted("run", ("a1", "a2", "a3"), NOW)
    requested = [action for one in ("a1", "a2", "a3") for action in report_facts(found, one)]
    (first, *others) = [
        action
        for action in requested
        if isinstance(action, RequestProbe) and "a3" not in (action.agent_id, action.peer)
    ]
    assert not others and found.probe_ended(first.agent_id, PeerProbed(first.peer, 99.0), NOW) == []
    assert found.agent_left("a3", NOW) == [AdmitAgents("run", ("a1", "a2"))]


def test_enforcing_preflight_waits_for_measurements_and_probes() -> None:
    found = gate("enforce")
    assert found.check_granted("run", ("a1", "a2"), NOW) == []
    assert report_facts(found, "a1") == []
    requested = report_facts(found, "a2")
    assert len(requested) == 1 and isinstance(requested[0], RequestProbe) and requested[0].address.endswith(":4000")
    assert answer_probes(found, requested) == [AdmitAgents("run", ("a1", "a2"))]
    found.remove_run("run")
    found.add_run("next", "enforce", 2, True, True)
    assert found.check_granted("next", ("a1", "a2"), NOW) == [
        AdmitAgents("next", ("a1", "a2"))
    ]  # earlier results are reused


def test_failed_slot_is_excluded_and_a_fixed_group_requests_again() -> None:
    found = gate("enforce")
    found.check_granted("run", ("a1", "a2"), NOW)
    report_facts(found, "a1", disk_mb=1.0)
    warning, aside, again = report_facts(found, "a2")
    assert "disk space: 1 MB" in warning.text and "it is excluded" in warning.text
    assert aside == ExcludeAgents("run", ("a1",)) and again == ReplaceAgents("run", ("a2",), 2)
    found.check_granted("run", ("a2", "a3"), NOW)
    assert answer_probes(found, report_facts(found, "a3")) == [AdmitAgents("run", ("a2", "a3"))]
    assert found.remove_run("run") == ("a1",)


def test_elastic_group_receives_the_good_agents_at_once() -> None:
    found = gate("enforce", whole=False)
    found.check_granted("run", ("a1", "a2", "a3"), NOW)
    report_facts(found, "a1", clock=0.0)  # sent with this clock: no skew
    report_facts(found, "a2", write_mb_s=0.01)
    actions = answer_probes(found, report_facts(found, "a3"))
    assert [type(one) for one in actions] == [PublishWarning, ExcludeAgents, AdmitAgents]
    assert actions[1:] == [ExcludeAgents("run", ("a2",)), AdmitAgents("run", ("a1", "a3"))]


def test_agent_without_measurements_fails_at_the_time_limit() -> None:
    found = gate("enforce")
    found.check_granted("run", ("a1", "a2"), NOW)
    report_facts(found, "a1")
    assert found.tick(NOW + FIGURES_S - 0.1) == []
    warning, aside, again = found.tick(NOW + FIGURES_S)
    assert "no measurements were received within 10 s" in warning.text
    assert aside == ExcludeAgents("run", ("a2",)) and again == ReplaceAgents("run", ("a1",), 2)


def test_agent_that_no_neighbour_reaches_is_excluded() -> None:
    found = gate("enforce", size=3)
    found.check_granted("run", ("a1", "a2", "a3"), NOW)
    report_facts(found, "a1"), report_facts(found, "a2")
    requested = [action for action in report_facts(found, "a3") if isinstance(action, RequestProbe)]
    actions: list[Any] = []
    for probe in requested:
        problem = "refused" if "a2" in (probe.agent_id, probe.peer) else ""
        actions = found.probe_ended(probe.agent_id, PeerProbed(probe.peer, 0.0 if problem else 90.0, problem), NOW)
    assert ExcludeAgents("run", ("a2",)) in actions and ReplaceAgents("run", ("a1", "a3"), 3) in actions


def test_run_whose_every_slot_fails_is_refused() -> None:
    found, actions = gate("enforce", size=1), []
    for agent_id in ("a1", "a2"):
        found.check_granted("run", (agent_id,), NOW)
        actions = report_facts(found, agent_id, open_files=10)
    assert isinstance(actions[-1], RefuseRun) and "2 slots failed the preflight" in actions[-1].text
    assert "open-file limit: 10, at least 258 are needed in a group of 1 worker" in actions[-1].text


def test_open_files_are_compared_with_the_need_of_the_largest_group_of_a_run() -> None:
    for size, connected, is_enough in ((384, True, True), (385, True, False), (10_000, False, True)):
        found = gate("warn", size=size, whole=False, connected=connected)
        found.check_granted("run", ("a1",), NOW)
        assert (report_facts(found, "a1", open_files=1024) == []) is is_enough


def test_strict_preflight_refuses_the_run_at_the_first_fault_and_lists_all() -> None:
    found = gate("strict", size=4)
    assert found.check_granted("run", ("a1", "a2", "a3", "a4"), NOW) == []
    assert report_facts(found, "a1", disk_mb=1.0, shared_memory_mb=2.0) == []
    report_facts(found, "a2"), report_facts(found, "a3", write_mb_s=0.01)
    actions = report_facts(found, "a4")
    assert not any(isinstance(one, AdmitAgents | RefuseRun) for one in actions)  # the probe is missing
    (*notes, aside, refusal) = answer_probes(found, actions, "no route")
    assert [type(one) for one in notes] == [PublishWarning] * 4 and "(the run is refused)" in notes[0].text
    assert isinstance(aside, ExcludeAgents) and {"a1", "a3"} < set(aside.agent_ids)
    assert isinstance(refusal, RefuseRun)
    assert "3 of 4 slots failed the preflight (preflight='strict')" in refusal.text
    for figure in ("disk space: 1 MB", "shared memory: 2 MB", "disk speed: 0.01 MB/s", "network: "):
        assert figure in refusal.text
    assert found.tick(NOW + 100) == []


def test_strict_preflight_admits_good_slots_after_measurements_and_probes() -> None:
    found = gate("strict")
    assert found.check_granted("run", ("a1", "a2"), NOW) == [] == report_facts(found, "a1")
    assert answer_probes(found, report_facts(found, "a2")) == [AdmitAgents("run", ("a1", "a2"))]


def test_strict_preflight_refuses_a_run_whose_agent_sends_no_measurements() -> None:
    found = gate("strict")
    found.check_granted("run", ("a1", "a2"), NOW)
    report_facts(found, "a1")
    refusal = found.tick(NOW + FIGURES_S)[-1]
    assert isinstance(refusal, RefuseRun) and "no measurements were received within 10 s" in refusal.text


def test_strict_preflight_excludes_a_bad_slot_that_joins_a_training_group() -> None:
    found = gate("strict", size=3, whole=False)
    found.check_granted("run", ("a1",), NOW)
    assert report_facts(found, "a1") == [AdmitAgents("run", ("a1",))]
    found.check_granted("run", ("a2",), NOW)
    warning, aside = report_facts(found, "a2", disk_mb=1.0)
    assert "(it is excluded)" in warning.text and aside == ExcludeAgents("run", ("a2",))
    found.agent_left("a1", NOW)  # the group has trained, though no member is left
    found.check_granted("run", ("a3",), NOW)
    assert report_facts(found, "a3", disk_mb=1.0)[-1] == ExcludeAgents("run", ("a3",))


def test_agent_that_leaves_before_the_result_makes_a_fixed_group_request_again() -> None:
    found = gate("enforce", size=3)
    found.check_granted("run", ("a1", "a2", "a3"), NOW)
    report_facts(found, "a1")
    assert found.agent_left("a3", NOW) == [ReplaceAgents("run", ("a1", "a2"), 3)]
    assert found.remove_run("run") == ()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["warn", "enforce", "strict"]), st.booleans())
def test_no_agent_is_lost_in_any_order_of_events(seed: int, mode: PreflightMode, whole: bool) -> None:
    """Every granted agent is passed on, excluded, returned, gone or still awaited; failed ones are never passed on."""
    choose, found = random.Random(seed), gate(mode, size=4, whole=whole)
    bad = {f"a{number}" for number in range(8) if choose.random() < 0.3}
    held: dict[str, str] = {}
    events = [("granted", f"a{number}") for number in range(8)] + [("told", f"a{number}") for number in range(8)]
    events += [("left", f"a{choose.randrange(8)}"), ("tick", "")]
    choose.shuffle(events)
    queue: list[Any] = []
    departed: set[str] = set()
    refused = False

    def apply_actions(actions: list[Any]) -> None:
        nonlocal refused
        for action in actions:
            if isinstance(action, RequestProbe):
                queue.append(action)
            elif isinstance(action, RefuseRun):
                refused = True
            elif not isinstance(action, PublishWarning):
                for agent_id in action.agent_ids:
                    assert held[agent_id] == "granted"
                    held[agent_id] = type(action).__name__

    now = NOW
    for kind, agent_id in events:
        now += 0.1
        if kind == "granted" and agent_id not in departed:
            held[agent_id] = "granted"
            apply_actions(found.check_granted("run", (agent_id,), now))
        elif kind == "told" and agent_id not in departed:
            apply_actions(report_facts(found, agent_id, open_files=1 if agent_id in bad else 65536))
        elif kind == "left":
            departed.add(agent_id)
            held.pop(agent_id, None)
            apply_actions(found.agent_left(agent_id, now))
        elif kind == "tick":
            apply_actions(found.tick(now))
        if queue and choose.random() < 0.7:
            probe = queue.pop(choose.randrange(len(queue)))
            apply_actions(found.probe_ended(probe.agent_id, PeerProbed(probe.peer, 90.0), now))
    apply_actions(found.tick(now + 2 * FIGURES_S))
    assert "granted" not in held.values() or refused
    if mode != "warn":
        assert not any(how == "AdmitAgents" and agent_id in bad for agent_id, how in held.items())
    else:
        assert set(held.values()) <= {"AdmitAgents"}


def test_shared_host_is_warned_about_once_and_not_excluded() -> None:
    found = gate("enforce")
    found.check_granted("run", ("a1", "a2"), NOW)
    report_facts(found, "a1", others=("bob", "eve", "mallory", "trent"))
    actions = report_facts(found, "a2")
    actions += answer_probes(found, actions)
    (warning,) = [action for action in actions if isinstance(action, PublishWarning)]
    assert (
        "10.0.0.1 is shared with bob, eve, mallory and 1 more: TensorFlow's server there executes requests"
        in warning.text
    )
    assert actions[-1] == AdmitAgents("run", ("a1", "a2"))
    assert [action for action in found.agent_left("a2", NOW) if isinstance(action, PublishWarning)] == []


@pytest.mark.parametrize("size", [1, 2])
def test_driver_without_persistence_mode_is_noted_once_for_each_host(size: int) -> None:
    found = gate("strict", size=size)
    found.check_granted("run", ("a1", "a2")[:size], NOW)
    actions: list[Any] = []
    for agent_id in ("a1", "a2")[:size]:
        gpu = GpuFacts(0, 0, 50, 0, persistent=False)
        actions += report_facts(found, agent_id, host="10.0.0.1", gpus=(gpu,))
    actions += answer_probes(found, actions)
    assert sum("persistence mode is off" in one.text for one in actions if isinstance(one, PublishWarning)) == 1
    assert actions[-1] == AdmitAgents("run", ("a1", "a2")[:size])


def test_shared_host_is_not_warned_about_if_servers_are_guarded() -> None:
    found = gate("enforce")
    found.check_granted("run", ("a1", "a2"), NOW)
    actions = report_facts(found, "a1", others=("mallory",), guards=True) + report_facts(found, "a2", guards=True)
    assert not [one for one in actions + answer_probes(found, actions) if isinstance(one, PublishWarning)]


def test_single_worker_on_a_shared_host_is_not_warned_about() -> None:
    found = gate("warn", size=1)
    found.check_granted("run", ("a1",), NOW)
    assert report_facts(found, "a1", others=("mallory",)) == []


def test_clock_skew_is_warned_about_once_for_each_host() -> None:
    found = gate("warn")
    found.check_granted("run", ("a1", "a2"), NOW)
    facts = facts_with(host="10.0.0.1")
    true_s = facts.clock - 86_400
    actions = [
        action
        for agent_id in ("a1", "a2")
        for action in found.facts_received(agent_id, agent_id, facts, true_s, true_s, NOW)
    ]
    texts = [action.text for action in actions if isinstance(action, PublishWarning) and "clock skew" in action.text]
    assert len(texts) == 1 and "s from the driver's clock" in texts[0]
