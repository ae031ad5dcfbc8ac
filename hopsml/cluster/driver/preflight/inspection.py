"""Execution of the pre-flight check: messages become events of the gate, its actions messages and requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hopsml.cluster.driver.active_run import ActiveRun
from hopsml.cluster.driver.formation import RunRequest
from hopsml.cluster.driver.preflight import gate
from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.driver.sessions import AgentSession
from hopsml.cluster.gang import events, pool
from hopsml.cluster.shared import protocol


class Inspection:
    """Pre-flight check between the pool, which grants agents, and the runs, which get those that pass.

    Used on the coordinator's event loop.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentSession],
        runs: Mapping[str, ActiveRun],
        agent_pool: pool.Pool,
        carry_out: Callable[[list[pool.Action]], None],
        grant: Callable[[ActiveRun, tuple[str, ...]], None],
        tell: Callable[[str, events.Event], None],
    ) -> None:
        """Use the coordinator's tables and pool.

        Args:
            agents: Connected agents by id.
            runs: Active runs by id.
            agent_pool: The pool of agents.
            carry_out: Function that carries out actions of the pool.
            grant: Function that gives a run the agents that have passed.
            tell: Function that passes an event to a run's group.
        """
        self._agents, self._runs, self._pool = agents, runs, agent_pool
        self._carry_out, self._grant, self._tell = carry_out, grant, tell
        self._gate = gate.Gate()

    def begin(self, request: RunRequest) -> None:
        """Add a run that has begun."""
        spec = request.spec
        self._gate.begin(request.run_id, spec.preflight, spec.group.size, not spec.group.changes)

    def granted(self, run_id: str, agent_ids: tuple[str, ...]) -> None:
        """Check agents that the pool has granted to the run, which gets those that pass."""
        self._do(self._gate.granted(run_id, agent_ids, time.monotonic()))

    def message_received(self, session: AgentSession, message: protocol.PreflightFacts | protocol.PeerProbed) -> None:
        """Process an agent's figures, or the result of an exchange with a neighbour."""
        if isinstance(message, protocol.PreflightFacts):
            place = f"the slot of agent {session.agent_id} on {session.hello.machine} ({session.hello.executor_id})"
            received, now = time.time(), time.monotonic()
            self._do(self._gate.facts_received(session.agent_id, place, message, session.admitted, received, now))
        else:
            self._do(self._gate.probed(session.agent_id, message, time.monotonic()))

    def agent_left(self, agent_id: str) -> None:
        """Remove an agent that has disconnected."""
        self._do(self._gate.agent_left(agent_id, time.monotonic()))

    def returned(self, agent_ids: tuple[str, ...]) -> None:
        """Remove agents from their run, which has released them."""
        self._gate.returned(agent_ids)

    def ended(self, run_id: str) -> None:
        """Dismiss the agents that were excluded for a run that has ended.

        Those that it held are released separately.
        """
        if aside := self._gate.ended(run_id):
            self._carry_out(self._pool.dismiss(aside, "its slot failed the preflight"))

    def tick(self) -> None:
        """Evaluate the groups that are due."""
        self._do(self._gate.tick(time.monotonic()))

    def _do(self, actions: list[gate.Action]) -> None:
        """Carry out actions of the gate."""
        for action in actions:
            if isinstance(action, gate.Probe):
                if session := self._agents.get(action.agent_id):
                    session.post(protocol.ProbePeer(action.peer, action.address))
                continue
            run = self._runs.get(action.run_id)
            if run is None:
                continue
            match action:
                case gate.Pass():
                    self._grant(run, action.agent_ids)
                case gate.SetAside():
                    self._carry_out(self._pool.set_aside(run.run_id, action.agent_ids))
                case gate.RepeatProbe():
                    now, bare = time.monotonic(), run.request.bare
                    self._carry_out(self._pool.ask_again(run.run_id, action.count, action.agent_ids, now, bare))
                case gate.Warn():
                    run.state.publish(Change("note", text=action.text))
                case gate.Refuse():
                    self._tell(run.run_id, events.Refused(action.text, "slots"))
