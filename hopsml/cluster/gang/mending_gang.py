"""A group that may change and that, where it can, goes on in its processes when members are lost; pure as ``gang.py``.

    RUNNING ──(a member is lost, and all others can go on without it)──▶ MENDING ──all have gone on──▶ RUNNING
                                                                          │  ▲ └─(another one is lost: once more)┐
                                                                          │  └───────────────────────────────────┘
                                                                          └─(one cannot, or not in time)──▶ REFORMING

Who goes on keeps process, memory and everything that it has traced: the workers form the next generation's group within
the collective call in which they wait, and no step is made twice. Whatever this cannot be done for ends the generation as
in ``elastic_gang.py``: the loss of the chief, whose part a running function cannot take over; a member whose function has
returned already; an error of the user's; a newcomer that fails before its first commit; a change that is under way.

The agents of lost workers report their ends later than the others go on, and are spares from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.cluster.gang import events
from hopsml.cluster.gang.blame import Failure, first_of
from hopsml.cluster.gang.elastic_gang import END_S, ElasticGang
from hopsml.cluster.gang.events import Action, Event, Phase
from hopsml.cluster.gang.gang import MemberState, ranks

MEND_S = 5.0  # in which all have to have gone on; it takes a hundredth of that
GROW_S = 10.0  # after a loss, before all begin anew for a newcomer's sake: others may be on their way


@dataclass
class MendingGang(ElasticGang):
    """As ``ElasticGang``; ``mendable`` are the members whose workers can go on without others."""

    mendable: set[str] = field(default_factory=set)
    since: dict[str, int] = field(default_factory=dict)  # agent -> generation in which its worker's process began
    ending: dict[str, float] = field(
        default_factory=dict
    )  # agents of lost workers -> until when these have to have ended
    lost: list[Failure] = field(default_factory=list)  # those that the group is about to go on without
    attempts: int = 0  # at that, since the group last was at work
    went_on: int = -1  # the furthest step at which anybody has gone on
    grow_at: float = 0.0  # newcomers are waited with until then

    @property
    def training(self) -> tuple[Phase, ...]:
        """As in ``ElasticGang``, and while the group goes on without a member."""
        return (*super().training, Phase.MENDING)

    def is_current(self, agent_id: str, generation: int) -> bool:
        """Whether what the agent says of this generation counts: of any that its worker's process has been part of."""
        if agent_id not in self.members and agent_id not in self.ending:
            return False
        since = self.since[agent_id]
        return since <= generation <= max(since, self.generation)

    def _other(self, event: Event, now: float) -> list[Action]:
        match event:
            case events.Mendable():
                if self.phase not in (Phase.PARKING, Phase.REFORMING):
                    self.mendable.add(event.agent_id)
                return []
            case events.Mended():
                return self._mended(event, now)
        return super()._other(event, now)

    # -------------------------------------------------------------------------------- a new generation, as ever

    def _form(self, usable: list[str], now: float) -> list[Action]:
        actions = super()._form(usable, now)
        self.grow_at = 0.0
        self.mendable, self.since = set(), dict.fromkeys(self.members, self.generation)
        return actions

    def _consider_change(self, now: float) -> list[Action]:
        grows_only = len(self.members) <= self.target and not self.leaving.keys() & self.members.keys()
        if grows_only and now < self.grow_at:
            return []
        actions = super()._consider_change(now)
        if self.phase is Phase.PARKING:
            self.mendable = set()  # all processes end at their next commit
        return actions

    def _started(self, event: events.Started, now: float) -> list[Action]:
        # A process that has begun before this generation goes on in it, and was given nothing: of it ``started`` tells
        # whether it has gone on. So says its number, not the phase: the generation may be over before all have.
        return super()._started(event, now) if self.since.get(event.agent_id) == self.generation else []

    def _stepped(self, event: events.Stepped, now: float) -> list[Action]:
        return super()._stepped(event, now) if event.agent_id in self.members else []

    # -------------------------------------------------------------------------------- whether to go on

    def _reform(self, now: float, dump: bool = False) -> list[Action]:
        """End the generation because of its failures, or because it parks; and where it can be, only its lost members."""
        staying = self._staying()
        return self._mend(staying, now, dump) if staying else self._give_up(now, dump)

    def _staying(self) -> tuple[str, ...]:
        """The members that go on without those that have failed, in rank order; none where all have to begin anew."""
        failed = {failure.agent_id for failure in self.failures}
        if not failed or any(failure.raised or failure.storage or failure.echo for failure in self.failures):
            return ()
        if self._costs_only_its_place(first_of(self.failures)):
            return ()
        if self.spec.reset_limit is not None and self.resets >= self.spec.reset_limit:
            return ()
        return self._able_without(failed)

    def _able_without(self, failed: set[str]) -> tuple[str, ...]:
        """The members that can go on without these, in rank order; none where they cannot."""
        members = sorted(self.members.items(), key=lambda one: one[1].rank)
        staying = tuple(name for name, member in members if name not in failed and not member.told)
        able = all(name in self.mendable for name in staying) and not any(member.finished for _, member in members)
        led = bool(staying) and not self.members[staying[0]].rank
        return staying if able and led and len(staying) >= self.spec.minimum else ()

    def _mend(self, staying: tuple[str, ...], now: float, dump: bool) -> list[Action]:
        """Have the others go on; whoever is lost without being gone, as a process that is stopped, is ended."""
        first = first_of(self.failures)
        self.why = f"rank {first.rank}: {first.cause}"
        self.resets += 1
        self.attempts += 1
        self.lost += self.failures
        self.failures, self.left_at = [], None
        return self._go_on_with(staying, now, dump)

    def _go_on_with(self, staying: tuple[str, ...], now: float, dump: bool = False) -> list[Action]:
        """Have these members go on; the workers of the others are ended."""
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
        """The next generation, of these members' processes."""
        self.generation = self._next_number()
        self.phase, self.deadline, self.went_on = Phase.MENDING, now + MEND_S, -1
        return events.MendGroup(self.generation, members, meets)

    # -------------------------------------------------------------------------------- what comes of it

    def _mended(self, event: events.Mended, now: float) -> list[Action]:
        member = self.members.get(event.agent_id)
        if member is None or event.generation != self.generation:
            return []  # it answers an earlier attempt
        if self.phase is Phase.RUNNING and event.problem:
            return self._failed(events.Failed(event.agent_id, event.generation, event.problem, secondary=True), now)
        if self.phase is not Phase.MENDING:
            return []
        if event.problem:
            self.why += f"; rank {member.rank} could not go on in its process: {event.problem}"
            return self._give_up(now)
        member.started = True
        self.went_on = max(event.step, self.went_on)
        if not all(one.started for one in self.members.values()):
            return []
        self.phase, self.deadline = Phase.RUNNING, None
        return [*self._all_went_on(now), *self._let_go(now), *self._consider_change(now)]

    def _all_went_on(self, now: float) -> list[Action]:
        actions: list[Action] = [events.Note(self._how_it_went_on())] if self.lost else []
        for failure in self.lost:
            self._count_against_host(failure, now, actions)
        if self.lost:
            self.grow_at = now + GROW_S
        self.base, self.lost, self.attempts = self._newest(), [], 0
        return actions

    def _how_it_went_on(self) -> str:
        lost = "; ".join(f"rank {failure.rank} was lost ({failure.cause})" for failure in self.lost)
        who, whose = (f"{len(self.members)} workers", "their processes")
        if len(self.members) == 1:
            who, whose = "the chief alone", "its process"
        step = f" at step {self.went_on}" if self.went_on >= 0 else ""
        return f"{lost}: {who} went on{step} in {whose}; the lost share of the batch under way may not have been trained on"

    def _give_up(self, now: float, dump: bool = False) -> list[Action]:
        """End the generation as if nobody had tried to go on: all processes begin anew from the newest commit."""
        self.failures = [*self.lost, *self.failures]
        self.resets -= self.attempts
        self.lost, self.attempts = [], 0
        self.mendable = set()
        return super()._reform(now, dump)

    def _tick(self, now: float) -> list[Action]:
        overdue = tuple(name for name, until in self.ending.items() if now >= until)
        actions: list[Action]
        if overdue:
            for name in overdue:
                self._forget(name)
            return [events.DropAgents(overdue, "did not report its worker's end in time"), *self._ended(now)]
        if self.phase is Phase.MENDING and self.deadline is not None and now >= self.deadline:
            late = sorted(member.rank for member in self.members.values() if not member.started)
            self.why += f"; {ranks(late)} did not go on within {MEND_S:g} s"
            return self._give_up(now)
        if self.phase is Phase.RUNNING and 0.0 < self.grow_at <= now:
            self.grow_at = 0.0
            if actions := self._consider_change(now):
                return actions
        return super()._tick(now)

    # -------------------------------------------------------------------------------- lost workers, whose agents live

    def _over(self, agent_id: str, now: float) -> list[Action]:
        if self.ending.pop(agent_id, None) is None:
            return super()._over(agent_id, now)
        self.spares[agent_id] = True
        actions = self._give_back((agent_id,)) if self.phase is Phase.STOPPING else self._let_go(now)
        return [*actions, *self._ended(now), *self._use_spares(now)]

    def _lost(self, event: events.MemberLost, now: float) -> list[Action]:
        return [*super()._lost(event, now), *self._ended(now)]

    def _ended(self, now: float) -> list[Action]:
        """Do what has waited for the end of a worker that was lost."""
        return [*self._next_if_over(now), *self._conclude_if_over()]

    def _forget(self, agent_id: str) -> None:
        super()._forget(agent_id)
        self.ending.pop(agent_id, None)
        self.mendable.discard(agent_id)

    def _next_if_over(self, now: float) -> list[Action]:
        return [] if self.ending else super()._next_if_over(now)

    def _conclude_if_over(self) -> list[Action]:
        return [] if self.ending else super()._conclude_if_over()
