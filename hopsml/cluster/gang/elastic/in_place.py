"""Reconfiguration of an elastic group in the processes that it has: without lost members, and with joining workers.

After a loss the other workers retain process, memory and everything that they have traced: they become the next
generation's group within the collective call in which they wait, and no step is repeated. Whatever this cannot handle
ends the generation as in ``generations.py``: the loss of the chief, whose role a running function cannot take over; a
member whose function has returned already; an error of the user's code; a joining worker that fails before its first
commit; a change that is in progress. The agents of lost workers are spare once they have reported the ends.

    a spare ──▶ preparing ──ready──▶ all members pause ──▶ MENDING, with it ──all continue──────▶ RUNNING
                    │                     │                    └─(a problem)─▶ MENDING, as before
                    └─(it fails, or is late: a spare again)    └─(a loss: once more, without the lost one)

A joining worker starts while the members train: it imports, builds and traces in a group with no other member, and
reports when it is ready. Then the members pause, all between the same two batches, become the next generation together
with it, send it the chief's state, and continue. If this is not possible, because the members' group is not one of
hopsml's collective or the user's code could not prepare by itself, all restart from a commit, and a note reports why.
"""

from __future__ import annotations

from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.generations import (
    END_S,
    change_at_commit,
    count_against_host,
    restart,
    start_if_enough,
)
from hopsml.cluster.gang.elastic.state import ElasticGroupState, Newcomer
from hopsml.cluster.gang.events import Action, Phase
from hopsml.cluster.gang.machine import Failure, MemberState, ranks, root_failure

MEND_S = 5.0  # deadline for all members to continue; they need a hundredth of that
GROW_S = 10.0  # after a loss, before all restart to admit a joining worker: more agents may be about to connect
AGAIN_S = 10.0  # wait after a pause without a result


def regroup(group: ElasticGroupState, now: float, dump: bool = False) -> list[Action]:
    """Continue without the failed members in place if possible; else restart from the newest commit.

    Args:
        group: The group.
        now: Monotonic time in seconds.
        dump: True if the workers that are ended write where they stand first.
    """
    staying = _staying(group)
    return _continue_without_failed(group, staying, now, dump) if staying else restart(group, now, dump)


def _staying(group: ElasticGroupState) -> tuple[str, ...]:
    """Return the members that continue without the failed ones, in rank order; empty if all have to restart."""
    failures = group.failures
    failed = {failure.agent_id for failure in failures}
    if failed and failed <= group.growth.fresh:  # the others lose nothing, whatever the cause
        return _able_without(group, failed)
    if not failed or any(failure.raised or failure.storage or failure.echo for failure in failures):
        return ()
    limit = group.elastic_options.reset_limit
    if group.is_dispensable_newcomer(root_failure(failures)) or (limit is not None and group.policy.resets >= limit):
        return ()
    return _able_without(group, failed)


def _able_without(group: ElasticGroupState, failed: set[str]) -> tuple[str, ...]:
    """Return the members that can continue without ``failed``, in rank order; empty if they cannot."""
    staying = tuple(name for name in group.by_rank() if name not in failed and not group.members[name].is_end_known)
    is_able = group.in_place.mendable.issuperset(staying) and not group.has_finished_member()
    is_led = bool(staying) and not group.members[staying[0]].rank
    return staying if is_able and is_led and len(staying) >= group.spec.minimum else ()


def _continue_without_failed(
    group: ElasticGroupState, staying: tuple[str, ...], now: float, dump: bool
) -> list[Action]:
    """Continue without failed members; losses of newly joined ones do not count towards the reset limit."""
    in_place, growth, failures = group.in_place, group.growth, group.failures
    first = root_failure(failures)
    group.policy.why = f"rank {first.rank}: {first.cause}"
    in_place.lost += failures
    group.failures = []
    actions = continue_with(group, staying, now, dump)
    if all(failure.agent_id in growth.fresh for failure in failures):
        for failure in failures:
            _blame_newcomer(group, failure, now)
    else:
        group.policy.resets += 1
        in_place.attempts += 1
    growth.fresh &= set(staying)
    growth.came = tuple(agent_id for agent_id in growth.came if agent_id in staying)
    return actions


