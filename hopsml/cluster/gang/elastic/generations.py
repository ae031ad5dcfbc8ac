"""From one generation of an elastic group to the next, in new processes.

A planned change ends a generation at a commit: every worker is requested to pause at its next commit. The first one that
does so stops the others too, since no collective completes without it, so no step is lost. A failure ends the generation
at once. The survivors' agents retain the training state, and the next generation continues from the newest commit that
any of them holds.

An error raised by the user's code ends the run, as it would occur again. The death of a process, an agent, an executor or
a host does not, unless it occurs repeatedly without a commit in between. If a joining worker fails, in whatever way,
before the first commit of the group with it, the group continues as it was, without that worker. If shared storage does
not respond when a checkpoint has to be read, the run waits for it.
"""

from __future__ import annotations

from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.state import ElasticGroupState
from hopsml.cluster.gang.events import Action, ConcludeRun, Phase
from hopsml.cluster.gang.machine import Failure, MemberState, root_failure
from hopsml.cluster.gang.pace import Liveness
from hopsml.storage.backoff import pause_s

JOIN_MOST_S = 10.0  # longest wait of the first generation for the agents that are still missing
END_S = 10.0  # for ending the workers of a generation: they are killed without a request
STORE_FIRST_S, STORE_MOST_S = 2.0, 30.0  # first and longest pause between attempts to reach shared storage
DIVERGED = "members called different operations"  # part of the collective's error message, the same in all frameworks


# ------------------------------------------------------------------------------------ start


def start_if_enough(group: ElasticGroupState, now: float) -> list[Action]:
    """Start a generation if enough agents can be used, after a wait for more in the first one."""
    if now < group.policy.try_again_at:
        return []
    membership, usable = group.membership, group.usable_spares(now)
    if len(usable) < group.spec.minimum:
        membership.start_at = None
        return []
    if group.generation == 0 and len(usable) < membership.target:
        if membership.start_at is None:
            membership.start_at = now + _join_wait_s(group, now)
        if now < membership.start_at:
            return []
    return _form(group, usable, now)


def _join_wait_s(group: ElasticGroupState, now: float) -> float:
    """Return the seconds for which the first generation waits for the missing agents, once the minimum is there.

    Agents of slow or busy hosts come as far apart as they need to start: the wait is as long as the first ones needed,
    and at most half of what is left of the start timeout.
    """
    left = (group.deadline or now) - now
    return max(group.elastic_options.join_s, min(now - group.membership.requested_at, JOIN_MOST_S, left / 2))


def _form(group: ElasticGroupState, usable: list[str], now: float) -> list[Action]:
    """Start the next generation with the best candidates among the spare agents."""
    membership, commits = group.membership, group.commits
    # The first generation waits for all workers; later ones do not wait for agents that are still importing.
    ready = [agent_id for agent_id in usable if membership.spares[agent_id]]
    candidates = ready if len(ready) >= group.spec.minimum and group.generation else usable
    newest, stored = commits.newest_step(), commits.drains.stored
    if commits.drains.handed_over > newest:  # else what the survivors hold is enough: shared storage is not needed
        commits.newest_of.clear()
        newest = -1
    candidates.sort(key=commits.held_step, reverse=True)  # agents that hold the state must be among them
    chosen = tuple(candidates[: membership.target])
    for agent_id in chosen:
        del membership.spares[agent_id]
    others = membership.staying(membership.spares)
    if newest >= 0 and all(commits.held_step(agent_id) < newest for agent_id in chosen):
        # Only agents on excluded hosts hold the state: they stay until the members have it (``release_surplus_spares``).
        others = [agent_id for agent_id in others if commits.held_step(agent_id) < newest]
    returned = group.give_back(tuple(others) if len(chosen) == membership.target else ())
    _begin_generation(group, chosen, now)
    commits.base, commits.parked = newest, None
    commits.from_store = -1 if newest >= 0 else stored
    # Agents on excluded hosts may hold the newest state without being members.
    holders = tuple(a for a in (*chosen, *membership.spares) if newest >= 0 and commits.newest_of.get(a) == newest)
    start = events.StartGeneration(group.generation, chosen, newest, holders, group.policy.why, commits.from_store)
    return [*returned, *_report_lost_commits(group, newest if newest >= 0 else stored), start]


