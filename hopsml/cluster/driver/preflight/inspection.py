"""The hands of the gate: messages become its events, its actions become messages and words to the pool and the gang."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hopsml.cluster.driver.preflight import gate
from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.gang import gang
from hopsml.cluster.shared import protocol

if TYPE_CHECKING:
    from hopsml.cluster.driver.coordinator import Coordinator
    from hopsml.cluster.driver.formation import RunRequest
    from hopsml.cluster.driver.sessions import Session


class Inspection:
    """Between the pool, which grants agents, and the runs, which get those that are fit; on the coordinator's loop."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._owner = coordinator
        self._gate = gate.Gate()

    def begin(self, request: RunRequest) -> None:
        """A run has begun."""
        spec = request.spec
        self._gate.begin(request.run_id, spec.preflight, spec.group.size, not spec.group.changes)

    def granted(self, run_id: str, agent_ids: tuple[str, ...]) -> None:
        """The pool has given these to the run."""
        self._do(self._gate.granted(run_id, agent_ids, time.monotonic()))

    def said(self, session: Session, message: protocol.PreflightFacts | protocol.PeerProbed) -> None:
        """An agent's figures, or what came of an exchange."""
        if isinstance(message, protocol.PreflightFacts):
            place = f"the slot of agent {session.agent_id} on {session.hello.hostname} ({session.hello.executor_id})"
            received, now = time.time(), time.monotonic()
            self._do(self._gate.told(session.agent_id, place, message, session.admitted, received, now))
        else:
            self._do(self._gate.probed(session.agent_id, message, time.monotonic()))

    def left(self, agent_id: str) -> None:
        """An agent is gone."""
        self._do(self._gate.left(agent_id, time.monotonic()))

    def returned(self, agent_ids: tuple[str, ...]) -> None:
        """A run has given these back."""
        self._gate.returned(agent_ids)

    def ended(self, run_id: str) -> None:
        """The run is over: slots that were kept from it are given up. The pool takes back what was granted to it."""
        if aside := self._gate.ended(run_id):
            self._owner._pool(self._owner.pool.dismiss(aside, "its slot failed the preflight"))

    def tick(self) -> None:
        """Time passes."""
        self._do(self._gate.tick(time.monotonic()))

    def _do(self, actions: list[gate.Action]) -> None:
        owner = self._owner
        for action in actions:
            if isinstance(action, gate.Probe):
                if session := owner.door.agents.get(action.agent_id):
                    session.post(protocol.ProbePeer(action.peer, action.address))
                continue
            run = owner.runs.get(action.run_id)
            if run is None:
                continue
            match action:
                case gate.Pass():
                    owner.grant(run, action.agent_ids)
                case gate.SetAside():
                    owner._pool(owner.pool.set_aside(action.run_id, action.agent_ids))
                case gate.AskAgain():
                    owner._pool(owner.pool.ask_again(action.run_id, action.count, action.agent_ids, time.monotonic()))
                case gate.Warn():
                    run.state.publish(Change("note", text=action.text))
                case gate.Refuse():
                    owner._event(action.run_id, gang.Refused(action.text, "slots"))
