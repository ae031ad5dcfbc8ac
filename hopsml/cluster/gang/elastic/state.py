"""State of a group whose members train together, of fixed size or elastic: one component for each responsibility."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hopsml.cluster.gang import events
from hopsml.cluster.gang.events import Action, ConcludeRun, Phase
from hopsml.cluster.gang.machine import Exclusions, Failure, GroupMachine, MemberState, ranks, root_failure
from hopsml.cluster.gang.pace import Drains, Pace
from hopsml.cluster.shared.spec import ElasticGroup, FixedGroup

# Phases in which workers are starting or at work; a fixed group knows only the first two.
TRAINING = (Phase.FORMING, Phase.RUNNING, Phase.PARKING, Phase.MENDING)


@dataclass
class Membership:
    """Agents that are or may become members: their number, hosts, and which of them have no worker or will end."""

    target: int = 0
    # agents without a worker -> True if they have imported all modules
    spares: dict[str, bool] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    leaving: dict[str, str] = field(default_factory=dict)  # agents that are about to end -> why
    requested_at: float = 0.0  # when the first agents were requested
    start_at: float | None = None  # when a new group starts without the agents that are still missing

    def staying(self, agent_ids: Iterable[str]) -> list[str]:
        """Return those of the agents that are not about to end."""
        return [agent_id for agent_id in agent_ids if agent_id not in self.leaving]


@dataclass
class Commits:
    """Training states that agents hold, and those on shared storage."""

    newest_of: dict[str, int] = field(default_factory=dict)  # agent -> newest step that it holds
    drains: Drains = field(default_factory=Drains)
    reached: int = -1  # the newest step that any member has committed
    committed: bool = False  # True once any member has committed in this run
    uncommitted_since: float | None = None  # start of training without a commit, which has not been reported yet
    storing_last: str = ""  # agent that was asked to store the last commit, as the chief's cannot
    given_up: bool = False  # True once the run's end has waited long enough for that
    base: int = -1  # the commit that the generation continued from
    from_store: int = -1  # or the checkpoint
    parked: int | None = None  # the step at which the first worker of the generation has paused

    def held_step(self, agent_id: str) -> int:
        """Return the newest step that an agent holds; -1 for none."""
        return self.newest_of.get(agent_id, -1)

    def newest_step(self) -> int:
        """Return the newest step that any agent holds; -1 for none."""
        return max(self.newest_of.values(), default=-1)

    def record(self, agent_id: str, step: int) -> None:
        """Record that an agent holds the state after ``step``."""
        self.newest_of[agent_id] = max(step, self.held_step(agent_id))
        self.reached = max(step, self.reached)


@dataclass
class FailurePolicy:
    """Restart budget of an elastic group, excluded hosts and agents, and the wait for shared storage."""

    resets: int = 0
    fruitless: int = 0  # generations in a row that ended without a new commit
    why: str = ""  # what ended the last generation
    proven: frozenset[str] = frozenset()  # the members of the last generation that made a commit
    store_away: float | None = None  # when shared storage stopped responding
    store_tries: int = 0
    try_again_at: float = 0.0  # time of the next attempt to reach shared storage
    exclusions: Exclusions = field(default_factory=lambda: Exclusions(0, 0.0))
    unfit: Exclusions = field(default_factory=lambda: Exclusions(0, 0.0))  # agents that have failed as joining workers


@dataclass
class GroupProgress:
    """Progress of the present generation's members, and what was reported of it."""

    pace: Pace = field(default_factory=lambda: Pace(0.0))
    told_stalled: bool = False  # True once a note has reported that all workers are idle
    left_at: float | None = None  # when the first member of the generation finished


@dataclass
class InPlaceState:
    """Reconfiguration without lost members in the processes of the others."""

    enabled: bool = True
    mendable: set[str] = field(default_factory=set)  # members whose workers can continue without others
    since: dict[str, int] = field(default_factory=dict)  # agent -> generation in which its worker's process began
    # agents of lost workers -> deadline for the end of their processes
    ending: dict[str, float] = field(default_factory=dict)
    lost: list[Failure] = field(default_factory=list)  # failures of the members without which the group is continuing
    attempts: int = 0  # attempts to continue since the group last trained
    problem: str = ""  # why the group could not continue in place and restarts
    went_on: int = -1  # the furthest step at which any member has continued
    grow_at: float = 0.0  # joining workers are not admitted before this time


@dataclass
class Newcomer:
    """State of a joining worker, which prepares to be admitted by the members."""

    generation: int  # generation in which its process began
    step: int  # step of the commit from which it prepares
    until: float  # deadline for being ready
    ready_at: float | None = None
    stopped: bool = False  # True if its process is stopped (SIGSTOP)


