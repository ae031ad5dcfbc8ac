"""Actions of the coordinator: what the state machines of pool and groups have decided becomes messages and calls.

Calls of the backend run on threads, as they may block; its state is polled for the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.active_run import ActiveRun, SidecarReport
from hopsml.cluster.driver.backends.base import Backend, EndWarning
from hopsml.cluster.driver.group_start import GroupStarter
from hopsml.cluster.driver.preflight.gate import Inspection
from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.driver.run_texts import error_of, waiting_text, why_missing
from hopsml.cluster.driver.sessions import AgentSession, Sessions
from hopsml.cluster.gang import events, pool
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.gang.pool import Action as PoolAction
from hopsml.cluster.gang.pool import Pool, SubmitAgentRequest
from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.worker_events import CHECKPOINTS, NEWEST_FILES
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.newer_python import asyncio_wait_for
from hopsml.storage import urls

log = nonblocking_logger("hopsml.coordinator")
Answer = TypeVar("Answer")

POLL_S = 0.25


class InterpreterEndedError(Exception):
    """Error raised when threads accept no calls any more, as the main thread has ended before ``close`` was called."""


class BackendWatcher:
    """Backend as the coordinator sees it: no call blocks the event loop, on which all methods are called."""

    def __init__(
        self,
        backend: Backend,
        loop: asyncio.AbstractEventLoop,
        agents: Mapping[str, AgentSession],
        pool: Pool,
        runs: Mapping[str, ActiveRun],
    ) -> None:
        """Prepare the watcher; ``agents``, ``pool`` and ``runs`` are the coordinator's."""
        self._backend, self._loop = backend, loop
        self._agents, self._pool, self._runs = agents, pool, runs
        self._agent_lost = asyncio.Event()
        self.is_contended = False  # another job of the application finds no free slot
        self.other_work = ""  # work of the application that holds slots while a run waits for some

    async def watch_availability(self, refuse: Callable[[str], None]) -> None:
        """Poll the backend's state, and at once when an agent is lost, as the backend's end may be the cause.

        This runs as a separate task, not among the timers: a JVM that does not respond must not delay leases and
        deadlines.

        Args:
            refuse: Called with the reason while the backend is not available.
        """
        while True:
            self._agent_lost.clear()
            try:
                gone = await self._on_thread(self._backend.why_unavailable) if self._runs else ""
            except InterpreterEndedError:
                return
            except Exception:
                log.exception("the state of the application could not be determined")
                gone = ""
            if gone:
                refuse(gone)
            with contextlib.suppress(TimeoutError):
                await asyncio_wait_for(self._agent_lost.wait(), POLL_S)

    async def watch_executors(self, drain: Callable[[AgentSession, str, float | None], None]) -> None:
        """Poll for other jobs that wait for idle slots, and for executors that end; the calls are slow.

        Args:
            drain: Called with an agent whose executor ends, the reason, and the seconds that remain.
        """
        while True:
            idle = bool(self._pool.agents.idle_count)
            tasks = frozenset(session.hello.task for session in self._agents.values() if not session.leaving)
            going: dict[int, EndWarning] = {}
            try:
                self.is_contended = False
                if tasks or self._runs:
                    waits = any(run.gang.phase is Phase.WAITING for run in self._runs.values())
                    polled = await self._on_thread(self._poll_backend, idle, waits, tasks)
                    self.is_contended, self.other_work, going = polled
            except InterpreterEndedError:
                return
            except Exception:
                log.exception("the executors that are being decommissioned could not be determined")
            for session in list(self._agents.values()):
                if reason := going.get(session.hello.task):
                    drain(session, reason.text, reason.time_s)
            await asyncio.sleep(POLL_S)

    def _poll_backend(self, idle: bool, waits: bool, tasks: frozenset[int]) -> tuple[bool, str, dict[int, EndWarning]]:
        """Return the state of the backend; may block.

        Args:
            idle: True if agents are idle.
            waits: True if a run waits for agents.
            tasks: Tasks of all agents.

        Returns:
            True if other jobs wait for idle slots; what holds the slots that a run waits for; the executors that are
            about to end.
        """
        other_work = self._backend.other_work() if waits else ""
        return idle and self._backend.is_contended(), other_work, self._backend.leaving_tasks(tasks)

    # ------------------------------------------------------------------------------------------ lost agents

    def agent_lost(self, session: AgentSession) -> None:
        """Poll the backend's state now; end the task of an agent that was cut, which would hold its slot for ever."""
        self._agent_lost.set()
        if session.was_cut:
            self._start(self._backend.evict, session.hello.task, session.hello.pid)

    async def publish_loss_reason(self, run: ActiveRun, session: AgentSession) -> str:
        """Publish the backend's reason why an agent of the run was lost as a note of the run, and return it."""
        rank = run.gang.rank(session.agent_id)
        try:
            why = await self._on_thread(self._backend.why_lost, session.hello.task, session.hello.pid)
        except InterpreterEndedError:
            return ""
        except Exception:
            log.exception("the backend's reason for the loss of an agent could not be read")
            return ""
        if why:
            who = f"rank {rank}" if rank >= 0 else "an agent"
            run.state.publish(Change("note", rank, f"{who} on {session.hello.place} was lost: {why}"))
        return why

    # ------------------------------------------------------------------------------------------ agent requests

    def submit(
        self,
        requests: list[tuple[Bootstrap, int]],
        ended: Callable[[int, str], None],
        slot_ended: Callable[[int, int, str], None],
    ) -> None:
        """Submit agent requests one after the other, as their order may matter to the cluster.

        Args:
            requests: Data that the agents of each request need to connect, and their number.
            ended: Called with the number of a request that has ended, and its problem or "".
            slot_ended: The same for one agent of a request, with its index.
        """

        def on_loop(function: Callable[..., None], *arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # the coordinator is closed, so no run waits for agents
                self._loop.call_soon_threadsafe(function, *arguments)

        def in_order() -> None:
            for bootstrap, count in requests:
                self._submit_one(bootstrap, count, *(functools.partial(on_loop, told) for told in (ended, slot_ended)))

        self._start(in_order)

    def _submit_one(
        self, bootstrap: Bootstrap, count: int, ended: Callable[..., None], slot_ended: Callable[..., None]
    ) -> None:
        """Submit an agent request, on a thread that may block."""
        try:
            self._backend.submit(bootstrap, count, ended, slot_ended)
        except Exception as error:  # noqa: BLE001 any error of Spark is reported by the waiting runs
            ended(bootstrap.request_id, f"{type(error).__name__}: {error}")

    def cancel(self, request_id: int) -> None:
        """Withdraw an agent request."""
        self._start(self._backend.cancel, request_id)

    # ------------------------------------------------------------------------------------------ threads

    async def _on_thread(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        """Call a function that may block on another thread and return its result; may raise InterpreterEnds."""
        try:
            answer = self._loop.run_in_executor(None, function, *arguments)
        except RuntimeError as error:  # concurrent.futures is closed before functions registered with atexit are called
            raise InterpreterEndedError from error
        return await answer

    def _start(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on another thread without waiting for it.

        It is not called if the interpreter is ending: ``Coordinator.close`` releases everything then.
        """
        with contextlib.suppress(RuntimeError):
            self._loop.run_in_executor(None, function, *arguments)


@dataclass
class PoolActionRunner:
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
    bootstrap: Callable[[SubmitAgentRequest], Bootstrap]
    event: Callable[[str, events.Event], None]
    granted: Callable[[str, tuple[str, ...]], None]
    cancelled: set[int] = field(default_factory=set)

    def carry_out(self, actions: list[PoolAction]) -> None:
        """Carry out the actions of the pool."""
        if requests := [action for action in actions if isinstance(action, pool.SubmitAgentRequest)]:
            self.watcher.submit(
                [(self.bootstrap(action), action.count) for action in requests],
                self._request_ended,
                self._slot_ended,
            )
        for action in actions:
            match action:
                case pool.Grant():
                    if action.run_id in self.runs:
                        self.granted(action.run_id, action.agent_ids)
                    else:  # it ended while the actions before this one were carried out
                        self.carry_out(self.pool.take_back_agents(action.agent_ids, time.monotonic()))
                case pool.CancelAgentRequest():
                    self.cancelled.add(action.request_id)
                    self.watcher.cancel(action.request_id)
                case pool.DismissAgents():
                    for agent_id in action.agent_ids:
                        if session := self.door.agents.get(agent_id):
                            session.post(protocol.Dismiss(action.reason))

    def _request_ended(self, request_id: int, problem: str) -> None:
        """Process the end of an agent request."""
        failed = self._refuse(request_id, problem)
        self.cancelled.discard(request_id)
        self.carry_out(self.pool.request_ended(request_id, time.monotonic(), failed))

    def _slot_ended(self, request_id: int, index: int, problem: str) -> None:
        """Process the end of one agent of a request."""
        slot = request_id, index
        self.pool.close_slot(slot)
        if slot in self.pool.expected:  # the end of a connected agent is reported by its connection
            failed = self._refuse(request_id, problem)
            self.carry_out(self.pool.retire_slot(slot, time.monotonic() if failed else None))

    def _refuse(self, request_id: int, problem: str) -> bool:
        """Fail the runs that wait for their first agents if the problem is genuine; return True if it is.

        A request whose agents connected and were ended later, for instance by PySpark on Ctrl-C, is repeated instead.
        """
        failed = bool(problem) and request_id not in self.cancelled and not self.pool.going.get(request_id, False)
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
            if (text := waiting_text(run, self.pool, self.watcher.other_work)) != run.waits_for:
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
                    self.apply_pool(self.pool.add_run(run.run_id, action.count, most, run.request.bare))
                case events.StartGeneration():
                    if run.request.spec.group.regroups:
                        step = action.step if action.step >= 0 else action.stored
                        run.state.losses.record_restart(len(action.agent_ids), step)
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
                    self._note_unstored_of(run, action)
                    for session in self._sessions(action.agent_ids):
                        self.door.abort_session(session, action.reason)
                case events.ReturnAgents():
                    self._take_back(run, action)
                case events.Announce():
                    run.state.publish_member_change(action.kind, action.rank, action.text)
                case events.Note():
                    run.state.losses.record_lost(action.lost, action.step, action.restarts)
                    run.state.losses.record_joined(action.joined, action.step)
                    run.state.publish(Change("note", text=action.text))
                case events.Unstored():
                    run.state.publish(Change("note", text=action.text))
                    if action.is_checkpoint or _is_mirrored(run):
                        name = CHECKPOINTS if action.is_checkpoint else NEWEST_FILES
                        run.state.add_unstored(action.rank, f"{name}: {action.text}")
                case events.ConcludeRun():
                    self._conclude(run, action)

    def _note_unstored_of(self, run: ActiveRun, action: events.DropAgents) -> None:
        """Record that the last files of these agents may be missing, if the run has finished."""
        outcome, is_of_lanes = run.gang.outcome, not run.request.spec.group.collective
        if outcome is None or outcome.phase is not Phase.FINISHED or not _is_mirrored(run):
            return
        for agent_id in action.agent_ids:
            if is_of_lanes or agent_id in run.gang.members:
                run.state.add_unstored(run.gang.rank(agent_id), f"{NEWEST_FILES}: its agent {action.reason}")

    def _sessions(self, agent_ids: tuple[str, ...]) -> Iterator[AgentSession]:
        """Yield the sessions of those of the agents that are connected."""
        return (session for agent_id in agent_ids if (session := self.door.agents.get(agent_id)))

    def _post(self, agent_ids: tuple[str, ...], message: protocol.ToAgent) -> None:
        """Send a message to those of the agents that are connected."""
        for session in self._sessions(agent_ids):
            session.post(message)

    def _take_back(self, run: ActiveRun, action: events.ReturnAgents) -> None:
        """Take agents back from a run, and pool or dismiss them."""
        self.inspection.remove_agents(action.agent_ids)
        for session in self._sessions(action.agent_ids):
            self._let_go(run, session)
        if action.leave:
            self.apply_pool(self.pool.dismiss(action.agent_ids, action.leave))
        else:
            self.apply_pool(self.pool.take_back_agents(action.agent_ids, time.monotonic()))

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
        self.inspection.remove_run(run_id)
        # before its agent requests are removed
        missing = self._why_missing(run, outcome) if outcome.error == "start" else ""
        self.apply_pool(self.pool.remove_run(run_id, time.monotonic()))
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


def _is_mirrored(run: ActiveRun) -> bool:
    """Return True if agents copy files to the run's store; otherwise workers have written them there."""
    return not urls.is_local(run.request.run_url)


def report_sidecar_end(run: ActiveRun, session: AgentSession, reason: str) -> None:
    """Report to the run's driver that a sidecar has ended with its agent, if the run has sidecars."""
    if run.request.spec.sidecar:
        run.request.on_sidecar(SidecarReport(session.agent_id, ended=reason))


def _report_end(run: ActiveRun, outcome: events.ConcludeRun, missing: str) -> None:
    """Report the run's end with its error."""
    failure = run.failures.get(outcome.agent_id)
    host = run.hosts.get(outcome.agent_id, "")
    error = error_of(outcome, run.state, run.request.run_url, failure, host, missing)
    run.state.conclude(error, run.result)
