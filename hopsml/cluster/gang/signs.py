"""What heartbeats say of workers beside their steps: who is held by the system, who does nothing; pure.

Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Signs:
    """Of the workers of one generation."""

    stopped: dict[str, float] = field(
        default_factory=dict
    )  # agent -> since when the system has held its worker (SIGSTOP)
    idle: dict[str, float] = field(default_factory=dict)  # agent -> since when its worker has used no processor

    def heard(self, agent_id: str, stopped: bool, idle_s: float, now: float) -> None:
        """A heartbeat has come; ``idle_s``: how long the worker has done nothing, 0.0 where it is at work."""
        if stopped:
            self.stopped.setdefault(agent_id, now)
        else:
            self.stopped.pop(agent_id, None)
        if idle_s:
            self.idle[agent_id] = now - idle_s
        else:
            self.idle.pop(agent_id, None)

    def stopped_for(self, agent_ids: Iterable[str], least_s: float, now: float) -> tuple[str, ...]:
        """Those of them that have been held for ``least_s`` and longer."""
        return tuple(one for one in agent_ids if now - self.stopped.get(one, now) >= least_s)

    def idle_since(self, agent_id: str, now: float) -> float:
        """When it last did something."""
        return self.idle.get(agent_id, now)