@dataclass
class Growth:
    """Admission of joining workers in place, while the members' processes continue."""

    enabled: bool = True
    newcomers: dict[str, Newcomer] = field(default_factory=dict)
    launched: int = 0  # the highest generation in which a joining worker's process began
    pausing: bool = False  # True once the members of this generation have been requested to pause
    paused: set[str] = field(default_factory=set)  # members that have paused
    pause_until: float | None = None  # deadline for all members to have paused
    again_at: float = 0.0  # no pause is requested before this time
    came: tuple[str, ...] = ()  # workers that join with the generation that is being started
    meets: bool = False  # True if those that have paused exchange the chief's state in it
    fresh: set[str] = field(default_factory=set)  # members that joined and have not made a commit with the others yet
    grown: bool = False  # True if processes that began at different times train together
    anew: str = ""  # why joining workers cannot be admitted in place; "": they can, as far as is known
    said: str = ""  # the last such reason that was reported

    def end_pause(self) -> None:
        """Reset the state of the pause."""
        self.pausing, self.paused, self.pause_until = False, set(), None

    def ready_newcomers(self) -> tuple[str, ...]:
        """Return the joining workers that are ready and not stopped."""
        return tuple(name for name, one in self.newcomers.items() if one.ready_at is not None and not one.stopped)


