"""Tests of the pool with agents with and without GPU: requested together, counted separately."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.gang.pool import Action, CancelAgentRequest, DismissAgents, Grant, Pool, Submit
from hopsml.cluster.gang.roster import Awaited

pytestmark = pytest.mark.fast
OTHERS = "a run waits for agents of the other kind"


def joined(pool: Pool, *agents: str, ask: int, now: float = 1.0) -> list[Action]:
    """These agents connect, each on an executor of its own."""
    return [act for n, agent in enumerate(agents) for act in pool.connected(agent, (ask, n), f"e-{agent}", now)]


def test_each_kind_is_asked_for_apart_and_both_are_granted_together() -> None:
    pool = Pool()
    assert pool.demand("r", 3, bare=1) == [Submit(1, 2), Submit(2, 1, bare=True)]
    assert joined(pool, "b", ask=2) == []
    assert joined(pool, "g1", "g2", ask=1) == [Grant("r", ("g1", "g2", "b"))]


def test_a_bare_agent_takes_no_place_of_one_with_a_gpu_nor_the_other_way_round() -> None:
    pool = Pool()
    pool.demand("plain", 3)
    joined(pool, "g1", "g2", "g3", ask=1)
    pool.withdraw("plain", 2.0)
    assert pool.demand("r", 4, bare=1) == [Submit(2, 1, bare=True)]  # three are idle, and needed
    assert joined(pool, "b", ask=2) == [Grant("r", ("g1", "g2", "g3", "b"))]
    pool.returned(("b",), 3.0)
    assert pool.demand("later", 1) == [DismissAgents(("b",), OTHERS), Submit(3, 1)]


def test_idle_agents_of_both_kinds_are_used_before_new_ones_are_asked_for() -> None:
    pool = Pool()
    pool.demand("first", 3, bare=1)
    joined(pool, "g1", "g2", ask=1)
    joined(pool, "b1", ask=2)
    pool.withdraw("first", 2.0)
    assert pool.demand("second", 4, bare=2) == [Submit(3, 1, bare=True)]
    assert joined(pool, "b2", ask=3) == [Grant("second", ("g1", "g2", "b1", "b2"))]


def test_a_lost_agent_is_waited_for_as_what_it_was() -> None:
    pool = Pool()
    pool.demand("first", 2, bare=1)
    joined(pool, "g", ask=1)
    joined(pool, "b", ask=2)
    pool.remove_agent("b", returns=True)
    pool.remove_agent("g", returns=True)
    assert pool.serve() == [] and (pool.expected.of(False), pool.expected.of(True)) == (1, 1)
    pool.withdraw("first", 2.0)
    assert pool.demand("second", 2, bare=1) == [Submit(3, 1), Submit(4, 1, bare=True)]  # both asks were cancelled
    assert joined(pool, "g2", ask=3) == [] and joined(pool, "b2", ask=4) == [Grant("second", ("g2", "b2"))]


def test_an_ask_that_ended_is_made_again_for_its_kind_alone() -> None:
    pool = Pool()
    pool.demand("r", 2, bare=1)
    assert pool.ask_ended(2, 1.0) == [Submit(3, 1, bare=True)]
    assert pool.retired((1, 0)) == [Submit(4, 1)]


def test_as_many_idle_agents_make_room_as_others_are_wanted_and_those_that_a_run_waits_for_stay() -> None:
    pool = Pool()
    pool.demand("first", 5, bare=1)
    joined(pool, "g1", "g2", "g3", "g4", ask=1)
    joined(pool, "b1", ask=2)
    pool.withdraw("first", 2.0)
    assert pool.demand("second", 5, bare=3) == [DismissAgents(("g1", "g2"), OTHERS), Submit(3, 2, bare=True)]
    assert joined(pool, "b2", "b3", ask=3) == [Grant("second", ("g3", "g4", "b1", "b2", "b3"))]


def test_who_may_grow_gets_no_bare_agents() -> None:
    pool = Pool()
    pool.demand("servers", 2, bare=1)
    joined(pool, "g", ask=1)
    joined(pool, "b", ask=2)
    pool.withdraw("servers", 2.0)
    assert pool.demand("grows", 1, most=2) == [Grant("grows", ("g",)), Submit(3, 1)]
    assert pool.idle() == ["b"]
    assert pool.tick(12.0) == [DismissAgents(("b",), "idle for 10 s")]


def test_asks_of_the_kind_that_nobody_wants_any_more_are_cancelled() -> None:
    pool = Pool()
    pool.demand("servers", 2, bare=1)
    pool.demand("plain", 1)
    assert pool.withdraw("servers", 1.0) == [CancelAgentRequest(3), CancelAgentRequest(2)]
    assert joined(pool, "g", ask=1) == [Grant("plain", ("g",))]


def test_a_run_that_was_granted_both_kinds_gives_them_back_and_waits_for_both_anew() -> None:
    pool = Pool()
    pool.demand("r", 3, bare=1)
    joined(pool, "b", ask=2)
    joined(pool, "g1", "g2", ask=1)
    assert pool.set_aside("r", ("g1",)) == []
    assert pool.ask_again("r", 3, ("g2", "b"), 2.0, bare=1) == [Submit(3, 1)]
    assert joined(pool, "g3", ask=3) == [Grant("r", ("g2", "g3", "b"))]


def test_strict_order_holds_of_both_kinds_together() -> None:
    pool = Pool()
    pool.demand("first", 2, bare=1)
    pool.demand("second", 1)
    assert joined(pool, "g1", ask=1) == []  # the second one would be content with it
    assert joined(pool, "g2", ask=3) == []
    assert joined(pool, "b", ask=2) == [Grant("first", ("g1", "b")), Grant("second", ("g2",))]


def test_what_is_awaited_is_counted_by_kind() -> None:
    awaited = Awaited()
    awaited.add_slots(1, 2, bare=False)
    awaited.add_slots(2, 1, bare=True)
    assert set(awaited) == {(1, 0), (1, 1), (2, 0)} and len(awaited) == 3 and (2, 0) in awaited
    awaited.discard((2, 0))
    assert (awaited.of(False), awaited.of(True)) == (2, 0) and (2, 0) not in awaited
    awaited.add((2, 0))
    awaited.forget(1)
    assert set(awaited) == {(2, 0)} and awaited.is_bare(2) and not awaited.is_bare(1)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["demand", "connect", "lose", "withdraw", "end"]), st.integers(1, 3), st.integers(0, 2)),
    max_size=50,
)


@given(EVENTS)
@settings(max_examples=100, deadline=None)
def test_nobody_is_granted_a_wrong_kind_and_all_that_is_wanted_is_on_its_way(
    script: list[tuple[str, int, int]],
) -> None:
    pool, asked, kind, wanted = Pool(), dict[int, bool](), dict[str, bool](), dict[str, tuple[int, int]]()
    for number, (verb, count, bare) in enumerate(script, 1):
        match verb:
            case "demand":
                wanted[f"r{number}"] = (count, bare)
                actions = pool.demand(f"r{number}", count + bare, bare=bare)
            case "connect" if pool.expected:
                slot = min(pool.expected)
                kind[f"a{number}"] = asked[slot[0]]
                actions = pool.connected(f"a{number}", slot, f"e{count}", float(number))
            case "lose" if pool.agents:
                pool.remove_agent(next(iter(pool.agents)), bool(bare))
                actions = pool.serve()
            case "withdraw":
                actions = pool.withdraw(next(iter(wanted), "nobody"), float(number))
                wanted.pop(next(iter(wanted), "nobody"), None)
            case _:
                actions = pool.ask_ended(count, float(number))
        asked |= {action.ask: action.bare for action in actions if isinstance(action, Submit)}
        for grant in (action for action in actions if isinstance(action, Grant)):
            of_bare = sum(kind[agent] for agent in grant.agent_ids)
            assert (len(grant.agent_ids) - of_bare, of_bare) == wanted[grant.run_id]
        for of in (False, True):
            needed = sum((pool.bare if of else pool.demands).values())
            assert len(pool.agents.idle(of)) + pool.expected.of(of) >= needed
        assert pool.bare.keys() == pool.demands.keys()
