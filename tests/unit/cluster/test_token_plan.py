"""Tests of the decisions when delegation tokens are obtained, given to processes and withdrawn, and what users are told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.cluster.driver.tokens.plan import (
    FORMAT,
    Action,
    ObtainFailed,
    ObtainTokens,
    ShipTokens,
    TellUser,
    TimePassed,
    TokensObtained,
    TokenState,
    WithdrawTokens,
    notice,
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


def date(seconds: float) -> str:
    """Return a time after BEGIN_S as texts have it."""
    return time.strftime(FORMAT, time.localtime(BEGIN_S + seconds))


def told(state: TokenState, *events: TokensObtained | ObtainFailed | TimePassed) -> tuple[TokenState, list[str]]:
    """Return the state after events, and all texts for the user."""
    texts: list[str] = []
    for event in events:
        state, actions = step(state, event)
        texts += [action.text for action in actions if isinstance(action, TellUser)]
    return state, texts


TICKET, KEYTAB, GIVEN = TokenState(obtains=True), TokenState(extends=True), TokenState(is_backed=True)


@pytest.mark.parametrize(
    ("source", "found", "text"),
    [
        # the renewal interval is known: until then
        (TICKET, TokensObtained(BEGIN_S, "a", life_s=90.0, longest_s=600.0), f"can be used until {date(90)};"),
        (KEYTAB, TokensObtained(BEGIN_S, "a", life_s=90.0, longest_s=600.0), f"can be used until {date(90)};"),
        # whether anybody renews them is not
        (GIVEN, TokensObtained(BEGIN_S, "a", longest_s=600.0), f"can be used until {date(600)} at the latest;"),
        (TokenState(), TokensObtained(BEGIN_S, "a"), "obtained: gone; it is tried again"),
    ],
)
def test_note_about_a_failure_has_the_time_until_which_tokens_can_be_used(
    source: TokenState, found: TokensObtained, text: str
) -> None:
    _, texts = told(source, found, ObtainFailed(BEGIN_S + 10, "gone"))
    assert text in texts[-1], texts


@pytest.mark.parametrize("life_s", [40.0, 100.0, 333.0])
@pytest.mark.parametrize("ticket_s", [10.0, 1000.0, 1030.0, 1049.0])
def test_end_with_a_ticket_is_never_later_than_the_end_of_the_last_tokens(life_s: float, ticket_s: float) -> None:
    world = World(TokenState(obtains=True), life_s, ticket_s=ticket_s)
    ends = []
    while world.now_s < BEGIN_S + ticket_s + 2 * life_s:
        world.run(1.0)
        ends.append(world.state.ends_s)
    assert max(ends) <= world.held_until_s + 2.0
    assert ends[0] >= BEGIN_S + ticket_s + life_s / 2 - 2.0, "half a life is certain"


@pytest.mark.parametrize(
    ("tickets", "ends"),
    [
        ([1000, 950], [1050]),  # the same ticket 50 s later
        ([1000, 100], [1050, 200]),  # a shorter one
        ([1000, 2000], [1050, 2100]),  # a longer one
        ([1000, 0], [1050]),  # its end is unknown
    ],
)
def test_another_ticket_moves_the_end_in_both_directions(tickets: list[int], ends: list[int]) -> None:
    state, said = TICKET, list[str]()
    for at, ticket_s in zip((0.0, 50.0), tickets, strict=True):
        found = TokensObtained(BEGIN_S + at, f"of {at}", life_s=100.0, ticket_s=ticket_s)
        state, texts = told(state, found)
        said += texts
    assert [text.partition("until ")[2].partition(";")[0] for text in said] == [date(end) for end in ends]


def test_tokens_that_somebody_replaces_are_announced_once_and_again_if_that_ends() -> None:
    state, said = TokenState(), list[str]()
    for second in range(0, 100, 5):
        state, texts = told(state, TokensObtained(BEGIN_S + second, f"of {second}", longest_s=90.0))
        said += texts
        assert (notice(state) == "") == (second > 0), "who starts a run now need not know the end of these tokens"
    assert len(said) == 1 and "neither ticket nor keytab" in said[0]
    for second in range(100, 190):
        state, texts = told(state, TimePassed(BEGIN_S + second))
        said += texts
    last = f"the delegation tokens of this application end at {date(185)} unless they are replaced once more before"
    assert said[1:] == [last, last] and notice(state) == last


def test_given_tokens_that_end_earlier_are_announced() -> None:
    _, texts = told(
        GIVEN, TokensObtained(BEGIN_S, "a", longest_s=600.0), TokensObtained(BEGIN_S + 5, "b", longest_s=60)
    )
    assert [date(600) in texts[0], date(65) in texts[1], len(texts)] == [True, True, 2]


def test_tokens_that_do_not_name_their_end_are_announced_as_such() -> None:
    state, texts = told(TokenState(), TokensObtained(BEGIN_S, "a"), TokensObtained(BEGIN_S + 60, "a"))
    assert len(texts) == 1 and "it is unknown when" in texts[0] and notice(state) == texts[0]
    assert told(KEYTAB, TokensObtained(BEGIN_S, "a"))[1] == []


@pytest.mark.parametrize("source", [TICKET, KEYTAB, GIVEN])
@pytest.mark.parametrize("missing", ["", "hdfs://b (refused)"])
def test_notice_after_a_passing_failure_is_that_before(source: TokenState, missing: str) -> None:
    found = TokensObtained(BEGIN_S, "a", life_s=100.0, longest_s=600.0, ticket_s=1000.0)
    state, _ = told(source, found)
    before = notice(state)
    failed = (
        TokensObtained(BEGIN_S + 5, "a", 100.0, 595.0, 995.0, missing)
        if missing
        else ObtainFailed(BEGIN_S + 5, "no answer")
    )
    state, texts = told(state, failed)
    assert len(texts) == 1 and notice(state) == texts[0]
    state, texts = told(state, TokensObtained(BEGIN_S + 6, "a", 100.0, 594.0, 994.0))
    assert texts == ["delegation tokens for HDFS are obtained again"]
    assert notice(state) == before and bool(before) == (source is not KEYTAB)


def test_store_without_tokens_costs_the_others_nothing_and_is_told_hourly() -> None:
    state, shipped, said, asked = TICKET, 0, list[str](), 0
    for second in range(2 * 3600 + 60):
        state, actions = step(state, TimePassed(BEGIN_S + second))
        if ObtainTokens() in actions:
            asked += 1
            found = TokensObtained(BEGIN_S + second, f"{asked}", 86400.0, ticket_s=1e9, missing="hdfs://b (refused)")
            state, actions = step(state, found)
            shipped += ShipTokens() in actions
            said += [one.text for one in actions if isinstance(one, TellUser) and "hdfs://b" in one.text]
    assert shipped == asked and 2 * 12 <= asked <= 2 * 12 + 7, "at least every five minutes"
    assert said == ["delegation tokens could not be obtained for hdfs://b (refused); it is tried again"] * 3


def test_failure_of_all_stores_after_that_of_one_is_told_at_once() -> None:
    _, texts = told(
        TICKET,
        TokensObtained(BEGIN_S, "a", 100.0, missing="hdfs://b (refused)"),
        ObtainFailed(BEGIN_S + 5, "no KDC"),
        ObtainFailed(BEGIN_S + 10, "no KDC"),
        TokensObtained(BEGIN_S + 20, "b", 100.0, missing="hdfs://b (refused)"),
    )
    assert ["hdfs://b" in text for text in texts] == [True, False, True]


@pytest.mark.parametrize("stops_s", [None, 200])
def test_keytab_that_stops_working_is_told_before_the_tokens_end_and_hourly(stops_s: int | None) -> None:
    """Spark replaces tokens of 90 s after 67 s, until the keytab's key is no longer valid."""
    state, said = KEYTAB, list[tuple[int, str]]()
    for second in range(4000):
        state, actions = step(state, TimePassed(BEGIN_S + second))
        if ObtainTokens() in actions:
            mark = f"{min(second, stops_s or second) // 67}"
            state, actions = step(state, TokensObtained(BEGIN_S + second, mark, life_s=90.0, longest_s=600.0))
            said += [(second, one.text) for one in actions if isinstance(one, TellUser)]
    if stops_s is None:
        assert said == [] and notice(state) == ""
        return
    (first_s, first), (_, second_text) = said
    ends_s = int(state.usable_s - BEGIN_S)
    assert 134 + 0.75 * 90 < first_s < ends_s <= 134 + 5 + 90
    assert f"with the keytab since {date(ends_s - 90)}" in first and f"end at {date(ends_s)}" in first
    assert f"ended at {date(ends_s)}" in second_text and "hopsml doctor" in notice(state)
    state, texts = told(state, TokensObtained(BEGIN_S + 4000, "new", life_s=90.0, longest_s=600.0))
    assert texts == ["delegation tokens for HDFS are obtained again"] and notice(state) == ""


