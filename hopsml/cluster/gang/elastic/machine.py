"""Transition table of a group whose members train together, of fixed size or elastic: phase, event -> handler.

    WAITING ──granted──▶ FORMING ──all started──▶ RUNNING ──all finished──▶ STOPPING ──all closed──▶ FINISHED
       │  start deadline    │  start deadline       │  failure                │  stop deadline
       └────────────────────┴───────────┬───────────┘                         ▼
                                    SETTLING ──(which failure was first?)─▶ STOPPING ──▶ FAILED | CANCELLED

The loss of a member ends the run of a group of fixed size. An elastic group continues, in new processes or in place:

    WAITING ─▶ FORMING ─▶ RUNNING ──(a member joins, leaves, or a resize)──▶ PARKING ──a member has parked──┐
       ▲                    │                                                                               │
       │                    ├──(a member is lost, and the others cannot continue)──────▶ REFORMING ◀────────┘
       └── all workers of the generation are gone; the next one ───────────────────────────┘  ▲
                            │                                                                 │(one cannot, or is late)
                            └──(a member is lost, or joins)──▶ MENDING ─(another is lost: once more)─┐
                                       RUNNING ◀──all continue──┘  ▲──────────────────────────────────┘
"""

from __future__ import annotations

from typing import ClassVar

from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.generations import (
    release_leaving_spares,
    release_surplus_spares,
    restart,
    start_if_enough,
    store_endangered_commit,
)
from hopsml.cluster.gang.elastic.health import (
    check_absent,
    continue_after_end,
    record_lost_member,
    record_worker_end,
    tick,
    tick_fixed,
    wait_for_cause,
)
from hopsml.cluster.gang.elastic.in_place import (
    consider_change,
    continue_without_newcomers,
    member_paused,
    record_failed_newcomer,
    regroup,
    report_continuation,
    request_pause,
    stop_failed_newcomer,
    stop_newcomers,
    unneeded_newcomers,
    use_spares,
)
from hopsml.cluster.gang.elastic.state import TRAINING, ElasticGroupState
from hopsml.cluster.gang.events import Action, ConcludeRun, Event, Phase
from hopsml.cluster.gang.machine import (
    COMMON,
    LIVE,
    UNREPORTED,
    Exclusions,
    Table,
    cancel,
    failure_of,
    return_granted,
    table,
)
from hopsml.cluster.gang.pace import Pace

# ------------------------------------------------------------------------------------ start


def _start_fixed(group: ElasticGroupState, event: events.Granted, now: float) -> list[Action]:
    """Start a group of fixed size with the granted agents, which come all together and in rank order."""
    _add_spares(group, event)
    return start_if_enough(group, now)


def _granted(group: ElasticGroupState, event: events.Granted, now: float) -> list[Action]:
    """Add the granted agents to the spare ones of an elastic group, and use them."""
    _add_spares(group, event)
    return use_spares(group, now)


def _add_spares(group: ElasticGroupState, event: events.Granted) -> None:
    """Record granted agents, their hosts, and which of them have imported the workers' modules."""
    ready = event.ready or (False,) * len(event.agent_ids)
    group.membership.spares |= dict(zip(event.agent_ids, ready, strict=True))
    group.membership.hosts |= dict(zip(event.agent_ids, event.hosts or event.agent_ids, strict=True))


def _ready(group: ElasticGroupState, event: events.Ready, now: float) -> list[Action]:
    """Record that a spare agent has imported the workers' modules."""
    if event.agent_id in group.membership.spares:
        group.membership.spares[event.agent_id] = True
    return use_spares(group, now)


def _ranked(group: ElasticGroupState, event: events.Ranked, now: float) -> list[Action]:
    """Record the ranks that the layout assigned."""
    for rank, agent_id in enumerate(event.agent_ids):
        group.members[agent_id].rank = rank
    return []


