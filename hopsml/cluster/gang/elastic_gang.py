"""State machine of an elastic group, whose members change from one generation to the next; pure as ``gang.py``.

    WAITING ─▶ FORMING ─▶ RUNNING ──(a member joins, leaves, or a resize)──▶ PARKING ──a member has parked──┐
       ▲          └───────────┴──(a member is lost)────────────────────────────┴──▶ REFORMING ◀────────────┘
       └───────────── all workers of the generation are gone; the next one ────────────┘

A planned change ends a generation at a commit: every worker is requested to pause at its next commit. The first one
that does so stops the others too, since no collective completes without it, so no step is lost. A failure ends the
generation at once. The survivors' agents retain the training state, and the next generation continues from the newest
commit that any of them holds.

An error raised by the user's code ends the run, as it would occur again. The death of a process, an agent, an executor
or a host does not, unless it occurs repeatedly without a commit in between. If a joining worker fails, in whatever way,
before the first commit of the group with it, the group continues as it was, without that worker. If shared storage does
not respond when a checkpoint has to be read, the run waits for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hopsml.cluster.gang import events
from hopsml.cluster.gang.blame import Failure, first_of
from hopsml.cluster.gang.draining import Drains
from hopsml.cluster.gang.events import Action, ConcludeRun, Event, Phase
from hopsml.cluster.gang.exclusions import Exclusions
from hopsml.cluster.gang.gang import Gang, MemberState, failure_of
from hopsml.cluster.gang.pace import Liveness, Pace
from hopsml.cluster.shared.spec import ElasticGroup
from hopsml.storage.backoff import pause_s

WITHOUT_COMMITS = (
    "Without a commit nobody can join or be replaced, and whoever is lost lets all begin anew: give fit "
    "callbacks=hopsml.tensorflow.callbacks(), or call commit() of a hopsml.elastic.State in a loop of your own"
)
END_S = 10.0  # for ending the workers of a generation: they are killed without a request
STORE_FIRST_S, STORE_MOST_S = 2.0, 30.0  # first and longest pause between attempts to reach shared storage
UNCOMMITTED_S = 60.0  # training time after which a missing commit is reported: the first step should make one


@dataclass
class ElasticGang(Gang):
    """State machine of a group that may change between ``spec.min_size`` and ``target`` members."""

    spec: ElasticGroup
    target: int = 0
    # agents without a worker -> True if they have imported all modules
    spares: dict[str, bool] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)  # agent -> newest step that it holds
    leaving: dict[str, str] = field(default_factory=dict)  # agents that are about to end -> why
    drains: Drains = field(default_factory=Drains)
    reached: int = -1  # the newest step that any member has committed
    committed: bool = False  # True once any member has committed in this run
    uncommitted_since: float | None = None  # start of training without a commit, which has not been reported yet
    storing_last: str = ""  # agent that was asked to store the last commit, as the one that should is lost
    given_up: bool = False  # True once the run's end has waited long enough for that
    base: int = -1  # the commit that the generation continued from
    from_store: int = -1  # or the checkpoint
    resets: int = 0
    fruitless: int = 0
    parked: int | None = None  # the step at which the first worker of the generation has paused
    start_at: float | None = None  # when a new group starts without the agents that are still missing
    why: str = ""  # what ended the last generation
    proven: frozenset[str] = frozenset()  # the members of the last generation that made a commit
    store_away: float | None = None  # when shared storage stopped responding
    store_tries: int = 0
    try_again_at: float = 0.0  # time of the next attempt to reach shared storage
    pace: Pace = field(default_factory=lambda: Pace(0.0))
    exclusions: Exclusions = field(default_factory=lambda: Exclusions(0, 0.0))
    unfit: Exclusions = field(default_factory=lambda: Exclusions(0, 0.0))  # agents that have failed as joining workers

    @property
    def training(self) -> tuple[Phase, ...]:
        """Phases in which workers are starting or at work, with the wait for a commit before a change."""
        return (Phase.FORMING, Phase.RUNNING, Phase.PARKING)

    def begin(self, now: float) -> list[Action]:
        """Request the group's agents, of which ``spec.minimum`` are needed, and return the first actions.

        Args:
            now: Monotonic time in seconds.
        """
        self.target = self.spec.first_target or self.spec.size
        self.exclusions = Exclusions(self.spec.host_failure_limit, self.spec.host_cooldown_s)
        self.unfit = Exclusions(1, self.spec.host_cooldown_s)
        self.pace = Pace(now, self.spec.progress_timeout_s)
        self.deadline = now + self.spec.start_timeout_s
        return [events.RequestAgents(self.spec.minimum, self.target)]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Process an event and return the actions; also store the newest state if only leaving agents hold it.

        Args:
            event: The event.
            now: Monotonic time in seconds.
        """
        actions = super().handle(event, now)
        goes_on = self.phase in (*self.training, Phase.SETTLING, Phase.REFORMING, Phase.WAITING)
        return actions + self._secure() if self.leaving and goes_on else actions

    def _other(self, event: Event, now: float) -> list[Action]:
        """Process the events of a group that may change."""
        match event:
            case events.Ready():
                if event.agent_id in self.spares:
                    self.spares[event.agent_id] = True
                return self._use_spares(now)
            case events.Ranked():
                for rank, agent_id in enumerate(event.agent_ids):
                    self.members[agent_id].rank = rank
            case events.WorkerCommitted():
                return self._committed(event, now)
            case events.PausedAtCommit():
                return self._parked(event, now)
            case events.DrainRequested():
                return self._drain(event, now)
            case events.CommitPersisted():
                return self._persisted(event, now)
            case events.ResizeRequested():
                self.target = max(event.size, self.spec.minimum)
                if self.phase is Phase.STOPPING:
                    return []
                return [events.RequestAgents(0, self.target), *self._use_spares(now), *self._shed()]
        return []

    def _stepped(self, event: events.Stepped, now: float) -> list[Action]:
        """Process a heartbeat, and report a member that slows the others down."""
        notes = super()._stepped(event, now)
        if event.step < 0:
            return notes
        self.pace.stepped(event.agent_id, event.step, event.stopped, now, event.age_s)
        member = self.members.get(event.agent_id)
        if member is None or self.phase is not Phase.RUNNING or not self.pace.newly_slow(event.agent_id):
            return notes
        host = self.hosts[event.agent_id]
        return [
            *notes,
            events.Note(f"rank {member.rank} on {host} is slower than the others, which wait for it in every step"),
        ]

    # -------------------------------------------------------------------------------- candidates for membership

    def _granted(self, event: events.Granted, now: float) -> list[Action]:
        """Add the granted agents to the spare ones."""
        if self.phase is Phase.STOPPING:
            return [events.ReturnAgents(event.agent_ids)]
        ready = event.ready or (False,) * len(event.agent_ids)
        self.spares |= dict(zip(event.agent_ids, ready, strict=True))
        self.hosts |= dict(zip(event.agent_ids, event.hosts or event.agent_ids, strict=True))
        return self._use_spares(now)

    def _shed(self) -> list[Action]:
        """Release surplus spare agents of a group that has reached its target size.

        Spare agents that leave are released by ``_let_go``. Members that leave do not count: spares will replace them.
        """
        staying = [agent_id for agent_id in self.members if agent_id not in self.leaving]
        if self.phase not in self.training or len(staying) < self.target:
            return []
        return self._give_back(tuple(agent_id for agent_id in self.spares if agent_id not in self.leaving))

    def _give_back(self, agent_ids: tuple[str, ...]) -> list[Action]:
        """Release these agents to the pool."""
        for agent_id in agent_ids:
            self._forget(agent_id)
        return [events.ReturnAgents(agent_ids)] if agent_ids else []

    def _use_spares(self, now: float) -> list[Action]:
        """Start the group, or consider a change, with the spare agents."""
        if self.phase is Phase.WAITING:
            return self._start_if_enough(now)
        return self._consider_change(now) if self.phase is Phase.RUNNING else []

    def _usable(self, now: float) -> list[str]:
        """Return the spare agents that may get a worker: not leaving, and not on an excluded host.

        If all agents are on one host, exclusions do not apply. Agents that failed as joining workers are left out, too,
        unless the group cannot start without them.
        """
        hosts = {self.hosts[agent_id] for agent_id in (*self.spares, *self.members)}
        usable = [
            agent_id
            for agent_id in self.spares
            if agent_id not in self.leaving
            and (len(hosts) == 1 or not self.exclusions.excluded(self.hosts[agent_id], now))
        ]
        fit = [agent_id for agent_id in usable if not self.unfit.excluded(agent_id, now)]
        return fit if len(fit) >= self.spec.minimum or self.members else usable

    def _start_if_enough(self, now: float) -> list[Action]:
        """Start a generation if enough agents can be used, after a wait for more in the first one."""
        if now < self.try_again_at:
            return []
        usable = self._usable(now)
        if len(usable) < self.spec.minimum:
            self.start_at = None
            return []
        if self.generation == 0 and len(usable) < self.target:
            if self.start_at is None:
                self.start_at = now + self.spec.join_s
            if now < self.start_at:
                return []
        return self._form(usable, now)

    def _form(self, usable: list[str], now: float) -> list[Action]:
        """Start the next generation with the best candidates among the spare agents."""
        # The first generation waits for all workers; later ones do not wait for agents that are still importing.
        ready = [agent_id for agent_id in usable if self.spares[agent_id]]
        candidates = ready if len(ready) >= self.spec.minimum and self.generation else usable
        newest, stored = self._newest(), self.drains.stored
        if self.drains.handed_over > newest:  # else what the survivors hold is enough, and shared storage is not needed
            self.commits.clear()
            newest = -1
        candidates.sort(key=self._held, reverse=True)  # agents that hold the state must be among them
        chosen = tuple(candidates[: self.target])
        for agent_id in chosen:
            del self.spares[agent_id]
        others = [agent_id for agent_id in self.spares if agent_id not in self.leaving]
        if newest >= 0 and all(self._held(agent_id) < newest for agent_id in chosen):
            # Only agents on excluded hosts hold the state: they stay until the members have it (``_shed``).
            others = [agent_id for agent_id in others if self._held(agent_id) < newest]
        returned = self._give_back(tuple(others) if len(chosen) == self.target else ())
        self.members = {agent_id: MemberState(rank) for rank, agent_id in enumerate(chosen)}
        self.phase, self.deadline, self.start_at = Phase.FORMING, now + self.spec.start_timeout_s, None
        self.base, self.parked, self.failures = newest, None, []
        self.from_store = -1 if newest >= 0 else stored
        self.liveness, self.left_at = Liveness(), None
        self.pace = self.pace.following(now)
        # Agents on excluded hosts may hold the newest state without being members.
        holders = tuple(a for a in (*chosen, *self.spares) if newest >= 0 and self.commits.get(a) == newest)
        start = events.StartGeneration(self.generation, chosen, newest, holders, self.why, self.from_store)
        return [*returned, *self._lost_commits(newest if newest >= 0 else stored), start]

    def _lost_commits(self, step: int) -> list[Action]:
        """Report which commit is lost if the training continues from an earlier ``step``."""
        reached, self.reached = self.reached, step
        if step >= reached:
            return []
        where = (
            f"goes on from step {step}"
            if step >= 0
            else "begins where this run began, since there is no checkpoint either"
        )
        return [events.Note(f"the commit of step {reached} is lost with the agents that held it: the training {where}")]

    def _persisted(self, event: events.CommitPersisted, now: float) -> list[Action]:
        """Record a checkpoint on shared storage; if the group is starting with an older one, restart it with this one.

        The agent that finds the checkpoint reports it: the one that wrote it may have ended while it could not reach
        the driver.
        """
        self.drains.persisted(event.step, event.seconds, event.agent_id in self.leaving)
        for spare in [one for one in self.spares if self._held(one) < event.step]:
            self.commits.pop(spare, None)  # its worker has ended, so what it holds gets no newer
        if self.phase is Phase.FORMING and 0 <= self.from_store < event.step:
            self.why = f"the checkpoint of step {event.step} was found, which is newer"
            return self._reform(now)
        return self._let_go(now) if self.phase is Phase.WAITING else self._conclude_if_over()

    def attendance(self, idle: int) -> tuple[int, str]:
        """Return how many spare agents a waiting group has, and as text how many it needs.

        Args:
            idle: Number of idle agents; not used here.
        """
        return len(self.spares), f"at least {self.spec.minimum}"

    # -------------------------------------------------------------------------------- planned changes

    def _started(self, event: events.Started, now: float) -> list[Action]:
        """Record that a worker has started, and so holds the state that the generation continues from."""
        actions = super()._started(event, now)
        if event.agent_id in self.members:  # it has received the state that the generation continues from
            self._holds(event.agent_id, self.base)
        if self.phase is Phase.RUNNING and not self.generation and self.uncommitted_since is None:
            self.uncommitted_since = now
        if self.phase is not Phase.RUNNING:
            return actions
        return [*actions, *self._let_go(now), *self._consider_change(now), *self._shed()]

    def _consider_change(self, now: float) -> list[Action]:
        """Pause the workers at a commit if a member leaves, the size changes, or a spare agent is ready to join."""
        # Once a member has finished the others are about to: a new generation would have nothing to do.
        if any(member.finished for member in self.members.values()):
            return []
        leaving = [agent_id for agent_id in self.members if agent_id in self.leaving]
        ready = [agent_id for agent_id in self._usable(now) if self.spares[agent_id]]
        if leaving:
            # Leaving members continue training until all successors are ready, so that there is one change instead of
            # several.
            successors = min(self.target, len(self.members)) - (len(self.members) - len(leaving))
            if len(ready) < successors and not self.drains.must_park(leaving, now, self.pace.usual_s):
                return []
            why = f"rank {self.members[leaving[0]].rank} leaves: {self.leaving[leaving[0]]}"
        elif len(self.members) > self.target:
            why = f"resized to {self.target} workers"
        elif ready and len(self.members) < self.target:
            why = f"{min(len(ready), self.target - len(self.members))} more joined"
        else:
            return []
        self.phase, self.deadline, self.why = Phase.PARKING, None, why
        return [events.PauseWorkersAtCommit(self.generation, tuple(self.members), why)]

    def _committed(self, event: events.WorkerCommitted, now: float) -> list[Action]:
        """Record a commit of a member."""
        if event.agent_id not in self.members:
            return []
        self.committed = True
        self._holds(event.agent_id, event.step)
        if event.step > self.base:
            self.fruitless = 0
            self._prove()
        return self._reform_if_agreed(now)

    def _prove(self) -> None:
        """Record that the group works, including its new members: it has made its first commit."""
        self.proven = frozenset(self.members)
        self.store_away, self.store_tries = None, 0

    def _parked(self, event: events.PausedAtCommit, now: float) -> list[Action]:
        """Record that a worker has paused at a commit; the others have ``agree_s`` to commit the same step."""
        if event.agent_id not in self.members or self.phase is not Phase.PARKING:
            return []
        self.committed = True
        self._holds(event.agent_id, event.step)
        if event.step > self.base:
            self._prove()
        if self.parked is None:
            self.parked, self.deadline = event.step, now + self.spec.agree_s
        return self._reform_if_agreed(now)

    def _holds(self, agent_id: str, step: int) -> None:
        """Record the newest step that an agent holds."""
        self.commits[agent_id] = max(step, self._held(agent_id))
        self.reached = max(step, self.reached)

    def _held(self, agent_id: str) -> int:
        """Return the newest step that an agent holds; -1 for none."""
        return self.commits.get(agent_id, -1)

    def _newest(self) -> int:
        """Return the newest step that any agent holds; -1 for none."""
        return max(self.commits.values(), default=-1)

    def _reform_if_agreed(self, now: float) -> list[Action]:
        """End the generation once all hold the state at which the first one paused, so that none has to be sent."""
        if self.phase is not Phase.PARKING or self.parked is None:
            return []
        if any(self._held(agent_id) < self.parked for agent_id in self.members):
            return []
        return self._reform(now)

    def _drain(self, event: events.DrainRequested, now: float) -> list[Action]:
        """Record that an agent will leave, and prepare for its successor."""
        if event.agent_id not in self.spares and event.agent_id not in self.members:
            return []
        self.leaving[event.agent_id] = event.reason
        self.drains.warn(event.agent_id, now, self.spec.drain_s if event.time_s is None else event.time_s)
        if (member := self.members.get(event.agent_id)) is None:
            return self._let_go(now)
        return [events.Note(f"rank {member.rank} is about to leave ({event.reason})"), *self._use_spares(now)]

    def _is_last_holder(self, agent_id: str) -> bool:
        """Return True if no agent that stays has as new a commit, so that this one must stay until another has it."""
        staying = [step for other, step in self.commits.items() if other not in self.leaving]
        return self._held(agent_id) > max(staying, default=-1)

    def _is_needed(self, agent_id: str, now: float) -> bool:
        """Return True if a leaving agent must stay for its state: others will fetch it, or only agents hold it yet."""
        if not self._is_last_holder(agent_id):
            return False
        fetched = self.phase is Phase.FORMING or len(self._usable(now)) >= self.spec.minimum
        return fetched or not self.drains.is_safe(self.commits[agent_id])

    def _let_go(self, now: float) -> list[Action]:
        """Release the spare agents that leave and are not needed any more."""
        actions: list[Action] = []
        for agent_id, reason in list(self.leaving.items()):
            if agent_id in self.spares and not self._is_needed(agent_id, now):
                self._forget(agent_id)
                actions.append(events.ReturnAgents((agent_id,), reason))
        return actions

    def _secure(self) -> list[Action]:
        """Store the newest commit on shared storage if only leaving agents hold it."""
        asked = self.drains.to_store(self.commits, self.leaving, once=self.phase in (Phase.RUNNING, Phase.PARKING))
        return [events.PersistCommit(asked)] if asked is not None else []

    # -------------------------------------------------------------------------------- failures

    def _failed(self, event: events.Failed, now: float) -> list[Action]:
        """Record a failure; one that is reported while the generation ends counts as well."""
        actions = super()._failed(event, now)
        member = self.members.get(event.agent_id)
        if self.phase is Phase.REFORMING and member is not None and not member.failed:
            member.failed = True
            self.failures.append(failure_of(event, member))
        return actions

    def _settled(self, now: float) -> list[Action]:
        """End the generation, as its failures are known."""
        return self._reform(now)

    def _lost(self, event: events.MemberLost, now: float) -> list[Action]:
        """Record the loss of an agent, which ends the generation of which it is a member."""
        member = self.members.get(event.agent_id)
        self._forget(event.agent_id)
        if member is None or member.lost:
            return []
        member.lost = True
        actions: list[Action] = []
        ends_it = self.phase in (*self.training, Phase.SETTLING)
        if not member.over and (ends_it or (self.phase is Phase.REFORMING and self.failures)):
            self.failures.append(Failure(event.agent_id, member.rank, event.reason, outside=True))
        if not member.over and ends_it:
            actions = self._reform(now)
        return actions + self._over(event.agent_id, now)

    def _forget(self, agent_id: str) -> None:
        """Remove an agent that is lost or released from all tables."""
        for table in (self.spares, self.commits, self.leaving):
            table.pop(agent_id, None)
        self.drains.forget(agent_id)

    # -------------------------------------------------------------------------------- end of the run

    def _conclude_if_over(self) -> list[Action]:
        """Conclude the run once every member has ended, with its last commit stored as a checkpoint if it has finished.

        The checkpoint serves whoever resumes or exports the run: the chief's agent writes it before it reports its end,
        another agent does if that one is lost. At the deadline a note reports the missing checkpoint.
        """
        actions: list[Action] = []
        finishes = self.outcome is not None and self.outcome.phase is Phase.FINISHED
        is_over = self.phase is Phase.STOPPING and all(m.over or m.lost for m in self.members.values())
        if finishes and is_over and not self.drains.is_safe(self.reached):
            holders = [name for name in self.members if self._held(name) == self.reached]
            if holders and not self.given_up and any(member.lost for member in self.members.values()):
                return self._store_last(holders)
            where = f"is of step {self.drains.stored}" if self.drains.stored >= 0 else "does not exist"
            actions.append(
                events.Note(f"the run's last commit, of step {self.reached}, is no checkpoint: the newest one {where}")
            )
        return actions + super()._conclude_if_over()

    def _store_last(self, holders: list[str]) -> list[Action]:
        """Ask the first of these agents to store the last commit, unless one of them has been asked already."""
        if self.storing_last in holders:  # it is doing so
            return []
        self.storing_last = holders[0]
        return [events.PersistCommit(self.storing_last)]

    # -------------------------------------------------------------------------------- from one generation to the next

    def _reform(self, now: float, dump: bool = False) -> list[Action]:
        """End the workers of this generation; ``_next_if_over`` decides what follows once all have ended."""
        self.phase, self.deadline = Phase.REFORMING, now + END_S
        working = tuple(agent_id for agent_id, m in self.members.items() if not m.over and not m.lost)
        actions: list[Action] = []
        if working:
            actions.append(events.StopWorkers(self.generation, working, 0.0, 0.0, keep=True, dump=dump))
        return actions + self._next_if_over(now)

    def _over(self, agent_id: str, now: float) -> list[Action]:
        """Record that no process of a member's worker remains, and start the next generation after the last one."""
        actions = super()._over(agent_id, now)
        return actions + self._next_if_over(now)

    def _next_if_over(self, now: float) -> list[Action]:
        """Start the next generation, or end the run, once all workers of this one have ended."""
        if self.phase is not Phase.REFORMING or not all(m.over or m.lost for m in self.members.values()):
            return []
        actions: list[Action] = []
        if self.failures:
            verdict = self._verdict(now, actions)
            if verdict is not None:
                return actions + self._end(verdict, now)
        self.spares |= {agent_id: True for agent_id, member in self.members.items() if not member.lost}
        self.members = {}
        actions += self._let_go(now)
        ended, self.generation = self.generation, self._next_number()
        self.phase, self.deadline = Phase.WAITING, now + self.spec.min_workers_timeout_s
        actions.append(events.Note(f"generation {ended} {self._where_it_ended()}: {self.why}"))
        return actions + self._start_if_enough(now)

    def _next_number(self) -> int:
        """Return the next generation's number; no process has begun in a generation of this or a higher number."""
        return self.generation + 1

    def _where_it_ended(self) -> str:
        """Return as text how far the generation is known to have come, and what the next one starts from."""
        newest = self._newest()
        step = max(newest, self.drains.handed_over) if newest >= 0 else self.drains.stored
        furthest = max(self.reached, *self.pace.steps.values(), -1)
        if 0 <= step == max(step, furthest):
            return f"ended at step {step}"
        if step >= 0:
            kind = "commit" if newest >= 0 else "checkpoint"
            goes_on = f"goes on from the {kind} of step {step}"
        elif self.committed:
            goes_on = "no agent holds a commit, so the newest checkpoint counts"
        elif self.spec.commits:
            goes_on = "nothing was committed, so the training begins where this run began"
        else:
            goes_on = "its function is called anew"
        return f"ended{f' after step {furthest} or later' if furthest > 0 else ''}; {goes_on}"

    def _verdict(self, now: float, actions: list[Action]) -> ConcludeRun | None:
        """Return how the run ends because of this generation's failures; None if it continues."""
        # In this order: an unavailable store is waited for; the failure of a joining worker costs only its own place;
        # an error of the user's code would occur again; anything else is retried, until it has occurred too often
        # without a new commit.
        first, blamed = first_of(self.failures), self._blamed()
        self.why = f"rank {first.rank}: {first.cause}"
        if first.storage:
            return self._wait_for_store(first, now, actions)
        if self._costs_only_its_place(first):
            self._set_aside(first, now, actions)
            return None
        if (first.raised and not first.echo) or blamed.agent_id != first.agent_id:
            return blamed
        self.resets += 1
        # Commits of lost agents do not count: the work that was lost with them has to be repeated.
        advanced = self._newest() > self.base
        self.fruitless = 0 if advanced else self.fruitless + 1
        if self.spec.reset_limit is not None and self.resets > self.spec.reset_limit:
            return _with_reason(blamed, f"the reset limit of {self.spec.reset_limit} is reached")
        if self.fruitless >= self.spec.fruitless_limit and (newcomers := self._newcomers()):
            self.fruitless = self.spec.fruitless_limit - 1  # whichever worker died: the group failed because it grew
            text = "no generation with the newcomers has come to a commit, and the group goes on as it was before"
            actions.append(events.Note(f"{text}; they may try again later: {first.cause}"))
            for agent_id in newcomers:
                self.unfit.failed(agent_id, now)
        elif self.fruitless >= self.spec.fruitless_limit:
            return _with_reason(blamed, f"{self.fruitless} generations in a row ended without a new commit")
        if not first.echo:  # a secondary failure is no evidence against its host
            self._count_against_host(first, now, actions)
        return None

    def _count_against_host(self, failure: Failure, now: float, actions: list[Action]) -> None:
        """Count a failure against its host, and report it if the host is excluded."""
        host = self.hosts[failure.agent_id]
        length = self.exclusions.failed(host, now)
        if length is not None and len(set(self.hosts.values())) > 1:
            failed = self.exclusions.failures[host]
            actions.append(events.Note(f"host {host} is set aside for {length:g} s: {failed} failures"))

    def _costs_only_its_place(self, first: Failure) -> bool:
        """Return True if a joining worker failed before its first commit, and the group can continue without it."""
        proven = [failure for failure in self.failures if failure.agent_id in self.proven]
        if first in proven or any(failure.raised and not failure.echo for failure in proven):
            return False
        return bool(self._newcomers())

    def _newcomers(self) -> list[str]:
        """Return the members that joined since the last commit, if the group could continue without them."""
        left = [a for a in self.proven if a in self.members and not self.members[a].lost and a not in self.leaving]
        return [a for a in self.members if a not in self.proven] if len(left) >= self.spec.minimum else []

    def _set_aside(self, newcomer: Failure, now: float, actions: list[Action]) -> None:
        """Exclude the agent of a failed joining worker for a while, and report it."""
        length = self.unfit.failed(newcomer.agent_id, now)
        host = self.hosts[newcomer.agent_id]
        text = f"a newcomer on {host} failed before the first commit with it, and the group goes on as it was before: "
        member = self.members.get(newcomer.agent_id)
        again = f"; it may try again in {length:g} s" if member is not None and not member.lost else ""
        actions.append(events.Note(f"{text}{newcomer.cause}{again}"))
        self._count_against_host(newcomer, now, actions)

    def _wait_for_store(self, first: Failure, now: float, actions: list[Action]) -> ConcludeRun | None:
        """Let the run wait for shared storage; return the run's outcome if it has waited for long enough."""
        self.store_away = now if self.store_away is None else self.store_away
        limit = self.spec.min_workers_timeout_s
        if now - self.store_away >= limit:
            reason = f"the store did not answer for {limit:g} s (min_workers_timeout): {first.cause}"
            return ConcludeRun(Phase.FAILED, "storage", reason, first.agent_id, first.rank)
        if not self.store_tries:
            actions.append(
                events.Note(f"the store does not answer; the run waits for it, at most {limit:g} s: {first.cause}")
            )
        self.store_tries += 1
        pause = min(pause_s(self.store_tries, STORE_FIRST_S, STORE_MOST_S), self.store_away + limit - now)
        self.try_again_at = now + pause
        return None

    # -------------------------------------------------------------------------------- deadlines and the end

    def _tick(self, now: float) -> list[Action]:
        """Enforce deadlines, and check liveness, progress and commits."""
        # The first rule that applies decides; the next tick, a quarter of a second later, applies the others.
        if self.phase in self.training and (actions := self._look(now)):
            return actions
        if self.phase is Phase.WAITING and (actions := self._start_if_enough(now)):
            return actions
        if self.phase in (Phase.RUNNING, Phase.PARKING) and self.pace.hangs(now) and not self._prepares():
            return self._hung(now)
        if self.phase in (Phase.RUNNING, Phase.PARKING) and (actions := self._miss_commits(now)):
            return actions
        # The exclusion of a host or an agent may have ended, or a node's time may be nearly used up.
        waits = bool(self.exclusions.until or self.unfit.until or self.leaving)
        if self.phase is Phase.RUNNING and waits and (actions := self._consider_change(now)):
            return actions
        if self.deadline is None or now < self.deadline:
            return []
        if self.phase is Phase.PARKING:
            return self._reform(now)
        if self.phase is Phase.FORMING and self.generation:
            late = tuple(agent_id for agent_id, m in self.members.items() if not m.started and not m.over)
            return self._cut_off(late, f"did not start its worker within {self.spec.start_timeout_s:g} s", now)
        if self.phase is Phase.REFORMING:
            silent = tuple(agent_id for agent_id, m in self.members.items() if not m.over and not m.lost)
            return self._cut_off(silent, "did not report its worker's end in time", now)
        self.given_up = self.phase is Phase.STOPPING
        return super()._tick(now)

    def _miss_commits(self, now: float) -> list[Action]:
        """Report once that a run that should survive failures has made no commit to continue from."""
        since = self.uncommitted_since
        if self.committed or not self.spec.commits or since is None or now - since < UNCOMMITTED_S:
            return []
        self.uncommitted_since = math.inf
        return [events.Note(f"nothing was committed in the first {UNCOMMITTED_S:g} s of training. {WITHOUT_COMMITS}")]

    def _cut_off(self, agent_ids: tuple[str, ...], reason: str, now: float) -> list[Action]:
        """Disconnect agents that did not respond in time, and treat them as lost."""
        actions: list[Action] = [events.DropAgents(agent_ids, reason)]
        for agent_id in agent_ids:
            actions += self._lost(events.MemberLost(agent_id, f"the agent {reason}"), now)
        return actions

    def _prepares(self) -> bool:
        """True before the first step while all members are active: building and compiling may take longer than any limit.

        A function without steps cannot be evaluated by them either. A limit set by the user (progress_timeout) applies.
        """
        working = [agent_id for agent_id, member in self.members.items() if not member.finished]
        idle = any(agent_id in self.liveness.idle or agent_id in self.liveness.stopped for agent_id in working)
        return self.pace.first_s is None and self.pace.timeout_s is None and not idle

    def _hung(self, now: float) -> list[Action]:
        """End a generation without progress, and record a failure for the members that block the others."""
        members = tuple(agent_id for agent_id, member in self.members.items() if not member.finished)
        behind = self.pace.behind(members)
        limit = f"no step for {self.pace.limit_s():.0f} s"
        for agent_id in behind or members:
            how = "its process is stopped" if agent_id in self.pace.stopped else "it is behind the others"
            self.failures.append(
                Failure(agent_id, self.members[agent_id].rank, f"{limit}; {how if behind else 'all stand still'}")
            )
        return self._reform(now, dump=True)

    def _start_timeout(self) -> ConcludeRun:
        """Return the outcome of a run for which too few agents connected or remained in time."""
        there = len(self.spares.keys() - self.leaving.keys())
        if self.phase is not Phase.WAITING:
            return super()._start_timeout()
        missing = tuple((rank, "no agent") for rank in range(there, self.spec.minimum))
        if not self.generation:
            limit = self.spec.start_timeout_s
            reason = f"{there} of at least {self.spec.minimum} workers were there after {limit:g} s"
            return ConcludeRun(Phase.FAILED, "start", reason, missing=missing)
        limit = self.spec.min_workers_timeout_s
        reason = (
            f"{there} of at least {self.spec.minimum} workers were left for {limit:g} s (min_workers_timeout); what "
            f"ended the last generation: {self.why}"
        )
        return ConcludeRun(Phase.FAILED, "minimum", reason, missing=missing)

    def _take_no_more(self) -> list[Action]:
        """Withdraw the request for agents, and release the spare ones."""
        return [events.RequestAgents(0, 0), *self._give_back(tuple(self.spares))]


def _with_reason(blamed: ConcludeRun, reason: str) -> ConcludeRun:
    """Return the outcome with an addition to its reason."""
    return ConcludeRun(blamed.phase, blamed.error, f"{blamed.reason} ({reason})", blamed.agent_id, blamed.rank)
