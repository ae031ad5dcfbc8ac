"""How a run's end reads: the one error that a person gets, with rank, host, cause, traceback, log and remedy."""

from __future__ import annotations

from hopsml import tracebacks
from hopsml.cluster.driver import remedies
from hopsml.cluster.driver.run_state import RunState
from hopsml.cluster.gang.gang import Conclude, Phase
from hopsml.cluster.shared.protocol import WorkerFailed as FailureReport
from hopsml.errors import CoordinatorLost, NotEnoughSlots, RunCancelled, RunError, StartTimeout, WorkerFailed

TAIL_LINES = 30


def error_of(
    outcome: Conclude, state: RunState, run_url: str, failure: FailureReport | None, host: str, missing: str
) -> RunError | None:
    """The error for an outcome; None for a run that finished."""
    if outcome.phase is Phase.FINISHED:
        return None
    if outcome.error == "worker":
        return _worker_failed(outcome, state, run_url, failure, host)
    if outcome.error == "start":
        remedy = "give it more time with start_timeout=, or ask for fewer workers with num_workers="
        return StartTimeout(f"run {state.run_id}: {outcome.reason}. {missing}. Remedy: {remedy}.", run_url)
    if outcome.error == "minimum":
        remedy = "give it more time with min_workers_timeout=, or go on later with experiment.resume()"
        return NotEnoughSlots(f"run {state.run_id}: {outcome.reason}. Remedy: {remedy}; {run_url}", run_url)
    if outcome.error == "storage":
        remedy = "see that the store is reachable from the workers, then go on with experiment.resume()"
        return RunError(f"run {state.run_id}: {outcome.reason}. Remedy: {remedy}; {run_url}", run_url)
    if outcome.error == "slots":
        return NotEnoughSlots(f"run {state.run_id}: {outcome.reason}", run_url)
    if outcome.error == "cancelled":
        return RunCancelled(f"run {state.run_id} was cancelled: {outcome.reason}", run_url)
    if outcome.error == "application":
        remedy = (
            f"begin a new Spark session (after the loss of its JVM in a new process) and experiment.resume({run_url!r})"
        )
        return CoordinatorLost(f"run {state.run_id} was ended: {outcome.reason}. Remedy: {remedy}.", run_url)
    return CoordinatorLost(f"run {state.run_id} could not be launched: {outcome.reason}", run_url)


def _worker_failed(
    outcome: Conclude, state: RunState, run_url: str, failure: FailureReport | None, host: str
) -> WorkerFailed:
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
    if outcome.rank >= 0:
        remedy = remedies.remedy(outcome.reason, traceback, host) or "correct the cause above"
        lines.append(f"Remedy: {remedy}; `hopsml logs {run_url} --rank {outcome.rank}` shows the whole log.")
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