def _started(group: ElasticGroupState, event: events.Started, now: float) -> list[Action]:
    """Record that a worker has started; the group runs once all have."""
    if (newcomer := group.growth.newcomers.get(event.agent_id)) is not None:
        group.commits.record(event.agent_id, newcomer.step)  # it has received that commit
        return []
    member = group.members.get(event.agent_id)
    # A process that began before this generation continues in it and has not been started again: its ``started`` means
    # that it has continued. The generation of its start decides, not the phase: the generation may end before all have
    # continued.
    if member is None or group.in_place.since.get(event.agent_id, group.generation) != group.generation:
        return []
    member.started = True
    if group.phase is Phase.FORMING and all(m.started for m in group.members.values()):
        group.phase, group.deadline = Phase.RUNNING, None
    return _train(group, event.agent_id, now) if group.spec.regroups else []


def _train(group: ElasticGroupState, agent_id: str, now: float) -> list[Action]:
    """Record that a started worker holds the state that its elastic group continues from; use the group's spares."""
    commits = group.commits
    commits.record(agent_id, commits.base)
    if group.phase is not Phase.RUNNING:
        return []
    if not group.generation and commits.uncommitted_since is None:
        commits.uncommitted_since = now
    return [*release_leaving_spares(group, now), *consider_change(group, now), *release_surplus_spares(group)]


def _forming(group: ElasticGroupState, event: events.Forming, now: float) -> list[Action]:
    """Record that a worker waits in its first collective operation."""
    if (member := group.members.get(event.agent_id)) is None:
        return []
    member.forms = event.size
    return check_absent(group, now)


# ------------------------------------------------------------------------------------ heartbeats


def _heartbeat(group: ElasticGroupState, event: events.Stepped, now: float) -> list[Action]:
    """Process a heartbeat; report a process that is stopped (SIGSTOP) at the first one that shows it."""
    member = group.members.get(event.agent_id)
    if member is None:
        return []
    was_stopped = event.agent_id in group.liveness.stopped
    group.liveness.record_heartbeat(event.agent_id, event.stopped, event.idle_s, now)
    if group.phase not in TRAINING or was_stopped or not event.stopped:
        return []
    limit = f"if it is not resumed within {group.spec.stopped_s:g} s it counts as lost"
    return [events.Note(f"the process of rank {member.rank} is stopped (SIGSTOP), and the others wait for it; {limit}")]


def _elastic_heartbeat(group: ElasticGroupState, event: events.Stepped, now: float) -> list[Action]:
    """Process a heartbeat; also report a member that slows the others down, and use the group's spares."""
    if (newcomer := group.growth.newcomers.get(event.agent_id)) is not None:
        newcomer.stopped = event.stopped
        return request_pause(group, now)
    notes = _heartbeat(group, event, now)
    member = group.members.get(event.agent_id)
    pace = group.progress.pace
    if member is not None:
        pace.record_storage_wait(event.agent_id, event.storage_s)
    if member is not None and event.step >= 0:
        pace.record_step(event.agent_id, event.step, event.stopped, now, event.age_s)
        if group.phase is Phase.RUNNING and pace.detect_slow_member(event.agent_id):
            who = f"rank {member.rank} on {group.membership.hosts[event.agent_id]}"
            notes.append(events.Note(f"{who} is slower than the others, which wait for it in every step"))
    return notes + (use_spares(group, now) if group.growth.enabled else [])


# ------------------------------------------------------------------------------------ commits


def _committed(group: ElasticGroupState, event: events.WorkerCommitted, now: float) -> list[Action]:
    """Record a commit of a member, from which joining workers may now prepare."""
    actions: list[Action] = []
    if event.agent_id in group.members:
        if event.step > group.commits.base:
            group.policy.fruitless = 0
        actions = _record_commit(group, event.agent_id, event.step, now)
    return actions + (use_spares(group, now) if group.growth.enabled else [])


def _paused_at_commit(group: ElasticGroupState, event: events.PausedAtCommit, now: float) -> list[Action]:
    """Record that a worker has paused at a commit; the others have ``agree_s`` to commit the same step."""
    if event.agent_id not in group.members:
        return []
    if group.commits.parked is None:
        group.commits.parked, group.deadline = event.step, now + group.elastic_options.agree_s
    return _record_commit(group, event.agent_id, event.step, now)


