"""Rules for members whose nodes are going away: when they pause, and when their state must be written to storage; pure.

A node that is warned has some time left. Its members use it while successors start: they continue training until those
are ready, or until the remaining time is needed for a commit and its transfer. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

AT_ONCE_S = 5.0  # a node with no more time than this does not wait for successors
RESERVE_S = 10.0  # reserved for the last commit and its transfer to another agent or to shared storage
RESERVE_STEPS = 4.0  # or this number of steps, if they take longer: the commit follows one of them
RESERVE_WRITES = 2.0  # or this multiple of the time that a checkpoint took to write


def go_on_s(time_s: float, step_s: float, write_s: float) -> float:
    """Return for how many seconds the members of a node continue before they pause at their next commit.

    Args:
        time_s: Seconds that the node still has.
        step_s: Seconds that one step takes.
        write_s: Seconds that it took to write a checkpoint to shared storage.
    """
    if time_s <= AT_ONCE_S:
        return 0.0
    reserve = max(min(RESERVE_S, time_s / 2), RESERVE_STEPS * step_s, RESERVE_WRITES * write_s)
    return max(0.0, time_s - reserve)


@dataclass
class Drains:
    """Warnings about members that will leave, and the checkpoints of their run on shared storage."""

    # agent -> time of the warning, and seconds from then
    warned: dict[str, tuple[float, float]] = field(default_factory=dict)
    stored: int = -1  # the newest step on shared storage
    handed_over: int = -1  # the newest step that was stored because the agents that held it are leaving
    write_s: float = 0.0  # seconds that it took to write the newest one
    asked: dict[str, int] = field(default_factory=dict)  # agent -> commit that it was asked to store

    def warn(self, agent_id: str, now: float, time_s: float) -> None:
        """Record that an agent's node goes away in ``time_s`` seconds; the earliest of several ends counts."""
        at, limit = self.warned.get(agent_id, (now, time_s))
        self.warned[agent_id] = (now, time_s) if now + time_s < at + limit else (at, limit)

    def forget(self, agent_id: str) -> None:
        """Forget the warning and the storage request of an agent that has ended or no longer belongs to the run."""
        self.warned.pop(agent_id, None)
        self.asked.pop(agent_id, None)

    def persisted(self, step: int, seconds: float, leaves: bool) -> None:
        """Record a checkpoint on shared storage.

        Args:
            step: Step of the checkpoint.
            seconds: Time that it took to write.
            leaves: True if its agent is leaving, so that others may have to read it from storage.
        """
        if step > self.stored:
            self.stored, self.write_s = step, seconds
        if leaves:
            self.handed_over = max(step, self.handed_over)

    def must_park(self, leaving: Collection[str], now: float, step_s: float) -> bool:
        """Return True if the members must pause at their next commit, as the time of one that leaves is nearly used.

        Args:
            leaving: Agents that are leaving.
            now: Monotonic time in seconds.
            step_s: Seconds that one step takes.
        """
        known = [self.warned[agent_id] for agent_id in leaving if agent_id in self.warned]
        return any(now >= at + go_on_s(time_s, step_s, self.write_s) for at, time_s in known)

    def is_safe(self, step: int) -> bool:
        """Return True if the state of this step is on shared storage, and so outlives all agents."""
        return step <= self.stored

    def to_store(self, commits: Mapping[str, int], leaving: Collection[str], once: bool) -> str | None:
        """Return the agent that has to write its commit to storage now, as no agent that stays has one as new.

        The request is recorded. The first holder that leaves gets it; if that agent ends before it is done, the next
        one does.

        Args:
            commits: Agent -> newest step that it holds.
            leaving: Agents that are leaving.
            once: True while the training continues: one commit for each warning is then enough until it pauses.

        Returns:
            The agent's id; None if nothing has to be written.
        """
        newest = max(commits.values(), default=-1)
        holders = [agent_id for agent_id, step in commits.items() if step == newest]
        stay = [agent_id for agent_id in (commits if once else holders) if agent_id not in leaving]
        if newest < 0 or self.is_safe(newest) or stay:
            return None
        at_work = [agent_id for agent_id in self.asked if agent_id in commits]
        if any(once or self.asked[agent_id] == newest for agent_id in at_work):
            return None
        self.asked[holders[0]] = newest
        return holders[0]