@dataclass
class ElasticGroupState(GroupMachine):
    """State of a group whose members train together, and what follows from it without changing it."""

    spec: FixedGroup | ElasticGroup
    members: dict[str, MemberState] = field(default_factory=dict)
    membership: Membership = field(default_factory=Membership)
    commits: Commits = field(default_factory=Commits)
    policy: FailurePolicy = field(default_factory=FailurePolicy)
    progress: GroupProgress = field(default_factory=GroupProgress)
    in_place: InPlaceState = field(default_factory=InPlaceState)
    growth: Growth = field(default_factory=Growth)

    @property
    def elastic_options(self) -> ElasticGroup:
        """Options of an elastic group."""
        assert isinstance(self.spec, ElasticGroup)
        return self.spec

    def is_current(self, agent_id: str, generation: int) -> bool:
        """Return True if reports of this agent about this generation apply to its present worker.

        That is any generation of which the worker's process has been a part; for a joining worker, the one in which its
        process began.
        """
        if (newcomer := self.growth.newcomers.get(agent_id)) is not None:
            return generation == newcomer.generation
        if agent_id not in self.members and agent_id not in self.in_place.ending:
            return False
        since = self.in_place.since.get(agent_id, self.generation)
        return since <= generation <= max(since, self.generation)

    def by_rank(self) -> tuple[str, ...]:
        """Return the members in rank order."""
        return tuple(sorted(self.members, key=lambda name: self.members[name].rank))

    def has_finished_member(self) -> bool:
        """Return True if the function of any member has returned: the others are about to end, too."""
        return any(member.finished for member in self.members.values())

    def has_leaving_member(self) -> bool:
        """Return True if any member's agent is about to end."""
        return bool(self.membership.leaving.keys() & self.members.keys())

    def usable_spares(self, now: float) -> list[str]:
        """Return the spare agents that may get a worker: not leaving, and not on an excluded host.

        If all agents are on one host, exclusions do not apply. Agents that failed as joining workers are left out, too,
        unless the group cannot start without them.
        """
        hosts, spares = self.membership.hosts, self.membership.spares
        is_one_host = len({hosts[agent_id] for agent_id in (*spares, *self.members)}) == 1
        usable = [
            agent_id
            for agent_id in self.membership.staying(spares)
            if is_one_host or not self.policy.exclusions.is_excluded(hosts[agent_id], now)
        ]
        fit = [agent_id for agent_id in usable if not self.policy.unfit.is_excluded(agent_id, now)]
        return fit if len(fit) >= self.spec.minimum or self.members else usable

    def ready_spares(self, now: float) -> list[str]:
        """Return the usable spare agents that have imported the modules."""
        return [agent_id for agent_id in self.usable_spares(now) if self.membership.spares[agent_id]]

    def unproven_members(self) -> list[str]:
        """Return the members that joined since the last commit, if the group could continue without them."""
        proven = self.policy.proven
        left = [a for a in proven if a in self.members and not self.members[a].lost]
        is_enough = len(self.membership.staying(left)) >= self.spec.minimum
        return [a for a in self.members if a not in proven] if is_enough else []

    def is_dispensable_newcomer(self, first: Failure) -> bool:
        """Return True if a joining worker failed before its first commit, and the group can continue without it."""
        proven = [failure for failure in self.failures if failure.agent_id in self.policy.proven]
        if first in proven or any(failure.raised and not failure.echo for failure in proven):
            return False
        return bool(self.unproven_members())

    def next_number(self) -> int:
        """Return the next generation's number, above those of members and joining workers."""
        return max(self.generation, self.growth.launched) + 1

    def outcome_by_blame(self) -> ConcludeRun:
        """Return the outcome by the first failure, or by a member that left with sys.exit(0) if others lost contact."""
        first = root_failure(self.failures)
        exited = next(((name, m) for name, m in self.members.items() if m.exited), None)
        if first.echo and exited is not None:
            reason = f"called sys.exit(0) while rank {first.rank} still worked with it, which then met: {first.cause}"
            return ConcludeRun(Phase.FAILED, "worker", reason, exited[0], exited[1].rank)
        returned = sorted(m.rank for m in self.members.values() if m.finished)
        # A framework may end a process that waits for one that has returned, as JAX does: with a crash.
        follows = first.echo or not (first.raised or first.outside)
        before = f"when the function of {ranks(returned)} had returned: " if follows and returned else ""
        others = [(name, m) for name, m in self.members.items() if name != first.agent_id and not m.over]
        held = sorted(m.rank for name, m in others if name in self.liveness.stopped)
        # a framework's own timeout may expire before this one, with a crash
        if held and (first.echo or not first.raised):
            before += f"while the process of {ranks(held)} was stopped (SIGSTOP): "
        return ConcludeRun(Phase.FAILED, "worker", before + first.cause, first.agent_id, first.rank)

    def forget(self, agent_id: str) -> None:
        """Remove an agent that is lost or released from all tables."""
        for table in (
            self.membership.spares,
            self.membership.leaving,
            self.commits.newest_of,
            self.in_place.ending,
            self.growth.newcomers,
        ):
            table.pop(agent_id, None)
        self.commits.drains.forget(agent_id)
        self.in_place.mendable.discard(agent_id)

    # -------------------------------------------------------------------------------- end of the run

    def end(self, outcome: ConcludeRun, now: float) -> list[Action]:
        """Stop the workers that are still active, then conclude; the first failure determines the outcome."""
        if self.is_decided():  # a run that has finished and is saving its last files can still be cancelled, or fail
            return []
        self.phase, self.outcome = Phase.STOPPING, outcome
        self.deadline = now + self.spec.grace_s + self.spec.failed_flush_s + 2
        working = self.agents_with_processes()
        actions = self.withdraw_request()
        if working:
            actions.append(events.StopWorkers(self.generation, working, self.spec.grace_s, self.spec.failed_flush_s))
        return actions + self.conclude()

    def conclude(self) -> list[Action]:
        """Conclude the run once every member has ended, with its last commit stored as a checkpoint if it has finished.

        The checkpoint serves whoever resumes or exports the run: the chief's agent writes it before it reports its end,
        another agent does if that one is lost or has an earlier commit. At the deadline a note reports the missing
        checkpoint.
        """
        if self.growth.newcomers or self.in_place.ending:  # lost and joining workers have to end, too
            return []
        commits, actions = self.commits, list[Action]()
        finishes = self.outcome is not None and self.outcome.phase is Phase.FINISHED
        is_over = self.phase is Phase.STOPPING and not self.agents_with_processes()
        if finishes and is_over and not commits.drains.is_stored(commits.reached):
            holders = [name for name in self.members if commits.held_step(name) == commits.reached]
            if holders and not commits.given_up and self._must_another_store():
                return self._store_last(holders)
            stored = commits.drains.stored
            where = f"is of step {stored}" if stored >= 0 else "does not exist"
            text = f"the run's last commit, of step {commits.reached}, is no checkpoint: the newest one {where}"
            actions.append(events.Unstored(-1, text, is_checkpoint=True))
        return actions + super().conclude()

    def _must_another_store(self) -> bool:
        """Return True if the chief's agent cannot store the last commit: a member is lost, or the chief ended earlier.

        Members that use no collective operation leave their loops at different steps.
        """
        chief = self.by_rank()[0]
        return (
            any(member.lost for member in self.members.values()) or self.commits.held_step(chief) < self.commits.reached
        )

    def _store_last(self, holders: list[str]) -> list[Action]:
        """Ask the first of these agents to store the last commit, unless one of them has been asked already."""
        if self.commits.storing_last in holders:  # it is doing so
            return []
        self.commits.storing_last = holders[0]
        return [events.PersistCommit(holders[0])]

    def withdraw_request(self) -> list[Action]:
        """Withdraw the request for agents, and then release the spare ones, which would be granted again otherwise."""
        if not self.spec.regroups:
            return []
        return [events.RequestAgents(0, 0), *self.give_back(tuple(self.membership.spares))]

    def give_back(self, agent_ids: tuple[str, ...]) -> list[Action]:
        """Release these agents to the pool."""
        for agent_id in agent_ids:
            self.forget(agent_id)
        return [events.ReturnAgents(agent_ids)] if agent_ids else []