def _record_commit(group: ElasticGroupState, agent_id: str, step: int, now: float) -> list[Action]:
    """Record a member's commit; end the generation once all hold the one at which the first paused for a change."""
    commits, policy = group.commits, group.policy
    commits.committed = True
    commits.record(agent_id, step)
    if step > commits.base:  # the group works, including its new members
        policy.proven, policy.store_away, policy.store_tries = frozenset(group.members), None, 0
        group.growth.fresh = set()
    parked = commits.parked
    if group.phase is not Phase.PARKING or parked is None or any(commits.held_step(a) < parked for a in group.members):
        return []
    return regroup(group, now)


def _persisted(group: ElasticGroupState, event: events.CommitPersisted, now: float) -> list[Action]:
    """Record a checkpoint on shared storage; if the group is starting with an older one, restart it with this one.

    The agent that finds the checkpoint reports it: the one that wrote it may have ended while it could not reach the
    driver.
    """
    commits = group.commits
    commits.drains.record_checkpoint(event.step, event.seconds, event.agent_id in group.membership.leaving)
    for spare in [one for one in group.membership.spares if commits.held_step(one) < event.step]:
        commits.newest_of.pop(spare, None)  # its worker has ended, so what it holds gets no newer
    if group.phase is Phase.FORMING and 0 <= commits.from_store < event.step:
        group.policy.why = f"the checkpoint of step {event.step} was found, which is newer"
        return regroup(group, now)
    return release_leaving_spares(group, now) if group.phase is Phase.WAITING else group.conclude()


# ------------------------------------------------------------------------------------ ends of single workers


def _finished(group: ElasticGroupState, event: events.Finished, now: float) -> list[Action]:
    """Record that a member's function has returned; the run has finished once all have."""
    if event.agent_id in group.growth.newcomers:
        return stop_failed_newcomer(group, event.agent_id, "its function returned before it had joined", now)
    member = group.members.get(event.agent_id)
    if member is None or group.phase not in (*TRAINING, Phase.SETTLING):
        return []
    member.started = member.finished = True
    member.exited = event.exited
    group.progress.left_at = now if group.progress.left_at is None else group.progress.left_at
    if group.phase is Phase.SETTLING:
        return wait_for_cause(group, now)
    if not all(m.finished for m in group.members.values()):
        return [*_train_again(group, now), *check_absent(group, now)]
    group.phase, group.outcome = Phase.STOPPING, ConcludeRun(Phase.FINISHED)
    group.deadline = now + group.spec.grace_s + group.spec.flush_s + 10
    return group.withdraw_request() + group.conclude()


def _failed(group: ElasticGroupState, event: events.Failed, now: float) -> list[Action]:
    """Record a worker's failure, and wait for the one that may have caused it; that of a joining worker has no effect."""
    if event.agent_id in group.growth.newcomers:
        if event.raised and not event.secondary:
            group.growth.anew = event.cause
        return stop_failed_newcomer(group, event.agent_id, event.cause, now)
    member = group.members.get(event.agent_id)
    counts = group.phase in (*TRAINING, Phase.SETTLING, Phase.REFORMING)
    if member is None or member.failed or not counts:
        return []
    member.failed = True
    group.failures.append(failure_of(event, member))
    return [] if group.phase is Phase.REFORMING else wait_for_cause(group, now)


def _closed(group: ElasticGroupState, event: events.Closed, now: float) -> list[Action]:
    """Record that no process of a worker remains; the agent of a lost or failed joining worker is spare from then on."""
    agent_id, actions = event.agent_id, list[Action]()
    if agent_id in group.growth.newcomers:  # one that has not been stopped has failed
        actions = [record_failed_newcomer(group, agent_id, UNREPORTED, now)]
        stop_newcomers(group, (agent_id,), now)
    if group.in_place.ending.pop(agent_id, None) is None:
        return record_worker_end(group, agent_id, now)
    group.membership.spares[agent_id] = True
    actions += group.give_back((agent_id,)) if group.phase is Phase.STOPPING else release_leaving_spares(group, now)
    return [*actions, *continue_after_end(group, now), *use_spares(group, now)]


