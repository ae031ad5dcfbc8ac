"""Actions of the coordinator: what the state machines of pool and groups have decided becomes messages and calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.active_run import ActiveRun, SidecarWord
from hopsml.cluster.driver.backend_watcher import BackendWatcher
from hopsml.cluster.driver.backends.base import Backend
from hopsml.cluster.driver.group_start import GroupStarter
from hopsml.cluster.driver.preflight.gate import Inspection
from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.driver.run_texts import error_of, waiting_text, why_missing
from hopsml.cluster.driver.sessions import AgentSession, Sessions
from hopsml.cluster.gang import events, pool
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.gang.pool import Action as PoolAction
from hopsml.cluster.gang.pool import Pool, Submit
from hopsml.cluster.shared import protocol
from hopsml.core.callbacks import nonblocking_logger

log = nonblocking_logger("hopsml.coordinator")


@dataclass
class PoolActions:
    """Executor of the actions of the pool, and of the backend's reports about agent requests; used on the event loop.

    Attributes:
        door: Server with the sessions of the agents.
        pool: State machine of the agents.
        runs: The runs that have begun and not ended, by id.
        watcher: Calls the backend on threads.
        bootstrap: Returns the data that the agents of a request need to connect.
        event: Passes an event to a run's group.
        granted: Called with a run's id and the agents that it is granted.
        cancelled: Agent requests that were withdrawn and have not ended.
    """

    door: Sessions
    pool: Pool
    runs: Mapping[str, ActiveRun]
    watcher: BackendWatcher
    bootstrap: Callable[[Submit], Bootstrap]
    event: Callable[[str, events.Event], None]
    granted: Callable[[str, tuple[str, ...]], None]
    cancelled: set[int] = field(default_factory=set)

    def carry_out(self, actions: list[PoolAction]) -> None:
        """Carry out the actions of the pool."""
        if asks := [action for action in actions if isinstance(action, pool.Submit)]:
            self.watcher.submit([(self.bootstrap(ask), ask.count) for ask in asks], self._ask_ended, self._slot_ended)
        for action in actions:
            match action:
                case pool.Grant():
                    if action.run_id in self.runs:
                        self.granted(action.run_id, action.agent_ids)
                    else:  # it ended while the actions before this one were carried out
                        self.carry_out(self.pool.returned(action.agent_ids, time.monotonic()))
                case pool.CancelAgentRequest():
                    self.cancelled.add(action.ask)
                    self.watcher.cancel(action.ask)
                case pool.DismissAgents():
                    for agent_id in action.agent_ids:
                        if session := self.door.agents.get(agent_id):
                            session.post(protocol.Dismiss(action.reason))

    def _ask_ended(self, ask: int, problem: str) -> None:
        """Process the end of an agent request."""
        failed = self._refuse(ask, problem)
        self.cancelled.discard(ask)
        self.carry_out(self.pool.ask_ended(ask, time.monotonic(), failed))

    def _slot_ended(self, ask: int, index: int, problem: str) -> None:
        """Process the end of one agent of a request."""
        slot = ask, index
        if slot in self.pool.expected:  # the end of a connected agent is reported by its connection
            failed = self._refuse(ask, problem)
            self.carry_out(self.pool.retired(slot, time.monotonic() if failed else None))

    def _refuse(self, ask: int, problem: str) -> bool:
        """Fail the runs that wait for their first agents if the problem is genuine; return True if it is.

        A request whose agents connected and were ended later, for instance by PySpark on Ctrl-C, is repeated instead.
        """
        failed = bool(problem) and ask not in self.cancelled and not self.pool.going.get(ask, False)
        for run in self._waiting() if failed else ():
            if run.gang.generation == 0:  # a group that has trained waits for agents until its deadline
                self.event(run.run_id, events.Refused(problem, "launcher"))
        return failed

    def _waiting(self) -> list[ActiveRun]:
        """Return the runs that wait for agents."""
        return [run for run in self.runs.values() if run.gang.phase is Phase.WAITING]

    def publish_waiting(self) -> None:
        """Publish what runs wait for; at each tick only, as there may be a thousand agents."""
        for run in self._waiting():
            if (text := waiting_text(run, self.pool)) != run.waits_for:
                run.waits_for = text
                run.state.publish(Change("phase", text=text))


@dataclass
class RunActions:
    """Executor of the actions of all runs' groups; used on the coordinator's event loop.

    Attributes:
        door: Server with the sessions of the agents.
        pool: State machine of the agents.
        runs: The runs that have begun and not ended, by id.
        backend: Source of agents.
        starter: Sends groups' members what they need to start.
        inspection: Pre-flight checks of slots.
        apply_pool: Carries out the actions of the pool.
        share: Distributes the slots again after the end of a run.
    """

    door: Sessions
    pool: Pool
    runs: dict[str, ActiveRun]
    backend: Backend
    starter: GroupStarter
    inspection: Inspection
    apply_pool: Callable[[list[PoolAction]], None]
    share: Callable[[], None]
    # losses of agents that ended runs, and whose reason is awaited
    unexplained: set[asyncio.Task[str]] = field(default_factory=set)

    def carry_out(self, run: ActiveRun, actions: list[events.Action]) -> None:
        """Carry out the actions of a run's group."""
        for action in actions:
            match action:
                case events.RequestAgents():
                    most = action.most if run.request.spec.group.changes else None
                    self.apply_pool(self.pool.demand(run.run_id, action.count, most, run.request.bare))
                case events.StartGeneration():
                    self.starter.start(run, action)
                case events.PrepareNewcomers():
                    self.starter.prepare(run, action)
                case events.PauseGroup():
                    self.starter.pause(run, action)
                case events.ReconfigureGroup():
                    self.starter.reconfigure_in_place(run, action)
                case events.StopWorkers():
                    limits = (action.grace_s, action.flush_s, action.keep, action.dump)
                    self._post(action.agent_ids, protocol.Stop(run.run_id, action.generation, *limits))
                case events.PauseWorkersAtCommit():
                    if run.request.spec.group.regroups:
                        run.state.publish(Change("note", text=f"the group changes at the next commit: {action.why}"))
                    self._post(action.agent_ids, protocol.PauseAtCommit(run.run_id, action.generation))
                case events.PersistCommit():
                    self._post((action.agent_id,), protocol.Persist(run.run_id))
                case events.DropAgents():
                    for session in self._sessions(action.agent_ids):
                        self.door.cut(session, action.reason)
                case events.ReturnAgents():
                    self._take_back(run, action)
                case events.Announce():
                    run.state.announce(action.kind, action.rank, action.text)
                case events.Note():
                    run.state.publish(Change("note", text=action.text))
                case events.ConcludeRun():
                    self._conclude(run, action)

    def _sessions(self, agent_ids: tuple[str, ...]) -> Iterator[AgentSession]:
        """Yield the sessions of those of the agents that are connected."""
        return (session for agent_id in agent_ids if (session := self.door.agents.get(agent_id)))

    def _post(self, agent_ids: tuple[str, ...], message: protocol.ToAgent) -> None:
        """Send a message to those of the agents that are connected."""
        for session in self._sessions(agent_ids):
            session.post(message)

    def _take_back(self, run: ActiveRun, action: events.ReturnAgents) -> None:
        """Take agents back from a run, and pool or dismiss them."""
        self.inspection.returned(action.agent_ids)
        for session in self._sessions(action.agent_ids):
            self._let_go(run, session)
        if action.leave:
            self.apply_pool(self.pool.dismiss(action.agent_ids, action.leave))
        else:
            self.apply_pool(self.pool.returned(action.agent_ids, time.monotonic()))

    def _let_go(self, run: ActiveRun, session: AgentSession) -> None:
        """Release an agent from this run."""
        session.work = None
        group = run.request.spec.group
        report_sidecar_end(run, session, "its agent has left the run")
        if group.changes or group.relaunches or run.request.spec.sidecar:
            session.post(protocol.Release(run.run_id))

    # ------------------------------------------------------------------------------------------ the end

    def _conclude(self, run: ActiveRun, outcome: events.ConcludeRun) -> None:
        """Remove a run that has ended, release its agents and report its end."""
        run_id = run.run_id
        del self.runs[run_id]
        for session in self.door.agents.values():  # agents that the group has not released
            if session.work is not None and session.work[0] == run_id:
                self._let_go(run, session)
        self.inspection.ended(run_id)
        # before its agent requests are removed
        missing = self._why_missing(run, outcome) if outcome.error == "start" else ""
        self.apply_pool(self.pool.withdraw(run_id, time.monotonic()))
        self.share()
        loss = run.losses.get(outcome.agent_id)
        if loss is None or outcome.error != "worker":
            _report_end(run, outcome, missing)
            return
        self.unexplained.add(loss)
        loss.add_done_callback(lambda done: self._report_explained_end(run, outcome, done))

    def _report_explained_end(self, run: ActiveRun, outcome: events.ConcludeRun, loss: asyncio.Task[str]) -> None:
        """Report the run's end, with the backend's reason for the loss of the responsible agent, if it is known."""
        self.unexplained.discard(loss)
        why = loss.result() if not loss.cancelled() else ""
        _report_end(run, replace(outcome, reason=f"{outcome.reason}. {why}") if why else outcome, "")

    def _why_missing(self, run: ActiveRun, outcome: events.ConcludeRun) -> str:
        """Return why agents of a run are missing; an error of the backend becomes part of the text."""
        try:
            return why_missing(run, outcome, self.pool, self.backend, self.runs)
        except Exception as error:
            log.exception("the reason for missing agents could not be determined")
            return f"the cluster gives no reason: {error}"

    # ------------------------------------------------------------------------------------------ messages to workers

    def send_to_worker(self, run_id: str, rank: int, data: bytes) -> None:
        """Send data to a worker; it is dropped if there is none."""
        if (found := self._worker(run_id, rank)) is not None:
            session, generation = found
            session.post(protocol.DriverMessage(run_id, generation, data))

    def request_stack_profile(self, run_id: str, rank: int, wish: protocol.TakeProfile) -> None:
        """Send a profile request to a worker, or publish that there is none."""
        if (found := self._worker(run_id, rank)) is not None:
            session, generation = found
            session.post(msgspec.structs.replace(wish, generation=generation))
        elif run_id in self.runs:
            problem = f"there is no worker of rank {rank} now; `hopsml runs status` lists the workers"
            self.runs[run_id].state.publish(Change("profile", rank, problem, data=wish.wish.encode()))

    def _worker(self, run_id: str, rank: int) -> tuple[AgentSession, int] | None:
        """Return the session of the agent that works as this rank of a run, and its generation; None if there is none."""
        run = self.runs.get(run_id)
        agent_id = run.gang.agent_of(rank) if run is not None else None
        session = self.door.agents.get(agent_id) if agent_id is not None else None
        if session is None or session.work is None or session.work[0] != run_id:
            return None
        return session, session.work[1]


def report_sidecar_end(run: ActiveRun, session: AgentSession, reason: str) -> None:
    """Report to the run's driver that a sidecar has ended with its agent, if the run has sidecars."""
    if run.request.spec.sidecar:
        run.request.on_sidecar(SidecarWord(session.agent_id, ended=reason))


def _report_end(run: ActiveRun, outcome: events.ConcludeRun, missing: str) -> None:
    """Report the run's end with its error."""
    failure = run.failures.get(outcome.agent_id)
    host = run.hosts.get(outcome.agent_id, "")
    error = error_of(outcome, run.state, run.request.run_url, failure, host, missing)
    run.state.conclude(error, run.result)
