"""State machines of a serving: which version answers a request (``Router``), and its replicas (``Supervision``). Pure.

A server receives a ``Route``: the versions it has to load, the default version, and the share of requests that a canary
answers. It loads missing versions while the current ones answer, switches atomically when all are loaded, and unloads
an earlier version after its last request. A version that cannot be loaded changes nothing.

A roll to another route is requested of all replicas at once. It succeeds when all of them follow the new route. If one
cannot, fails (two models may exceed its memory) or takes too long, all return to the previous route.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hopsml.core import suggestions
from hopsml.storage.backoff import pause_s


@dataclass(frozen=True)
class Route:
    """Versions that a server has loaded, with their shares of requests.

    Attributes:
        number: Number of the route, in the order of the requests for routes.
        default: Version that answers requests without a version.
        canary: Version that answers a share of these requests; None if there is none.
        share: Share of the canary, 0 to 1.
        labels: Further names of versions; "stable" and "canary" always exist if there is such a version.
    """

    number: int
    default: int
    canary: int | None = None
    share: float = 0.0
    labels: Mapping[str, int] = field(default_factory=dict)

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that must be loaded."""
        return (self.default,) if self.canary in (None, self.default) else (self.default, int(self.canary or 0))

    def version_with_label(self, label: str) -> int | None:
        """Return the version with this label; None if there is none."""
        own = {"stable": self.default} if self.canary is None else {"stable": self.default, "canary": self.canary}
        return {**{name: one for name, one in self.labels.items() if one in self.versions}, **own}.get(label)


@dataclass(frozen=True)
class LoadVersion:
    """Action to load a version and try it out; its result is the event ``version_loaded`` or ``version_failed``."""

    version: int


@dataclass(frozen=True)
class UnloadVersion:
    """Action to unload a version without requests."""

    version: int


@dataclass(frozen=True)
class RouteTookEffect:
    """Report that the route with this number has taken effect."""

    number: int


@dataclass(frozen=True)
class RouteRefused:
    """Report that the route with this number cannot take effect; the previous one remains."""

    number: int
    reason: str


RouteAction = LoadVersion | UnloadVersion | RouteTookEffect | RouteRefused


class NoSuchVersion(LookupError):
    """Error for a version number or label that is not served, or while no version is loaded."""


class Router:
    """State machine of one server's versions; callers carry out the actions that its methods return."""

    def __init__(self) -> None:
        self.route: Route | None = None  # in effect
        self._next: Route | None = None  # whose versions are being loaded
        self._loaded: set[int] = set()
        self._loading: set[int] = set()
        self._in_flight: dict[int, int] = {}
        self._asked = 0  # requests without a version since the route took effect

    @property
    def versions(self) -> dict[int, str]:
        """Version number -> "LOADING", "AVAILABLE" or "UNLOADING", sorted by version."""
        kept = self.route.versions if self.route else ()
        held = {one: "AVAILABLE" if one in kept else "UNLOADING" for one in self._loaded}
        coming = self._next.versions if self._next else ()
        states = {**dict.fromkeys(self._loading, "LOADING"), **held}
        states |= {one: "LOADING" for one in coming if states.get(one) == "UNLOADING"}
        return dict(sorted(states.items()))

    def switch_to(self, route: Route) -> list[RouteAction]:
        """Begin to switch to a route; an earlier one that has not taken effect is abandoned."""
        given_up = self._next
        self._next = route
        actions: list[RouteAction] = []
        if given_up is not None:
            actions.append(
                RouteRefused(given_up.number, f"a later request has replaced this one: route {route.number}")
            )
        missing = [one for one in route.versions if one not in self._loaded | self._loading]
        self._loading |= set(missing)
        return [*actions, *(LoadVersion(one) for one in missing), *self._turn()]

    def version_loaded(self, version: int) -> list[RouteAction]:
        """Handle a version that was loaded and has answered a first call."""
        self._loading.discard(version)
        self._loaded.add(version)
        return self._turn()

    def version_failed(self, version: int, reason: str) -> list[RouteAction]:
        """Handle a version that could not be loaded, with the reason."""
        self._loading.discard(version)
        if self._next is None or version not in self._next.versions:
            return self._let_go()
        number, self._next = self._next.number, None
        return [RouteRefused(number, reason), *self._let_go()]

    def choose_version(self, version: int | None = None, label: str | None = None) -> int:
        """Return the version that answers a request.

        Raises:
            NoSuchVersion: The version or label is not served, or no version is loaded.
        """
        if self.route is None:
            raise NoSuchVersion("no version has been loaded yet")
        if label is not None:
            found = self.route.version_with_label(label)
            if found is None:
                known = [one for one in ("stable", "canary", *self.route.labels) if self.route.version_with_label(one)]
                raise NoSuchVersion(
                    f"no version has the label {label!r}; {suggestions.suggestion_text(label, known, '')}"
                )
            return found
        if version is not None:
            if version not in self.route.versions:
                served = ", ".join(map(str, self.route.versions))
                raise NoSuchVersion(f"version {version} is not served; the served versions are {served}")
            return version
        return self._share()

    def _share(self) -> int:
        """Return default or canary; with a share of 0.1, exactly each tenth request goes to the canary."""
        assert self.route is not None
        if self.route.canary is None:
            return self.route.default
        self._asked += 1
        before, after = (int(count * self.route.share + 1e-9) for count in (self._asked - 1, self._asked))
        return self.route.canary if after > before else self.route.default

    def begin_request(self, version: int) -> None:
        """Count a request that this version is to answer."""
        self._in_flight[version] = self._in_flight.get(version, 0) + 1

    def end_request(self, version: int) -> list[RouteAction]:
        """Count a request that this version has answered, and return versions to unload."""
        self._in_flight[version] -= 1
        if self._in_flight[version]:
            return []
        del self._in_flight[version]
        return self._let_go()

    def _turn(self) -> list[RouteAction]:
        """Put the next route into effect if all its versions are loaded."""
        if self._next is None or not set(self._next.versions) <= self._loaded:
            return self._let_go()
        self.route, self._next, self._asked = self._next, None, 0
        return [RouteTookEffect(self.route.number), *self._let_go()]

    def _let_go(self) -> list[RouteAction]:
        """Return actions to unload versions that no route and no request needs."""
        needed = {one for route in (self.route, self._next) if route for one in route.versions} | set(self._in_flight)
        gone = sorted(self._loaded - needed)
        self._loaded -= set(gone)
        return [UnloadVersion(one) for one in gone]


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
STEADY_S = 60.0  # a replica that has answered for this time has its earlier failures forgotten
SILENT_S = 10.0  # silence timeout of a replica, after which it counts as stopped or hanging
SILENT_LOADING_S = 120.0  # the import of a framework may block Python
DRAIN_S = 30.0  # for received requests when the serving ends


