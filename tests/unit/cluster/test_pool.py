"""Tests of the pool of agents, with and without GPU, and of the division of slots among runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.gang.pool import (
    Action,
    CancelAgentRequest,
    DismissAgents,
    Grant,
    Pool,
    SlotDemand,
    SubmitAgentRequest,
    shares,
    slot_demand,
)
from hopsml.cluster.gang.roster import AwaitedSlots
from hopsml.cluster.shared.spec import ElasticGroup, FixedGroup, IndependentGroup
from tests.helpers.operations import operations

OTHERS = "a run waits for agents of the other kind"


def connect(pool: Pool, *agents: str, request_id: int, now: float = 1.0) -> list[Action]:
    """Connect these agents, each on a separate executor."""
    return [act for n, agent in enumerate(agents) for act in pool.add_agent(agent, (request_id, n), f"e-{agent}", now)]


def test_each_kind_is_requested_separately_and_both_are_granted_together() -> None:
    pool = Pool()
    assert pool.add_run("r", 3, bare=1) == [SubmitAgentRequest(1, 2), SubmitAgentRequest(2, 1, bare=True)]
    assert connect(pool, "b", request_id=2) == []
    assert connect(pool, "g1", "g2", request_id=1) == [Grant("r", ("g1", "g2", "b"))]


def test_bare_agent_and_gpu_agent_do_not_replace_each_other() -> None:
    pool = Pool()
    pool.add_run("plain", 3)
    connect(pool, "g1", "g2", "g3", request_id=1)
    pool.remove_run("plain", 2.0)
    assert pool.add_run("r", 4, bare=1) == [SubmitAgentRequest(2, 1, bare=True)]  # three are idle, and needed
    assert connect(pool, "b", request_id=2) == [Grant("r", ("g1", "g2", "g3", "b"))]
    pool.take_back_agents(("b",), 3.0)
    assert pool.add_run("later", 1) == [DismissAgents(("b",), OTHERS), SubmitAgentRequest(3, 1)]


def test_idle_agents_of_both_kinds_are_used_before_new_ones_are_requested() -> None:
    pool = Pool()
    pool.add_run("first", 3, bare=1)
    connect(pool, "g1", "g2", request_id=1)
    connect(pool, "b1", request_id=2)
    pool.remove_run("first", 2.0)
    assert pool.add_run("second", 4, bare=2) == [SubmitAgentRequest(3, 1, bare=True)]
    assert connect(pool, "b2", request_id=3) == [Grant("second", ("g1", "g2", "b1", "b2"))]


def test_returning_agent_is_awaited_as_the_kind_that_it_was() -> None:
    pool = Pool()
    pool.add_run("first", 2, bare=1)
    connect(pool, "g", request_id=1)
    connect(pool, "b", request_id=2)
    pool.remove_agent("b", returns=True)
    pool.remove_agent("g", returns=True)
    assert pool.grant_idle_agents() == [] and (pool.expected.count_of(False), pool.expected.count_of(True)) == (1, 1)
    pool.remove_run("first", 2.0)
    assert pool.add_run("second", 2, bare=1) == [
        SubmitAgentRequest(3, 1),
        SubmitAgentRequest(4, 1, bare=True),
    ]  # both requests were cancelled
    assert connect(pool, "g2", request_id=3) == [] and connect(pool, "b2", request_id=4) == [
        Grant("second", ("g2", "b2"))
    ]


def test_ended_request_is_repeated_for_its_kind_only() -> None:
    pool = Pool()
    pool.add_run("r", 2, bare=1)
    assert pool.request_ended(2, 1.0) == [SubmitAgentRequest(3, 1, bare=True)]
    assert pool.retire_slot((1, 0)) == [SubmitAgentRequest(4, 1)]


def test_surplus_idle_agents_are_dismissed_for_the_other_kind() -> None:
    pool = Pool()
    pool.add_run("first", 5, bare=1)
    connect(pool, "g1", "g2", "g3", "g4", request_id=1)
    connect(pool, "b1", request_id=2)
    pool.remove_run("first", 2.0)
    assert pool.add_run("second", 5, bare=3) == [
        DismissAgents(("g1", "g2"), OTHERS),
        SubmitAgentRequest(3, 2, bare=True),
    ]
    assert connect(pool, "b2", "b3", request_id=3) == [Grant("second", ("g3", "g4", "b1", "b2", "b3"))]


def test_elastic_run_gets_no_bare_agents() -> None:
    pool = Pool()
    pool.add_run("servers", 2, bare=1)
    connect(pool, "g", request_id=1)
    connect(pool, "b", request_id=2)
    pool.remove_run("servers", 2.0)
    assert pool.add_run("grows", 1, most=2) == [Grant("grows", ("g",)), SubmitAgentRequest(3, 1)]
    assert pool.idle() == ["b"]
    assert pool.tick(12.0) == [DismissAgents(("b",), "idle for 10 s")]


def test_requests_for_an_unneeded_kind_are_cancelled() -> None:
    pool = Pool()
    pool.add_run("servers", 2, bare=1)
    pool.add_run("plain", 1)
    assert pool.remove_run("servers", 1.0) == [CancelAgentRequest(3), CancelAgentRequest(2)]
    assert connect(pool, "g", request_id=1) == [Grant("plain", ("g",))]


def test_replacement_of_agents_keeps_the_other_agents_of_both_kinds() -> None:
    pool = Pool()
    pool.add_run("r", 3, bare=1)
    connect(pool, "b", request_id=2)
    connect(pool, "g1", "g2", request_id=1)
    assert pool.exclude_agents("r", ("g1",)) == []
    assert pool.request_replacements("r", 3, ("g2", "b"), 2.0, bare=1) == [SubmitAgentRequest(3, 1)]
    assert connect(pool, "g3", request_id=3) == [Grant("r", ("g2", "g3", "b"))]


def test_runs_are_granted_in_order_across_both_kinds() -> None:
    pool = Pool()
    pool.add_run("first", 2, bare=1)
    pool.add_run("second", 1)
    assert connect(pool, "g1", request_id=1) == []  # the second one would be content with it
    assert connect(pool, "g2", request_id=3) == []
    assert connect(pool, "b", request_id=2) == [Grant("first", ("g1", "b")), Grant("second", ("g2",))]


def test_awaited_slots_are_counted_by_kind() -> None:
    awaited = AwaitedSlots()
    awaited.add_slots(1, 2, bare=False)
    awaited.add_slots(2, 1, bare=True)
    assert set(awaited) == {(1, 0), (1, 1), (2, 0)} and len(awaited) == 3 and (2, 0) in awaited
    awaited.discard((2, 0))
    assert (awaited.count_of(False), awaited.count_of(True)) == (2, 0) and (2, 0) not in awaited
    awaited.add((2, 0))
    awaited.forget(1)
    assert set(awaited) == {(2, 0)} and awaited.is_bare(2) and not awaited.is_bare(1)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["demand", "connect", "lose", "withdraw", "end"]), st.integers(1, 3), st.integers(0, 2)),
    max_size=50,
)


@given(EVENTS)
@settings(max_examples=100, deadline=None)
def test_every_grant_has_the_right_kinds_and_every_demand_is_requested(
    script: list[tuple[str, int, int]],
) -> None:
    pool, requests, kind, wanted = Pool(), dict[int, bool](), dict[str, bool](), dict[str, tuple[int, int]]()
    for number, (verb, count, bare) in enumerate(script, 1):
        match verb:
            case "demand":
                wanted[f"r{number}"] = (count, bare)
                actions = pool.add_run(f"r{number}", count + bare, bare=bare)
            case "connect" if pool.expected:
                slot = min(pool.expected)
                kind[f"a{number}"] = requests[slot[0]]
                actions = pool.add_agent(f"a{number}", slot, f"e{count}", float(number))
            case "lose" if pool.agents:
                pool.remove_agent(next(iter(pool.agents)), bool(bare))
                actions = pool.grant_idle_agents()
            case "withdraw":
                actions = pool.remove_run(next(iter(wanted), "nobody"), float(number))
                wanted.pop(next(iter(wanted), "nobody"), None)
            case _:
                actions = pool.request_ended(count, float(number))
        requests |= {action.request_id: action.bare for action in actions if isinstance(action, SubmitAgentRequest)}
        for grant in (action for action in actions if isinstance(action, Grant)):
            of_bare = sum(kind[agent] for agent in grant.agent_ids)
            assert (len(grant.agent_ids) - of_bare, of_bare) == wanted[grant.run_id]
        for of in (False, True):
            needed = sum((pool.bare if of else pool.demands).values())
            assert len(pool.agents.idle(of)) + pool.expected.count_of(of) >= needed
        assert pool.bare.keys() == pool.demands.keys()


@pytest.mark.parametrize(
    ("slots", "claims", "found"),
    [
        (4, [], []),
        (4, [(1, 8)], [4]),
        (4, [(1, 2)], [2]),
        (4, [(1, 8), (1, 8)], [3, 1]),  # the later one can start
        (4, [(1, 3), (2, 2)], [2, 2]),
        (
            4,
            [(3, 3), (2, 2), (1, 4)],
            [3, 2, 1],
        ),  # the second waits for its two slots, and no other demand waits for it
        (2, [(0, 0), (2, 2)], [0, 2]),
    ],
)
def test_each_run_gets_its_minimum_and_the_first_run_the_rest(
    slots: int, claims: list[tuple[int, int]], found: list[int]
) -> None:
    assert shares(slots, [SlotDemand(*one) for one in claims]) == found


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6))
def test_shares_use_every_slot_that_a_run_can_use_and_no_more(slots: int, sizes: list[tuple[int, int]]) -> None:
    claims = [SlotDemand(fewest, fewest + more) for fewest, more in sizes]
    found = shares(slots, claims)
    assert all(one.fewest <= part <= one.most for one, part in zip(claims, found, strict=True))
    left, waits = slots, []
    for number, one in enumerate(claims):
        if one.fewest <= left:
            left -= one.fewest
        else:
            waits.append(number)
    used = sum(part for number, part in enumerate(found) if number not in waits)
    assert used <= slots and all(found[number] == claims[number].fewest for number in waits)
    has_demand = any(
        part < one.most for number, (one, part) in enumerate(zip(claims, found, strict=True)) if number not in waits
    )
    assert used == slots or not has_demand


def test_slot_demand_of_a_group_is_its_minimum_and_maximum() -> None:
    assert slot_demand(ElasticGroup(size=8, min_size=2), 6) == SlotDemand(2, 6)
    assert slot_demand(ElasticGroup(size=8, min_size=2), 1) == SlotDemand(1, 1)
    assert slot_demand(FixedGroup(size=3), 3) == SlotDemand(3, 3)
    assert slot_demand(IndependentGroup(size=5), 5) == SlotDemand(1, 5)
    assert slot_demand(IndependentGroup(size=0), 0) == SlotDemand(0, 0)


pytestmark = pytest.mark.fast


def test_demand_requests_the_missing_agents_and_is_granted_completely():
    pool = Pool()
    assert pool.add_run("r", 2) == [SubmitAgentRequest(1, 2)]
    assert pool.add_agent("a", (1, 0), "e1", 1.0) == []
    assert pool.add_agent("b", (1, 1), "e2", 2.0) == [Grant("r", ("a", "b"))]


def test_two_runs_never_hold_half_of_their_agents():
    pool = Pool()
    pool.add_run("r1", 2)
    pool.add_run("r2", 2)
    assert pool.add_agent("a", (1, 0), "e1", 1.0) == []
    assert pool.add_agent("b", (1, 1), "e2", 1.0) == [Grant("r1", ("a", "b"))]
    assert pool.add_agent("c", (2, 0), "e3", 1.0) == []
    assert pool.add_agent("d", (2, 1), "e4", 1.0) == [Grant("r2", ("c", "d"))]


def test_requests_respect_the_slot_limit_and_larger_demands_wait():
    pool = Pool()
    pool.limit_agents(2)
    assert pool.add_run("whole", 3) == [SubmitAgentRequest(1, 2)]
    assert pool.add_agent("a", (1, 0), "e1", 1.0) == [] and pool.add_agent("b", (1, 1), "e2", 1.0) == []
    assert pool.limit_agents(3) == [SubmitAgentRequest(2, 1)]
    assert pool.add_agent("c", (2, 0), "e3", 2.0) == [Grant("whole", ("a", "b", "c"))]
    assert pool.add_run("elastic", 1, 4) == []
    assert pool.remove_run("whole", 3.0) == [Grant("elastic", ("a", "b", "c"))]
    assert pool.limit_agents(2) == [], "what is used stays until its run gives it back"
    assert pool.limit_agents(9) == [SubmitAgentRequest(3, 1)]


def test_idle_agents_are_used_before_new_ones_are_requested():
    pool = Pool()
    pool.add_run("r1", 2)
    pool.add_agent("a", (1, 0), "e1", 1.0)
    pool.add_agent("b", (1, 1), "e2", 1.0)
    pool.take_back_agents(("a", "b"), 5.0)
    assert pool.add_run("r2", 3) == [SubmitAgentRequest(2, 1)]
    assert pool.add_agent("c", (2, 0), "e3", 7.0) == [Grant("r2", ("a", "b", "c"))]


def test_agents_of_distinct_executors_are_granted_first():
    pool = Pool()
    for agent, executor in (("a", "e1"), ("b", "e1"), ("c", "e2")):
        pool.add_agent(agent, (0, ord(agent)), executor, 0.0)
    assert pool.add_run("r", 2) == [Grant("r", ("a", "c"))]
    pool = Pool()
    for agent, executor in zip("abcde", ("e1", "e1", "e1", "e2", "e2"), strict=True):
        pool.add_agent(agent, (0, ord(agent)), executor, 0.0)
    assert pool.add_run("r", 4) == [Grant("r", ("a", "d", "b", "e"))]  # a second of each before a third of any


def test_agents_are_granted_in_the_order_of_their_connection():
    pool = Pool()
    for number, agent in enumerate("dcab"):
        pool.add_agent(agent, (0, number), f"e{number}", 0.0)
    assert pool.add_run("r", 3) == [Grant("r", ("d", "c", "a"))]
    assert pool.take_back_agents(("a", "d"), 1.0) == [] and pool.idle() == ["d", "a", "b"]


def test_idle_agents_are_dismissed_after_the_warm_time_or_under_contention():
    pool = Pool(keep_warm_s=10)
    pool.add_agent("a", (0, 0), "e1", 0.0)
    assert pool.tick(9.9) == []
    (dismissal,) = pool.tick(10.0)
    assert isinstance(dismissal, DismissAgents) and dismissal.agent_ids == ("a",)
    pool.add_agent("b", (0, 1), "e1", 11.0)
    assert pool.tick(11.1) == []
    (dismissal,) = pool.tick(11.2, is_contended=True)
    assert dismissal == DismissAgents(("b",), "another job waits for the slot")


def test_returning_agent_is_not_requested_twice():
    pool = Pool()
    pool.add_run("r1", 1)
    pool.add_agent("a", (1, 0), "e1", 1.0)
    pool.remove_agent("a", returns=True)
    assert pool.add_run("r2", 1) == []
    assert pool.add_agent("a2", (1, 0), "e1", 4.0) == [Grant("r2", ("a2",))]


def test_agent_of_an_ended_request_is_not_awaited():
    """Ctrl-C cancels Spark's job: its end may be reported before its agents' connections break."""
    pool = Pool()
    pool.add_run("r1", 2)
    pool.add_agent("a", (1, 0), "e1", 1.0)
    pool.add_agent("b", (1, 1), "e2", 1.0)
    assert pool.remove_run("r1", 2.0) == [] and pool.request_ended(1, 2.0) == []
    pool.remove_agent("a", returns=True)
    pool.remove_agent("b", returns=True)
    assert pool.add_run("r2", 2) == [SubmitAgentRequest(2, 2)]


def test_retired_slot_is_requested_again():
    pool = Pool()
    pool.add_run("r", 2)
    pool.add_agent("a", (1, 0), "e1", 1.0)
    pool.add_agent("b", (1, 1), "e2", 1.0)
    pool.remove_agent("b", returns=True)
    pool.add_run("r", 1)
    assert pool.retire_slot((1, 1)) == [SubmitAgentRequest(2, 1)]
    pool.remove_agent("b2", returns=True)
    assert pool.grant_idle_agents() == []  # a retired agent that was never in the pool
    assert pool.add_agent("c", (2, 0), "e3", 4.0) == [Grant("r", ("c",))]


def test_failed_slot_is_requested_again_after_a_pause():
    pool = Pool()
    pool.add_run("r", 1, most=2)
    pool.add_agent("a", (1, 0), "e1", 1.0)
    assert pool.retire_slot((1, 1), failed_at=7.0) == []
    assert pool.tick(8.9) == [] and pool.tick(9.0) == [SubmitAgentRequest(2, 1)]


def test_withdrawn_demand_lets_the_next_one_be_granted():
    pool = Pool()
    pool.add_run("big", 5)
    pool.add_run("small", 1)
    assert pool.add_agent("a", (1, 0), "e", 1.0) == []
    assert Grant("small", ("a",)) in pool.remove_run("big", 2.0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["demand", "connect", "lose", "return", "end", "tick"]), st.integers(1, 4)),
        max_size=60,
    )
)
@settings(max_examples=100, deadline=None)
def test_no_agent_has_two_runs_and_no_satisfiable_demand_waits(script):
    pool, held = Pool(keep_warm_s=3), {}
    for number, (verb, count) in enumerate(script, 1):
        now = float(number)
        match verb:
            case "demand":
                actions = pool.add_run(f"r{number}", count)
            case "connect":
                slot = min(pool.expected, default=(0, number))
                actions = pool.add_agent(f"a{number}", slot, f"e{count}", now)
            case "lose":
                agent = next(iter(pool.agents), "nobody")
                held.pop(agent, None)
                pool.remove_agent(agent, count % 2 == 0)
                actions = pool.grant_idle_agents()
            case "return":
                back = tuple(list(held)[:count])
                for agent in back:
                    del held[agent]
                actions = pool.take_back_agents(back, now)
            case "end":
                actions = pool.request_ended(count, now)
            case _:
                actions = pool.tick(now, count == 1)
        for action in actions:
            if isinstance(action, Grant):
                assert not set(action.agent_ids) & set(held)
                held |= dict.fromkeys(action.agent_ids, action.run_id)
            elif isinstance(action, DismissAgents):
                assert not set(action.agent_ids) & set(held)
        first = next(iter(pool.demands.values()), None)
        assert first is None or len(pool.idle()) < first
        assert len(pool.idle()) + len(pool.expected) >= sum(pool.demands.values())


def grant_and_lose(size: int, most: int | None = None) -> None:
    """Grant a run its agents all at once or, with ``most``, one by one; then lose all of them."""
    pool = Pool()
    pool.add_run("r", 1 if most else size, most)
    granted = [action for n in range(size) for action in pool.add_agent(f"a{n}", (1, n), f"e{n}", 1.0)]
    assert sum(len(action.agent_ids) for action in granted if isinstance(action, Grant)) == size
    for n in range(size):
        pool.remove_agent(f"a{n}", returns=True)
        assert pool.grant_idle_agents() == []


@pytest.mark.parametrize("grows", [False, True])
def test_pool_operations_grow_linearly_with_the_group_size(grows: bool) -> None:
    most = (256, 64) if grows else (None, None)
    assert operations(lambda: grant_and_lose(256, most[0])) < 4.5 * operations(lambda: grant_and_lose(64, most[1]))


# ---------------------------------------------------------------------------------------------------- groups that grow


def test_elastic_run_gets_remaining_agents_if_no_demand_waits():
    pool = Pool(singly=True)
    assert pool.add_run("r", 1, most=3) == [
        SubmitAgentRequest(1, 1),
        SubmitAgentRequest(2, 1),
        SubmitAgentRequest(3, 1),
    ]
    assert pool.add_agent("a", (1, 0), "e1", 1.0) == [Grant("r", ("a",))]
    assert pool.add_agent("b", (2, 0), "e2", 2.0) == [Grant("r", ("b",))]
    assert pool.remove_run("r", 3.0) == [CancelAgentRequest(3)]


def test_cluster_of_fixed_size_is_asked_for_all_agents_in_one_request():
    assert Pool().add_run("r", 1, most=3) == [SubmitAgentRequest(1, 3)]


def test_elastic_run_is_granted_all_idle_agents_up_to_its_maximum_at_once():
    pool = Pool()
    for number, agent in enumerate("abcd"):
        pool.add_agent(agent, (0, number), f"e{number}", 0.0)
    assert pool.add_run("r", 1, most=3) == [Grant("r", ("a", "b", "c"))]


def test_elastic_run_gets_no_more_than_its_maximum():
    pool = Pool()
    for number, agent in enumerate("abcd"):
        pool.add_agent(agent, (0, number), f"e{number}", 0.0)
    pool.add_run("fixed", 3)
    assert pool.add_run("grows", 1, most=2) == [Grant("grows", ("d",)), SubmitAgentRequest(1, 1)]
    assert pool.take_back_agents(("a", "b", "c"), 1.0) == [Grant("grows", ("a",))]
    assert pool.idle() == ["b", "c"]


def test_optional_agents_are_requested_one_by_one():
    pool = Pool(singly=True)
    assert pool.add_run("r", 2, most=3) == [SubmitAgentRequest(1, 2), SubmitAgentRequest(2, 1)]
    pool.add_agent("a", (1, 0), "e1", 1.0)
    assert pool.add_agent("b", (1, 1), "e2", 1.0) == [Grant("r", ("a", "b"))]
    pool.remove_agent("b", returns=False)
    assert pool.grant_idle_agents() == [SubmitAgentRequest(3, 1)]
    pool.add_agent("c", (2, 0), "e3", 2.0)
    pool.add_agent("d", (3, 0), "e4", 2.0)
    pool.remove_agent("a", returns=False)
    assert pool.grant_idle_agents() == [SubmitAgentRequest(4, 1)]


def test_smaller_demand_cancels_the_newest_requests():
    pool = Pool(singly=True)
    pool.add_run("r", 1, most=4)
    assert pool.add_run("r", 0, most=2) == [CancelAgentRequest(4), CancelAgentRequest(3)]
    assert pool.add_run("r", 0, most=3) == [SubmitAgentRequest(5, 1)]
    assert pool.add_agent("a", (1, 0), "e1", 1.0) == [Grant("r", ("a",))]
    assert pool.remove_run("r", 2.0) == [CancelAgentRequest(5), CancelAgentRequest(2)]
    assert pool.add_run("later", 3) == [
        SubmitAgentRequest(6, 2)
    ]  # the other requests were cancelled, and a is connected


def test_request_larger_than_the_surplus_is_not_cancelled():
    pool = Pool()
    assert pool.add_run("two", 2) == [SubmitAgentRequest(1, 2)]
    assert pool.add_run("three", 3) == [SubmitAgentRequest(2, 3)]
    assert pool.remove_run("two", 0.0) == [CancelAgentRequest(1)]  # not three of five


def test_demand_is_served_before_growth():
    pool = Pool()
    pool.add_run("grows", 1, most=3)
    pool.add_agent("a", (1, 0), "e1", 1.0)
    pool.add_run("needs", 2)
    assert pool.add_agent("b", (1, 1), "e2", 3.0) == []
    assert pool.add_agent("c", (1, 2), "e3", 4.0)[0] == Grant("needs", ("b", "c"))


def test_lost_agent_is_requested_again_unless_the_cluster_restarts_it():
    pool = Pool()
    pool.add_run("r", 1, most=2)
    pool.add_agent("a", (1, 0), "e1", 1.0)
    pool.add_agent("b", (1, 1), "e2", 1.0)
    pool.remove_agent("b", True)
    assert pool.grant_idle_agents() == []
    pool.remove_agent("a", False)
    assert pool.grant_idle_agents() == [SubmitAgentRequest(2, 1)]


def test_regularly_ended_request_is_repeated_at_once():
    pool = Pool()
    pool.add_run("r", 1, most=2)
    pool.add_agent("a", (1, 0), "e1", 1.0)
    assert pool.request_ended(1, 2.0) == [SubmitAgentRequest(2, 1)]


def test_failed_requests_are_repeated_after_growing_pauses():
    pool = Pool()
    pool.add_run("r", 1, most=2)
    pool.add_agent("a", (1, 0), "e1", 1.0)
    assert pool.request_ended(1, 2.0, failed=True) == []
    assert pool.tick(3.9) == []
    assert pool.tick(4.0) == [SubmitAgentRequest(2, 1)]
    assert pool.request_ended(2, 5.0, failed=True) == [] == pool.tick(8.9)
    assert pool.tick(9.0) == [SubmitAgentRequest(3, 1)]


def test_pause_after_failures_doubles_to_a_minute_and_resets_with_an_agent():
    pool, now, pauses = Pool(), 0.0, list[float]()
    pool.add_run("r", 1, most=2)
    pool.add_agent("a", (1, 0), "e1", now)
    for ask in range(1, 9):
        pool.request_ended(ask, now, failed=True)
        assert pool.retry_at is not None
        pauses.append(pool.retry_at - now)
        now = pool.retry_at
        pool.tick(now)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    pool.add_agent("b", (9, 0), "e2", now)
    assert pool.retry_at is None
    pool.remove_agent("b", returns=False)
    assert pool.grant_idle_agents() == [SubmitAgentRequest(10, 1)]
    pool.request_ended(10, now, failed=True)
    assert pool.retry_at == now + 2


def test_excluded_agents_are_granted_to_no_run_and_are_replaced():
    pool = Pool()
    assert pool.add_run("run", 2) == [SubmitAgentRequest(1, 2)]
    pool.add_agent("a1", (1, 0), "e1", 0.0)
    assert pool.add_agent("a2", (1, 1), "e2", 0.0) == [Grant("run", ("a1", "a2"))]
    assert pool.exclude_agents("run", ("a1",)) == []
    assert pool.request_replacements("run", 2, ("a2",), 0.0) == [SubmitAgentRequest(2, 1)]
    assert pool.add_run("later", 1) == [SubmitAgentRequest(3, 1)]  # runs are served in order
    assert pool.add_agent("a3", (2, 0), "e3", 0.0) == [Grant("run", ("a2", "a3"))]
    assert pool.tick(1000.0) == []
    assert pool.dismiss(("a1",), "over") == [DismissAgents(("a1",), "over")]


def test_agent_returned_for_a_replacement_is_idle_from_then_on():
    pool = Pool(keep_warm_s=10)
    pool.add_run("run", 1)
    pool.add_agent("a", (1, 0), "e1", 0.0)
    assert pool.request_replacements("run", 2, ("a",), 7.0) == [SubmitAgentRequest(2, 1)]
    assert pool.remove_run("run", 8.0) == [CancelAgentRequest(2)]
    assert pool.tick(16.9) == []
    assert pool.tick(17.0) == [DismissAgents(("a",), "idle for 10 s")]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_as_many_replacements_are_requested_as_the_run_has_workers(most: int):
    pool, requests = Pool(), list[SubmitAgentRequest]()

    def refuse_all(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SubmitAgentRequest):
                requests.append(action)
                for index in range(action.count):
                    agent = f"a{action.request_id}-{index}"
                    refuse_all(pool.add_agent(agent, (action.request_id, index), "e", 0.0))
                    refuse_all(pool.exclude_agents("run", (agent,)))

    refuse_all(pool.add_run("run", 1, most=most))
    assert sum(ask.count for ask in requests) == 2 * most
    pool.remove_run("run", 0.0)
    (ask,) = pool.add_run("run", 1, most=most)
    assert isinstance(ask, SubmitAgentRequest) and ask.count == most  # earlier refusals do not limit a new request


def test_leaving_agents_are_dismissed_each_with_its_reason():
    pool = Pool()
    pool.add_run("run", 2)
    pool.add_agent("a", (1, 0), "e1", 0.0)
    pool.add_agent("b", (1, 1), "e2", 0.0)
    pool.mark_leaving("a", "preempted")
    pool.mark_leaving("b", "its node goes")
    dismissed = [DismissAgents(("a",), "preempted"), DismissAgents(("b",), "its node goes")]
    assert pool.take_back_agents(("a", "gone", "b"), 1.0) == dismissed
    assert pool.dismiss(("a", "gone"), "over") == []
    pool.add_agent("c", (1, 0), "e1", 2.0)
    assert pool.dismiss(("gone", "c"), "over") == [DismissAgents(("c",), "over")]


def test_successor_is_requested_while_a_draining_agent_is_connected():
    pool = Pool()
    assert pool.add_run("run", 1, most=1) == [SubmitAgentRequest(1, 1)]
    assert pool.add_agent("a", (1, 0), "e1", 1.0) == [Grant("run", ("a",))]
    pool.mark_leaving("a", "preempted")
    assert pool.grant_idle_agents() == [SubmitAgentRequest(2, 1)]
    assert pool.add_agent("b", (2, 0), "e2", 3.0) == [Grant("run", ("b",))]
    assert pool.take_back_agents(("a",), 4.0) == [DismissAgents(("a",), "preempted")] and pool.idle() == []


def test_withdrawn_run_holds_no_agents():
    pool = Pool(keep_warm_s=5)
    pool.add_run("run", 1, most=3)
    pool.add_agent("a", (1, 0), "e1", 1.0)
    pool.add_agent("b", (1, 1), "e2", 1.0)
    pool.mark_leaving("b", "preempted")
    assert pool.grant_idle_agents() == [SubmitAgentRequest(2, 1)]
    assert pool.remove_run("run", 3.0) == [DismissAgents(("b",), "preempted"), CancelAgentRequest(2)]
    assert pool.idle() == ["a"] and not pool.most
    assert pool.tick(7.9) == []
    assert pool.tick(8.0) == [DismissAgents(("a",), "idle for 5 s")]


@pytest.mark.parametrize("is_first", [True, False], ids=["the end of its task", "the end of its connection"])
def test_agent_whose_task_spark_does_not_repeat_is_requested_again(
    is_first: bool,
) -> None:
    pool = Pool()
    assert pool.add_run("r1", 2, most=2) == [SubmitAgentRequest(1, 2)]
    pool.add_agent("a1", (1, 0), "e1", 0.0)
    assert pool.add_agent("a2", (1, 1), "e2", 0.0) == [Grant("r1", ("a1", "a2"))]
    if is_first:
        pool.close_slot((1, 1))
        pool.remove_agent("a2", returns=True)
        assert (1, 1) not in pool.expected
    else:
        pool.remove_agent("a2", returns=True)
        assert (1, 1) in pool.expected
        pool.close_slot((1, 1))
        pool.retire_slot((1, 1))
    assert pool.grant_idle_agents() == (
        [SubmitAgentRequest(2, 1)] if is_first else []
    )  # the other case has requested it at once
    assert pool.requests_sent == 2
    pool.request_ended(1, 1.0)
    assert not pool.closed
