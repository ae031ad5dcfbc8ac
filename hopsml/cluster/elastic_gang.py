"""A group whose members change: the gang of ``gang.py`` with generations; pure as that one.

    WAITING ─▶ FORMING ─▶ RUNNING ──(a member joins, leaves, or a resize)──▶ PARKING ──a member has parked──┐
       ▲          └───────────┴──(a member is lost)────────────────────────────┴──▶ REFORMING ◀────────────┘
       └───────────── all workers of the generation are gone; the next one ────────────┘

A change that was planned ends a generation at a commit: every worker is told to commit and stand still when it next
may. The first that does so stops the others too, since no collective gets past it, so no step is lost. A failure ends
it at once. The survivors' agents keep the training state, and the next generation goes on from the newest commit that
any of them holds.

An error that the user's own code raised ends the run: it would come again. The death of a process, an agent, an
executor or a host does not, unless it happens again and again without a commit in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.cluster.exclusions import Exclusions
from hopsml.cluster.gang import Gang, Member
from hopsml.cluster.gang_types import (
    Action,
    AskAgents,
    Committed,
    Conclude,
    DrainAsked,
    DropAgents,
    Event,
    Failed,
    Granted,
    MemberLost,
    Note,
    Parked,
    ParkWorkers,
    Phase,
    Ready,
    ResizeAsked,
    ReturnAgents,
    Started,
    StartGeneration,
    Stepped,
    StopWorkers,
)
from hopsml.cluster.pace import Pace

END_S = 10.0  # for ending the workers of a generation: they are killed, not asked


@dataclass(frozen=True)
class _Failure:
    agent_id: str
    rank: int
    cause: str
    secondary: bool = False
    raised: bool = False


@dataclass
class ElasticGang(Gang):
    """The state of a group that may change between ``spec.min_size`` and ``target`` members."""

    target: int = 0
    spares: dict[str, bool] = field(default_factory=dict)  # agents without a worker -> has imported everything
    hosts: dict[str, str] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)  # agent -> newest step that it holds
    leaving: dict[str, str] = field(default_factory=dict)
    base: int = -1  # the commit that the generation went on from
    resets: int = 0
    fruitless: int = 0
    parked: int | None = None  # the step at which the first worker of the generation has parked
    start_at: float | None = None  # a beginning group starts without those that are still to come
    why: str = ""  # what ended the last generation
    failures: list[_Failure] = field(default_factory=list)
    pace: Pace = field(default_factory=lambda: Pace(0.0))
    exclusions: Exclusions = field(default_factory=lambda: Exclusions(0, 0.0))

    @property
    def training(self) -> tuple[Phase, ...]:
        """Phases in which workers are at work."""
        return (Phase.FORMING, Phase.RUNNING, Phase.PARKING)

    def begin(self, now: float) -> list[Action]:
        """The first actions."""
        self.target = self.spec.size
        self.exclusions = Exclusions(self.spec.host_failure_limit, self.spec.cooldown_s)
        self.deadline = now + self.spec.start_timeout_s
        return [AskAgents(self.spec.minimum, self.target)]

    def _other(self, event: Event, now: float) -> list[Action]:
        match event:
            case Ready():
                if event.agent_id in self.spares:
                    self.spares[event.agent_id] = True
                return self._use_spares(now)
            case Stepped():
                return self._stepped(event, now)
            case Committed():
                return self._committed(event, now)
            case Parked():
                return self._parked(event, now)
            case DrainAsked():
                return self._drain(event, now)
            case ResizeAsked():
                self.target = max(event.size, self.spec.minimum)
                return [AskAgents(0, self.target), *self._use_spares(now)]
        return []

    def _stepped(self, event: Stepped, now: float) -> list[Action]:
        self.pace.stepped(event.agent_id, event.step, event.stopped, now, event.age_s)
        member = self.members.get(event.agent_id)
        if member is None or self.phase is not Phase.RUNNING or not self.pace.newly_slow(event.agent_id):
            return []
        host = self.hosts.get(event.agent_id, "")
        return [Note(f"rank {member.rank} on {host} is slower than the others, which wait for it in every step")]

    # -------------------------------------------------------------------------------- who could take part

    def _granted(self, event: Granted, now: float) -> list[Action]:
        ready = event.ready or (False,) * len(event.agent_ids)
        self.spares |= dict(zip(event.agent_ids, ready, strict=True))
        self.hosts |= dict(zip(event.agent_ids, event.hosts or event.agent_ids, strict=True))
        return self._use_spares(now)

    def _use_spares(self, now: float) -> list[Action]:
        if self.phase is Phase.WAITING:
            return self._start_if_enough(now)
        return self._consider_change(now) if self.phase is Phase.RUNNING else []

    def _usable(self, now: float) -> list[str]:
        """Spares on hosts that are not set aside; where all are on one host, there is nowhere else to go."""
        hosts = {self.hosts.get(agent_id, "") for agent_id in (*self.spares, *self.members)}
        return [
            agent_id
            for agent_id in self.spares
            if agent_id not in self.leaving
            and (len(hosts) == 1 or not self.exclusions.excluded(self.hosts.get(agent_id, ""), now))
        ]

    def _start_if_enough(self, now: float) -> list[Action]:
        usable = self._usable(now)
        if len(usable) < self.spec.minimum:
            self.start_at = None
            return []
        if self.generation == 0 and len(usable) < self.target:
            self.start_at = self.start_at or now + self.spec.join_s
            if now < self.start_at:
                return []
        return self._form(usable, now)

    def _form(self, usable: list[str], now: float) -> list[Action]:
        ready = [agent_id for agent_id in usable if self.spares[agent_id]]
        candidates = ready if len(ready) >= self.spec.minimum and self.generation else usable
        newest = max(self.commits.values(), default=-1)
        candidates.sort(key=lambda agent_id: -self.commits.get(agent_id, -1))  # who has the state must be among them
        chosen = tuple(candidates[: self.target])
        for agent_id in chosen:
            del self.spares[agent_id]
        others = tuple(agent_id for agent_id in self.spares if agent_id not in self.leaving)
        surplus = others if len(chosen) == self.target else ()
        for agent_id in surplus:
            self._forget(agent_id)
        self.members = {agent_id: Member(rank) for rank, agent_id in enumerate(chosen)}
        self.phase, self.deadline, self.start_at = Phase.FORMING, now + self.spec.start_timeout_s, None
        self.base, self.parked, self.failures = newest, None, []
        self.pace = Pace(now, self.spec.progress_timeout_s)
        # On hosts that are set aside there may be agents that have the newest state and are not members.
        holders = tuple(a for a in (*chosen, *self.spares) if newest >= 0 and self.commits.get(a) == newest)
        start = StartGeneration(self.generation, chosen, newest, holders, self.why)
        return [*([ReturnAgents(surplus)] if surplus else []), start]

    def assign_ranks(self, agent_ids: tuple[str, ...]) -> None:
        """The layout's order of the members that were just chosen."""
        for rank, agent_id in enumerate(agent_ids):
            self.members[agent_id].rank = rank

    # -------------------------------------------------------------------------------- changes that are planned

    def _started(self, event: Started, now: float) -> list[Action]:
        actions = super()._started(event, now)
        if event.agent_id in self.members:  # it has got the state that the generation goes on from
            self.commits[event.agent_id] = max(self.base, self.commits.get(event.agent_id, -1))
        return actions + ([*self._let_go(), *self._consider_change(now)] if self.phase is Phase.RUNNING else [])

    def _consider_change(self, now: float) -> list[Action]:
        """Park the workers where somebody shall leave, or a newcomer that has imported everything is there."""
        if any(member.finished for member in self.members.values()):
            return []
        leaving = [agent_id for agent_id in self.members if agent_id in self.leaving]
        ready = [agent_id for agent_id in self._usable(now) if self.spares[agent_id]]
        if leaving:
            why = f"rank {self.members[leaving[0]].rank} leaves: {self.leaving[leaving[0]]}"
        elif len(self.members) > self.target:
            why = f"resized to {self.target} workers"
        elif ready and len(self.members) < self.target:
            why = f"{min(len(ready), self.target - len(self.members))} more joined"
        else:
            return []
        self.phase, self.deadline, self.why = Phase.PARKING, None, why
        return [ParkWorkers(self.generation, tuple(self.members), why)]

    def _committed(self, event: Committed, now: float) -> list[Action]:
        if event.agent_id not in self.members:
            return []
        self.commits[event.agent_id] = max(event.step, self.commits.get(event.agent_id, -1))
        if event.step > self.base:
            self.fruitless = 0
        return self._reform_if_agreed(now)

    def _parked(self, event: Parked, now: float) -> list[Action]:
        if event.agent_id not in self.members or self.phase is not Phase.PARKING:
            return []
        self.commits[event.agent_id] = max(event.step, self.commits.get(event.agent_id, -1))
        if self.parked is None:
            self.parked, self.deadline = event.step, now + self.spec.agree_s
        return self._reform_if_agreed(now)

    def _reform_if_agreed(self, now: float) -> list[Action]:
        """Once all hold the state at which the first one stopped, nothing has to be sent around."""
        if self.phase is not Phase.PARKING or self.parked is None:
            return []
        if any(self.commits.get(agent_id, -1) < self.parked for agent_id in self.members):
            return []
        return self._reform(now)

    def _drain(self, event: DrainAsked, now: float) -> list[Action]:
        if event.agent_id not in self.spares and event.agent_id not in self.members:
            return []
        self.leaving[event.agent_id] = event.reason
        if event.agent_id in self.members:
            return self._use_spares(now)
        return [] if self._is_last_holder(event.agent_id) else self._let_go()

    def _is_last_holder(self, agent_id: str) -> bool:
        """Whether nobody that stays has as new a commit: then it must stay until somebody has got it."""
        staying = [step for other, step in self.commits.items() if other not in self.leaving]
        return self.commits.get(agent_id, -1) > max(staying, default=-1)

    def _let_go(self) -> list[Action]:
        """Those that leave and are not needed any more."""
        actions: list[Action] = []
        for agent_id, reason in [one for one in self.leaving.items() if one[0] in self.spares]:
            self._forget(agent_id)
            actions.append(ReturnAgents((agent_id,), reason))
        return actions

    # -------------------------------------------------------------------------------- failures

    def _failed(self, event: Failed, now: float) -> list[Action]:
        member = self.members.get(event.agent_id)
        if member is None or member.failed or self.phase not in (*self.training, Phase.REFORMING):
            return []
        member.failed = True
        failure = _Failure(event.agent_id, member.rank, event.cause, event.secondary, event.raised)
        self.failures.append(failure)
        return self._reform(now) if self.phase in self.training else []

    def _lost(self, event: MemberLost, now: float) -> list[Action]:
        member = self.members.get(event.agent_id)
        self._forget(event.agent_id)
        if member is None or member.lost:
            return []
        member.lost = True
        actions: list[Action] = []
        if self.phase in self.training and not member.over:
            self.failures.append(_Failure(event.agent_id, member.rank, event.reason))
            actions = self._reform(now)
        return actions + self._over(event.agent_id, now)

    def _forget(self, agent_id: str) -> None:
        for table in (self.spares, self.commits, self.leaving):
            table.pop(agent_id, None)

    # -------------------------------------------------------------------------------- from one generation to the next

    def _reform(self, now: float, dump: bool = False) -> list[Action]:
        """End the workers of this generation; what follows is decided when all are gone and all causes are known."""
        self.phase, self.deadline = Phase.REFORMING, now + END_S
        working = tuple(agent_id for agent_id, m in self.members.items() if not m.over and not m.lost)
        actions: list[Action] = []
        if working:
            actions.append(StopWorkers(self.generation, working, 0.0, 0.0, keep=True, dump=dump))
        return actions + self._next_if_over(now)

    def _over(self, agent_id: str, now: float) -> list[Action]:
        actions = super()._over(agent_id, now)
        return actions + self._next_if_over(now)

    def _next_if_over(self, now: float) -> list[Action]:
        if self.phase is not Phase.REFORMING or not all(m.over or m.lost for m in self.members.values()):
            return []
        actions: list[Action] = []
        if self.failures:
            verdict = self._verdict(now, actions)
            if verdict is not None:
                return actions + self._end(verdict, now)
        for agent_id in [agent_id for agent_id in self.leaving if agent_id in self.members]:
            if self._is_last_holder(agent_id):
                continue
            reason, self.members[agent_id].lost = self.leaving[agent_id], True
            self._forget(agent_id)
            actions.append(ReturnAgents((agent_id,), reason))
        self.spares |= {agent_id: True for agent_id, member in self.members.items() if not member.lost}
        self.members = {}
        self.generation += 1
        self.phase, self.deadline = Phase.WAITING, now + self.spec.min_workers_timeout_s
        step = max(self.commits.values(), default=-1)
        actions.append(Note(f"generation {self.generation - 1} ended at {_commit(step)}: {self.why}"))
        return actions + self._start_if_enough(now)

    def _verdict(self, now: float, actions: list[Action]) -> Conclude | None:
        """How the run ends by the failures of this generation; None where it goes on."""
        first = next((failure for failure in self.failures if not failure.secondary), self.failures[0])
        blamed = Conclude(Phase.FAILED, "worker", first.cause, first.agent_id, first.rank)
        if first.raised and not first.secondary:
            return blamed
        self.resets += 1
        self.why = f"rank {first.rank}: {first.cause}"
        # Commits of agents that are gone do not count: what was lost with them has to be done again.
        advanced = max(self.commits.values(), default=-1) > self.base
        self.fruitless = 0 if advanced else self.fruitless + 1
        if self.spec.reset_limit is not None and self.resets > self.spec.reset_limit:
            return _with_reason(blamed, f"the reset limit of {self.spec.reset_limit} is reached")
        if self.fruitless >= self.spec.fruitless_limit:
            return _with_reason(blamed, f"{self.fruitless} generations in a row ended without a new commit")
        host = self.hosts.get(first.agent_id, "")
        length = self.exclusions.failed(host, now) if not first.secondary else None
        if length is not None and len(set(self.hosts.values())) > 1:
            failed = self.exclusions.failures[host]
            actions.append(Note(f"host {host} is set aside for {length:g} s: {failed} failures"))
        return None

    # -------------------------------------------------------------------------------- time, and the end

    def _tick(self, now: float) -> list[Action]:
        if self.phase is Phase.WAITING and (actions := self._start_if_enough(now)):
            return actions
        if self.phase in (Phase.RUNNING, Phase.PARKING) and self.pace.hangs(now):
            return self._hung(now)
        if self.phase is Phase.RUNNING and self.exclusions.until and (actions := self._consider_change(now)):
            return actions  # a host has cooled down
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
        return super()._tick(now)

    def _cut_off(self, agent_ids: tuple[str, ...], reason: str, now: float) -> list[Action]:
        actions: list[Action] = [DropAgents(agent_ids, reason)]
        for agent_id in agent_ids:
            actions += self._lost(MemberLost(agent_id, f"the agent {reason}"), now)
        return actions

    def _hung(self, now: float) -> list[Action]:
        members = tuple(agent_id for agent_id, member in self.members.items() if not member.finished)
        behind = self.pace.behind(members)
        limit = f"no step for {self.pace.limit_s():.0f} s"
        for agent_id in behind or members:
            how = "its process is stopped" if agent_id in self.pace.stopped else "it is behind the others"
            self.failures.append(
                _Failure(agent_id, self.members[agent_id].rank, f"{limit}; {how if behind else 'all stand still'}")
            )
        return self._reform(now, dump=True)

    def _start_timeout(self) -> Conclude:
        there = len(self.spares.keys() - self.leaving.keys())
        if self.phase is not Phase.WAITING:
            return super()._start_timeout()
        missing = tuple((rank, "no agent") for rank in range(there, self.spec.minimum))
        if not self.generation:
            limit = self.spec.start_timeout_s
            reason = f"{there} of at least {self.spec.minimum} workers were there after {limit:g} s"
            return Conclude(Phase.FAILED, "start", reason, missing=missing)
        limit = self.spec.min_workers_timeout_s
        reason = (
            f"{there} of at least {self.spec.minimum} workers were left for {limit:g} s (min_workers_timeout); what "
            f"ended the last generation: {self.why}"
        )
        return Conclude(Phase.FAILED, "minimum", reason, missing=missing)

    def _conclude_if_over(self) -> list[Action]:
        actions = super()._conclude_if_over()
        if actions and self.spares:
            actions.insert(0, ReturnAgents(tuple(self.spares)))
        return actions


def _commit(step: int) -> str:
    return f"step {step}" if step >= 0 else "its beginning, before any commit"


def _with_reason(blamed: Conclude, reason: str) -> Conclude:
    return Conclude(blamed.phase, blamed.error, f"{blamed.reason} ({reason})", blamed.agent_id, blamed.rank)