@dataclass(frozen=True)
class SpawnReplica:
    """Action to start this replica."""

    replica: int


@dataclass(frozen=True)
class SendRoute:
    """Action to send a route to this replica."""

    replica: int
    route: Route


@dataclass(frozen=True)
class DrainReplica:
    """Action to end this replica after its requests are answered."""

    replica: int


@dataclass(frozen=True)
class KillReplica:
    """Action to kill this replica, with the reason for the log."""

    replica: int
    reason: str


@dataclass(frozen=True)
class RouteOutcome:
    """Result of the route with this number; ``error`` is empty if all replicas follow it."""

    number: int
    error: str = ""


@dataclass(frozen=True)
class AllReplicasEnded:
    """Report that no replica runs any more."""


SupervisionAction = SpawnReplica | SendRoute | DrainReplica | KillReplica | RouteOutcome | AllReplicasEnded


@dataclass
class ReplicaState:
    """State of one replica; times are in monotonic seconds, None if not set.

    Attributes:
        is_running: True if its process runs.
        is_connected: True if it has sent a message, so that it can receive routes.
        is_loading: True while it loads a version.
        follows: Number of its route; 0 before the first one.
        failures: Number of consecutive failures.
        ready_s: Time at which it first answered.
        restart_s: Time of its next restart.
        heard_s: Time of its last message.
    """

    is_running: bool = False
    is_connected: bool = False
    is_loading: bool = True
    follows: int = 0
    failures: int = 0
    ready_s: float | None = None
    restart_s: float | None = None
    heard_s: float = 0.0


