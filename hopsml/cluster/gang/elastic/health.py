"""Failures, standstills and missing members of a group, deadlines, and what follows from them at an event or a tick.

The loss of a member ends the run of a fixed group; an elastic one continues without it, in place or in new processes.
"""

from __future__ import annotations

import math

from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.generations import restart, start_if_enough, start_next_if_ended
from hopsml.cluster.gang.elastic.in_place import (
    MEND_S,
    consider_change,
    continue_without_newcomers,
    give_up_pause,
    regroup,
    request_pause,
    stop_failed_newcomer,
)
from hopsml.cluster.gang.elastic.state import TRAINING, ElasticGroupState
from hopsml.cluster.gang.events import Action, ConcludeRun, Phase
from hopsml.cluster.gang.machine import UNREPORTED, Failure, MemberState, ranks

# Delays from the end of a member's function to the note that other members are still active, or idle since: members
# that end one after another, such as scripts with sys.exit(main()) whose chief still saves, need no note.
EXITED_NOTE_S, RETURNED_NOTE_S = 5.0, 10.0
STALLED = (
    "most likely each waits for another in a collective operation. A firewall that drops connections (HOPSML_KEEPALIVE_S "
    "keeps idle ones known), a proxy (http_proxy), or a worker that left out a collective does that; `hopsml runs profile` "
    "shows what each one executes"
)

# ------------------------------------------------------------------------------------ failures


def wait_for_cause(group: ElasticGroupState, now: float) -> list[Action]:
    """Wait for the failure that may have caused the known ones, while members remain that may report one."""
    # A process that was killed, or a lost agent, is a cause by itself. An error of the user's code may follow from the
    # death of a member, which is reported within moments; a secondary failure always follows from another one, and waits
    # longer. Each further failure can only shorten the wait.
    surest = min(failure.consequence_likelihood for failure in group.failures)
    if not surest or all(member.is_end_known for member in group.members.values()):
        return act_on_failures(group, now)
    until = now + (group.spec.settle_s if surest == 2 else group.spec.raised_settle_s)
    is_first = group.phase is not Phase.SETTLING
    group.deadline = until if is_first or group.deadline is None else min(group.deadline, until)
    group.phase = Phase.SETTLING
    return []


def act_on_failures(group: ElasticGroupState, now: float) -> list[Action]:
    """Continue with the failures that are known, without a further wait: regroup, or end a fixed group's run."""
    return regroup(group, now) if group.spec.regroups else group.end(group.outcome_by_blame(), now)


def record_worker_end(group: ElasticGroupState, agent_id: str, now: float) -> list[Action]:
    """Record that no process of a member's worker remains."""
    member = group.members.get(agent_id)
    if member is None:
        return start_next_if_ended(group, now)
    is_unreported = group.phase in TRAINING and not member.is_end_known
    member.over = True
    if is_unreported:
        group.failures.append(Failure(agent_id, member.rank, UNREPORTED))
    follows = wait_for_cause if is_unreported or group.phase is Phase.SETTLING else None
    actions = follows(group, now) if follows else group.conclude()
    return actions + start_next_if_ended(group, now)


def continue_after_end(group: ElasticGroupState, now: float) -> list[Action]:
    """Continue with the steps that waited for the end of a lost worker."""
    return [*start_next_if_ended(group, now), *group.conclude()]


def record_lost_member(group: ElasticGroupState, event: events.MemberLost, now: float) -> list[Action]:
    """Record the loss of an agent, which ends the run of a fixed group, and the generation of an elastic one."""
    actions = _lost_member(group, event, now)
    return [*actions, *continue_after_end(group, now)] if group.spec.regroups else actions


def _lost_member(group: ElasticGroupState, event: events.MemberLost, now: float) -> list[Action]:
    """Record the loss of a member's agent, without the steps that waited for the end of another lost worker."""
    member = group.members.get(event.agent_id)
    group.forget(event.agent_id)
    if member is None or member.lost:
        return []
    member.lost = True
    # If all agents of a fixed group are lost at once, most likely their application has ended, which the backend reports
    # within moments. The run's end waits for that report, unless an error of the user's code explains it.
    is_fixed = not group.spec.regroups
    if is_fixed and all(m.lost for m in group.members.values()) and not any(one.raised for one in group.failures):
        group.explained_by = now + group.spec.settle_s
    actions: list[Action] = []
    if is_fixed and group.finishes() and not member.over:
        actions.append(group.unstored(event.agent_id, event.reason))
    ends_it = group.phase in (*TRAINING, Phase.SETTLING)
    if not member.over and (ends_it or (group.phase is Phase.REFORMING and group.failures)):
        group.failures.append(Failure(event.agent_id, member.rank, event.reason, outside=True))
    if not member.over and ends_it:
        actions += act_on_failures(group, now)
    return actions + record_worker_end(group, event.agent_id, now)


