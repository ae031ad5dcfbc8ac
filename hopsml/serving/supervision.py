"""When replicas are started, told of a route, killed and started again; pure, the caller has processes and the clock.

A roll is asked of all replicas at once. It has succeeded when each of them follows the new route; where one cannot, dies
of it (two models at once may be too much for its memory) or takes too long, all of them go back to the route before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hopsml.serving.routes import Route
from hopsml.storage.backoff import pause_s

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
STEADY_S = 60.0  # a replica that has answered for so long has no earlier failures
SILENT_S = 10.0  # without a word of a replica: it is stopped, or hangs
SILENT_LOADING_S = 120.0  # the import of a framework may keep Python from all else
DRAIN_S = 30.0  # for requests that are under way when all ends


@dataclass(frozen=True)
class Spawn:
    """Start this replica."""

    replica: int


@dataclass(frozen=True)
class Follow:
    """Tell this replica to go over to a route."""

    replica: int
    route: Route


@dataclass(frozen=True)
class DrainReplica:
    """Let this replica end when what is in it has been answered."""

    replica: int


@dataclass(frozen=True)
class KillReplica:
    """End this replica at once; why, for the log."""

    replica: int
    reason: str


@dataclass(frozen=True)
class RouteOutcome:
    """What became of the route with this number; ``error`` is empty where all replicas follow it."""

    number: int
    error: str = ""


@dataclass(frozen=True)
class AllEnded:
    """Nothing runs any more."""


SupervisionAction = Spawn | Follow | DrainReplica | KillReplica | RouteOutcome | AllEnded


@dataclass
class ReplicaState:
    """``follows``: number of its route, 0 before the first; times are monotonic seconds, None where there is none."""

    is_running: bool = False
    is_connected: bool = False
    is_loading: bool = True
    follows: int = 0
    failures: int = 0
    ready_s: float | None = None
    restart_s: float | None = None
    heard_s: float = 0.0


class Supervision:
    """The replicas of one serving. Each event gives actions, in the order in which they are to be carried out."""

    def __init__(self, replicas: int) -> None:
        self.replicas = [ReplicaState() for _ in range(replicas)]
        self.settled: Route | None = None  # what all follow, or go back to
        self._rolling: Route | None = None
        self._roll_until_s = math.inf
        self._roll_timeout_s = math.inf
        self._stop_s: float | None = None

    @property
    def ready(self) -> int:
        """How many replicas answer."""
        return sum(one.is_running and one.follows > 0 for one in self.replicas)

    @property
    def is_stopping(self) -> bool:
        """Whether the end was asked for, or nothing could be started."""
        return self._stop_s is not None

    def begin(self, route: Route, now: float) -> list[SupervisionAction]:
        """Start all replicas with their first route."""
        self._rolling = route
        return [self._spawn(number, now) for number in range(len(self.replicas))]

    def roll(self, route: Route, now: float, timeout_s: float) -> list[SupervisionAction]:
        """Go over to another route within so many seconds, while the one before it answers."""
        actions: list[SupervisionAction] = []
        if self._rolling is not None:
            actions.append(RouteOutcome(self._rolling.number, f"route {route.number} was asked for meanwhile"))
        self._rolling, self._roll_timeout_s, self._roll_until_s = route, timeout_s, now + timeout_s
        return [*actions, *self._tell_all(route)]

    def connected(self, number: int, now: float) -> list[SupervisionAction]:
        """A replica listens to what it is told. One that comes back amid a roll begins with the newer route."""
        one = self.replicas[number]
        one.is_connected, one.heard_s = True, now
        route = self._rolling or self.settled
        return [Follow(number, route)] if route and not self.is_stopping else []

    def heard(self, number: int, is_loading: bool, now: float) -> list[SupervisionAction]:
        """A sign of life."""
        self.replicas[number].heard_s, self.replicas[number].is_loading = now, is_loading
        return []

    def turned(self, number: int, route: int, now: float) -> list[SupervisionAction]:
        """A replica follows a route."""
        one = self.replicas[number]
        one.follows, one.heard_s, one.is_loading = route, now, False
        one.ready_s = now if one.ready_s is None else one.ready_s
        rolling = self._rolling
        if rolling is None or any(each.follows != rolling.number for each in self.replicas):
            return []
        self.settled, self._rolling = rolling, None
        return [RouteOutcome(rolling.number)]

    def kept(self, number: int, route: int, reason: str, now: float) -> list[SupervisionAction]:
        """A replica cannot follow a route."""
        if self._rolling is not None and route == self._rolling.number:
            return self._go_back(f"replica {number}: {reason}", now)
        if self.settled is not None and route == self.settled.number:  # a new one, without the files perhaps
            return [KillReplica(number, f"it cannot follow the route of the others: {reason}")]
        return []

    def exited(self, number: int, how: str, now: float) -> list[SupervisionAction]:
        """A replica's process has ended. ``how``: in words."""
        one = self.replicas[number]
        steady = one.ready_s is not None and now - one.ready_s >= STEADY_S
        failures = 1 if steady else one.failures + 1
        pause = pause_s(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self.replicas[number] = ReplicaState(failures=failures, restart_s=None if self.is_stopping else now + pause)
        if self.is_stopping:
            return [] if any(each.is_running for each in self.replicas) else [AllEnded()]
        if self._rolling is None:
            return []
        actions = self._go_back(f"replica {number} {how}", now)
        return actions if any(each.is_running for each in self.replicas) or self.settled else [*actions, AllEnded()]

    def tick(self, now: float) -> list[SupervisionAction]:
        """Time has passed: restarts that are due, replicas that were not heard of, an end that takes too long."""
        if self._stop_s is not None:
            running = [number for number, one in enumerate(self.replicas) if one.is_running]
            return [KillReplica(number, "it has not drained in time") for number in running if now >= self._stop_s]
        actions = self._late(now)
        for number, one in enumerate(self.replicas):
            patience = SILENT_LOADING_S if one.is_loading else SILENT_S
            if one.is_running and now - one.heard_s > patience:
                one.heard_s = now  # its end is on its way
                actions.append(
                    KillReplica(number, f"nothing was heard of it for {patience:g} s: it is stopped, or hangs")
                )
            elif not one.is_running and one.restart_s is not None and now >= one.restart_s:
                actions.append(self._spawn(number, now))
        return actions

    def _late(self, now: float) -> list[SupervisionAction]:
        """Go back where a roll takes too long: a model's code may hang while it is loaded."""
        if self._rolling is None or self.settled is None or now < self._roll_until_s:
            return []
        late = [str(number) for number, one in enumerate(self.replicas) if one.follows != self._rolling.number]
        plural = "replicas" if len(late) > 1 else "replica"
        reason = f"{plural} {', '.join(late)} did not answer with it within {self._roll_timeout_s:g} s (timeout)"
        return self._go_back(reason, now)

    def stop(self, now: float) -> list[SupervisionAction]:
        """Let all replicas drain and end; a route that they are going over to is given up."""
        if self.is_stopping:
            return []
        self._stop_s = now + DRAIN_S
        rolling, self._rolling = self._rolling, None
        told = [] if rolling is None else [RouteOutcome(rolling.number, "it was stopped meanwhile")]
        running = [number for number, one in enumerate(self.replicas) if one.is_running]
        return [*told, *(DrainReplica(number) for number in running)] if running else [*told, AllEnded()]

    def _spawn(self, number: int, now: float) -> Spawn:
        before = self.replicas[number]
        self.replicas[number] = replace(ReplicaState(), is_running=True, heard_s=now, failures=before.failures)
        return Spawn(number)

    def _go_back(self, reason: str, now: float) -> list[SupervisionAction]:
        """The roll has failed; the very first one ends everything."""
        rolling, self._rolling = self._rolling, None
        assert rolling is not None
        outcome = RouteOutcome(rolling.number, reason)
        if self.settled is None:
            self._stop_s = now
            running = [number for number, one in enumerate(self.replicas) if one.is_running]
            return [outcome, *(KillReplica(number, "the serving could not be started") for number in running)]
        return [outcome, *self._tell_all(self.settled)]

    def _tell_all(self, route: Route) -> list[SupervisionAction]:
        return [Follow(number, route) for number, one in enumerate(self.replicas) if one.is_connected]
