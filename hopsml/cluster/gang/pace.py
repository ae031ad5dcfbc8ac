"""Who makes steps and who does not: the progress of one generation, when its lack means that it hangs, who is idle; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

AUTOMATIC_FACTOR = 10.0  # times the usual step
AUTOMATIC_LEAST_S = 30.0
LOOKS = 8  # reports of a member after which it may be named
LAGS = 0.75  # share of them at which another one was further already
LAG_STEPS = 0.4  # by so much: members that leave a collective together are less apart
FIRST_STEP_S = 600.0  # building, tracing and compiling come before the first step
FIRST_STEP_LEAST_S = 60.0  # where an earlier generation has shown how long that takes


@dataclass
class Pace:
    """Steps of the members of a generation that began at ``began`` (seconds, as everywhere)."""

    began: float
    timeout_s: float | None = None  # None: worked out from the usual step
    first_before_s: float | None = None  # how long an earlier generation took for its first step
    first_s: float | None = None  # and how long this one
    steps: dict[str, int] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)  # when each member made the step that it reported last
    stopped: set[str] = field(default_factory=set)
    advanced: float = 0.0  # when the furthest member last made a step
    usual_s: float = 0.0
    looks: Counter[str] = field(default_factory=Counter)
    lags: Counter[str] = field(default_factory=Counter)
    named: set[str] = field(default_factory=set)

    def stepped(self, agent_id: str, step: int, stopped: bool, now: float, age_s: float) -> None:
        """Take in that a member has finished ``step``, ``age_s`` seconds ago."""
        furthest = max(self.steps.values(), default=None)
        at = now - age_s
        self.steps[agent_id], self.finished[agent_id] = step, at
        self._compare(agent_id)
        (self.stopped.add if stopped else self.stopped.discard)(agent_id)
        if furthest is None:
            self.advanced = at
        elif step > furthest:
            self.first_s = at - self.began if self.first_s is None else self.first_s
            each = max(0.0, at - self.advanced) / (step - furthest)
            self.usual_s = each if not self.usual_s else 0.8 * self.usual_s + 0.2 * each
            self.advanced = max(self.advanced, at)

    def _compare(self, agent_id: str) -> None:
        """Count whether another member was further when this one made its step.

        Members report at different times, so how far the others were just then is worked out from the usual step.
        """
        if not self.usual_s:
            return
        at, step = self.finished[agent_id], self.steps[agent_id]
        lead = max(self.steps[name] - step + (at - self.finished[name]) / self.usual_s for name in self.steps)
        self.looks[agent_id] += 1
        self.lags[agent_id] += lead > LAG_STEPS

    def newly_slow(self, agent_id: str) -> bool:
        """Whether this member holds the others up, told once: whenever it makes a step, another one was further.

        In step with each other all are equally fast; the one that the others wait for is the one that comes last. Members
        that wait inside a collective make their steps together, and nobody is named.
        """
        looks = self.looks[agent_id]
        if looks < LOOKS or self.lags[agent_id] < LAGS * looks or agent_id in self.named:
            return False
        self.named.add(agent_id)
        return True

    def limit_s(self) -> float:
        """For how many seconds the furthest member may stand still."""
        if self.timeout_s is not None:
            return self.timeout_s
        if self.usual_s:
            return max(AUTOMATIC_LEAST_S, AUTOMATIC_FACTOR * self.usual_s)
        if self.first_before_s is None:
            return FIRST_STEP_S
        return min(FIRST_STEP_S, max(FIRST_STEP_LEAST_S, AUTOMATIC_FACTOR * self.first_before_s))

    def following(self, now: float) -> Pace:
        """A new pace for the next generation, which knows how long the first step took."""
        return Pace(now, self.timeout_s, self.first_before_s if self.first_s is None else self.first_s)

    def without(self, agent_id: str, now: float) -> None:
        """Go on without a member that is lost; the others begin to be waited for anew."""
        for table in (self.steps, self.finished, self.looks, self.lags):
            table.pop(agent_id, None)
        self.stopped.discard(agent_id)
        self.advanced = now

    def hangs(self, now: float) -> bool:
        """Whether nobody has made a step for longer than ``limit_s``."""
        return now - max(self.advanced, self.began) > self.limit_s()

    def behind(self, agent_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Who holds the others up: processes that the system has stopped, else those with the fewest steps.

        Empty where all are equally far: then nobody can be named.
        """
        stopped = tuple(agent_id for agent_id in agent_ids if agent_id in self.stopped)
        if stopped:
            return stopped
        steps = {agent_id: self.steps.get(agent_id, -1) for agent_id in agent_ids}
        if len(set(steps.values())) < 2:
            return ()
        least = min(steps.values())
        return tuple(agent_id for agent_id, step in steps.items() if step == least)


@dataclass
class Liveness:
    """What heartbeats say of the workers of one generation besides their steps; by agent, in seconds."""

    stopped: dict[str, float] = field(default_factory=dict)  # since when the system has held the worker (SIGSTOP)
    idle: dict[str, float] = field(default_factory=dict)  # since when the worker has used no processor

    def heard(self, agent_id: str, stopped: bool, idle_s: float, now: float) -> None:
        """Take in a heartbeat. ``idle_s``: for how long the worker has done nothing, 0.0 where it is at work."""
        if stopped:
            self.stopped.setdefault(agent_id, now)
        else:
            self.stopped.pop(agent_id, None)
        if idle_s:
            self.idle[agent_id] = now - idle_s
        else:
            self.idle.pop(agent_id, None)

    def without(self, agent_id: str) -> None:
        """Forget a worker that is lost."""
        self.stopped.pop(agent_id, None)
        self.idle.pop(agent_id, None)

    def stopped_for(self, agent_ids: Iterable[str], least_s: float, now: float) -> tuple[str, ...]:
        """Those of the agents whose workers have been held for ``least_s`` seconds and longer."""
        return tuple(one for one in agent_ids if now - self.stopped.get(one, now) >= least_s)

    def idle_since(self, agent_id: str, now: float) -> float:
        """When the agent's worker last did something; ``now`` where it is at work."""
        return self.idle.get(agent_id, now)
