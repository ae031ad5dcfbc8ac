"""Members whose nodes go away: until when they go on, and whether their state is safe without them; pure.

A node that is warned has some time left. Its members use it while successors are on their way: they go on training until
those are ready, or until so little time is left that a commit and its way elsewhere need it. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

AT_ONCE_S = 5.0  # who has no more than that does not wait for anybody
RESERVE_S = 10.0  # kept for the last commit and its way to another agent or to shared storage
RESERVE_STEPS = 4.0  # or so many steps, where they take long: the commit comes behind one of them
RESERVE_WRITES = 2.0  # or as long as so many checkpoints have taken to write


def go_on_s(time_s: float, step_s: float, write_s: float) -> float:
    """For how long of the ``time_s`` that a node still has its members go on; then they stand still at their next commit.

    ``step_s``: how long a step takes. ``write_s``: how long it took to put a checkpoint on shared storage.
    """
    if time_s <= AT_ONCE_S:
        return 0.0
    reserve = max(min(RESERVE_S, time_s / 2), RESERVE_STEPS * step_s, RESERVE_WRITES * write_s)
    return max(0.0, time_s - reserve)


@dataclass
class Drains:
    """What is known of members that leave and of the checkpoints of their run."""

    warned: dict[str, tuple[float, float]] = field(default_factory=dict)  # agent -> when, and seconds from then
    stored: int = -1  # the newest step that lies on shared storage
    handed_over: int = -1  # the newest of those that lie there because their holders leave
    write_s: float = 0.0  # how long that took
    asked: dict[str, int] = field(default_factory=dict)  # agent -> commit that it was told to store

    def warn(self, agent_id: str, now: float, time_s: float) -> None:
        """Note that an agent's node goes away in ``time_s`` seconds; of several warnings the one that ends first counts."""
        at, limit = self.warned.get(agent_id, (now, time_s))
        self.warned[agent_id] = (now, time_s) if now + time_s < at + limit else (at, limit)

    def forget(self, agent_id: str) -> None:
        """Drop what is known of an agent that is gone, or not this run's any more."""
        self.warned.pop(agent_id, None)
        self.asked.pop(agent_id, None)

    def persisted(self, step: int, seconds: float, leaves: bool) -> None:
        """Note a checkpoint on shared storage; ``leaves``: its agent goes away, so that others may have to read it there."""
        if step > self.stored:
            self.stored, self.write_s = step, seconds
        if leaves:
            self.handed_over = max(step, self.handed_over)

    def must_park(self, leaving: Collection[str], now: float, step_s: float) -> bool:
        """Whether the members have to stand still at their next commit, as the time of one that leaves is nearly up."""
        known = [self.warned[agent_id] for agent_id in leaving if agent_id in self.warned]
        return any(now >= at + go_on_s(time_s, step_s, self.write_s) for at, time_s in known)

    def is_safe(self, step: int) -> bool:
        """Whether the state of this step outlives all agents."""
        return step <= self.stored

    def to_store(self, commits: Mapping[str, int], leaving: Collection[str], once: bool) -> str | None:
        """The agent that has to put its commit on shared storage now, because none that stays has one as new.

        ``once``: the training goes on, and one commit for each warning is enough until it stands still. The first that
        leaves is asked; should it go before it is done, the next one.
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