# ------------------------------------------------------------------------------------ idle and stopped members


def check_workers(group: ElasticGroupState, now: float) -> list[Action]:
    """Process a tick while workers are active: end or regroup for stopped processes, absent members or a standstill."""
    working = {agent_id: member for agent_id, member in group.members.items() if not member.is_end_known}
    held = group.liveness.suspended_for(working, group.spec.stopped_s, now)
    for agent_id in held:
        cause = f"its process has been stopped (SIGSTOP) for {group.spec.stopped_s:g} s"
        group.failures.append(Failure(agent_id, group.members[agent_id].rank, cause, outside=True))
        group.members[agent_id].failed = True
    return act_on_failures(group, now) if held else _left_alone(group, working, now) or _stalled(group, working, now)


def _stalled(group: ElasticGroupState, working: dict[str, MemberState], now: float) -> list[Action]:
    """Report once that all workers are idle, and end a fixed group that is for longer than ``progress_timeout``."""
    if len(working) < 2:
        return []
    idle_s = now - max(group.liveness.idle_since(agent_id, now) for agent_id in working)
    limit_s = None if group.spec.changes else group.spec.progress_timeout_s
    if limit_s is not None and idle_s >= limit_s:
        agent_id, first = min(working.items(), key=lambda item: item[1].rank)
        reason = f"no worker has done anything for {idle_s:.0f} s (progress_timeout={limit_s:g}): {STALLED}"
        return group.end(ConcludeRun(Phase.FAILED, "worker", reason, agent_id, first.rank), now)
    if idle_s < group.spec.stalled_s or group.progress.told_stalled:
        return []
    group.progress.told_stalled = True
    ends = "" if limit_s is not None or group.spec.changes else "; progress_timeout= would end the run"
    return [events.Note(f"no worker has done anything for {idle_s:.0f} s: {STALLED}{ends}")]


def _left_alone(group: ElasticGroupState, working: dict[str, MemberState], now: float) -> list[Action]:
    """End a run in which a member has ended and the others wait for it in a collective, idle."""
    left_at = group.progress.left_at
    if left_at is None or not working:
        return []
    exited = sorted((m.rank, agent_id) for agent_id, m in group.members.items() if m.exited)
    how, limit_s = ("called sys.exit(0)", group.spec.exited_s) if exited else ("returned", group.spec.returned_s)
    if limit_s is None:  # waiting is normal: an evaluator, a parameter server
        return []
    since = max(left_at, *(group.liveness.idle_since(agent_id, now) for agent_id in working))
    left = exited or sorted((m.rank, agent_id) for agent_id, m in group.members.items() if m.finished)
    waiting, have = ranks(sorted(m.rank for m in working.values())), "has" if len(working) == 1 else "have"
    rule = "every rank must take part in every collective, up to the last one"
    rank, agent_id = left[0]
    if now - since >= limit_s:
        reason = (
            f"{how}, and {waiting} {have} done nothing for {limit_s:g} s since, most likely waiting for it in a "
            f"collective: {rule}"
        )
        return group.end(ConcludeRun(Phase.FAILED, "worker", reason, agent_id, rank), now)
    # A member may wait actively, as NCCL does: after sys.exit(0) an active member is no sign of progress.
    is_due = now - left_at >= EXITED_NOTE_S if exited else now - since >= RETURNED_NOTE_S
    if group.members[agent_id].noted or not is_due:
        return []
    group.members[agent_id].noted = True
    still = f"while {waiting} still {'works' if len(working) == 1 else 'work'}" if exited else f"before {waiting}"
    return [
        events.Note(
            f"rank {rank} {how} {still}; if {waiting} {'waits' if len(working) == 1 else 'wait'} for it in a "
            f"collective, the run fails after {limit_s:g} s without activity: {rule}"
        )
    ]


