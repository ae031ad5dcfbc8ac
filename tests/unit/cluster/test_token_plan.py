"""Tests of the decisions when delegation tokens are obtained, given to processes and withdrawn, and what users are told."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.cluster.driver.tokens.plan import (
    Action,
    ObtainFailed,
    ObtainTokens,
    ShipTokens,
    TellUser,
    TimePassed,
    TokensObtained,
    TokenState,
    WithdrawTokens,
    step,
)

pytestmark = pytest.mark.fast

BEGIN_S = 1_700_000_000.0


@dataclass
class World:
    """A NameNode that issues tokens as long as it is up and the ticket lasts, and the driver's state."""

    state: TokenState
    life_s: float
    ticket_s: float = 1e9
    longest_s: float = 1e9
    now_s: float = BEGIN_S
    down: tuple[float, float] = (0.0, 0.0)
    held_until_s: float = 0.0  # of the tokens that processes have now
    backed: bool = False
    obtained: int = 0
    said: list[str] = field(default_factory=list)
    withdrawn_s: float = 0.0
    _last: float = 0.0

    def run(self, seconds: float, tick_s: float = 1.0) -> None:
        """Let time pass."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.take(TimePassed(self.now_s))
            self.now_s += tick_s

    def take(self, event: TimePassed | TokensObtained | ObtainFailed) -> None:
        """Pass an event to the plan, and carry out the actions."""
        self.state, actions = step(self.state, event)
        for action in actions:
            self.act(action)

    def act(self, action: Action) -> None:
        """Carry out an action."""
        passed_s = self.now_s - BEGIN_S
        match action:
            case ObtainTokens() if self.down[0] <= passed_s < self.down[1]:
                self.take(ObtainFailed(self.now_s, "the KDC is down"))
            case ObtainTokens() if passed_s >= self.ticket_s:
                self.take(ObtainFailed(self.now_s, "no ticket"))
            case ObtainTokens():
                self.obtained += 1
                self._last = self.now_s + self.life_s
                left_s = self.ticket_s - passed_s
                self.take(TokensObtained(self.now_s, f"mark{self.obtained}", self.life_s, self.longest_s, left_s))
            case ShipTokens():
                self.held_until_s = self._last
            case WithdrawTokens():
                self.withdrawn_s = self.now_s
            case TellUser():
                self.said.append(action.text)


@pytest.mark.parametrize("life_s", [10.0, 90.0, 86400.0])
def test_tokens_are_replaced_at_half_of_their_life(life_s: float) -> None:
    world = World(TokenState(obtains=True), life_s)
    for _ in range(200):
        world.run(life_s / 20, tick_s=life_s / 100)
        assert world.held_until_s - world.now_s >= life_s * 0.3
    assert world.obtained <= 1.3 * 200 * life_s / 20 / min(life_s / 2, 6 * 3600)


@given(st.floats(20.0, 5000.0), st.floats(0.0, 2000.0), st.floats(0.0, 0.45))
def test_outage_shorter_than_half_of_a_life_costs_nothing(life_s: float, begins_s: float, part: float) -> None:
    world = World(TokenState(obtains=True), life_s, down=(begins_s, begins_s + part * life_s - 6.0))
    while world.now_s < BEGIN_S + begins_s + 3 * life_s:
        world.run(max(life_s / 50, 1.0))
        assert not world.obtained or world.held_until_s > world.now_s
    assert world.withdrawn_s == 0


def test_tokens_of_another_program_are_looked_at_often_and_given_only_if_new() -> None:
    state, shipped, looks = TokenState(extends=True), [], 0
    for second in range(600):
        state, actions = step(state, TimePassed(BEGIN_S + second))
        if ObtainTokens() in actions:
            looks += 1
            mark = f"of second {second // 90 * 90}"
            state, actions = step(state, TokensObtained(BEGIN_S + second, mark, longest_s=300.0))
            shipped += [mark] * (ShipTokens() in actions)
            assert not [action for action in actions if isinstance(action, TellUser)], "a keytab needs no announcement"
    assert shipped == [f"of second {begin}" for begin in range(0, 600, 90)]
    assert looks == 600 // 15


def test_user_of_a_ticket_is_told_its_end_at_the_start_and_twice_before() -> None:
    world = World(TokenState(obtains=True), life_s=100.0, ticket_s=1000.0)
    world.run(1.0)
    (first,) = world.said
    assert "can use HDFS until" in first and "kinit" in first
    world.run(1090.0)
    ends = [text for text in world.said if "can use HDFS until" in text]
    assert ends == [first] * 3


def test_renewed_ticket_moves_the_end() -> None:
    world = World(TokenState(obtains=True), life_s=100.0, ticket_s=1000.0)
    world.run(900.0)
    world.ticket_s = 5000.0
    world.run(200.0)
    assert world.said[-1] != world.said[0] and "can use HDFS until" in world.said[-1]
    world.run(2000.0)
    assert world.held_until_s > world.now_s and world.withdrawn_s == 0


def test_after_the_ticket_processes_return_to_their_first_tokens() -> None:
    world = World(TokenState(obtains=True, is_backed=True), life_s=100.0, ticket_s=200.0, longest_s=700.0)
    world.run(240.0)
    assert (
        world.withdrawn_s == 0 and "new delegation tokens for HDFS could not be obtained: no ticket" in world.said[-1]
    )
    world.run(300.0)
    assert world.held_until_s <= world.withdrawn_s < world.held_until_s + 60
    world.ticket_s = 1e9
    world.run(600.0)
    assert world.held_until_s > world.now_s, "a new ticket counts at the next attempt"
    assert "delegation tokens for HDFS are obtained again" in world.said


def test_lasting_failure_is_repeated_hourly() -> None:
    world = World(TokenState(obtains=True), life_s=86400.0, down=(0.0, 1e9))
    world.run(3 * 3600.0 + 600.0, tick_s=5.0)
    assert len(world.said) == 4
    assert set(world.said) == {"no delegation tokens for HDFS could be obtained: the KDC is down; it is tried again"}


def test_tokens_without_a_source_are_announced_with_their_end() -> None:
    state, actions = step(TokenState(), TokensObtained(BEGIN_S, "mark", longest_s=604_800.0))
    said = [action.text for action in actions if isinstance(action, TellUser)]
    assert len(said) == 1 and "neither ticket nor keytab" in said[0] and "spark.kerberos.keytab" in said[0]
    state, actions = step(state, TokensObtained(BEGIN_S + 60, "mark", longest_s=604_740.0))
    assert actions == ()


def test_failures_are_tried_again_with_growing_pauses() -> None:
    state, pauses = TokenState(extends=True), []
    for _ in range(9):
        state, _actions = step(state, ObtainFailed(BEGIN_S, "no answer"))
        pauses.append(state.due_s - BEGIN_S)
    assert pauses == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]