# ------------------------------------------------------------------------------------ reconfiguration in place


def _reconfigurable(group: ElasticGroupState, event: events.Reconfigurable, now: float) -> list[Action]:
    """Record that a worker can continue in place without others, and whether others can join it."""
    growth = group.growth
    if growth.enabled:
        growth.anew = growth.anew or event.fixed
        if event.fixed and not growth.paused:
            # it may never complete; a member that pauses nevertheless is requested to continue
            growth.end_pause()
    if group.in_place.enabled and group.phase not in (Phase.PARKING, Phase.REFORMING):
        group.in_place.mendable.add(event.agent_id)
    return use_spares(group, now) if growth.enabled else []


def _reconfigured(group: ElasticGroupState, event: events.Reconfigured, now: float) -> list[Action]:
    """Record that a member continues in place, or that it cannot."""
    member = group.members.get(event.agent_id)
    if member is None or event.generation != group.generation or not group.in_place.enabled:
        return []  # it responds to an earlier attempt
    if group.phase is Phase.RUNNING:
        failed = events.Failed(event.agent_id, event.generation, event.problem, secondary=True)
        return _failed(group, failed, now) if event.problem else []
    if event.problem and group.growth.came:
        return continue_without_newcomers(group, event.problem, now)
    if event.problem:
        return restart(group, now, problem=f"rank {member.rank} could not go on in its process: {event.problem}")
    member.started = True
    group.in_place.went_on = max(event.step, group.in_place.went_on)
    return _train_again(group, now)


def _train_again(group: ElasticGroupState, now: float) -> list[Action]:
    """Return to training once all members continue in place, or have returned meanwhile."""
    if group.phase is not Phase.MENDING or not all(one.started for one in group.members.values()):
        return []
    group.phase, group.deadline = Phase.RUNNING, None
    return [
        *report_continuation(group, now),
        *release_surplus_spares(group),
        *release_leaving_spares(group, now),
        *consider_change(group, now),
    ]


def _paused(group: ElasticGroupState, event: events.Paused, now: float) -> list[Action]:
    """Record that a joining worker is ready to be admitted, or that a member has paused to admit it."""
    if (newcomer := group.growth.newcomers.get(event.agent_id)) is not None:
        newcomer.ready_at = now
        return request_pause(group, now)
    is_current = event.agent_id in group.members and event.generation == group.generation
    if not group.growth.enabled or not is_current or group.phase is not Phase.RUNNING:
        return []
    return member_paused(group, event.agent_id, now)


# ------------------------------------------------------------------------------------ requests


def _warn_fixed(group: ElasticGroupState, event: events.DrainRequested, now: float) -> list[Action]:
    """Report that a member of a fixed group will be lost, and the remedy."""
    if (rank := group.rank(event.agent_id)) < 0:
        return []
    text = f"rank {rank} is about to be lost ({event.reason}), and a group of fixed size ends with it; with "
    return [events.Note(f"{text}min_workers= instead of num_workers= it would go on")]


def _drain(group: ElasticGroupState, event: events.DrainRequested, now: float) -> list[Action]:
    """Record that an agent will leave, and prepare for its successor."""
    agent_id, leaving = event.agent_id, group.membership.leaving
    if agent_id in group.growth.newcomers:  # ``handle`` stops it
        leaving[agent_id] = event.reason
        return []
    member = group.members.get(agent_id)
    if member is None and agent_id not in group.membership.spares:
        return []
    leaving[agent_id] = event.reason
    group.commits.drains.record_warning(
        agent_id, now, group.elastic_options.drain_s if event.time_s is None else event.time_s
    )
    if member is None:
        return release_leaving_spares(group, now)
    return [events.Note(f"rank {member.rank} is about to leave ({event.reason})"), *use_spares(group, now)]


