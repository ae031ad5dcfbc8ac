"""Processing of workers' messages: changes of the run's state for observers, and events for the run's group."""

from __future__ import annotations

from hopsml.cluster.driver.active_run import ActiveRun
from hopsml.cluster.driver.run_state import Change, MemberView
from hopsml.cluster.gang import events
from hopsml.cluster.shared import protocol, worker_events
from hopsml.core.states import Lifecycle

_OF_JOINING = (
    worker_events.WorkerStarted,
    worker_events.WorkerReconfigurable,
    worker_events.WorkerPaused,
    worker_events.WorkerStatus,
    worker_events.WorkerFinished,
    worker_events.FailureReport,
    worker_events.WorkerClosed,
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
        run.state.publish(Change("note", text="mirroring is up to date again"))


def apply_persisted(run: ActiveRun, agent: str, message: protocol.Persisted) -> events.Event | None:
    """Process the result of writing a checkpoint, and publish when problems with storage begin and when they end.

    Returns:
        The event for the group; None for a checkpoint that could not be written.
    """
    if message.problem:
        if not run.checkpoints_fail:
            run.checkpoints_fail = True
            text = f"checkpoints cannot be written; retrying: step {message.step}: {message.problem}"
            run.state.publish(Change("note", text=text))
        return None
    if run.checkpoints_fail:
        run.checkpoints_fail = False
        missed = f"; {message.missed} were missed" if message.missed else ""
        run.state.publish(Change("note", text=f"checkpoints are written again{missed}"))
    return events.CommitPersisted(agent, message.step, message.seconds)


def apply(run: ActiveRun, agent: str, update: protocol.WorkerUpdate) -> events.Event | None:
    """Update the run's state by an event of a worker.

    Of an agent that is no member, because it was lost or is joining, only notes are published.

    Args:
        run: The run.
        agent: Id of the worker's agent.
        update: The event, with its generation.

    Returns:
        The event for the run's group; None if the update does not concern it.
    """
    rank, event = run.gang.rank(agent), update.event
    view = run.state.members.get(rank)
    if view is not None:
        _publish(run, agent, rank, view, event)
        return _group_event(agent, update.generation, event)
    if isinstance(event, worker_events.WorkNote):
        run.state.publish(Change("note", text=event.text))
    return _group_event(agent, update.generation, event) if isinstance(event, _OF_JOINING) else None


def _publish(run: ActiveRun, agent: str, rank: int, view: MemberView, event: worker_events.ToDriver) -> None:
    """Update the state of a member and its run, and publish the change to observers."""
    match event:
        case worker_events.WorkerStarted():
            view.state = Lifecycle.RUNNING
        case worker_events.WorkerStatus():
            view.step = event.step if event.step >= 0 else view.step
        case worker_events.Committed():
            run.state.committed = True
        case worker_events.WorkerReports():
            for report in event.reports:
                view.step = report.step if report.step is not None else view.step
                view.metrics.update(report.metrics)
                run.state.publish(Change("report", rank, "", dict(report.metrics), report.step, report.time))
        case worker_events.WorkerProgress():
            run.state.publish(Change("progress", rank, event.unit, step=event.done, time=event.time, total=event.total))
        case worker_events.WorkerMessage():
            run.state.publish(Change("said", rank, data=event.data))
        case worker_events.WorkerUsage():
            run.state.publish(Change("system", rank, "", dict(event.metrics), event.sample, event.time))
        case worker_events.WorkerFinished():
            view.state = Lifecycle.FINISHED
            view.seen = dict(event.seen)
            if rank == 0 and run.request.spec.group.collective:
                run.result = event.result
        case worker_events.FailureReport():
            view.state = Lifecycle.FAILED
            run.failures[agent] = event
        case worker_events.WorkerClosed():
            if event.behind:
                run.state.behind[rank] = event.behind
            if run.request.spec.group.relaunches and view.state == Lifecycle.RUNNING:  # a server never returns
                view.state = Lifecycle.FINISHED
        case worker_events.LogLines():
            run.state.publish(Change("log", rank, event.text))
        case worker_events.ProfileTaken():
            run.state.publish(Change("profile", rank, event.problem, data=event.wish.encode()))
        case worker_events.WorkNote():
            run.state.publish(Change("note", rank, event.text))
        case worker_events.MirrorLag():
            _apply_mirror_state(run, agent, event.problem)


def _group_event(agent: str, generation: int, event: worker_events.ToDriver) -> events.Event | None:
    """Translate an event of a worker to that of its group; None if it does not concern the group."""
    match event:
        case worker_events.WorkerStarted():
            return events.Started(agent, generation)
        case worker_events.WorkerForming():
            return events.Forming(agent, generation, event.size)
        case worker_events.WorkerReconfigurable():
            return events.Reconfigurable(agent, generation, event.fixed)
        case worker_events.WorkerReconfigured():
            return events.Reconfigured(agent, generation, event.step, event.problem)
        case worker_events.WorkerPaused():
            return events.Paused(agent, generation, event.step)
        case worker_events.WorkerStatus():
            return events.Stepped(agent, generation, event.step, event.stopped, event.age_s, event.idle_s)
        case worker_events.Committed():
            kind = events.PausedAtCommit if event.parked else events.WorkerCommitted
            return kind(agent, generation, event.step)
        case worker_events.WorkerMessage():
            return events.WorkerActive(agent, generation)
        case worker_events.WorkerFinished():
            return events.Finished(agent, generation, event.exited)
        case worker_events.FailureReport():
            facts = (event.secondary, event.raised, event.outside, event.storage)
            return events.Failed(agent, generation, event.cause, *facts)
        case worker_events.WorkerClosed():
            return events.Closed(agent, generation)
    return None