def check_absent(group: ElasticGroupState, now: float) -> list[Action]:
    """End a run in which a member has ended before its first collective operation, in which others wait for it.

    In a group that may change this proves nothing, as joining workers do not take part in that operation.
    """
    if group.spec.changes or group.phase not in TRAINING:
        return []
    waiting = [m for m in group.members.values() if m.forms and not m.is_end_known]
    size = max((m.forms for m in waiting), default=0)
    absent = [(m.rank, name) for name, m in group.members.items() if m.finished and not m.forms and m.rank < size]
    if not absent:
        return []
    rank, agent_id = min(absent)
    how = "called sys.exit(0)" if group.members[agent_id].exited else "returned"
    reason = (
        f"{how} before its first collective operation, in which {ranks(sorted(m.rank for m in waiting))} "
        f"{'waits' if len(waiting) == 1 else 'wait'} for it: every rank must take part in every collective"
    )
    return group.end(ConcludeRun(Phase.FAILED, "worker", reason, agent_id, rank), now)


WITHOUT_COMMITS = (
    "Without a commit no worker can join or be replaced, and the loss of one restarts all: give fit "
    "callbacks=hopsml.tensorflow.callbacks(), or call commit() of a hopsml.elastic.State in a loop of your own"
)
UNCOMMITTED_S = 60.0  # training time after which a missing commit is reported: the first step should make one


def tick_fixed(group: ElasticGroupState, event: events.Tick, now: float) -> list[Action]:
    """Enforce the deadlines of a group of fixed size, and check its members' liveness."""
    if group.phase in TRAINING and (actions := check_workers(group, now)):
        return actions
    if group.explained_by is not None and now >= group.explained_by:
        group.explained_by = None
        return group.conclude()
    return _enforce_deadline(group, now)


def tick(group: ElasticGroupState, event: events.Tick, now: float) -> list[Action]:
    """Enforce the deadlines of an elastic group, and check liveness, progress and commits.

    The first rule that applies decides; the next tick, a quarter of a second later, applies the others.
    """
    return _tick_in_place(group, now) or _tick_training(group, now) or _enforce_deadline(group, now)


def _tick_in_place(group: ElasticGroupState, now: float) -> list[Action]:
    """Enforce the deadlines of joining workers, of the pause and of ending workers."""
    growth, in_place = group.growth, group.in_place
    for agent_id, newcomer in growth.newcomers.items():
        if newcomer.ready_at is None and now >= newcomer.until:
            cause = f"it was not ready after {group.spec.start_timeout_s:g} s"
            return stop_failed_newcomer(group, agent_id, cause, now)
    is_running, is_late = group.phase is Phase.RUNNING, group.deadline is not None and now >= group.deadline
    if group.phase is Phase.MENDING and is_late and growth.came:
        return continue_without_newcomers(group, _late(group), now)
    is_pause_over = is_running and growth.pause_until is not None and now >= growth.pause_until
    if is_pause_over and (actions := give_up_pause(group, now)):
        return actions
    if is_running and (actions := request_pause(group, now)):
        return actions
    overdue = tuple(name for name, until in in_place.ending.items() if now >= until)
    if overdue:
        for name in overdue:
            group.forget(name)
        return [events.DropAgents(overdue, "did not report its worker's end in time"), *continue_after_end(group, now)]
    if group.phase is Phase.MENDING and is_late:
        return restart(group, now, problem=_late(group))
    if is_running and 0.0 < in_place.grow_at <= now:
        in_place.grow_at = 0.0
        return consider_change(group, now)
    return []


def _late(group: ElasticGroupState) -> str:
    """Return as text which members have not continued in place in time."""
    late = sorted(member.rank for member in group.members.values() if not member.started)
    return f"{ranks(late)} did not go on within {MEND_S:g} s"


def _tick_training(group: ElasticGroupState, now: float) -> list[Action]:
    """Check the liveness, progress and commits of the members, and whether spare agents can be used by now."""
    if group.phase in TRAINING and (actions := check_workers(group, now)):
        return actions
    if group.phase is Phase.WAITING:
        return start_if_enough(group, now)
    is_training = group.phase in (Phase.RUNNING, Phase.PARKING)
    if is_training and hangs(group, now):
        return end_hung(group, now)
    if is_training and (actions := report_missing_commits(group, now)):
        return actions
    # The exclusion of a host or an agent may have ended, or a node's time may be nearly used up.
    waits = group.policy.exclusions.until or group.policy.unfit.until or group.membership.leaving
    return consider_change(group, now) if group.phase is Phase.RUNNING and waits else []