def _blame_newcomer(group: ElasticGroupState, failure: Failure, now: float) -> None:
    """Exclude a failed new member's agent for a while, or end growth in place if the user's code failed."""
    if failure.raised and not failure.echo:
        group.growth.anew = failure.cause
    else:
        group.policy.unfit.record_failure(failure.agent_id, now)


def continue_with(group: ElasticGroupState, staying: tuple[str, ...], now: float, dump: bool = False) -> list[Action]:
    """Continue with these members, and end the workers of the others if their processes still exist."""
    actions = list[Action]()
    left = {name: member for name, member in group.members.items() if name not in staying}
    working = tuple(name for name, member in left.items() if not member.over and not member.lost)
    if working:
        actions.append(events.StopWorkers(group.generation, working, 0.0, 0.0, keep=True, dump=dump))
    group.in_place.ending |= dict.fromkeys(working, now + END_S)
    group.membership.spares |= {name: True for name, member in left.items() if member.over and not member.lost}
    for name in left:
        group.progress.pace.remove_member(name, now)
        group.liveness.remove_agent(name)
    group.members = {name: MemberState(rank) for rank, name in enumerate(staying)}
    group.progress.left_at = None
    return [*actions, begin_in_place(group, staying, now)]


def begin_in_place(group: ElasticGroupState, members: tuple[str, ...], now: float) -> Action:
    """Start the next generation in the processes of these members."""
    group.growth.end_pause()
    group.generation = group.next_number()
    group.phase, group.deadline, group.in_place.went_on = Phase.MENDING, now + MEND_S, -1
    # Members that were informed of joining workers exchange the state, so all of them have to, even if those are lost
    # by now.
    return events.ReconfigureGroup(group.generation, members, group.growth.meets)


def continue_without_newcomers(group: ElasticGroupState, problem: str, now: float) -> list[Action]:
    """Continue without the workers that were joining, as the group could not be reconfigured with them.

    All restart if one has returned meanwhile, since a process whose function has returned cannot continue.
    """
    if group.has_finished_member():
        return restart(group, now, problem=problem)
    growth = group.growth
    came = [agent_id for agent_id in growth.came if agent_id in group.members]
    plural = "s" if len(came) > 1 else ""
    text = f"{len(came)} new worker{plural} could not join the others, which continue as before: {problem}"
    for agent_id in came:
        group.policy.unfit.record_failure(agent_id, now)
    growth.came, growth.again_at = (), now + AGAIN_S
    growth.fresh -= set(came)
    staying = tuple(name for name in group.by_rank() if name not in came)
    return [events.Note(text), *continue_with(group, staying, now)]


def report_continuation(group: ElasticGroupState, now: float) -> list[Action]:
    """Report the members that were lost and those that joined, once all others continue."""
    in_place, growth = group.in_place, group.growth
    came, growth.came, growth.meets = growth.came, (), False
    actions: list[Action] = []
    if in_place.lost:
        lost = tuple((failure.rank, failure.cause) for failure in in_place.lost)
        actions.append(events.Note(_how_it_went_on(group), lost, step=in_place.went_on))
    for failure in in_place.lost:
        count_against_host(group, failure, now, actions)
    if in_place.lost:
        in_place.grow_at = now + GROW_S
    group.commits.base, in_place.lost, in_place.attempts = group.commits.newest_step(), [], 0
    if came:
        who = f"{len(came)} more joined at step {in_place.went_on}"
        text = f"{who}: {len(group.members)} workers go on in their processes"
        actions.append(events.Note(text, joined=len(came), step=in_place.went_on))
    return actions


