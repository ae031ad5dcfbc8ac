"""Progress and liveness of the workers of one generation, and rules for members whose nodes are going away; pure.

A node that is warned has some time left. Its members use it while successors start: they continue training until those
are ready, or until the remaining time is needed for a commit and its transfer. Times are monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

AT_ONCE_S = 5.0  # a node with no more time than this does not wait for successors
RESERVE_S = 10.0  # reserved for the last commit and its transfer to another agent or to shared storage
RESERVE_STEPS = 4.0  # or this number of steps, if they take longer: the commit follows one of them
RESERVE_WRITES = 2.0  # or this multiple of the time that a checkpoint took to write


def seconds_before_pause(time_s: float, step_s: float, write_s: float) -> float:
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

    def record_warning(self, agent_id: str, now: float, time_s: float) -> None:
        """Record that an agent's node goes away in ``time_s`` seconds; the earliest of several ends counts."""
        at, limit = self.warned.get(agent_id, (now, time_s))
        self.warned[agent_id] = (now, time_s) if now + time_s < at + limit else (at, limit)

    def forget(self, agent_id: str) -> None:
        """Forget the warning and the storage request of an agent that has ended or no longer belongs to the run."""
        self.warned.pop(agent_id, None)
        self.asked.pop(agent_id, None)

    def record_checkpoint(self, step: int, seconds: float, leaves: bool) -> None:
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

    def must_pause(self, leaving: Collection[str], now: float, step_s: float) -> bool:
        """Return True if the members must pause at their next commit, as the time of one that leaves is nearly used.

        Args:
            leaving: Agents that are leaving.
            now: Monotonic time in seconds.
            step_s: Seconds that one step takes.
        """
        known = [self.warned[agent_id] for agent_id in leaving if agent_id in self.warned]
        return any(now >= at + seconds_before_pause(time_s, step_s, self.write_s) for at, time_s in known)

    def is_stored(self, step: int) -> bool:
        """Return True if the state of this step is on shared storage, and so outlives all agents."""
        return step <= self.stored

    def request_storing_agent(self, commits: Mapping[str, int], leaving: Collection[str], once: bool) -> str | None:
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
        if newest < 0 or self.is_stored(newest) or stay:
            return None
        at_work = [agent_id for agent_id in self.asked if agent_id in commits]
        if any(once or self.asked[agent_id] == newest for agent_id in at_work):
            return None
        self.asked[holders[0]] = newest
        return holders[0]


AUTOMATIC_FACTOR = 10.0  # multiple of the usual step duration
AUTOMATIC_LEAST_S = 30.0
LOOKS = 8  # reports of a member after which it may be reported as slow
LAGS = 0.75  # share of its reports at which another member was ahead
LAG_STEPS = 0.4  # ahead by this many steps: members that leave a collective together are closer than that
FIRST_STEP_S = 600.0  # the first step includes building, tracing and compiling
FIRST_STEP_LEAST_S = 60.0  # lower limit where an earlier generation has shown how long the first step takes


