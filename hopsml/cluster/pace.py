"""Who makes steps and who does not: the progress of one generation, and when its lack means that it hangs; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

AUTOMATIC_FACTOR = 10.0  # times the usual step
AUTOMATIC_LEAST_S = 30.0
FIRST_STEP_S = 600.0  # building, tracing and compiling come before the first step


@dataclass
class Pace:
    """Steps of the members of a generation that began at ``began`` (seconds, as everywhere)."""

    began: float
    timeout_s: float | None = None  # None: worked out from the usual step
    steps: dict[str, int] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    advanced: float = 0.0  # when the furthest member last made a step
    usual_s: float = 0.0

    def stepped(self, agent_id: str, step: int, stopped: bool, now: float) -> None:
        """A member says how far it is."""
        furthest = max(self.steps.values(), default=None)
        self.steps[agent_id] = step
        (self.stopped.add if stopped else self.stopped.discard)(agent_id)
        if furthest is None:
            self.advanced = now
        elif step > furthest:
            each = (now - self.advanced) / (step - furthest)
            self.usual_s = each if not self.usual_s else 0.8 * self.usual_s + 0.2 * each
            self.advanced = now

    def limit_s(self) -> float:
        """How long the furthest member may stand still."""
        if self.timeout_s is not None:
            return self.timeout_s
        return max(AUTOMATIC_LEAST_S, AUTOMATIC_FACTOR * self.usual_s) if self.usual_s else FIRST_STEP_S

    def hangs(self, now: float) -> bool:
        """Whether nobody has made a step for too long."""
        return now - max(self.advanced, self.began) > self.limit_s()

    def behind(self, agent_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Who holds the others up: processes that the system has stopped, else those with the fewest steps.

        Empty where all are equally far: then nobody can be named.
        """
        stopped = tuple(agent_id for agent_id in agent_ids if agent_id in self.stopped)
        if stopped:
            return stopped
        steps = {agent_id: self.steps.get(agent_id, -1) for agent_id in agent_ids}
        least = min(steps.values(), default=-1)
        last = tuple(agent_id for agent_id, step in steps.items() if step == least)
        return last if len(last) < len(agent_ids) else ()