def _begin_generation(group: ElasticGroupState, chosen: tuple[str, ...], now: float) -> None:
    """Reset what concerns a single generation, whose processes are all new."""
    group.members = {agent_id: MemberState(rank) for rank, agent_id in enumerate(chosen)}
    group.phase, group.membership.start_at = Phase.FORMING, None
    if group.spec.regroups:  # the start deadline of a fixed group begins with the request for its agents
        group.deadline = now + group.spec.start_timeout_s
    group.failures, group.liveness = [], Liveness()
    group.progress.left_at, group.progress.pace = None, group.progress.pace.for_next_generation(now)
    in_place, growth = group.in_place, group.growth
    in_place.grow_at, in_place.problem = 0.0, ""
    in_place.mendable, in_place.since = set(), dict.fromkeys(group.members, group.generation)
    growth.end_pause()
    growth.came, growth.meets, growth.fresh, growth.grown = (), False, set(), False


def _report_lost_commits(group: ElasticGroupState, step: int) -> list[Action]:
    """Report which commit is lost if the training continues from an earlier ``step``."""
    reached, group.commits.reached = group.commits.reached, step
    if step >= reached:
        return []
    where = (
        f"continues from step {step}"
        if step >= 0
        else "restarts at this run's start, since there is no checkpoint either"
    )
    return [events.Note(f"the commit of step {reached} is lost with the agents that held it: the training {where}")]


# ------------------------------------------------------------------------------------ end


def change_at_commit(group: ElasticGroupState, now: float) -> list[Action]:
    """Pause the workers at a commit if a member leaves, the size changes, or a spare agent is ready to join."""
    membership, count = group.membership, len(group.members)
    grows_only = count <= membership.target and not group.has_leaving_member()
    # Once a member has finished the others are about to: a new generation would have nothing to do.
    if (grows_only and now < group.in_place.grow_at) or group.has_finished_member():
        return []
    leaving = [agent_id for agent_id in group.members if agent_id in membership.leaving]
    ready = group.ready_spares(now)
    if leaving:
        # Leaving members continue training until all successors are ready, so that there is one change instead of
        # several.
        successors = min(membership.target, count) - (count - len(leaving))
        if len(ready) < successors and not group.commits.drains.must_pause(leaving, now, group.progress.pace.usual_s):
            return []
        why = f"rank {group.members[leaving[0]].rank} leaves: {membership.leaving[leaving[0]]}"
    elif count > membership.target:
        why = f"resized to {membership.target} workers"
    elif ready and count < membership.target:
        why = f"{min(len(ready), membership.target - count)} more joined"
    else:
        return []
    group.phase, group.deadline, group.policy.why = Phase.PARKING, None, why
    group.in_place.mendable = set()  # all processes end at their next commit
    return [events.PauseWorkersAtCommit(group.generation, tuple(group.members), why)]


def restart(group: ElasticGroupState, now: float, dump: bool = False, problem: str = "") -> list[Action]:
    """End the workers of this generation; ``start_next_if_ended`` decides what follows once all have ended.

    Args:
        group: The group.
        now: Monotonic time in seconds.
        dump: True if the workers write where they stand before they end.
        problem: Why the group could not continue in place; "" if that was not tried.
    """
    in_place = group.in_place
    if problem:
        group.policy.why = in_place.problem = problem
    group.failures = [*in_place.lost, *group.failures]
    group.policy.resets -= in_place.attempts
    in_place.lost, in_place.attempts, in_place.mendable = [], 0, set()
    group.phase, group.deadline = Phase.REFORMING, now + END_S
    working, actions = group.agents_with_processes(), list[Action]()
    if working:
        actions.append(events.StopWorkers(group.generation, working, 0.0, 0.0, keep=True, dump=dump))
    return actions + start_next_if_ended(group, now)


def start_next_if_ended(group: ElasticGroupState, now: float) -> list[Action]:
    """Start the next generation, or end the run, once all workers of this one have ended."""
    if (
        group.growth.newcomers
        or group.in_place.ending
        or group.phase is not Phase.REFORMING
        or group.agents_with_processes()
    ):
        return []
    actions: list[Action] = []
    lost = _lost_workers(group)
    if group.failures:
        verdict = _verdict(group, now, actions)
        if verdict is not None:
            return actions + group.end(verdict, now)
    group.membership.spares |= {agent_id: True for agent_id, member in group.members.items() if not member.lost}
    group.members = {}
    actions += release_leaving_spares(group, now)
    ended, group.generation = group.generation, group.next_number()
    group.phase, group.deadline = Phase.WAITING, now + group.elastic_options.min_workers_timeout_s
    text = f"generation {ended} {_where_it_ended(group)}: {group.policy.why}"
    actions.append(events.Note(text, lost, step=_furthest_step(group), restarts=True))
    return actions + start_if_enough(group, now)


