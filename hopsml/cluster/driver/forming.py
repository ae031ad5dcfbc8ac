"""Starts groups on granted agents: ranks and addresses by the layout, then the messages that start workers."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from hopsml.cluster.driver.active_run import ActiveRun
from hopsml.cluster.driver.formation import formation_of, launch_of, member_of
from hopsml.cluster.driver.run_state import Change, MemberView
from hopsml.cluster.driver.sessions import AgentSession
from hopsml.cluster.gang import events
from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.layout import form
from hopsml.delivery import logger_aside
from hopsml.errors import ArgumentError

log = logger_aside("hopsml.coordinator")


class Former:
    """Starts the workers of groups that begin; ``tell`` brings an event to a run's gang."""

    def __init__(self, agents: dict[str, AgentSession], tell: Callable[[str, events.Event], None]) -> None:
        self._agents, self._tell = agents, tell

    def grant(self, run: ActiveRun, agent_ids: tuple[str, ...]) -> None:
        """Give these agents to the run. Where no layout can be made of them the run ends with the reason."""
        changes = run.request.spec.group.changes
        sessions = [self._agents[agent_id] for agent_id in agent_ids]
        for session in sessions:
            session.work = (run.run_id, -1 if changes else run.gang.generation)  # -1: in no generation yet
            run.hosts[session.agent_id] = session.hello.host
        if changes:  # the layout is made when it is known who takes part in a generation
            hosts = tuple(session.hello.hostname for session in sessions)
            ready = tuple(is_ready(session, run) for session in sessions)
            self._tell(run.run_id, events.Granted(agent_ids, hosts, ready))
            for session in sessions:
                if session.work == (run.run_id, -1):  # those that take part at once have been told with the rest
                    session.post(protocol.Preload(run.request.spec.modules))
        elif self._lay_out(run, agent_ids):
            self._tell(run.run_id, events.Granted(tuple(run.placements)))

    def _lay_out(self, run: ActiveRun, agent_ids: tuple[str, ...]) -> bool:
        """Assign ranks to these agents; False, and the run is told why, where that is not possible."""
        sessions = [self._agents[agent_id] for agent_id in agent_ids if agent_id in self._agents]
        try:
            layout = form([member_of(s.agent_id, s.hello, s.ports) for s in sessions], run.request.spec.roles)
        except ArgumentError as error:
            self._tell(run.run_id, events.Refused(str(error), "launcher"))
            return False
        run.state.layout = layout
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
        shared = protocol.encode(formation_of(run.request, layout, action.generation, _new_key(), self._source(action)))
        for agent_id in action.agent_ids:
            if session := self._agents.get(agent_id):
                placement, hello = run.placements[agent_id], session.hello
                session.work = (run.run_id, action.generation)
                run.state.members[placement.rank] = MemberView(
                    placement.rank, hello.host, hello.executor_id, placement.gpu_indices
                )
                holds = action.step >= 0 and agent_id in action.holders
                launch = launch_of(run.request, placement, action.generation, holds)
                session.post(protocol.Preload(run.request.spec.modules), shared, launch)

    def _start_lane(self, run: ActiveRun, action: events.StartGeneration) -> None:
        """Start one independent worker; its number is both its rank and its generation."""
        (agent_id,) = action.agent_ids
        if (session := self._agents.get(agent_id)) is None:
            return
        layout = form([member_of(agent_id, session.hello, session.ports)], run.request.spec.roles)
        placement = replace(layout.placements[0], rank=action.generation)
        session.work = (run.run_id, action.generation)
        run.state.members[placement.rank] = MemberView(
            placement.rank, session.hello.host, session.hello.executor_id, placement.gpu_indices
        )
        formation = formation_of(run.request, layout, action.generation, _new_key())
        launch = launch_of(run.request, placement, action.generation)
        session.post(protocol.Preload(run.request.spec.modules), formation, launch)

    def _source(self, action: events.StartGeneration) -> protocol.CommitSource:
        """Where members without the commit can fetch it: an agent that holds it, else the checkpoint to begin from."""
        for agent_id in action.holders:
            session = self._agents.get(agent_id)
            if session is not None and session.commit_door is not None:
                port, certificate = session.commit_door
                host = f"[{session.hello.host}]" if ":" in session.hello.host else session.hello.host
                return protocol.CommitSource(action.step, f"{host}:{port}", certificate)
        return protocol.CommitSource(stored=action.stored)


def _new_key() -> bytes:
    return secrets.token_bytes(32)


def is_ready(session: AgentSession, run: ActiveRun) -> bool:
    """Whether the agent's fork server has imported the modules that the run's workers need."""
    return set(run.request.spec.modules) <= session.modules


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Collect no garbage inside, where collecting is switched on.

    Forming a group of 1 024 allocates enough to start a full collection, which takes as long as the forming itself.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