def _how_it_went_on(group: ElasticGroupState) -> str:
    """Return as text which members were lost, and how the group continues."""
    in_place = group.in_place
    lost = "; ".join(f"rank {failure.rank} was lost ({failure.cause})" for failure in in_place.lost)
    who, whose = (f"{len(group.members)} workers", "their processes")
    if len(group.members) == 1:
        who, whose = "the chief alone", "its process"
    step = f" at step {in_place.went_on}" if in_place.went_on >= 0 else ""
    return f"{lost}: {who} went on{step} in {whose}; the lost share of the batch under way may not have been trained on"


# time for which a joining worker that is ready waits for others that prepare: one pause instead of two
TOGETHER_S = 5.0
PAUSE_S = 10.0  # from the first member's pause to the last one's: members are at most a part of a batch apart


# ------------------------------------------------------------------------------------ decision


def use_spares(group: ElasticGroupState, now: float) -> list[Action]:
    """Start the group, or consider a change, with the spare agents."""
    if group.phase is Phase.WAITING:
        return start_if_enough(group, now)
    return consider_change(group, now) if group.phase is Phase.RUNNING else []


def consider_change(group: ElasticGroupState, now: float) -> list[Action]:
    """Start preparations for joining workers if the running group only grows; else change it at a commit."""
    growth, membership = group.growth, group.membership
    if growth.pausing:  # other changes wait for the end of the pause
        return []
    grows_only = len(group.members) <= membership.target and not group.has_leaving_member()
    if not growth.enabled or not grows_only or group.has_finished_member():
        return change_at_commit(group, now)
    if not growth.anew and not _is_able(group) and not _is_known(group):
        return []
    if why := _why_anew(group):
        actions = change_at_commit(group, now)
        if not actions or why == growth.said:
            return actions
        growth.said = why
        note = f"new workers cannot join the running processes, so all processes restart for them: {why}"
        return [*actions, events.Note(note)]
    return _prepare(group, now)


def _is_able(group: ElasticGroupState) -> bool:
    """Return True if all members have reported that their group can continue in place."""
    return group.members.keys() <= group.in_place.mendable


def _is_known(group: ElasticGroupState) -> bool:
    """Return True if a member is past the point at which it would have reported that it can continue in place."""
    steps, commits = group.progress.pace.steps, group.commits
    others = group.members.keys() - group.in_place.mendable
    return any(max(steps.get(name, -1), commits.held_step(name)) > commits.base for name in others)


def _why_anew(group: ElasticGroupState) -> str:
    """Return why joining workers cannot be admitted in place; "" if they can."""
    if group.growth.anew or _is_able(group):
        return group.growth.anew
    others = sorted(member.rank for name, member in group.members.items() if name not in group.in_place.mendable)
    return f"{ranks(others)} not in a group of hopsml's collective"


def _prepare(group: ElasticGroupState, now: float) -> list[Action]:
    """Launch joining workers on spare agents, if there is a commit from which they can prepare."""
    growth, spares, commits = group.growth, group.membership.spares, group.commits
    wanted = group.membership.target - len(group.members) - len(growth.newcomers)
    chosen, newest = tuple(group.ready_spares(now)[: max(0, wanted)]), commits.newest_step()
    if not chosen or newest < 0:
        return request_pause(group, now)
    growth.launched = group.next_number()
    members = group.by_rank()
    holders = tuple(a for a in (*members, *spares) if commits.held_step(a) == newest)
    for agent_id in chosen:
        del spares[agent_id]
        if agent_id not in holders:  # its own commit is dropped when its worker begins
            commits.newest_of.pop(agent_id, None)
        group.in_place.since[agent_id] = growth.launched
        growth.newcomers[agent_id] = Newcomer(growth.launched, newest, now + group.spec.start_timeout_s)
    return [events.PrepareNewcomers(growth.launched, chosen, members, newest, holders)]


# ------------------------------------------------------------------------------------ joining workers


def stop_failed_newcomer(group: ElasticGroupState, agent_id: str, cause: str, now: float) -> list[Action]:
    """Stop a joining worker that has failed or is late; it may try again unless the user's code is the reason."""
    note = record_failed_newcomer(group, agent_id, cause, now)
    return [note, *stop_newcomers(group, (agent_id,), now), *use_spares(group, now)]