def _lost_workers(group: ElasticGroupState) -> tuple[tuple[int, str], ...]:
    """Return rank and cause of the workers whose failures end this generation, without secondary failures."""
    return tuple((one.rank, one.cause) for one in group.failures if not one.echo and not one.storage)


def _furthest_step(group: ElasticGroupState) -> int:
    """Return the highest step that a worker of the ended generation is known to have reached; -1: unknown."""
    return max(group.commits.reached, *group.progress.pace.steps.values(), -1)


def _where_it_ended(group: ElasticGroupState) -> str:
    """Return as text how far the generation is known to have come, and what the next one starts from."""
    commits, newest = group.commits, group.commits.newest_step()
    step = max(newest, commits.drains.handed_over) if newest >= 0 else commits.drains.stored
    furthest = _furthest_step(group)
    if 0 <= step == max(step, furthest):
        return f"ended at step {step}"
    if step >= 0:
        kind = "commit" if newest >= 0 else "checkpoint"
        goes_on = f"continues from the {kind} of step {step}"
    elif commits.committed:
        goes_on = "no agent holds a commit, so the newest checkpoint counts"
    elif group.elastic_options.commits:
        goes_on = "nothing was committed, so the training restarts at this run's start"
    else:
        goes_on = "its function is called again"
    return f"ended{f' after step {furthest} or later' if furthest > 0 else ''}; {goes_on}"


# ------------------------------------------------------------------------------------ release of agents


def release_surplus_spares(group: ElasticGroupState) -> list[Action]:
    """Release surplus spare agents of a training group that has reached its target size.

    Spare agents that leave are released by ``release_leaving_spares``. Members that leave do not count: spares will
    replace them.
    """
    membership = group.membership
    if len(membership.staying(group.members)) < membership.target:
        return []
    return group.give_back(tuple(membership.staying(membership.spares)))


def release_leaving_spares(group: ElasticGroupState, now: float) -> list[Action]:
    """Release the spare agents that leave and are not needed any more."""
    actions: list[Action] = []
    for agent_id, reason in list(group.membership.leaving.items()):
        if agent_id in group.membership.spares and not _is_needed(group, agent_id, now):
            group.forget(agent_id)
            actions.append(events.ReturnAgents((agent_id,), reason))
    return actions


def _is_needed(group: ElasticGroupState, agent_id: str, now: float) -> bool:
    """Return True if a leaving agent must stay for its state: others will fetch it, or only agents hold it yet."""
    commits = group.commits
    newest = max((commits.held_step(other) for other in group.membership.staying(commits.newest_of)), default=-1)
    if commits.held_step(agent_id) <= newest:
        return False
    is_fetched = group.phase is Phase.FORMING or len(group.usable_spares(now)) >= group.spec.minimum
    return is_fetched or not commits.drains.is_stored(commits.held_step(agent_id))


def store_endangered_commit(group: ElasticGroupState) -> list[Action]:
    """Store the newest commit on shared storage if only leaving agents hold it."""
    once = group.phase in (Phase.RUNNING, Phase.PARKING)
    requested = group.commits.drains.request_storing_agent(group.commits.newest_of, group.membership.leaving, once=once)
    return [events.PersistCommit(requested)] if requested is not None else []


# ------------------------------------------------------------------------------------ failures


def _verdict(group: ElasticGroupState, now: float, actions: list[Action]) -> ConcludeRun | None:
    """Return how the run ends because of this generation's failures; None if it continues."""
    first, growth = root_failure(group.failures), group.growth
    if growth.grown and not growth.anew and DIVERGED in first.cause:
        # A new member called other operations: all workers restart, now and for each later joining worker.
        growth.anew = first.cause
        group.policy.why = (
            f"a worker that joined later calls other collective operations than the others: {first.cause}"
        )
        return None
    outcome = _judge(group, first, now, actions)
    if group.in_place.problem:
        group.policy.why += f"; {group.in_place.problem}"
    return outcome