def actions_at(state: TokenState, second: float, mark: str) -> tuple[TokenState, tuple[object, ...]]:
    """Return the state and the actions after tokens were seen that last for 90 s from first sight, and 300 s in all."""
    life_s = 90.0 - (second - (state.got_s - BEGIN_S if mark == state.mark else second))
    return step(state, TokensObtained(BEGIN_S + second, mark, life_s=max(0.0, life_s), longest_s=300.0 - second))


def test_executors_return_to_tokens_that_yarn_renews_before_those_of_a_keytab_end() -> None:
    state = TokenState(extends=True, is_backed=True)
    state, actions = actions_at(state, 0.0, "first")
    assert ShipTokens() in actions
    seen: dict[float, tuple[object, ...]] = {}
    for second in range(5, 120, 5):
        state, seen[second] = actions_at(state, float(second), "first")
    (back,) = [second for second, found in seen.items() if WithdrawTokens() in found]
    assert 70 < back < 90, "before their end, and once"
    (text,) = [one.text for one in seen[back] if isinstance(one, TellUser)]
    assert "Spark has obtained no new delegation tokens with the keytab" in text
    assert f"executors use those of the submission until {date(300)}" in text
    state, actions = actions_at(state, 125.0, "second")
    assert ShipTokens() in actions and TellUser("delegation tokens for HDFS are obtained again") in actions


@pytest.mark.parametrize("state", [TokenState(extends=True), TokenState(extends=True, is_backed=True)])
def test_tokens_of_a_keytab_are_not_withdrawn_if_those_of_the_submission_end_no_later(state: TokenState) -> None:
    state, _ = step(state, TokensObtained(BEGIN_S, "first", life_s=90.0, longest_s=90.0))
    for second in range(5, 120, 5):
        left_s = max(0.0, 90.0 - second)
        state, actions = step(state, TokensObtained(BEGIN_S + second, "first", life_s=left_s, longest_s=left_s))
        assert WithdrawTokens() not in actions