def record_failed_newcomer(group: ElasticGroupState, agent_id: str, cause: str, now: float) -> Action:
    """Exclude a joining worker's agent for a while unless the user's code is the reason; return a note for the user."""
    if not group.growth.anew:
        group.policy.unfit.record_failure(agent_id, now)
    host = group.membership.hosts[agent_id]
    return events.Note(f"a new worker on {host} could not be prepared, and the group continues as it is: {cause}")


def unneeded_newcomers(group: ElasticGroupState) -> tuple[str, ...]:
    """Return the joining workers that are no longer needed.

    That is all of them if the group ends or restarts; else those beyond the target size, and those on leaving agents.
    """
    newcomers, membership = group.growth.newcomers, group.membership
    if not newcomers:  # after almost every event: the members are not looked at
        return ()
    grows = group.phase in (Phase.RUNNING, Phase.MENDING, Phase.SETTLING)
    if not grows or group.growth.anew or group.has_finished_member():
        return tuple(newcomers)
    staying = membership.staying(newcomers)[: max(0, membership.target - len(group.members))]
    return tuple(agent_id for agent_id in newcomers if agent_id not in staying)


def stop_newcomers(group: ElasticGroupState, agent_ids: tuple[str, ...], now: float) -> list[Action]:
    """Stop joining workers; their agents are spare again when they have reported the end."""
    actions: list[Action] = []
    for agent_id in agent_ids:
        generation = group.growth.newcomers.pop(agent_id).generation
        group.in_place.mendable.discard(agent_id)
        group.in_place.ending[agent_id] = now + END_S
        actions.append(events.StopWorkers(generation, (agent_id,), 0.0, 0.0, keep=True))
    return actions


# ------------------------------------------------------------------------------------ the pause


def request_pause(group: ElasticGroupState, now: float) -> list[Action]:
    """Pause the members once joining workers are ready, at most ``TOGETHER_S`` after the first of them."""
    growth = group.growth
    if not growth.ready_newcomers() or now < growth.again_at:
        return []
    times = [one.ready_at for one in growth.newcomers.values()]
    if None in times and now < min(time for time in times if time is not None) + TOGETHER_S:
        return []
    if growth.pausing or group.phase is not Phase.RUNNING or not _is_able(group):
        return []
    if group.has_leaving_member() or group.has_finished_member():
        return []
    growth.pausing = True
    return [events.PauseGroup(group.generation, tuple(group.members))]


def member_paused(group: ElasticGroupState, agent_id: str, now: float) -> list[Action]:
    """Record that a member has paused, and end the pause once all members have."""
    growth = group.growth
    growth.pausing = True
    growth.paused.add(agent_id)
    growth.pause_until = now + PAUSE_S if growth.pause_until is None else growth.pause_until
    return _admit(group, growth.ready_newcomers(), now) if growth.paused >= group.members.keys() else []


def give_up_pause(group: ElasticGroupState, now: float) -> list[Action]:
    """End a pause that not all members have joined: they continue as they were."""
    group.growth.again_at, group.growth.pause_until = now + AGAIN_S, None
    return _admit(group, (), now)


def _admit(group: ElasticGroupState, newcomers: tuple[str, ...], now: float) -> list[Action]:
    """End the pause: the members continue, together with the joining workers that are still ready."""
    growth = group.growth
    # one has ended during the pause, which determines what follows
    if any(member.is_end_known for member in group.members.values()):
        return []
    for agent_id in newcomers:
        del growth.newcomers[agent_id]
        group.members[agent_id] = MemberState(len(group.members))
    for member in group.members.values():
        member.started = False
    growth.came, growth.meets, growth.fresh = newcomers, bool(newcomers), growth.fresh | set(newcomers)
    growth.grown = growth.grown or growth.meets
    return [begin_in_place(group, group.by_rank(), now)]