def _enforce_deadline(group: ElasticGroupState, now: float) -> list[Action]:
    """Leave a phase whose deadline has passed."""
    if group.deadline is None or now < group.deadline:
        return []
    match group.phase:
        case Phase.SETTLING:
            return act_on_failures(group, now)
        case Phase.PARKING:
            return regroup(group, now)
        case Phase.REFORMING:
            return _cut_off(group, group.agents_with_processes(), "did not report its worker's end in time", now)
        case Phase.FORMING if group.generation:
            late = tuple(agent_id for agent_id, m in group.members.items() if not m.started and not m.over)
            return _cut_off(group, late, f"did not start its worker within {group.spec.start_timeout_s:g} s", now)
        case Phase.STOPPING:
            group.commits.given_up = True
            return [*group.drop_unfinished_agents(), *group.conclude()]
    return group.end(start_timeout_outcome(group), now)


def _cut_off(group: ElasticGroupState, agent_ids: tuple[str, ...], reason: str, now: float) -> list[Action]:
    """Disconnect agents that did not respond in time, and treat them as lost."""
    actions: list[Action] = [events.DropAgents(agent_ids, reason)]
    for agent_id in agent_ids:
        actions += record_lost_member(group, events.MemberLost(agent_id, f"the agent {reason}"), now)
    return actions


# ------------------------------------------------------------------------------------ progress


def hangs(group: ElasticGroupState, now: float) -> bool:
    """Return True if the group makes no progress.

    Before the first step it may be building and compiling, which may take longer than any limit: while all members are
    active, only a limit set by the user (progress_timeout) applies. A function without steps is treated the same.
    """
    pace, liveness = group.progress.pace, group.liveness
    if not pace.hangs(now):
        return False
    training = [agent_id for agent_id, member in group.members.items() if not member.finished]
    is_idle = any(agent_id in liveness.idle or agent_id in liveness.stopped for agent_id in training)
    return pace.first_s is not None or pace.timeout_s is not None or is_idle


def end_hung(group: ElasticGroupState, now: float) -> list[Action]:
    """End a generation without progress, and record a failure for the members that block the others."""
    pace = group.progress.pace
    members = tuple(agent_id for agent_id, member in group.members.items() if not member.finished)
    behind = pace.blocking_members(members)
    limit = f"no step for {pace.limit_s():.0f} s"
    for agent_id in behind or members:
        how = "its process is stopped" if agent_id in pace.stopped else "it is behind the others"
        cause = f"{limit}; {how if behind else 'no worker makes progress'}"
        group.failures.append(Failure(agent_id, group.members[agent_id].rank, cause))
    return regroup(group, now, dump=True)


def report_missing_commits(group: ElasticGroupState, now: float) -> list[Action]:
    """Report once that a run that should survive failures has made no commit to continue from."""
    commits = group.commits
    since = commits.uncommitted_since
    if commits.committed or not group.elastic_options.commits or since is None or now - since < UNCOMMITTED_S:
        return []
    commits.uncommitted_since = math.inf
    return [events.Note(f"nothing was committed in the first {UNCOMMITTED_S:g} s of training. {WITHOUT_COMMITS}")]


def start_timeout_outcome(group: ElasticGroupState) -> ConcludeRun:
    """Return the outcome of a run for which too few agents connected or remained in time."""
    if not group.spec.regroups or group.phase is not Phase.WAITING:
        return group.start_timeout_outcome()
    connected, minimum = len(group.membership.staying(group.membership.spares)), group.spec.minimum
    missing = tuple((rank, "no agent") for rank in range(connected, minimum))
    if not group.generation:
        reason = f"{connected} of at least {minimum} workers had connected after {group.spec.start_timeout_s:g} s"
        return ConcludeRun(Phase.FAILED, "start", reason, missing=missing)
    reason = (
        f"{connected} of at least {minimum} workers were left for {group.elastic_options.min_workers_timeout_s:g} s "
        f"(min_workers_timeout); what ended the last generation: {group.policy.why}"
    )
    return ConcludeRun(Phase.FAILED, "minimum", reason, missing=missing)
