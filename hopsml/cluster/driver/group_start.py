"""Start-up of groups on granted agents: ranks and addresses by the layout, then the messages that start workers."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from hopsml.cluster.driver.active_run import ActiveRun, formation_of, launch_of, member_of
from hopsml.cluster.driver.run_state import Change, MemberView
from hopsml.cluster.driver.sessions import AgentSession
from hopsml.cluster.gang import events
from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.layout import Layout, Placement, arrange, form, insert
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError

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
            ready = tuple(is_ready(session, run) for session in sessions)
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
            layout = form(seats, run.request.spec.roles, evaluator_apart=run.request.spec.group.relaunches)
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
            with _garbage_kept():
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
            with _garbage_kept():
                self._prepare(run, action)
        except Exception as error:
            log.exception("run %s cannot be joined", run.run_id)
            self._tell(run.run_id, events.Refused(f"{type(error).__name__}: {error}", "launcher"))

    def _prepare(self, run: ActiveRun, action: events.PrepareNewcomers) -> None:
        """Make the layout with joining workers, and send the messages that start these."""
        there = [agent_id for agent_id in action.agent_ids if agent_id in self._agents]
        for agent_id in there:
            session = self._agents[agent_id]
            run.seats[agent_id] = member_of(agent_id, session.hello, session.ports)
        layout = _grown(run, action.members, tuple(there))
        placements = {placement.agent_id: placement for placement in layout.placements}
        source = self._source(action.step, action.holders)
        for agent_id in there:
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
        run.state.mend_generation(action.generation, views)
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
    return arrange(insert(ring, [run.seats[agent_id] for agent_id in newcomers]))


def _new_key() -> bytes:
    """Return a new random secret."""
    return secrets.token_bytes(32)


def is_ready(session: AgentSession, run: ActiveRun) -> bool:
    """Return True if the agent's fork server has imported the modules that the run's workers need."""
    return set(run.request.spec.modules) <= session.modules


@contextmanager
def _garbage_kept() -> Iterator[None]:
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