@dataclass
class Pace:
    """Progress of the members of a generation that began at ``began``; times are monotonic seconds."""

    began: float
    timeout_s: float | None = None  # None: derived from the usual step duration
    first_before_s: float | None = None  # seconds that an earlier generation took for its first step
    first_s: float | None = None  # seconds that this generation took for its first step
    steps: dict[str, int] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)  # when each member finished the step that it reported last
    stopped: set[str] = field(default_factory=set)
    advanced: float = 0.0  # when the furthest member last finished a step
    usual_s: float = 0.0
    looks: Counter[str] = field(default_factory=Counter)
    lags: Counter[str] = field(default_factory=Counter)
    named: set[str] = field(default_factory=set)
    storage_s: dict[str, float] = field(default_factory=dict)  # seconds that each worker has waited for storage
    # the same when the furthest member last finished a step
    storage_before_s: dict[str, float] = field(default_factory=dict)

    def record_storage_wait(self, agent_id: str, seconds: float) -> None:
        """Record for how many seconds a worker has waited for storage since its start; less than before: a new worker."""
        if seconds < self.storage_s.get(agent_id, 0.0):
            self.storage_before_s[agent_id] = 0.0
        self.storage_s[agent_id] = seconds

    def _excused_s(self) -> float:
        """Return the seconds since the last step in which the member that waited longest has waited for storage."""
        waits = (seconds - self.storage_before_s.get(name, 0.0) for name, seconds in self.storage_s.items())
        return max(waits, default=0.0)

    def record_step(self, agent_id: str, step: int, stopped: bool, now: float, age_s: float) -> None:
        """Record that a member finished ``step`` ``age_s`` seconds ago.

        Args:
            agent_id: The member's agent.
            step: Steps done since the beginning of the run.
            stopped: True if its process is stopped (SIGSTOP).
            now: Monotonic time in seconds.
            age_s: Seconds since it finished the step.
        """
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
            self.advanced, self.storage_before_s = max(self.advanced, at), dict(self.storage_s)

    def _compare(self, agent_id: str) -> None:
        """Count whether another member was ahead when this one finished its step.

        Members report at different times, so the others' progress at that moment is estimated from the usual step
        duration.
        """
        if not self.usual_s:
            return
        at, step = self.finished[agent_id], self.steps[agent_id]
        lead = max(self.steps[name] - step + (at - self.finished[name]) / self.usual_s for name in self.steps)
        self.looks[agent_id] += 1
        self.lags[agent_id] += lead > LAG_STEPS

    def detect_slow_member(self, agent_id: str) -> bool:
        """Return True, once for each member, if it slows the others down: at most of its steps another one was ahead.

        In synchronous training all members are equally fast on average; the one that the others wait for is the one
        that arrives last. Members that wait inside a collective finish their steps together, and are not reported.
        """
        looks = self.looks[agent_id]
        if looks < LOOKS or self.lags[agent_id] < LAGS * looks or agent_id in self.named:
            return False
        self.named.add(agent_id)
        return True

    def limit_s(self) -> float:
        """Return for how many seconds the furthest member may make no step before the group counts as hung."""
        if self.timeout_s is not None:
            return self.timeout_s
        if self.usual_s:
            return max(AUTOMATIC_LEAST_S, AUTOMATIC_FACTOR * self.usual_s)
        if self.first_before_s is None:
            return FIRST_STEP_S
        return min(FIRST_STEP_S, max(FIRST_STEP_LEAST_S, AUTOMATIC_FACTOR * self.first_before_s))

    def for_next_generation(self, now: float) -> Pace:
        """Return an empty record for the next generation, which retains the duration of the first step."""
        first_s = self.first_before_s if self.first_s is None else self.first_s
        storage_s = self.storage_s  # of workers that continue; new ones begin at 0
        return Pace(now, self.timeout_s, first_s, storage_s=dict(storage_s), storage_before_s=dict(storage_s))

    def remove_member(self, agent_id: str, now: float) -> None:
        """Remove a lost member, and restart the wait for the next step of the others."""
        for table in (self.steps, self.finished, self.looks, self.lags, self.storage_s):
            table.pop(agent_id, None)
        self.stopped.discard(agent_id)
        self.advanced, self.storage_before_s = now, dict(self.storage_s)

    def hangs(self, now: float) -> bool:
        """Return True if no member has made a step for longer than ``limit_s``, waits for storage not included."""
        return now - max(self.advanced, self.began) - self._excused_s() > self.limit_s()

    def blocking_members(self, agent_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Return the members that block the others: those with stopped processes, else those with the fewest steps.

        Empty if all are equally far, as no member can be identified then.
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
    """Stopped and idle workers of one generation, from their heartbeats: agent -> since when, in monotonic seconds."""

    stopped: dict[str, float] = field(default_factory=dict)  # since when the worker has been stopped (SIGSTOP)
    idle: dict[str, float] = field(default_factory=dict)  # since when the worker has used no processor time

    def record_heartbeat(self, agent_id: str, stopped: bool, idle_s: float, now: float) -> None:
        """Record the heartbeat of a worker.

        Args:
            agent_id: The worker's agent.
            stopped: True if its process is stopped (SIGSTOP).
            idle_s: Seconds for which the worker has used no processor time; 0.0 if it is active.
            now: Monotonic time in seconds.
        """
        if stopped:
            self.stopped.setdefault(agent_id, now)
        else:
            self.stopped.pop(agent_id, None)
        if idle_s:
            self.idle[agent_id] = now - idle_s
        else:
            self.idle.pop(agent_id, None)

    def remove_agent(self, agent_id: str) -> None:
        """Forget a worker that is lost."""
        self.stopped.pop(agent_id, None)
        self.idle.pop(agent_id, None)

    def suspended_for(self, agent_ids: Iterable[str], least_s: float, now: float) -> tuple[str, ...]:
        """Return those of the agents whose worker processes have been suspended (SIGSTOP) for at least ``least_s`` seconds.

        ``now``: monotonic seconds.
        """
        return tuple(one for one in agent_ids if now - self.stopped.get(one, now) >= least_s)

    def idle_since(self, agent_id: str, now: float) -> float:
        """Return when the agent's worker was last active; ``now`` if it is active."""
        return self.idle.get(agent_id, now)