def _resize(group: ElasticGroupState, event: events.ResizeRequested, now: float) -> list[Action]:
    """Set the largest number of members."""
    target = group.membership.target = max(event.size, group.spec.minimum)
    if group.phase is Phase.STOPPING:
        return []
    actions = [events.RequestAgents(0, target), *use_spares(group, now)]
    return [*actions, *(release_surplus_spares(group) if group.phase in TRAINING else [])]


# ------------------------------------------------------------------------------------ the table

_OPEN = tuple(phase for phase in LIVE if phase is not Phase.STOPPING)  # further agents may become members
_BOTH = (
    *COMMON,
    (events.Granted, (Phase.STOPPING,), return_granted),
    (events.Started, LIVE, _started),
    (events.Forming, TRAINING, _forming),
    (events.Finished, LIVE, _finished),
    (events.Failed, LIVE, _failed),
    (events.Closed, LIVE, _closed),
    (events.MemberLost, LIVE, record_lost_member),
    (events.CancelRequested, LIVE, cancel),
)
FIXED = table(
    *_BOTH,
    (events.Granted, (Phase.WAITING,), _start_fixed),
    (events.Granted, (*TRAINING, Phase.SETTLING), return_granted),
    (events.Stepped, LIVE, _heartbeat),
    (events.DrainRequested, LIVE, _warn_fixed),
    (events.Tick, LIVE, tick_fixed),
)
ELASTIC = table(
    *_BOTH,
    (events.Granted, _OPEN, _granted),
    (events.Ready, LIVE, _ready),
    (events.Ranked, LIVE, _ranked),
    (events.Stepped, LIVE, _elastic_heartbeat),
    (events.WorkerCommitted, LIVE, _committed),
    (events.PausedAtCommit, (Phase.PARKING,), _paused_at_commit),
    (events.CommitPersisted, LIVE, _persisted),
    (events.Reconfigurable, LIVE, _reconfigurable),
    (events.Reconfigured, (Phase.RUNNING, Phase.MENDING), _reconfigured),
    (events.Paused, LIVE, _paused),
    (events.DrainRequested, LIVE, _drain),
    (events.ResizeRequested, LIVE, _resize),
    (events.Tick, LIVE, tick),
)


class ElasticGroupMachine(ElasticGroupState):
    """State machine of a group whose members train together; one of fixed size has a table without changes."""

    tables: ClassVar[dict[bool, Table]] = {False: FIXED, True: ELASTIC}  # by whether the group may change

    @property
    def table(self) -> Table:
        """Transition table of the machine."""
        return self.tables[self.spec.regroups]

    def begin(self, now: float) -> list[Action]:
        """Request the group's agents, of which ``spec.minimum`` are needed, and return the first actions.

        Args:
            now: Monotonic time in seconds, as everywhere.
        """
        self.membership.target, self.membership.requested_at = self.spec.size, now
        if self.spec.regroups:
            limits, policy = self.elastic_options, self.policy
            self.membership.target = limits.first_size
            policy.exclusions = Exclusions(limits.host_failure_limit, limits.host_cooldown_s)
            policy.unfit = Exclusions(1, limits.host_cooldown_s)
            self.progress.pace = Pace(now, limits.progress_timeout_s)
        self.deadline = now + self.spec.start_timeout_s
        return [events.RequestAgents(self.spec.minimum, self.membership.target)]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Process an event and return the actions.

        After each event the newest state is stored if only leaving agents hold it, and joining workers that are no longer
        needed are stopped.

        Args:
            event: The event.
            now: Monotonic time in seconds.
        """
        actions = super().handle(event, now)
        goes_on = self.phase in (*TRAINING, Phase.SETTLING, Phase.REFORMING, Phase.WAITING)
        if self.membership.leaving and goes_on:
            actions = actions + store_endangered_commit(self)
        return actions + stop_newcomers(self, unneeded_newcomers(self), now)

    def agent_counts(self, idle: int) -> tuple[int, str]:
        """Return how many agents a waiting group has, and as text how many it needs.

        Args:
            idle: Number of idle agents, which count for a group of fixed size only.
        """
        if not self.spec.regroups:
            return super().agent_counts(idle)
        return len(self.membership.spares), f"at least {self.spec.minimum}"
