"""Tests of the choice of the version that answers, and of changes between versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.serving.routes import Load, NoSuchVersion, Route, Router, RouteRefused, Turned, Unload

pytestmark = pytest.mark.fast


def following(route: Route) -> Router:
    router = Router()
    router.switch_to(route)
    for version in route.versions:
        router.loaded(version)
    return router


def test_the_first_version_answers_when_it_is_loaded() -> None:
    router = Router()
    assert router.switch_to(Route(1, default=3)) == [Load(3)]
    with pytest.raises(NoSuchVersion, match="no version is loaded yet"):
        router.choose()
    assert router.versions == {3: "LOADING"}
    assert router.loaded(3) == [Turned(1)]
    assert router.choose() == 3 and router.versions == {3: "AVAILABLE"}


def test_a_roll_turns_over_when_the_new_one_is_there_and_lets_the_old_one_drain() -> None:
    router = following(Route(1, default=3))
    router.begin_request(router.choose())
    assert router.switch_to(Route(2, default=4)) == [Load(4)]
    assert router.choose() == 3
    assert router.loaded(4) == [Turned(2)]
    assert router.choose() == 4
    assert router.versions == {3: "UNLOADING", 4: "AVAILABLE"}
    with pytest.raises(NoSuchVersion, match="version 3 is not served; there are: 4"):
        router.choose(version=3)
    assert router.end_request(3) == [Unload(3)] and router.versions == {4: "AVAILABLE"}


def test_a_version_that_cannot_be_loaded_changes_nothing() -> None:
    router = following(Route(1, default=3))
    assert router.switch_to(Route(2, default=3, canary=4, share=0.5)) == [Load(4)]
    assert router.failed(4, "broken") == [RouteRefused(2, "broken")]
    assert router.choose() == 3 and router.versions == {3: "AVAILABLE"}


def test_a_route_is_given_up_for_another_and_what_was_loaded_for_it_goes() -> None:
    router = following(Route(1, default=3))
    router.switch_to(Route(2, default=4))
    assert router.switch_to(Route(3, default=5)) == [RouteRefused(2, "route 3 was asked for meanwhile"), Load(5)]
    assert router.loaded(4) == [Unload(4)]
    assert router.loaded(5) == [Turned(3), Unload(3)]


def test_back_to_a_version_that_still_drains_loads_nothing() -> None:
    router = following(Route(1, default=3))
    router.begin_request(3)
    router.switch_to(Route(2, default=4))
    router.loaded(4)
    assert router.switch_to(Route(3, default=3)) == [Turned(3), Unload(4)]
    assert router.end_request(3) == []


def test_labels() -> None:
    router = following(Route(1, default=3, canary=4, share=0.1, labels={"production": 3, "old": 1}))
    assert [router.choose(label=one) for one in ("stable", "canary", "production")] == [3, 4, 3]
    with pytest.raises(NoSuchVersion, match="no version has the label 'prodution'; did you mean production"):
        router.choose(label="prodution")
    with pytest.raises(NoSuchVersion, match="'old'; there are: stable, canary, production"):
        router.choose(label="old")


@given(share=st.floats(0, 1), asked=st.integers(1, 300))
def test_a_canary_gets_its_share_at_any_time(share: float, asked: int) -> None:
    router = following(Route(1, default=1, canary=2, share=share))
    answered = [router.choose() for _ in range(asked)]
    assert abs(answered.count(2) - asked * share) <= 1


@given(
    st.lists(st.tuples(st.sampled_from(["ask", "loaded", "failed", "began", "ended"]), st.integers(1, 4)), max_size=40)
)
def test_whatever_happens_what_is_chosen_is_loaded_and_nothing_stays(events: list[tuple[str, int]]) -> None:
    """A caller that loads and unloads as it is told never misses a version that a request is in."""
    router = Router()
    held: set[int] = set()
    loading: set[int] = set()
    in_flight: list[int] = []
    number = 0
    for event, version in events:
        actions = []
        if event == "ask":
            number += 1
            actions = router.switch_to(Route(number, default=version, canary=version % 4 + 1, share=0.5))
        elif event in ("loaded", "failed") and loading:
            chosen = sorted(loading)[version % len(loading)]
            loading.discard(chosen)
            if event == "loaded":
                held.add(chosen)
                actions = router.loaded(chosen)
            else:
                actions = router.failed(chosen, "broken")
        elif event == "began" and router.route:
            in_flight.append(router.choose())
            router.begin_request(in_flight[-1])
        elif event == "ended" and in_flight:
            actions = router.end_request(in_flight.pop(version % len(in_flight)))
        for action in actions:
            if isinstance(action, Load):
                assert action.version not in held | loading
                loading.add(action.version)
            elif isinstance(action, Unload):
                held.remove(action.version)
        assert set(in_flight) <= held
        assert router.route is None or set(router.route.versions) <= held
    if not loading and router.route:
        assert held == {*router.route.versions, *in_flight}