class Supervision:
    """State machine of all replicas of one serving; each event returns actions in the order of their execution."""

    def __init__(self, replicas: int) -> None:
        self.replicas = [ReplicaState() for _ in range(replicas)]
        self.settled: Route | None = None  # route that all follow, or return to
        self._rolling: Route | None = None
        self._roll_until_s = math.inf
        self._roll_timeout_s = math.inf
        self._stop_s: float | None = None

    @property
    def ready_count(self) -> int:
        """Number of replicas that answer."""
        return sum(one.is_running and one.follows > 0 for one in self.replicas)

    @property
    def is_stopping(self) -> bool:
        """True if a stop was requested, or the first start failed."""
        return self._stop_s is not None

    def begin(self, route: Route, now: float) -> list[SupervisionAction]:
        """Start all replicas with their first route."""
        self._rolling = route
        return [self._spawn(number, now) for number in range(len(self.replicas))]

    def roll(self, route: Route, now: float, timeout_s: float) -> list[SupervisionAction]:
        """Switch all replicas to another route within ``timeout_s`` seconds; the previous route answers until then."""
        actions: list[SupervisionAction] = []
        if self._rolling is not None:
            actions.append(
                RouteOutcome(self._rolling.number, f"a later request has replaced this one: route {route.number}")
            )
        self._rolling, self._roll_timeout_s, self._roll_until_s = route, timeout_s, now + timeout_s
        return [*actions, *self._tell_all(route)]

    def replica_connected(self, number: int, now: float) -> list[SupervisionAction]:
        """Handle the first message of a replica; one that restarts during a roll gets the newer route."""
        one = self.replicas[number]
        one.is_connected, one.heard_s = True, now
        route = self._rolling or self.settled
        return [SendRoute(number, route)] if route and not self.is_stopping else []

    def heartbeat_received(self, number: int, is_loading: bool, now: float) -> list[SupervisionAction]:
        """Handle a heartbeat of a replica."""
        self.replicas[number].heard_s, self.replicas[number].is_loading = now, is_loading
        return []

    def route_took_effect(self, number: int, route: int, now: float) -> list[SupervisionAction]:
        """Handle a replica's report that it follows a route."""
        one = self.replicas[number]
        one.follows, one.heard_s, one.is_loading = route, now, False
        one.ready_s = now if one.ready_s is None else one.ready_s
        rolling = self._rolling
        if rolling is None or any(each.follows != rolling.number for each in self.replicas):
            return []
        self.settled, self._rolling = rolling, None
        return [RouteOutcome(rolling.number)]

    def route_refused(self, number: int, route: int, reason: str, now: float) -> list[SupervisionAction]:
        """Handle a replica's report that it cannot follow a route, with the reason."""
        if self._rolling is not None and route == self._rolling.number:
            return self._go_back(f"replica {number}: {reason}", now)
        if self.settled is not None and route == self.settled.number:  # a new replica, which may not have the files
            return [KillReplica(number, f"it cannot load the versions of the other replicas: {reason}")]
        return []

    def replica_exited(self, number: int, how: str, now: float) -> list[SupervisionAction]:
        """Handle the end of a replica's process; ``how`` is the description of the end."""
        one = self.replicas[number]
        steady = one.ready_s is not None and now - one.ready_s >= STEADY_S
        failures = 1 if steady else one.failures + 1
        pause = pause_s(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self.replicas[number] = ReplicaState(failures=failures, restart_s=None if self.is_stopping else now + pause)
        if self.is_stopping:
            return [] if any(each.is_running for each in self.replicas) else [AllReplicasEnded()]
        if self._rolling is None:
            return []
        actions = self._go_back(f"replica {number} {how}", now)
        return (
            actions
            if any(each.is_running for each in self.replicas) or self.settled
            else [*actions, AllReplicasEnded()]
        )

    def tick(self, now: float) -> list[SupervisionAction]:
        """Return the actions that are due: restarts, kills of silent replicas, and the end of a late roll or drain."""
        if self._stop_s is not None:
            running = [number for number, one in enumerate(self.replicas) if one.is_running]
            return [
                KillReplica(number, "it did not finish its requests in time")
                for number in running
                if now >= self._stop_s
            ]
        actions = self._late(now)
        for number, one in enumerate(self.replicas):
            patience = SILENT_LOADING_S if one.is_loading else SILENT_S
            if one.is_running and now - one.heard_s > patience:
                one.heard_s = now  # it has not ended yet
                actions.append(
                    KillReplica(number, f"it has sent nothing for {patience:g} s: it is stopped (SIGSTOP), or hangs")
                )
            elif not one.is_running and one.restart_s is not None and now >= one.restart_s:
                actions.append(self._spawn(number, now))
        return actions

    def _late(self, now: float) -> list[SupervisionAction]:
        """Return to the previous route if a roll takes too long: the code of a model may hang while it is loaded."""
        if self._rolling is None or self.settled is None or now < self._roll_until_s:
            return []
        late = [str(number) for number, one in enumerate(self.replicas) if one.follows != self._rolling.number]
        plural = "replicas" if len(late) > 1 else "replica"
        reason = f"{plural} {', '.join(late)} did not load the version within {self._roll_timeout_s:g} s (timeout)"
        return self._go_back(reason, now)

    def stop(self, now: float) -> list[SupervisionAction]:
        """Drain and end all replicas; a roll in progress is abandoned."""
        if self.is_stopping:
            return []
        self._stop_s = now + DRAIN_S
        rolling, self._rolling = self._rolling, None
        told = (
            []
            if rolling is None
            else [RouteOutcome(rolling.number, "the serving was stopped before the change was complete")]
        )
        running = [number for number, one in enumerate(self.replicas) if one.is_running]
        return [*told, *(DrainReplica(number) for number in running)] if running else [*told, AllReplicasEnded()]

    def _spawn(self, number: int, now: float) -> SpawnReplica:
        """Reset the state of a replica, and return the action to start it."""
        before = self.replicas[number]
        self.replicas[number] = replace(ReplicaState(), is_running=True, heard_s=now, failures=before.failures)
        return SpawnReplica(number)

    def _go_back(self, reason: str, now: float) -> list[SupervisionAction]:
        """Return to the previous route after a failed roll; if the first route fails, end all replicas."""
        rolling, self._rolling = self._rolling, None
        assert rolling is not None
        outcome = RouteOutcome(rolling.number, reason)
        if self.settled is None:
            self._stop_s = now
            running = [number for number, one in enumerate(self.replicas) if one.is_running]
            return [outcome, *(KillReplica(number, "the serving could not be started") for number in running)]
        return [outcome, *self._tell_all(self.settled)]

    def _tell_all(self, route: Route) -> list[SupervisionAction]:
        """Return actions that send a route to all connected replicas."""
        return [SendRoute(number, route) for number, one in enumerate(self.replicas) if one.is_connected]
