"""State machine of an elastic group that loses members in place: the other processes continue; pure as ``gang.py``.

    RUNNING ──(a member is lost, and all others are able to continue)──▶ MENDING ──all continue──────▶ RUNNING
                                                                          │  ▲ └─(another one is lost: once more)┐
                                                                          │  └───────────────────────────────────┘
                                                                          └─(one cannot, or not in time)──▶ REFORMING

The remaining workers retain process, memory and everything that they have traced: they become the next generation's
group within the collective call in which they wait, and no step is repeated. Whatever this cannot handle ends the
generation as in ``elastic_gang.py``: the loss of the chief, whose role a running function cannot take over; a member
whose function has returned already; an error of the user's code; a joining worker that fails before its first commit; a
change that is in progress.

The agents of lost workers report their ends after the others have continued, and are spare from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.cluster.gang import events
from hopsml.cluster.gang.blame import Failure, first_of
from hopsml.cluster.gang.elastic_gang import END_S, ElasticGang
from hopsml.cluster.gang.events import Action, ConcludeRun, Event, Phase
from hopsml.cluster.gang.gang import MemberState, ranks

MEND_S = 5.0  # deadline for all members to continue; they need a hundredth of that
GROW_S = 10.0  # after a loss, before all restart to admit a joining worker: more agents may be about to connect


@dataclass
class MendingGang(ElasticGang):
    """State machine of an elastic group that continues in place without lost members.

    ``mendable``: members whose workers can continue without others.
    """

    mendable: set[str] = field(default_factory=set)
    since: dict[str, int] = field(default_factory=dict)  # agent -> generation in which its worker's process began
    ending: dict[str, float] = field(
        default_factory=dict
    )  # agents of lost workers -> deadline for the end of their processes
    # the failures of the members without which the group is about to continue
    lost: list[Failure] = field(default_factory=list)
    attempts: int = 0  # attempts to continue since the group last trained
    problem: str = ""  # why the group could not continue in place and restarts
    went_on: int = -1  # the furthest step at which any member has continued
    grow_at: float = 0.0  # joining workers are not admitted before this time

    @property
    def training(self) -> tuple[Phase, ...]:
        """Phases in which workers are starting or at work, with the reconfiguration in place."""
        return (*super().training, Phase.MENDING)

    def is_current(self, agent_id: str, generation: int) -> bool:
        """Return True if reports of this agent about this generation apply to its present worker.

        That is any generation of which the worker's process has been a part.
        """
        if agent_id not in self.members and agent_id not in self.ending:
            return False
        since = self.since[agent_id]
        return since <= generation <= max(since, self.generation)

    def _other(self, event: Event, now: float) -> list[Action]:
        """Process the events of a reconfiguration in place, then those of ``ElasticGang``."""
        match event:
            case events.Reconfigurable():
                if self.phase not in (Phase.PARKING, Phase.REFORMING):
                    self.mendable.add(event.agent_id)
                return []
            case events.Reconfigured():
                return self._mended(event, now)
        return super()._other(event, now)

    # -------------------------------------------------------------------------------- a generation of new processes

    def _form(self, usable: list[str], now: float) -> list[Action]:
        """Start the next generation with new processes."""
        actions = super()._form(usable, now)
        self.grow_at = 0.0
        self.problem = ""
        self.mendable, self.since = set(), dict.fromkeys(self.members, self.generation)
        return actions

    def _consider_change(self, now: float) -> list[Action]:
        """Consider a change, which ends all processes at their next commit."""
        grows_only = len(self.members) <= self.target and not self.leaving.keys() & self.members.keys()
        if grows_only and now < self.grow_at:
            return []
        actions = super()._consider_change(now)
        if self.phase is Phase.PARKING:
            self.mendable = set()  # all processes end at their next commit
        return actions

    def _started(self, event: events.Started, now: float) -> list[Action]:
        """Record that a worker has started."""
        # A process that began before this generation continues in it and has not been started again: its ``started``
        # means that it has continued. The generation of its start decides, not the phase: the generation may end before
        # all have continued.
        return super()._started(event, now) if self.since.get(event.agent_id) == self.generation else []

    def _stepped(self, event: events.Stepped, now: float) -> list[Action]:
        """Process a heartbeat of a member; those of workers that are ending do not count."""
        return super()._stepped(event, now) if event.agent_id in self.members else []

    # -------------------------------------------------------------------------------- decision to continue in place

    def _reform(self, now: float, dump: bool = False) -> list[Action]:
        """Continue without the lost members if possible; else end the generation."""
        staying = self._staying()
        return self._mend(staying, now, dump) if staying else self._give_up(now, dump)

    def _staying(self) -> tuple[str, ...]:
        """Return the members that continue without the failed ones, in rank order; empty if all have to restart."""
        failed = {failure.agent_id for failure in self.failures}
        if not failed or any(failure.raised or failure.storage or failure.echo for failure in self.failures):
            return ()
        if self._costs_only_its_place(first_of(self.failures)):
            return ()
        if self.spec.reset_limit is not None and self.resets >= self.spec.reset_limit:
            return ()
        return self._able_without(failed)

    def _able_without(self, failed: set[str]) -> tuple[str, ...]:
        """Return the members that can continue without ``failed``, in rank order; empty if they cannot."""
        members = sorted(self.members.items(), key=lambda one: one[1].rank)
        staying = tuple(name for name, member in members if name not in failed and not member.is_end_known)
        able = all(name in self.mendable for name in staying) and not any(member.finished for _, member in members)
        led = bool(staying) and not self.members[staying[0]].rank
        return staying if able and led and len(staying) >= self.spec.minimum else ()

    def _mend(self, staying: tuple[str, ...], now: float, dump: bool) -> list[Action]:
        """Continue without the members that have failed; if their processes still exist, they are ended."""
        first = first_of(self.failures)
        self.why = f"rank {first.rank}: {first.cause}"
        self.resets += 1
        self.attempts += 1
        self.lost += self.failures
        self.failures, self.left_at = [], None
        return self._go_on_with(staying, now, dump)

    def _go_on_with(self, staying: tuple[str, ...], now: float, dump: bool = False) -> list[Action]:
        """Continue with these members, and end the workers of the others."""
        actions = list[Action]()
        gone = {name: member for name, member in self.members.items() if name not in staying}
        working = tuple(name for name, member in gone.items() if not member.over and not member.lost)
        if working:
            actions.append(events.StopWorkers(self.generation, working, 0.0, 0.0, keep=True, dump=dump))
        self.ending |= dict.fromkeys(working, now + END_S)
        self.spares |= {name: True for name, member in gone.items() if member.over and not member.lost}
        for name in gone:
            self.pace.without(name, now)
            self.liveness.without(name)
        self.members = {name: MemberState(rank) for rank, name in enumerate(staying)}
        return [*actions, self._begin_again(staying, now)]

    def _begin_again(self, members: tuple[str, ...], now: float, meets: bool = False) -> Action:
        """Start the next generation in the processes of these members."""
        self.generation = self._next_number()
        self.phase, self.deadline, self.went_on = Phase.MENDING, now + MEND_S, -1
        return events.ReconfigureGroup(self.generation, members, meets)

    # -------------------------------------------------------------------------------- result of the attempt

    def _mended(self, event: events.Reconfigured, now: float) -> list[Action]:
        """Record that a member continues in place, or that it cannot."""
        member = self.members.get(event.agent_id)
        if member is None or event.generation != self.generation:
            return []  # it responds to an earlier attempt
        if self.phase is Phase.RUNNING and event.problem:
            return self._failed(events.Failed(event.agent_id, event.generation, event.problem, secondary=True), now)
        if self.phase is not Phase.MENDING:
            return []
        if event.problem:
            return self._give_up(now, problem=f"rank {member.rank} could not go on in its process: {event.problem}")
        member.started = True
        self.went_on = max(event.step, self.went_on)
        if not all(one.started for one in self.members.values()):
            return []
        self.phase, self.deadline = Phase.RUNNING, None
        return [*self._all_went_on(now), *self._let_go(now), *self._consider_change(now)]

    def _all_went_on(self, now: float) -> list[Action]:
        """Report the members that were lost, once all others continue."""
        actions: list[Action] = [events.Note(self._how_it_went_on())] if self.lost else []
        for failure in self.lost:
            self._count_against_host(failure, now, actions)
        if self.lost:
            self.grow_at = now + GROW_S
        self.base, self.lost, self.attempts = self._newest(), [], 0
        return actions

    def _how_it_went_on(self) -> str:
        """Return as text which members were lost, and how the group continues."""
        lost = "; ".join(f"rank {failure.rank} was lost ({failure.cause})" for failure in self.lost)
        who, whose = (f"{len(self.members)} workers", "their processes")
        if len(self.members) == 1:
            who, whose = "the chief alone", "its process"
        step = f" at step {self.went_on}" if self.went_on >= 0 else ""
        return f"{lost}: {who} went on{step} in {whose}; the lost share of the batch under way may not have been trained on"

    def _give_up(self, now: float, dump: bool = False, problem: str = "") -> list[Action]:
        """End the generation as if reconfiguration had not been tried: new processes start from the newest commit.

        Args:
            now: Monotonic time in seconds.
            dump: True if the workers write where they stand before they end.
            problem: Why the group could not continue in place; "" if that was not tried.
        """
        if problem:
            self.why = self.problem = problem
        self.failures = [*self.lost, *self.failures]
        self.resets -= self.attempts
        self.lost, self.attempts = [], 0
        self.mendable = set()
        return super()._reform(now, dump)

    def _verdict(self, now: float, actions: list[Action]) -> ConcludeRun | None:
        """Return how the run ends because of this generation's failures; None if it continues."""
        verdict = super()._verdict(now, actions)
        if self.problem:
            self.why += f"; {self.problem}"
        return verdict

    def _tick(self, now: float) -> list[Action]:
        """Enforce the deadlines of ending workers and of the reconfiguration, then those of ``ElasticGang``."""
        overdue = tuple(name for name, until in self.ending.items() if now >= until)
        actions: list[Action]
        if overdue:
            for name in overdue:
                self._forget(name)
            return [events.DropAgents(overdue, "did not report its worker's end in time"), *self._ended(now)]
        if self.phase is Phase.MENDING and self.deadline is not None and now >= self.deadline:
            late = sorted(member.rank for member in self.members.values() if not member.started)
            return self._give_up(now, problem=f"{ranks(late)} did not go on within {MEND_S:g} s")
        if self.phase is Phase.RUNNING and 0.0 < self.grow_at <= now:
            self.grow_at = 0.0
            if actions := self._consider_change(now):
                return actions
        return super()._tick(now)

    # -------------------------------------------------------------------------------- lost workers whose agents remain

    def _over(self, agent_id: str, now: float) -> list[Action]:
        """Record that no process of a worker remains; the agent of a lost worker is spare from then on."""
        if self.ending.pop(agent_id, None) is None:
            return super()._over(agent_id, now)
        self.spares[agent_id] = True
        actions = self._give_back((agent_id,)) if self.phase is Phase.STOPPING else self._let_go(now)
        return [*actions, *self._ended(now), *self._use_spares(now)]

    def _lost(self, event: events.MemberLost, now: float) -> list[Action]:
        """Record the loss of an agent."""
        return [*super()._lost(event, now), *self._ended(now)]

    def _ended(self, now: float) -> list[Action]:
        """Continue with the steps that waited for the end of a lost worker."""
        return [*self._next_if_over(now), *self._conclude_if_over()]

    def _forget(self, agent_id: str) -> None:
        """Remove an agent that is lost or released from all tables."""
        super()._forget(agent_id)
        self.ending.pop(agent_id, None)
        self.mendable.discard(agent_id)

    def _next_if_over(self, now: float) -> list[Action]:
        """Start the next generation once lost workers have ended, too."""
        return [] if self.ending else super()._next_if_over(now)

    def _conclude_if_over(self) -> list[Action]:
        """Conclude the run once lost workers have ended, too."""
        return [] if self.ending else super()._conclude_if_over()
