"""Start-up of groups on granted agents: ranks and addresses by the layout, then the messages that start workers.

Messages of workers become changes of the run's state for observers, and events for the run's group.
"""

from __future__ import annotations

import gc
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from hopsml.cluster.driver.active_run import ActiveRun, formation_of, launch_of, member_of
from hopsml.cluster.driver.run_state import Change, MemberView
from hopsml.cluster.driver.sessions import AgentSession
from hopsml.cluster.gang import events
from hopsml.cluster.shared import protocol, worker_events
from hopsml.cluster.shared.layout import Layout, Placement, arrange, form, reorder
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.states import Lifecycle
from hopsml.core.variables import Settings
from hopsml.errors import ArgumentError
from hopsml.storage.backoff import duration_text

_OF_JOINING = (
    worker_events.WorkerStarted,
    worker_events.WorkerReconfigurable,
    worker_events.WorkerPaused,
    worker_events.WorkerStatus,
    worker_events.WorkerFinished,
    worker_events.FailureReport,
    worker_events.WorkerClosed,
)


def _apply_mirror_state(run: ActiveRun, agent: str, lag: worker_events.MirrorLag, now: float) -> None:
    """Publish when mirrors begin to be behind, at growing intervals that they still are, and when all have caught up."""
    if not lag.problem:
        run.behind.pop(agent, None)
        # Agents that are no members any more will report nothing.
        if run.mirror_notes.began_at is not None and not any(run.gang.rank(other) >= 0 for other in run.behind):
            run.mirror_notes.end()
            run.state.publish(Change("note", text="mirroring is up to date again"))
        return
    run.behind[agent] = lag.count
    if run.mirror_notes.reschedule_if_due(now):
        lasted_s = run.mirror_notes.lasted_s(now)
        files = sum(run.behind.values())
        still = (
            f" (for {duration_text(lasted_s)}; {files} files of {len(run.behind)} workers are not stored)"
            if lasted_s
            else ""
        )
        ends = f"; {_after_the_end(run)}" if run.gang.finishes() else ""
        run.state.publish(Change("note", run.gang.rank(agent), f"{lag.problem}{still}{ends}"))


def _after_the_end(run: ActiveRun) -> str:
    """Return how long a run whose function has returned retries to store its files."""
    limit_s = run.request.spec.group.retry_s
    return (
        f"the function has returned, and storing is retried for up to {limit_s:g} s ({Settings.storage_retry_s.name})"
    )


def apply_persisted(
    run: ActiveRun, agent: str, message: protocol.Persisted, now: float | None = None
) -> events.Event | None:
    """Process the result of writing a checkpoint.

    Publish when problems with storage begin, at growing intervals that they last, and when they end.

    Args:
        run: The run.
        agent: Id of the agent that has written it.
        message: The result.
        now: Monotonic time in seconds; None: the present one.

    Returns:
        The event for the group; None for a checkpoint that could not be written.
    """
    now, notes = time.monotonic() if now is None else now, run.checkpoint_notes
    if message.problem:
        if notes.reschedule_if_due(now):
            lasted_s = notes.lasted_s(now)
            still = f" (for {duration_text(lasted_s)}; {message.missed} were missed)" if lasted_s else ""
            text = f"checkpoints cannot be written; retrying{still}: step {message.step}: {message.problem}"
            run.state.publish(Change("note", text=text))
        return None
    if notes.began_at is not None:
        notes.end()
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
            run.state.closed(rank, event.behind, event.count, event.left)
            if run.request.spec.group.relaunches and view.state == Lifecycle.RUNNING:  # a server never returns
                view.state = Lifecycle.FINISHED
        case worker_events.LogLines():
            run.state.publish(Change("log", rank, event.text))
        case worker_events.ProfileTaken():
            run.state.publish(Change("profile", rank, event.problem, data=event.wish.encode()))
        case worker_events.WorkNote():
            run.state.publish(Change("note", rank, event.text))
        case worker_events.MirrorLag():
            _apply_mirror_state(run, agent, event, time.monotonic())


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
            return events.Stepped(
                agent, generation, event.step, event.stopped, event.age_s, event.idle_s, event.storage_s
            )
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


log = nonblocking_logger("hopsml.coordinator")


