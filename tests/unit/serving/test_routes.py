"""Tests of versions and routes of one server, and of the supervision of replicas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.serving.routes import (
    DRAIN_S,
    FIRST_PAUSE_S,
    SILENT_LOADING_S,
    SILENT_S,
    STEADY_S,
    AllReplicasEnded,
    DrainReplica,
    KillReplica,
    LoadVersion,
    NoSuchVersion,
    Route,
    RouteOutcome,
    Router,
    RouteRefused,
    RouteTookEffect,
    SendRoute,
    SpawnReplica,
    Supervision,
    UnloadVersion,
)

ROLL_S = 300.0
ONE, TWO, THREE = Route(1, default=3), Route(2, default=4), Route(3, default=5)


def started(replicas: int = 2) -> Supervision:
    """Return a supervision whose replicas all follow the first route."""
    found = Supervision(replicas)
    assert found.begin(ONE, 0.0) == [SpawnReplica(number) for number in range(replicas)]
    for number in range(replicas):
        assert found.replica_connected(number, 0.0) == [SendRoute(number, ONE)]
        assert found.route_took_effect(number, 1, 0.0) == ([RouteOutcome(1)] if number == replicas - 1 else [])
    return found


def test_route_change_is_complete_when_all_replicas_follow() -> None:
    found = started()
    assert found.roll(TWO, 0.0, ROLL_S) == [SendRoute(0, TWO), SendRoute(1, TWO)]
    assert found.route_took_effect(1, 2, 1.0) == []
    assert found.route_took_effect(0, 2, 2.0) == [RouteOutcome(2)] and found.settled == TWO


def test_all_replicas_return_to_the_earlier_route_if_one_refuses() -> None:
    found = started()
    found.roll(TWO, 0.0, ROLL_S)
    found.route_took_effect(1, 2, 1.0)
    assert found.route_refused(0, 2, "no room", 1.0) == [
        RouteOutcome(2, "replica 0: no room"),
        SendRoute(0, ONE),
        SendRoute(1, ONE),
    ]
    assert found.settled == ONE and found.route_took_effect(1, 1, 2.0) == []


def test_pending_route_change_fails_when_the_serving_stops() -> None:
    beginning = Supervision(1)
    beginning.begin(ONE, 0.0)
    assert beginning.stop(1.0) == [
        RouteOutcome(1, "the serving was stopped before the change was complete"),
        DrainReplica(0),
    ]
    assert beginning.replica_exited(0, "ended", 2.0) == [AllReplicasEnded()]
    found = started(1)
    found.roll(TWO, 0.0, ROLL_S)
    assert found.stop(1.0) == [
        RouteOutcome(2, "the serving was stopped before the change was complete"),
        DrainReplica(0),
    ]


def test_replica_exit_during_a_route_change_restores_the_earlier_route() -> None:
    found = started()
    found.roll(TWO, 0.0, ROLL_S)
    assert found.replica_exited(0, "was killed", 1.0) == [RouteOutcome(2, "replica 0 was killed"), SendRoute(1, ONE)]
    assert found.tick(1.0 + FIRST_PAUSE_S) == [SpawnReplica(0)]
    assert found.replica_connected(0, 2.0) == [SendRoute(0, ONE)]


def test_later_route_change_replaces_an_earlier_one() -> None:
    found = started(1)
    found.roll(TWO, 0.0, ROLL_S)
    assert found.roll(THREE, 0.0, ROLL_S) == [
        RouteOutcome(2, "a later request has replaced this one: route 3"),
        SendRoute(0, THREE),
    ]
    assert found.route_refused(0, 2, "a later request has replaced this one: route 3", 1.0) == []
    assert found.route_took_effect(0, 3, 1.0) == [RouteOutcome(3)]


def test_route_change_beyond_its_timeout_is_reverted() -> None:
    found = started()
    found.roll(TWO, 0.0, ROLL_S)
    found.route_took_effect(1, 2, 1.0)
    for number in (0, 1):
        found.heartbeat_received(number, True, ROLL_S)
    assert found.tick(ROLL_S - 1.0) == []
    reason = "replica 0 did not load the version within 300 s (timeout)"
    assert found.tick(ROLL_S) == [RouteOutcome(2, reason), SendRoute(0, ONE), SendRoute(1, ONE)]
    assert found.tick(ROLL_S + 1.0) == [] and found.settled == ONE


def test_restart_pause_of_a_failing_replica_doubles_until_it_is_steady() -> None:
    found = started(1)
    now, pauses = 0.0, []
    for _ in range(4):
        assert found.replica_exited(0, "was killed", now) == []
        due = found.replicas[0].restart_s
        assert due is not None and found.tick(due - 0.01) == []
        pauses.append(round(due - now, 3))
        assert found.tick(due) == [SpawnReplica(0)]
        found.replica_connected(0, due)
        found.route_took_effect(0, 1, due)
        now = due
    assert pauses == [0.1, 0.2, 0.4, 0.8]
    found.replica_exited(0, "was killed", now + STEADY_S)
    assert found.replicas[0].restart_s == now + STEADY_S + FIRST_PAUSE_S


def test_silent_replica_is_killed_later_if_it_is_loading() -> None:
    found = started()
    found.heartbeat_received(1, True, 0.0)
    (killed,) = found.tick(SILENT_S + 1)
    assert isinstance(killed, KillReplica) and killed.replica == 0 and "or hangs" in killed.reason
    assert found.tick(SILENT_S + 1) == []
    found.replica_exited(0, "was killed", SILENT_S + 2)
    (killed, spawned) = sorted(found.tick(SILENT_LOADING_S + 1), key=lambda one: one.replica, reverse=True)  # type: ignore[union-attr]
    assert isinstance(killed, KillReplica) and killed.replica == 1 and spawned == SpawnReplica(0)


def test_serving_that_cannot_start_ends() -> None:
    found = Supervision(2)
    found.begin(ONE, 0.0)
    found.replica_connected(0, 0.0)
    assert found.route_refused(0, 1, "broken file", 1.0) == [
        RouteOutcome(1, "replica 0: broken file"),
        KillReplica(0, "the serving could not be started"),
        KillReplica(1, "the serving could not be started"),
    ]
    assert found.replica_exited(0, "was killed", 2.0) == [] and found.replica_exited(1, "was killed", 2.0) == [
        AllReplicasEnded()
    ]
    alone = Supervision(1)
    alone.begin(ONE, 0.0)
    assert alone.replica_exited(0, "was killed", 1.0) == [RouteOutcome(1, "replica 0 was killed"), AllReplicasEnded()]


def test_stop_drains_replicas_and_then_kills_them() -> None:
    found = started()
    assert found.stop(0.0) == [DrainReplica(0), DrainReplica(1)] and found.stop(0.0) == []
    assert found.replica_exited(0, "ended", 1.0) == [] and found.tick(1.0) == []
    assert found.tick(DRAIN_S) == [KillReplica(1, "it did not finish its requests in time")]
    assert found.replica_exited(1, "was killed", DRAIN_S) == [AllReplicasEnded()]
    down = started(1)
    down.replica_exited(0, "was killed", 1.0)
    assert down.stop(1.0) == [AllReplicasEnded()]


def test_new_replica_that_cannot_follow_the_route_is_restarted() -> None:
    found = started()
    found.replica_exited(0, "was killed", 1.0)
    found.tick(2.0)
    found.replica_connected(0, 2.0)
    (action,) = found.route_refused(0, 1, "files are gone", 3.0)
    assert isinstance(action, KillReplica) and "files are gone" in action.reason


pytestmark = pytest.mark.fast


def router_following(route: Route) -> Router:
    router = Router()
    router.switch_to(route)
    for version in route.versions:
        router.version_loaded(version)
    return router


def test_first_version_is_chosen_once_it_is_loaded() -> None:
    router = Router()
    assert router.switch_to(Route(1, default=3)) == [LoadVersion(3)]
    with pytest.raises(NoSuchVersion, match="no version has been loaded yet"):
        router.choose_version()
    assert router.versions == {3: "LOADING"}
    assert router.version_loaded(3) == [RouteTookEffect(1)]
    assert router.choose_version() == 3 and router.versions == {3: "AVAILABLE"}


def test_route_switches_when_the_new_version_is_loaded_and_the_old_one_drains() -> None:
    router = router_following(Route(1, default=3))
    router.begin_request(router.choose_version())
    assert router.switch_to(Route(2, default=4)) == [LoadVersion(4)]
    assert router.choose_version() == 3
    assert router.version_loaded(4) == [RouteTookEffect(2)]
    assert router.choose_version() == 4
    assert router.versions == {3: "UNLOADING", 4: "AVAILABLE"}
    with pytest.raises(NoSuchVersion, match="version 3 is not served; the served versions are 4"):
        router.choose_version(version=3)
    assert router.end_request(3) == [UnloadVersion(3)] and router.versions == {4: "AVAILABLE"}


def test_version_that_cannot_be_loaded_leaves_the_route_unchanged() -> None:
    router = router_following(Route(1, default=3))
    assert router.switch_to(Route(2, default=3, canary=4, share=0.5)) == [LoadVersion(4)]
    assert router.version_failed(4, "broken") == [RouteRefused(2, "broken")]
    assert router.choose_version() == 3 and router.versions == {3: "AVAILABLE"}


def test_replaced_route_change_unloads_its_version() -> None:
    router = router_following(Route(1, default=3))
    router.switch_to(Route(2, default=4))
    assert router.switch_to(Route(3, default=5)) == [
        RouteRefused(2, "a later request has replaced this one: route 3"),
        LoadVersion(5),
    ]
    assert router.version_loaded(4) == [UnloadVersion(4)]
    assert router.version_loaded(5) == [RouteTookEffect(3), UnloadVersion(3)]


def test_route_back_to_a_draining_version_loads_nothing() -> None:
    router = router_following(Route(1, default=3))
    router.begin_request(3)
    router.switch_to(Route(2, default=4))
    router.version_loaded(4)
    assert router.switch_to(Route(3, default=3)) == [RouteTookEffect(3), UnloadVersion(4)]
    assert router.end_request(3) == []


def test_labels_choose_their_versions_and_unknown_ones_are_refused() -> None:
    router = router_following(Route(1, default=3, canary=4, share=0.1, labels={"production": 3, "old": 1}))
    assert [router.choose_version(label=one) for one in ("stable", "canary", "production")] == [3, 4, 3]
    with pytest.raises(NoSuchVersion, match="no version has the label 'prodution'; did you mean production"):
        router.choose_version(label="prodution")
    with pytest.raises(NoSuchVersion, match="'old'; there are: stable, canary, production"):
        router.choose_version(label="old")


@given(share=st.floats(0, 1), count=st.integers(1, 300))
def test_canary_gets_its_share_at_any_time(share: float, count: int) -> None:
    router = router_following(Route(1, default=1, canary=2, share=share))
    answered = [router.choose_version() for _ in range(count)]
    assert abs(answered.count(2) - count * share) <= 1


@given(
    st.lists(st.tuples(st.sampled_from(["ask", "loaded", "failed", "began", "ended"]), st.integers(1, 4)), max_size=40)
)
def test_router_loads_the_chosen_version_and_unloads_all_others(events: list[tuple[str, int]]) -> None:
    """A caller that follows the router's actions always has the versions of requests in flight loaded."""
    router = Router()
    available: set[int] = set()
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
                available.add(chosen)
                actions = router.version_loaded(chosen)
            else:
                actions = router.version_failed(chosen, "broken")
        elif event == "began" and router.route:
            in_flight.append(router.choose_version())
            router.begin_request(in_flight[-1])
        elif event == "ended" and in_flight:
            actions = router.end_request(in_flight.pop(version % len(in_flight)))
        for action in actions:
            if isinstance(action, LoadVersion):
                assert action.version not in available | loading
                loading.add(action.version)
            elif isinstance(action, UnloadVersion):
                available.remove(action.version)
        assert set(in_flight) <= available
        assert router.route is None or set(router.route.versions) <= available
    if not loading and router.route:
        assert available == {*router.route.versions, *in_flight}