def _judge(group: ElasticGroupState, first: Failure, now: float, actions: list[Action]) -> ConcludeRun | None:
    """Return how the run ends because of this failure; None if it continues.

    In this order: an unavailable store is waited for; the failure of a joining worker costs only its own place; an error
    of the user's code would occur again; anything else is retried, until it has occurred too often without a new commit.
    """
    policy, blamed, limits = group.policy, group.outcome_by_blame(), group.elastic_options
    policy.why = f"rank {first.rank}: {first.cause}"
    if first.storage:
        return _wait_for_store(group, first, now, actions)
    if group.is_dispensable_newcomer(first):
        _set_aside(group, first, now, actions)
        return None
    if (first.raised and not first.echo) or blamed.agent_id != first.agent_id:
        return blamed
    policy.resets += 1
    # Commits of lost agents do not count: the work that was lost with them has to be repeated.
    policy.fruitless = 0 if group.commits.newest_step() > group.commits.base else policy.fruitless + 1
    if limits.reset_limit is not None and policy.resets > limits.reset_limit:
        return _with_reason(blamed, f"the reset limit of {limits.reset_limit} is reached")
    if policy.fruitless >= limits.fruitless_limit:
        newcomers = group.unproven_members()
        if not newcomers:
            return _with_reason(blamed, f"{policy.fruitless} generations in a row ended without a new commit")
        policy.fruitless = limits.fruitless_limit - 1  # whichever worker died: the group failed because it grew
        text = "no generation with the new workers has committed, and the group continues as before"
        actions.append(events.Note(f"{text}; they may try again later: {first.cause}"))
        for agent_id in newcomers:
            policy.unfit.record_failure(agent_id, now)
    if not first.echo:  # a secondary failure is no evidence against its host
        count_against_host(group, first, now, actions)
    return None


def count_against_host(group: ElasticGroupState, failure: Failure, now: float, actions: list[Action]) -> None:
    """Count a failure against its host, and report it if the host is excluded."""
    hosts, exclusions = group.membership.hosts, group.policy.exclusions
    host = hosts[failure.agent_id]
    length = exclusions.record_failure(host, now)
    if length is not None and len(set(hosts.values())) > 1:
        actions.append(events.Note(f"host {host} is set aside for {length:g} s: {exclusions.failures[host]} failures"))


def _set_aside(group: ElasticGroupState, newcomer: Failure, now: float, actions: list[Action]) -> None:
    """Exclude the agent of a failed joining worker for a while, and report it."""
    length = group.policy.unfit.record_failure(newcomer.agent_id, now)
    host = group.membership.hosts[newcomer.agent_id]
    text = f"a new worker on {host} failed before the first commit with it, and the group continues as before: "
    member = group.members.get(newcomer.agent_id)
    again = f"; it may try again in {length:g} s" if member is not None and not member.lost else ""
    actions.append(events.Note(f"{text}{newcomer.cause}{again}"))
    count_against_host(group, newcomer, now, actions)


def _wait_for_store(group: ElasticGroupState, first: Failure, now: float, actions: list[Action]) -> ConcludeRun | None:
    """Let the run wait for shared storage; return the run's outcome if it has waited for long enough."""
    policy, limit = group.policy, group.elastic_options.min_workers_timeout_s
    policy.store_away = now if policy.store_away is None else policy.store_away
    if now - policy.store_away >= limit:
        reason = f"the store could not be used for {limit:g} s (min_workers_timeout): {first.cause}"
        return ConcludeRun(Phase.FAILED, "storage", reason, first.agent_id, first.rank)
    if not policy.store_tries:
        text = f"the store cannot be used now; the run waits for it, at most {limit:g} s: {first.cause}"
        actions.append(events.Note(text))
    policy.store_tries += 1
    pause = min(pause_s(policy.store_tries, STORE_FIRST_S, STORE_MOST_S), policy.store_away + limit - now)
    policy.try_again_at = now + pause
    return None


def _with_reason(blamed: ConcludeRun, reason: str) -> ConcludeRun:
    """Return the outcome with an addition to its reason."""
    return ConcludeRun(blamed.phase, blamed.error, f"{blamed.reason} ({reason})", blamed.agent_id, blamed.rank)
