"""Texts about a run for users: how many agents it waits for, and the error with which it ends."""

from __future__ import annotations

from collections.abc import Iterable

from hopsml.cluster.driver import remedies
from hopsml.cluster.driver.active_run import ActiveRun
from hopsml.cluster.driver.backends.base import FAILED_AT_LAUNCH, Backend
from hopsml.cluster.driver.run_state import RunState
from hopsml.cluster.gang.events import ConcludeRun, Phase
from hopsml.cluster.gang.pool import Pool
from hopsml.cluster.shared.protocol import FailureReport
from hopsml.core import tracebacks
from hopsml.errors import CoordinatorLost, NotEnoughSlots, RunCancelled, RunError, StartTimeout, WorkerFailed

TAIL_LINES = 30


# largest number of agent requests about which the cluster is queried: a growing run may have one for each agent
MOST_ASKS = 4


_CONNECTING = (
    "its process connects to the other members of its group. A firewall between the hosts must let the workers' ports "
    "through (HOPSML_PORT_RANGE keeps them in a range)"
)
_PREPARING = "its process imports modules, or loads the function and its arguments"


def waiting_text(run: ActiveRun, pool: Pool) -> str:
    """Return the display's text of a waiting run: how many agents are connected, and how many it needs."""
    there, wanted = run.gang.attendance(_there(run, pool))
    return f"waiting for executors: {there} of {wanted} agents there"


def _there(run: ActiveRun, pool: Pool) -> int:
    """Return how many idle agents the run can use."""
    return pool.agents.idle_of(False) + min(pool.agents.idle_of(True), run.request.bare)


def why_missing(run: ActiveRun, outcome: ConcludeRun, pool: Pool, backend: Backend, others: Iterable[str]) -> str:
    """Return why a run could not begin in time, as text for its error.

    Args:
        run: The run.
        outcome: Its end.
        pool: The agents of the application.
        backend: Source of agents, which is queried about missing ones.
        others: Ids of the runs that continue.
    """
    if run.placements:
        forming = {member.rank for member in run.gang.members.values() if getattr(member, "forms", 0)}
        return "; ".join(
            f"rank {rank} on {run.state.members[rank].host} has not begun the training function: "
            f"{_CONNECTING if rank in forming else _PREPARING}"
            for rank, _ in outcome.missing
        )
    held = [f"{run_id} holds some" for run_id in others]
    asks = sorted({ask for ask, _ in pool.expected})
    reasons = list(
        dict.fromkeys(
            ("of those without a GPU: " if pool.expected.is_bare(ask) else "") + backend.why_missing(ask)
            for ask in asks[:MOST_ASKS]
        )
    )
    there = _there(run, pool)
    why = [*reasons, *held] or [
        "those that were asked for have ended, and no other is on its way; see the driver's log"
    ]
    return f"{there} of {run.gang.spec.minimum} agents are connected; " + "; ".join(why)


def error_of(
    outcome: ConcludeRun, state: RunState, run_url: str, failure: FailureReport | None, host: str, missing: str
) -> RunError | None:
    """Return the error for an outcome, with rank, host, cause, traceback, log and remedy; None for a run that finished.

    Args:
        outcome: The run's end.
        state: Its state.
        run_url: URL of the run directory.
        failure: Report of the agent of the failed rank, if there is one.
        host: Host of that rank.
        missing: The text of ``why_missing``.
    """
    if outcome.phase is Phase.FINISHED:
        return None
    if outcome.error == "worker":
        return _worker_failed(outcome, state, run_url, failure, host)
    if outcome.error == "start":
        remedy = "give it more time with start_timeout=, or ask for fewer workers with num_workers="
        lines = [f"run {state.run_id}: {outcome.reason}. {missing}. Remedy: {remedy}.", *_network_findings(state)]
        return StartTimeout("\n".join(lines), run_url)
    if outcome.error == "minimum":
        remedy = "give it more time with min_workers_timeout=, or go on later with experiment.resume()"
        return NotEnoughSlots(f"run {state.run_id}: {outcome.reason}. Remedy: {remedy}; {run_url}", run_url)
    if outcome.error == "storage":
        remedy = "see that the store is reachable from the workers, then go on with experiment.resume()"
        return RunError(f"run {state.run_id}: {outcome.reason}. Remedy: {remedy}; {run_url}", run_url)
    if outcome.error == "driver":
        return RunError(f"run {state.run_id}: {outcome.reason}; {run_url}", run_url)
    if outcome.error == "slots":
        return NotEnoughSlots(f"run {state.run_id}: {outcome.reason}", run_url)
    if outcome.error == "cancelled":
        return RunCancelled(f"run {state.run_id} was cancelled: {outcome.reason}", run_url)
    if outcome.error == "application" and not outcome.reason.startswith(FAILED_AT_LAUNCH):
        remedy = (
            f"begin a new Spark session (after the loss of its JVM in a new process) and experiment.resume({run_url!r})"
        )
        return CoordinatorLost(f"run {state.run_id} was ended: {outcome.reason}. Remedy: {remedy}.", run_url)
    return CoordinatorLost(f"run {state.run_id} could not be launched: {outcome.reason}", run_url)


def _network_findings(state: RunState) -> list[str]:
    """Return a line for each network fault that the preflight check found: they usually cause the later errors."""
    return [f"Seen before: {note}" for note in state.notes if remedies.is_of_network(note)]


def _worker_failed(
    outcome: ConcludeRun, state: RunState, run_url: str, failure: FailureReport | None, host: str
) -> WorkerFailed:
    """Return the error for a failed worker, with its traceback or the end of its log."""
    traceback = tracebacks.with_source(failure.traceback) if failure else ""
    log = failure.log if failure else ""
    lines = [f"run {state.run_id}: rank {outcome.rank} of {state.size} on host {host} failed first: {outcome.reason}"]
    if traceback:
        lines += ["", "Its traceback:", traceback.rstrip()]
    elif failure and failure.log_tail.strip():
        tail = failure.log_tail.rstrip().splitlines()[-TAIL_LINES:]
        lines += ["", f"The last lines of its log ({len(tail)}):", *tail]
    if log:
        lines += ["", f"Log of rank {outcome.rank}: {log}"]
    lines.append(f"Run directory: {run_url}")
    lines += _network_findings(state)
    if outcome.rank >= 0:
        remedy = remedies.remedy(outcome.reason, traceback, host) or "correct the cause above"
        lines.append(f"Remedy: {remedy}; `hopsml runs logs {run_url} --rank {outcome.rank}` shows the whole log.")
    return WorkerFailed(
        "\n".join(lines),
        rank=outcome.rank,
        host=host,
        cause=outcome.reason,
        remote_traceback=traceback,
        log=log,
        log_tail=failure.log_tail if failure else "",
        run_dir=run_url,
    )