class GroupStarter:
    """Starter of the workers of groups, at a run's beginning and at changes of its group."""

    def __init__(self, agents: dict[str, AgentSession], tell: Callable[[str, events.Event], None]) -> None:
        """Use these agents; ``tell`` passes an event to a run's group."""
        self._agents, self._tell = agents, tell

    def assign_agents(self, run: ActiveRun, agent_ids: tuple[str, ...]) -> None:
        """Assign these agents to the run; if no layout is possible, the run ends with the reason."""
        changes = run.request.spec.group.changes
        sessions = [self._agents[agent_id] for agent_id in agent_ids]
        for session in sessions:
            session.work = (run.run_id, -1 if changes else run.gang.generation)  # -1: in no generation yet
            run.hosts[session.agent_id] = session.hello.place
        if changes:  # the layout is made when the members of a generation are known
            hosts = tuple(session.hello.machine for session in sessions)
            ready = tuple(has_imported_modules(session, run) for session in sessions)
            self._tell(run.run_id, events.Granted(agent_ids, hosts, ready))
            for session in sessions:
                if session.work == (run.run_id, -1):  # members that start at once have received this with the rest
                    session.post(protocol.Preload(run.request.spec.modules))
        elif self._lay_out(run, agent_ids):
            self._tell(run.run_id, events.Granted(tuple(run.placements)))

    def _lay_out(self, run: ActiveRun, agent_ids: tuple[str, ...]) -> bool:
        """Assign ranks to these agents; if that is not possible, end the run with the reason and return False."""
        sessions = [self._agents[agent_id] for agent_id in agent_ids if agent_id in self._agents]
        seats = [member_of(session.agent_id, session.hello, session.ports) for session in sessions]
        try:
            spec = run.request.spec
            layout = form(
                seats,
                spec.roles,
                evaluator_apart=spec.group.relaunches,
                order=spec.ring_order,
                is_complete=not spec.group.changes,
            )
        except ArgumentError as error:
            self._tell(run.run_id, events.Refused(str(error), "launcher"))
            return False
        run.state.layout = layout
        run.seats = {seat.agent_id: seat for seat in seats}
        for note in layout.notes:
            run.state.publish(Change("note", text=note))
        run.placements = {placement.agent_id: placement for placement in layout.placements}
        return True

    def start(self, run: ActiveRun, action: events.StartGeneration) -> None:
        """Send the messages that start a generation's workers; an error here ends this run, not an agent's session."""
        try:
            with _without_garbage_collection():
                self._start(run, action)
        except Exception as error:
            log.exception("run %s cannot be started", run.run_id)
            self._tell(run.run_id, events.Refused(f"{type(error).__name__}: {error}", "launcher"))

    def _start(self, run: ActiveRun, action: events.StartGeneration) -> None:
        """Make the layout, and send the messages that start the workers of a generation."""
        group = run.request.spec.group
        if not group.collective:
            self._start_lane(run, action)
            return
        if group.changes:
            if not self._lay_out(run, action.agent_ids):
                return
            self._tell(run.run_id, events.Ranked(tuple(run.placements)))
            run.state.begin_generation(action.generation, len(action.agent_ids))
        layout = run.state.layout
        assert layout is not None  # granted before
        if not run.key or not group.relaunches:  # members that continue have the key of those that are restarted
            run.key = _new_key()
        source = self._source(action.step, action.holders, action.stored)
        shared = protocol.encode(formation_of(run.request, layout, action.generation, run.key, source))
        for agent_id in action.agent_ids:
            if session := self._agents.get(agent_id):
                placement, hello = run.placements[agent_id], session.hello
                session.work = (run.run_id, action.generation)
                run.state.members[placement.rank] = MemberView(
                    placement.rank, hello.place, hello.executor_id, placement.gpu_indices
                )
                holds = action.step >= 0 and agent_id in action.holders
                launch = launch_of(run.request, placement, action.generation, holds)
                session.post(protocol.Preload(run.request.spec.modules), shared, launch)

    def prepare(self, run: ActiveRun, action: events.PrepareNewcomers) -> None:
        """Start joining workers, which prepare alone for their ranks in the group; an error ends the run."""
        try:
            with _without_garbage_collection():
                self._prepare(run, action)
        except Exception as error:
            log.exception("run %s cannot be joined", run.run_id)
            self._tell(run.run_id, events.Refused(f"{type(error).__name__}: {error}", "launcher"))

    def _prepare(self, run: ActiveRun, action: events.PrepareNewcomers) -> None:
        """Make the layout with joining workers, and send the messages that start these."""
        connected = [agent_id for agent_id in action.agent_ids if agent_id in self._agents]
        for agent_id in connected:
            session = self._agents[agent_id]
            run.seats[agent_id] = member_of(agent_id, session.hello, session.ports)
        layout = _grown(run, action.members, tuple(connected))
        placements = {placement.agent_id: placement for placement in layout.placements}
        source = self._source(action.step, action.holders)
        for agent_id in connected:
            # Each has another key, as it is alone.
            shared = formation_of(run.request, layout, action.generation, _new_key(), source, joins=True)
            launch = launch_of(run.request, placements[agent_id], action.generation, agent_id in action.holders)
            session = self._agents[agent_id]
            session.work = (run.run_id, action.generation)
            session.post(protocol.Preload(run.request.spec.modules), shared, launch)

    def pause(self, run: ActiveRun, action: events.PauseGroup) -> None:
        """Send these members' agents the request to pause."""
        for agent_id in action.agent_ids:
            if session := self._agents.get(agent_id):
                session.post(protocol.Pause(run.run_id, action.generation))

    def reconfigure_in_place(self, run: ActiveRun, action: events.ReconfigureGroup) -> None:
        """Send these members' agents the request to continue in place as this generation, with their present ports."""
        staying = tuple(agent_id for agent_id in action.agent_ids if agent_id in run.placements)
        newcomers = tuple(agent_id for agent_id in action.agent_ids if agent_id not in run.placements)
        layout = _grown(run, staying, newcomers)
        before = {one.agent_id: run.state.members[one.rank] for one in run.placements.values()}
        run.state.layout, run.placements = layout, {placement.agent_id: placement for placement in layout.placements}
        if newcomers:
            self._tell(run.run_id, events.Ranked(tuple(run.placements)))
        views = {
            one.rank: replace(before[one.agent_id], rank=one.rank) if one.agent_id in before else self._view(one)
            for one in layout.placements
        }
        run.state.continue_generation(action.generation, views)
        mend = protocol.ReconfigureInPlace(
            run.run_id, action.generation, layout.leader, layout.collective, _new_key(), meets=action.meets
        )
        shared = protocol.encode(mend)
        for agent_id in run.placements:
            if session := self._agents.get(agent_id):
                session.work = (run.run_id, action.generation)
                session.post(shared)

    def _view(self, newcomer: Placement) -> MemberView:
        """Return the view of a worker that joins now; its launch was reported before."""
        session = self._agents.get(newcomer.agent_id)
        host, executor_id = (session.hello.place, session.hello.executor_id) if session is not None else ("", "")
        return MemberView(newcomer.rank, host, executor_id, newcomer.gpu_indices, state=Lifecycle.RUNNING)

    def _start_lane(self, run: ActiveRun, action: events.StartGeneration) -> None:
        """Start one independent worker; its number is both its rank and its generation."""
        (agent_id,) = action.agent_ids
        if (session := self._agents.get(agent_id)) is None:
            return
        layout = form([member_of(agent_id, session.hello, session.ports)], run.request.spec.roles)
        placement = replace(layout.placements[0], rank=action.generation)
        session.work = (run.run_id, action.generation)
        run.state.members[placement.rank] = MemberView(
            placement.rank, session.hello.place, session.hello.executor_id, placement.gpu_indices
        )
        formation = formation_of(run.request, layout, action.generation, _new_key())
        launch = launch_of(run.request, placement, action.generation)
        session.post(protocol.Preload(run.request.spec.modules), formation, launch)

    def _source(self, step: int, holders: tuple[str, ...], stored: int = -1) -> protocol.CommitSource:
        """Return where members can fetch the commit: from an agent that holds it, else the checkpoint ``stored``."""
        for agent_id in holders:
            session = self._agents.get(agent_id)
            if session is not None and session.commit_door is not None:
                port, certificate = session.commit_door
                host = f"[{session.hello.host}]" if ":" in session.hello.host else session.hello.host
                return protocol.CommitSource(step, f"{host}:{port}", certificate)
        return protocol.CommitSource(stored=stored)


def _grown(run: ActiveRun, staying: tuple[str, ...], newcomers: tuple[str, ...]) -> Layout:
    """Return the layout of members in their present order and with their devices, with joining workers inserted."""
    ring = [replace(run.seats[agent_id], gpu_indices=run.placements[agent_id].gpu_indices) for agent_id in staying]
    return arrange(reorder(ring, [run.seats[agent_id] for agent_id in newcomers], run.request.spec.ring_order))


def _new_key() -> bytes:
    """Return a new random secret."""
    return secrets.token_bytes(32)


def has_imported_modules(session: AgentSession, run: ActiveRun) -> bool:
    """Return True if the agent's fork server has imported the modules that the run's workers need."""
    return set(run.request.spec.modules) <= session.modules


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection inside the block, if it is enabled.

    Starting a group of 1 024 allocates enough to trigger a full collection, which takes as long as the start itself.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
