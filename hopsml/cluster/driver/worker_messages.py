"""Processing of workers' messages: changes of the run's state for observers, and events for the run's group."""

from __future__ import annotations

from hopsml.cluster.driver.active_run import ActiveRun
from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.gang import events
from hopsml.cluster.shared import protocol
from hopsml.core.states import Lifecycle

OfWorker = (
    protocol.WorkerStarted
    | protocol.WorkerForming
    | protocol.WorkerReconfigurable
    | protocol.WorkerReconfigured
    | protocol.WorkerPaused
    | protocol.WorkerStatus
    | protocol.Committed
    | protocol.WorkerReports
    | protocol.WorkerProgress
    | protocol.WorkerMessage
    | protocol.WorkerUsage
    | protocol.WorkerFinished
    | protocol.FailureReport
    | protocol.WorkerClosed
    | protocol.LogLines
    | protocol.ProfileTaken
    | protocol.WorkNote
    | protocol.MirrorLag
)


def _apply_mirror_state(run: ActiveRun, agent: str, problem: str) -> None:
    """Publish once that mirrors are behind, for the first member that reports it, and once when all have caught up."""
    (run.behind.add if problem else run.behind.discard)(agent)
    if problem and not run.mirrors_fail:
        run.mirrors_fail = True
        run.state.publish(Change("note", run.gang.rank(agent), problem))
    # Agents that are no members any more will report nothing.
    elif run.mirrors_fail and not any(run.gang.rank(other) >= 0 for other in run.behind):
        run.mirrors_fail = False
        run.state.publish(Change("note", text="mirroring has caught up"))


def apply_persisted(run: ActiveRun, agent: str, message: protocol.Persisted) -> events.Event | None:
    """Process the result of writing a checkpoint, and publish when problems with storage begin and when they end.

    Returns:
        The event for the group; None for a checkpoint that could not be written.
    """
    if message.problem:
        if not run.checkpoints_fail:
            run.checkpoints_fail = True
            text = f"checkpoints cannot be written, which is tried again: step {message.step}: {message.problem}"
            run.state.publish(Change("note", text=text))
        return None
    if run.checkpoints_fail:
        run.checkpoints_fail = False
        missed = f"; {message.missed} were missed" if message.missed else ""
        run.state.publish(Change("note", text=f"checkpoints are written again{missed}"))
    return events.CommitPersisted(agent, message.step, message.seconds)


def _of_no_member(run: ActiveRun, agent: str, message: OfWorker) -> events.Event | None:
    """Return the event for a message of an agent that is no member: one that was lost, or one that is joining.

    Only its notes are published.
    """
    generation = message.generation
    match message:
        case protocol.WorkerStarted():
            return events.Started(agent, generation)
        case protocol.WorkerReconfigurable():
            return events.Reconfigurable(agent, generation, message.fixed)
        case protocol.WorkerPaused():
            return events.Paused(agent, generation, message.step)
        case protocol.WorkerStatus():
            return events.Stepped(agent, generation, message.step, message.stopped, message.age_s, message.idle_s)
        case protocol.WorkerFinished():
            return events.Finished(agent, generation, message.exited)
        case protocol.FailureReport():
            told = (message.secondary, message.raised, message.outside, message.storage)
            return events.Failed(agent, generation, message.cause, *told)
        case protocol.WorkerClosed():
            return events.Closed(agent, generation)
        case protocol.WorkNote():
            run.state.publish(Change("note", text=message.text))
    return None


def apply(run: ActiveRun, agent: str, message: OfWorker) -> events.Event | None:
    """Update the run's state by a worker's message.

    Args:
        run: The run.
        agent: Id of the worker's agent.
        message: The message.

    Returns:
        The event for the run's group; None if the message does not concern it.
    """
    generation, rank = message.generation, run.gang.rank(agent)
    view = run.state.members.get(rank)
    if view is None:
        return _of_no_member(run, agent, message)
    match message:
        case protocol.WorkerStarted():
            view.state = Lifecycle.RUNNING
            return events.Started(agent, generation)
        case protocol.WorkerForming():
            return events.Forming(agent, generation, message.size)
        case protocol.WorkerReconfigurable():
            return events.Reconfigurable(agent, generation, message.fixed)
        case protocol.WorkerReconfigured():
            return events.Reconfigured(agent, generation, message.step, message.problem)
        case protocol.WorkerPaused():
            return events.Paused(agent, generation, message.step)
        case protocol.WorkerStatus():
            view.step = message.step if message.step >= 0 else view.step
            return events.Stepped(agent, generation, message.step, message.stopped, message.age_s, message.idle_s)
        case protocol.Committed():
            run.state.committed = True
            kind = events.PausedAtCommit if message.parked else events.WorkerCommitted
            return kind(agent, generation, message.step)
        case protocol.WorkerReports():
            for report in message.reports:
                view.step = report.step if report.step is not None else view.step
                view.metrics.update(report.metrics)
                run.state.publish(Change("report", rank, "", dict(report.metrics), report.step, report.time))
        case protocol.WorkerProgress():
            run.state.publish(
                Change("progress", rank, message.unit, step=message.done, time=message.time, total=message.total)
            )
        case protocol.WorkerMessage():
            run.state.publish(Change("said", rank, data=message.data))
            return events.WorkerActive(agent, generation)
        case protocol.WorkerUsage():
            run.state.publish(Change("system", rank, "", dict(message.metrics), message.sample, message.time))
        case protocol.WorkerFinished():
            view.state = Lifecycle.FINISHED
            view.seen = dict(message.seen)
            if rank == 0 and run.request.spec.group.collective:
                run.result = message.result
            return events.Finished(agent, generation, message.exited)
        case protocol.FailureReport():
            view.state = Lifecycle.FAILED
            run.failures[agent] = message
            told = (message.secondary, message.raised, message.outside, message.storage)
            return events.Failed(agent, generation, message.cause, *told)
        case protocol.WorkerClosed():
            if message.behind:
                run.state.behind[rank] = message.behind
            if run.request.spec.group.relaunches and view.state == Lifecycle.RUNNING:  # a server never returns
                view.state = Lifecycle.FINISHED
            return events.Closed(agent, generation)
        case protocol.LogLines():
            run.state.publish(Change("log", rank, message.text))
        case protocol.ProfileTaken():
            run.state.publish(Change("profile", rank, message.problem, data=message.wish.encode()))
        case protocol.WorkNote():
            run.state.publish(Change("note", rank, message.text))
        case protocol.MirrorLag():
            _apply_mirror_state(run, agent, message.problem)
    return None
