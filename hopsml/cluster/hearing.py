"""What a worker's message means: for those who watch the run, and for its gang."""

from __future__ import annotations

from hopsml.cluster import gang, protocol
from hopsml.cluster.active_run import ActiveRun
from hopsml.cluster.run_state import Change

OfWorker = (
    protocol.WorkerStarted
    | protocol.WorkerStepped
    | protocol.Committed
    | protocol.WorkerReport
    | protocol.Said
    | protocol.WorkerUsage
    | protocol.WorkerFinished
    | protocol.WorkerFailed
    | protocol.WorkerClosed
    | protocol.LogLines
    | protocol.WorkNote
    | protocol.MirrorState
)


def hear(run: ActiveRun, agent: str, message: OfWorker) -> gang.Event | None:
    """Write it into the run's state; returns what the gang has to know."""
    generation, rank = message.generation, run.gang.rank(agent)
    view = run.state.members[rank]
    match message:
        case protocol.WorkerStarted():
            view.state = "running"
            return gang.Started(agent, generation)
        case protocol.WorkerStepped():
            view.step = message.step
            return gang.Stepped(agent, generation, message.step, message.stopped, message.age_s)
        case protocol.Committed():
            kind = gang.Parked if message.parked else gang.Committed
            return kind(agent, generation, message.step)
        case protocol.WorkerReport():
            view.step = message.step if message.step is not None else view.step
            view.metrics.update(message.metrics)
            run.state.publish(Change("report", rank, "", dict(message.metrics), message.step, message.time))
        case protocol.Said():
            run.state.publish(Change("said", rank, data=message.data))
            return gang.Heard(agent, generation)
        case protocol.WorkerUsage():
            run.state.publish(Change("system", rank, "", dict(message.metrics), message.sample, message.time))
        case protocol.WorkerFinished():
            view.state = "finished"
            if rank == 0 and not run.request.spec.independent:
                run.result = message.result
            return gang.Finished(agent, generation)
        case protocol.WorkerFailed():
            view.state = "failed"
            run.failures[agent] = message
            return gang.Failed(agent, generation, message.cause, message.secondary, message.raised)
        case protocol.WorkerClosed():
            if message.behind:
                run.state.behind[rank] = message.behind
            return gang.Closed(agent, generation)
        case protocol.LogLines():
            run.state.publish(Change("log", rank, message.text))
        case protocol.WorkNote():
            run.state.publish(Change("note", rank, message.text))
        case protocol.MirrorState():
            view.mirror_problem = message.problem
            run.state.publish(Change("note", rank, message.problem or f"rank {rank}: mirroring has caught up"))
    return None
