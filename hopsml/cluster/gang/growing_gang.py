"""State machine of an elastic group that also admits joining workers in place; pure as ``gang.py``.

    a spare ──▶ preparing ──ready──▶ all members pause ──▶ MENDING, with it ──all continue──────▶ RUNNING
                    │                     │                    └─(a problem)─▶ MENDING, as before
                    └─(it fails, or is late: a spare again)    └─(a loss: once more, without the lost one)

A joining worker starts while the members train: it imports, builds and traces in a group with no other member, and
reports when it is ready. Then the members pause, all between the same two batches, become the next generation together
with it, send it the chief's state, and continue. Until then it costs them nothing; if it fails later, it costs them the
pause.

If this is not possible, all workers restart from a commit, as in ``elastic_gang.py``, and a note reports the reason:
the members' group is not one of hopsml's collective, or the user's code could not prepare by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.cluster.gang import events
from hopsml.cluster.gang.blame import Failure, first_of
from hopsml.cluster.gang.elastic_gang import END_S
from hopsml.cluster.gang.events import Action, ConcludeRun, Event, Phase
from hopsml.cluster.gang.gang import UNREPORTED, MemberState, ranks
from hopsml.cluster.gang.mending_gang import MEND_S, MendingGang

TOGETHER_S = (
    5.0  # time for which a joining worker that is ready waits for others that prepare: one pause instead of two
)
PAUSE_S = 10.0  # from the first member's pause to the last one's: members are at most a part of a batch apart
AGAIN_S = 10.0  # wait after a pause without a result
DIVERGED = "members called different operations"  # part of the collective's error message, the same in all frameworks


@dataclass
class Newcomer:
    """State of a joining worker, which prepares to be admitted by the members."""

    generation: int  # generation in which its process began
    step: int  # step of the commit from which it prepares
    until: float  # deadline for being ready
    ready_at: float | None = None
    stopped: bool = False  # True if its process is stopped (SIGSTOP)


@dataclass
class GrowingGang(MendingGang):
    """State machine of a group that loses members and admits joining workers in place, while the processes continue."""

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

    def handle(self, event: Event, now: float) -> list[Action]:
        """Process an event and return the actions; also stop joining workers that are no longer needed.

        Args:
            event: The event.
            now: Monotonic time in seconds.
        """
        actions = super().handle(event, now)
        return actions + self._dismiss(self._unneeded(), now)

    def is_current(self, agent_id: str, generation: int) -> bool:
        """Return True if reports of this agent about this generation apply to its present worker.

        For a joining worker that is the generation in which its process began.
        """
        if (newcomer := self.newcomers.get(agent_id)) is not None:
            return generation == newcomer.generation
        return super().is_current(agent_id, generation)

    def _next_number(self) -> int:
        """Return the next generation's number, above those of members and joining workers."""
        return max(self.generation, self.launched) + 1

    def _other(self, event: Event, now: float) -> list[Action]:
        """Process the events of pauses and joining workers, then those of ``MendingGang``."""
        match event:
            case events.Paused():
                return self._paused(event, now)
            case events.Reconfigurable():
                self.anew = self.anew or event.fixed
                if event.fixed and not self.paused:
                    # it may never complete; a member that pauses nevertheless is requested to continue
                    self._end_pause()
                return [*super()._other(event, now), *self._use_spares(now)]
        return super()._other(event, now)

    # -------------------------------------------------------------------------------- decision to grow in place

    def _consider_change(self, now: float) -> list[Action]:
        """Start preparations for joining workers if the group only grows; else change it as in ``ElasticGang``."""
        if self.pausing:  # other changes wait for the end of the pause
            return []
        grows_only = len(self.members) <= self.target and not self.leaving.keys() & self.members.keys()
        if not grows_only or self.phase is not Phase.RUNNING or any(one.finished for one in self.members.values()):
            return super()._consider_change(now)
        if not self.anew and not self._is_able() and not self._is_known():
            return []
        if why := self._why_anew():
            actions = super()._consider_change(now)
            if not actions or why == self.said:
                return actions
            self.said = why
            note = f"newcomers cannot come to the processes that are there, so that all begin anew for them: {why}"
            return [*actions, events.Note(note)]
        return self._prepare(now)

    def _is_able(self) -> bool:
        """Return True if all members have reported that their group can continue in place."""
        return self.members.keys() <= self.mendable

    def _is_known(self) -> bool:
        """Return True if a member is past the point at which it would have reported that it can continue in place."""
        others = self.members.keys() - self.mendable
        return any(max(self.pace.steps.get(name, -1), self._held(name)) > self.base for name in others)

    def _why_anew(self) -> str:
        """Return why joining workers cannot be admitted in place; "" if they can."""
        if self.anew or self._is_able():
            return self.anew
        others = sorted(member.rank for name, member in self.members.items() if name not in self.mendable)
        return f"{ranks(others)} not in a group of hopsml's collective"

    def _prepare(self, now: float) -> list[Action]:
        """Launch joining workers on spare agents, if there is a commit from which they can prepare."""
        ready = [agent_id for agent_id in self._usable(now) if self.spares[agent_id]]
        wanted = self.target - len(self.members) - len(self.newcomers)
        chosen, newest = tuple(ready[: max(0, wanted)]), self._newest()
        if not chosen or newest < 0:
            return self._ask_pause(now)
        self.launched = self._next_number()
        members = tuple(sorted(self.members, key=lambda name: self.members[name].rank))
        holders = tuple(a for a in (*members, *self.spares) if self._held(a) == newest)
        for agent_id in chosen:
            del self.spares[agent_id]
            if agent_id not in holders:  # its own commit is dropped when its worker begins
                self.commits.pop(agent_id, None)
            self.since[agent_id] = self.launched
            self.newcomers[agent_id] = Newcomer(self.launched, newest, now + self.spec.start_timeout_s)
        return [events.PrepareNewcomers(self.launched, chosen, members, newest, holders)]

    def _committed(self, event: events.WorkerCommitted, now: float) -> list[Action]:
        """Record a commit, from which joining workers may now prepare."""
        return [*super()._committed(event, now), *self._use_spares(now)]

    # -------------------------------------------------------------------------------- joining workers

    def _started(self, event: events.Started, now: float) -> list[Action]:
        """Record that a worker has started."""
        if (newcomer := self.newcomers.get(event.agent_id)) is not None:
            self._holds(event.agent_id, newcomer.step)  # it has received that commit
            return []
        return super()._started(event, now)

    def _stepped(self, event: events.Stepped, now: float) -> list[Action]:
        """Process a heartbeat of a member or a joining worker."""
        if (newcomer := self.newcomers.get(event.agent_id)) is not None:
            newcomer.stopped = event.stopped
            return self._ask_pause(now)
        return [*super()._stepped(event, now), *self._use_spares(now)]

    def _failed(self, event: events.Failed, now: float) -> list[Action]:
        """Record a worker's failure; that of a joining worker concerns no other one."""
        if event.agent_id in self.newcomers:
            if event.raised and not event.secondary:
                self.anew = event.cause
            return self._turn_away(event.agent_id, event.cause, now)
        return super()._failed(event, now)

    def _finished(self, event: events.Finished, now: float) -> list[Action]:
        """Record that a worker's function has returned; for a joining worker that is a failure."""
        if event.agent_id in self.newcomers:
            return self._turn_away(event.agent_id, "its function returned before it was let in", now)
        return super()._finished(event, now)

    def _over(self, agent_id: str, now: float) -> list[Action]:
        """Record that no process of a worker remains; a joining worker that has not been stopped has failed."""
        if agent_id not in self.newcomers:
            return super()._over(agent_id, now)
        note = self._record_failed_newcomer(agent_id, UNREPORTED, now)
        del self.newcomers[agent_id]
        self.mendable.discard(agent_id)
        self.ending[agent_id] = now
        return [note, *super()._over(agent_id, now)]

    def _turn_away(self, agent_id: str, cause: str, now: float) -> list[Action]:
        """Stop a joining worker that has failed or is late; it may try again unless the user's code is the reason."""
        note = self._record_failed_newcomer(agent_id, cause, now)
        return [note, *self._dismiss((agent_id,), now), *self._use_spares(now)]

    def _record_failed_newcomer(self, agent_id: str, cause: str, now: float) -> Action:
        """Exclude a joining worker's agent for a while unless the user's code is the reason; return a note for the user."""
        if not self.anew:
            self.unfit.failed(agent_id, now)
        text = f"a newcomer on {self.hosts[agent_id]} could not get ready, and the group goes on as it is: {cause}"
        return events.Note(text)

    def _unneeded(self) -> tuple[str, ...]:
        """Return the joining workers that are no longer needed.

        That is all of them if the group ends or restarts; else those beyond the target size, and those on leaving
        agents.
        """
        grows = self.phase in (Phase.RUNNING, Phase.MENDING, Phase.SETTLING)
        if not grows or self.anew or any(member.finished for member in self.members.values()):
            return tuple(self.newcomers)
        places = max(0, self.target - len(self.members))
        staying = [agent_id for agent_id in self.newcomers if agent_id not in self.leaving][:places]
        return tuple(agent_id for agent_id in self.newcomers if agent_id not in staying)

    def _dismiss(self, agent_ids: tuple[str, ...], now: float) -> list[Action]:
        """Stop joining workers; their agents are spare again when they have reported the end."""
        actions: list[Action] = []
        for agent_id in agent_ids:
            generation = self.newcomers.pop(agent_id).generation
            self.mendable.discard(agent_id)
            self.ending[agent_id] = now + END_S
            actions.append(events.StopWorkers(generation, (agent_id,), 0.0, 0.0, keep=True))
        return actions

    def _drain(self, event: events.DrainRequested, now: float) -> list[Action]:
        """Record that an agent will leave; ``handle`` stops a joining worker on it."""
        if event.agent_id in self.newcomers:
            self.leaving[event.agent_id] = event.reason
            return []
        return super()._drain(event, now)

    def _forget(self, agent_id: str) -> None:
        """Remove an agent that is lost or released from all tables."""
        super()._forget(agent_id)
        self.newcomers.pop(agent_id, None)

    # -------------------------------------------------------------------------------- the pause

    def _ready(self) -> tuple[str, ...]:
        """Return the joining workers that are ready and not stopped."""
        return tuple(name for name, one in self.newcomers.items() if one.ready_at is not None and not one.stopped)

    def _ask_pause(self, now: float) -> list[Action]:
        """Pause the members once joining workers are ready, at most ``TOGETHER_S`` after the first of them."""
        if not self._ready() or now < self.again_at:
            return []
        times = [one.ready_at for one in self.newcomers.values()]
        if None in times and now < min(time for time in times if time is not None) + TOGETHER_S:
            return []
        if self.pausing or self.phase is not Phase.RUNNING or not self._is_able():
            return []
        if self.leaving.keys() & self.members.keys() or any(one.finished for one in self.members.values()):
            return []
        self.pausing = True
        return [events.PauseGroup(self.generation, tuple(self.members))]

    def _paused(self, event: events.Paused, now: float) -> list[Action]:
        """Record that a worker is paused or ready to join, and end the pause once all members are."""
        if (newcomer := self.newcomers.get(event.agent_id)) is not None:
            newcomer.ready_at = now
            return self._ask_pause(now)
        current = event.agent_id in self.members and event.generation == self.generation
        if not current or self.phase is not Phase.RUNNING:
            return []
        self.pausing = True
        self.paused.add(event.agent_id)
        self.pause_until = now + PAUSE_S if self.pause_until is None else self.pause_until
        return self._let_in(self._ready(), now) if self.paused >= self.members.keys() else []

    def _let_in(self, newcomers: tuple[str, ...], now: float) -> list[Action]:
        """End the pause: the members continue, together with the joining workers that are still ready."""
        # one has ended during the pause, which determines what follows
        if any(member.is_end_known for member in self.members.values()):
            return []
        for agent_id in newcomers:
            del self.newcomers[agent_id]
            self.members[agent_id] = MemberState(len(self.members))
        for member in self.members.values():
            member.started = False
        members = tuple(sorted(self.members, key=lambda name: self.members[name].rank))
        self._end_pause()
        self.came, self.meets, self.fresh = newcomers, bool(newcomers), self.fresh | set(newcomers)
        self.grown = self.grown or self.meets
        return [self._begin_again(members, now)]

    def _end_pause(self) -> None:
        """Reset the state of the pause."""
        self.pausing, self.paused, self.pause_until = False, set(), None

    # -------------------------------------------------------------------------------- result of the attempt

    def _mended(self, event: events.Reconfigured, now: float) -> list[Action]:
        """Record that a worker continues in place, or that it cannot."""
        current = event.generation == self.generation and event.agent_id in self.members
        if event.problem and current and self.came and self.phase is Phase.MENDING:
            return self._turn_back(event.problem, now)
        return super()._mended(event, now)

    def _all_went_on(self, now: float) -> list[Action]:
        """Report the workers that have joined, once all members continue."""
        came, self.came, self.meets = self.came, (), False
        actions = super()._all_went_on(now)
        if came:
            who = f"{len(came)} more joined at step {self.went_on}"
            actions.append(events.Note(f"{who}: {len(self.members)} workers go on in their processes"))
        return [*actions, *self._shed()]

    def _turn_back(self, problem: str, now: float) -> list[Action]:
        """Continue without the workers that were joining, as the group could not be reconfigured with them."""
        came = [agent_id for agent_id in self.came if agent_id in self.members]
        plural = "s" if len(came) > 1 else ""
        text = f"{len(came)} newcomer{plural} could not come to the others, which go on as they were: {problem}"
        for agent_id in came:
            self.unfit.failed(agent_id, now)
        staying = tuple(name for name in sorted(self.members, key=lambda a: self.members[a].rank) if name not in came)
        self.came, self.again_at = (), now + AGAIN_S
        self.fresh -= set(came)
        return [events.Note(text), *self._go_on_with(staying, now)]

    def _begin_again(self, members: tuple[str, ...], now: float, meets: bool = False) -> Action:
        """Start the next generation in the processes of these members."""
        # Members that were informed of joining workers exchange the state, so all of them have to, even if those are
        # lost by now.
        self._end_pause()
        return super()._begin_again(members, now, meets or self.meets)

    def _staying(self) -> tuple[str, ...]:
        """Return the members that continue without those that have failed; empty if all have to restart."""
        failed = {failure.agent_id for failure in self.failures}
        if failed and failed <= self.fresh:  # the others lose nothing, whatever the cause
            return self._able_without(failed)
        return super()._staying()

    def _mend(self, staying: tuple[str, ...], now: float, dump: bool) -> list[Action]:
        """Continue without lost members; losses of newly joined ones do not count towards the reset limit."""
        of_newcomers = all(failure.agent_id in self.fresh for failure in self.failures)
        failures = list(self.failures)
        actions = super()._mend(staying, now, dump)
        if of_newcomers:
            self.resets -= 1
            self.attempts -= 1
            for failure in failures:
                self._blame_newcomer(failure, now)
        self.fresh &= set(staying)
        self.came = tuple(agent_id for agent_id in self.came if agent_id in staying)
        return actions

    def _blame_newcomer(self, failure: Failure, now: float) -> None:
        """Exclude a failed new member's agent for a while, unless the user's code failed.

        In that case workers are no longer admitted in place.
        """
        if failure.raised and not failure.echo:
            self.anew = failure.cause
        else:
            self.unfit.failed(failure.agent_id, now)

    def _prove(self) -> None:
        """Record that the group works, including its new members: it has made its first commit."""
        super()._prove()
        self.fresh = set()

    def _verdict(self, now: float, actions: list[Action]) -> ConcludeRun | None:
        """Return how the run ends because of this generation's failures; None if it continues.

        If a new member called other operations than the others did, all workers restart, now and for each later joining
        worker.
        """
        first = first_of(self.failures)
        if self.grown and not self.anew and DIVERGED in first.cause:
            self.anew = first.cause
            self.why = f"a worker that came later calls other operations than those that were there: {first.cause}"
            return None
        return super()._verdict(now, actions)

    def _form(self, usable: list[str], now: float) -> list[Action]:
        """Start the next generation with new processes."""
        self._end_pause()
        self.came, self.meets, self.fresh, self.grown = (), False, set(), False
        return super()._form(usable, now)

    # -------------------------------------------------------------------------------- deadlines and the end

    def _tick(self, now: float) -> list[Action]:
        """Enforce the deadlines of joining workers and of the pause, then those of ``MendingGang``."""
        for agent_id, newcomer in self.newcomers.items():
            if newcomer.ready_at is None and now >= newcomer.until:
                return self._turn_away(agent_id, f"it was not ready after {self.spec.start_timeout_s:g} s", now)
        if self.phase is Phase.MENDING and self.came and self.deadline is not None and now >= self.deadline:
            late = sorted(member.rank for member in self.members.values() if not member.started)
            return self._turn_back(f"{ranks(late)} did not go on within {MEND_S:g} s", now)
        if self.phase is Phase.RUNNING and self.pause_until is not None and now >= self.pause_until:
            self.again_at, self.pause_until = now + AGAIN_S, None
            if actions := self._let_in((), now):
                return actions
        if self.phase is Phase.RUNNING and (actions := self._ask_pause(now)):
            return actions
        return super()._tick(now)

    def _next_if_over(self, now: float) -> list[Action]:
        """Start the next generation once joining workers have ended, too."""
        return [] if self.newcomers else super()._next_if_over(now)

    def _conclude_if_over(self) -> list[Action]:
        """Conclude the run once joining workers have ended, too."""
        return [] if self.newcomers else super()._conclude_if_over()
