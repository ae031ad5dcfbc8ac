"""Coordinator thread of the driver, which executes the decisions of the group and pool state machines.

It converts messages to events; ``actions.py`` converts actions to messages and calls the backend, and ``sessions.py``
manages the connections. A message about a run or a generation that is not its sender's is refused and
counted.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import uvloop

from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver import group_start
from hopsml.cluster.driver.actions import BackendWatcher, PoolActionRunner, RunActions, report_sidecar_end
from hopsml.cluster.driver.active_run import ActiveRun, RunRequest, SidecarReport, SlotShares
from hopsml.cluster.driver.backends.base import Backend
from hopsml.cluster.driver.group_start import GroupStarter, has_imported_modules
from hopsml.cluster.driver.preflight.gate import Inspection
from hopsml.cluster.driver.run_state import Change, RunState
from hopsml.cluster.driver.sessions import AgentSession, Sessions
from hopsml.cluster.forking.zygote import ZygoteProcess
from hopsml.cluster.gang import events, pool
from hopsml.cluster.shared import protocol, worker_events
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.newer_python import FUTURE_TIMEOUTS, AsyncioRunner, asyncio_wait_for
from hopsml.errors import CoordinatorLost

log = nonblocking_logger("hopsml.coordinator")
Answer = TypeVar("Answer")

TICK_S = 0.25
RENEW_S = 1.0
LINGER_S = 2.0  # after the last agent has disconnected
STANDSTILL_S = 3.0  # agents send a message every second
CATCH_UP_S = 0.1  # for reading messages and closed connections that have accumulated
ANSWER_S = 5.0  # in which its loop certainly responds to another thread
ENDING_S = 2.0  # the same after leases may have expired: agents check once a second, and take a while to end


class Coordinator:
    """Coordinator of the agents and runs of one application, with an event loop on another thread.

    Methods from ``start`` to ``close`` may be called from any thread; those of ``sessions.Listener`` are called on the
    event loop.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        keep_warm_s: float = 10.0,
        lease_s: float = 10.0,
        port_range: tuple[int, int] | None = None,
        sys_path: tuple[str, ...] = (),
        zygote: ZygoteProcess | None = None,
        allowed: int | None = None,
        has_tokens: bool = False,
    ) -> None:
        """Prepare the coordinator; ``start`` starts its thread.

        Args:
            backend: Source of agents.
            keep_warm_s: Seconds for which an agent without a run is retained.
            lease_s: Seconds without a message from the coordinator after which an agent ends.
            port_range: First and last port that may be used; None: any free port.
            sys_path: Entries of the driver's module path for the agents' processes.
            zygote: Process from which fork servers of agents on this machine are forked; closed with the coordinator.
            allowed: Limit as in ``limit_slots``; None: no limit.
            has_tokens: True if ``give_tokens`` will be called: agents then have token files of their own.
        """
        self.backend, self.lease_s, self.port_range = backend, lease_s, port_range
        self.sys_path, self.zygote, self.has_tokens = sys_path, zygote, has_tokens
        self.door = Sessions(self, lease_s)
        self._former = GroupStarter(self.door.agents, self._event)
        self.pool = pool.Pool(keep_warm_s=keep_warm_s, singly=backend.grows, limit=allowed)
        self.runs: dict[str, ActiveRun] = {}
        self._runner = AsyncioRunner(loop_factory=uvloop.new_event_loop)
        self._loop = self._runner.get_loop()
        self._watcher = BackendWatcher(backend, self._loop, self.door.agents, self.pool, self.runs)
        self._requests = PoolActionRunner(
            self.door, self.pool, self.runs, self._watcher, self._bootstrap, self._event, self._granted
        )
        self._pool = self._requests.carry_out
        self.inspection = Inspection(
            self.door.agents, self.runs, self.pool, self._pool, self._former.assign_agents, self._event
        )
        self.addresses: tuple[tuple[str, int], ...] = ()
        self._shares = SlotShares(self.runs, allowed)
        self._actions = RunActions(
            self.door, self.pool, self.runs, backend, self._former, self.inspection, self._pool, self._share
        )
        self._idle_since: float | None = None
        self._gate = threading.Lock()  # a launch and the decision to close when idle exclude each other
        self._launched = 0  # runs that callers have handed over
        self._begun = 0
        self._holders = 0  # contexts of ``held_open``
        self._ticked = math.inf  # time of the loop's last tick
        self._caught_up_at = 0.0  # until then the losses of agents during a standstill may be unknown
        self._preload: tuple[str, ...] = ()
        self._closing = asyncio.Event()
        self._ready = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run_loop, name="hopsml-coordinator", daemon=True)

    # ------------------------------------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Start the thread and open the server.

        Raises:
            OSError: No port is available.
        """
        self._thread.start()
        self._ready.wait()
        if self._problem is not None:
            raise self._problem

    @property
    def is_alive(self) -> bool:
        """True if runs can still be launched."""
        return self._thread.is_alive() and not self._closing.is_set()

    def start_run(self, request: RunRequest, observe: Callable[[RunState], object] = lambda state: None) -> RunState:
        """Start a run and return its state at once.

        Args:
            request: The run.
            observe: Called with the state before anything happens, so that an observer added then misses nothing.

        Returns:
            The state, which the coordinator's thread updates.

        Raises:
            CoordinatorLost: The coordinator is closed.
        """
        state = RunState(request.run_id, request.spec.group.size)
        if self.is_alive:
            observe(state)
        with self._gate:
            if not self.is_alive:
                raise CoordinatorLost("the coordinator of this application is closed; start the run again")
            self._call(self._begin, request, state)
            self._launched += 1
        return state

    def resize(self, run_id: str, size: int) -> None:
        """Set the largest number of workers of a run whose group may change; it applies from the next commit or pause."""
        self._call(self._resize, run_id, size)

    def limit_slots(self, slots: int) -> None:
        """Limit all runs together to this number of workers, whatever they request, until the next call."""
        self._call(self._allow, slots)

    def dismiss_surplus_agents(self, slots: int) -> int:
        """Dismiss idle agents beyond ``slots``, and return how many agents exist or may still connect.

        Raises:
            CoordinatorLost: It does not respond.
        """
        answer: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._call(self._hold, slots, answer)
        try:
            return answer.result(ANSWER_S)
        except FUTURE_TIMEOUTS:
            raise CoordinatorLost(f"the coordinator has not answered within {ANSWER_S:g} s") from None

    def send_to_worker(self, run_id: str, rank: int, data: bytes) -> None:
        """Send ``data`` to the worker of the rank; it is dropped if there is none."""
        self._call(self._actions.send_to_worker, run_id, rank, data)

    def request_stack_profile(self, run_id: str, rank: int, wish: protocol.TakeProfile) -> None:
        """Request a profile of the worker of the rank; a change ``profile`` of the run reports the result."""
        self._call(self._actions.request_stack_profile, run_id, rank, wish)

    def release(self, run_id: str, rank: int, at_once: bool = False) -> None:
        """End an independent worker and release its agent to the pool.

        Args:
            run_id: The run.
            rank: The worker's number.
            at_once: Stop it at once instead of after its present trial.
        """
        self._call(self._event, run_id, events.ReleaseRequested(rank, at_once))

    def complete(self, run_id: str, reason: str, result: bytes = b"") -> None:
        """End a run of independent members as FINISHED because its work is done; ``result``: its pickled value."""
        self._call(self._complete, run_id, reason, result)

    def cancel(self, run_id: str, reason: str) -> None:
        """Request the cancellation of a run; returns at once, and the run's state reports its end."""
        self._call(self._event, run_id, events.CancelRequested(reason))

    def fail(self, run_id: str, reason: str) -> None:
        """End a run as FAILED because the driver cannot provide what it needs; returns at once."""
        self._call(self._event, run_id, events.Refused(reason, "driver"))

    def give_tokens(self, tokens: protocol.DelegationTokens) -> None:
        """Send delegation tokens to all agents, now and to those that join later; returns at once."""
        self._call(self.door.give_tokens, tokens)

    def note(self, text: str) -> None:
        """Report a text to the users of all present runs; returns at once."""
        self._call(self._note, text)

    def dismiss_idle(self, reason: str) -> None:
        """Dismiss the agents that no run holds; returns at once."""
        self._call(lambda: self._pool(self.pool.dismiss(tuple(self.pool.idle()), reason)))

    @contextlib.contextmanager
    def held_open(self) -> Iterator[None]:
        """Context in which the coordinator does not close for idleness: its application starts, or launches a run."""
        with self._gate:
            self._holders += 1
        try:
            yield
        finally:
            with self._gate:
                self._holders -= 1

    def close(self, timeout_s: float = 15.0) -> None:
        """End all runs, dismiss all agents, and close server and thread; waits at most ``timeout_s`` seconds."""
        if self._thread.is_alive():
            self._call(self._closing.set)
            self._thread.join(timeout_s)
        self.backend.close()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function on the event loop, from any thread."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:
            raise CoordinatorLost("the coordinator of this application is closed; start the run again") from error

    # ------------------------------------------------------------------------------------------ the loop

    def _run_loop(self) -> None:
        """Run the event loop until the coordinator is closed; an error ends all runs."""
        self._loop.set_exception_handler(_log_aside)
        try:
            # A fresh context: in that of the caller, a notebook's output would go to the cell of its first run for
            # ever.
            self._runner.run(self._serve(), context=contextvars.Context())
        except BaseException as error:  # noqa: BLE001 passed to start(), or to the runs
            self._problem = error
            for run in self.runs.values():
                if not run.state.is_over:
                    run.state.conclude(CoordinatorLost(f"the coordinator failed: {error!r}"), b"")
        finally:
            self._ready.set()
            if self.zygote is not None:
                self.zygote.close()
            # Pending connections are refused. Since Python 3.12 no thread can be started at interpreter shutdown; the
            # loop is closed nevertheless, without waiting for its executor.
            with contextlib.suppress(RuntimeError):
                self._runner.close()

    async def _serve(self) -> None:
        """Open the server and work until the coordinator is closed."""
        bind, advertised = await asyncio.to_thread(self.backend.addresses)
        port = await self.door.open(bind, self.port_range)
        try:
            self.addresses = tuple((host, port) for host in advertised)
            self._ready.set()
            watches = [
                asyncio.create_task(self._watcher.watch_availability(self._refuse_all)),
                asyncio.create_task(self._watcher.watch_executors(self._drain)),
            ]
            await self._keep_time()
            for watch in watches:
                watch.cancel()
            await self._wind_up()
        finally:
            await self.door.close()

    async def _keep_time(self) -> None:
        """Run the timers of runs, leases, pre-flight checks and pool until the coordinator is closed."""
        renewed = 0.0
        while not self._closing.is_set():
            now = time.monotonic()
            self._note_standstill(now)
            for run_id in list(self.runs):
                self._event(run_id, events.Tick())
            if now - renewed >= RENEW_S:
                renewed = now
                self.door.renew_leases()
                if self.zygote is not None and (problem := self.zygote.check_health()):
                    self._note(problem)
            self.inspection.tick()
            self._pool(self.pool.tick(time.monotonic(), self._watcher.is_contended))
            self._requests.publish_waiting()
            self._close_when_idle()
            try:
                await asyncio_wait_for(self._closing.wait(), TICK_S)
            except TimeoutError:
                pass

    def _close_when_idle(self) -> None:
        """End the thread, and with it port and certificate, after ``LINGER_S`` seconds without a run and an agent."""
        now = time.monotonic()
        if self._holders or self.runs or self.door.agents or self.pool.expected or self._actions.unexplained:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > LINGER_S:
            with self._gate:
                if self._launched == self._begun and not self._holders:  # else another thread has just launched a run
                    self._closing.set()

    async def _wind_up(self) -> None:
        """Cancel all runs and dismiss all agents, within ten seconds."""
        for run_id in list(self.runs):
            self._event(run_id, events.CancelRequested("the application ends"))
        deadline = time.monotonic() + 10
        while self.runs and time.monotonic() < deadline:
            for run_id in list(self.runs):
                self._event(run_id, events.Tick())
            await asyncio.sleep(0.05)
        for session in self.door.agents.values():
            session.post(protocol.Dismiss("the application ends"))
        while self.door.agents and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    # ------------------------------------------------------------------------------------------ reports of the server

    def session_started(self, session: AgentSession) -> None:
        """Add a new agent to the pool, or dismiss it if the application ends or its slot is given up."""
        if self._closing.is_set():  # it connected while the others were being dismissed
            session.post(protocol.Dismiss("the application ends"))
            return
        slot = (session.hello.request_id, session.hello.index)
        if session.hello.final:
            session.post(protocol.Dismiss("its slot was lost too often, and another one is requested"))
            self._pool(self.pool.retire_slot(slot))
            return
        self._pool(self.pool.add_agent(session.agent_id, slot, session.hello.executor_id, time.monotonic()))

    def session_ended(self, session: AgentSession, reason: str) -> None:
        """Report a lost agent to its run, its slot's pre-flight check and the pool; see ``sessions.Listener``."""
        # The pool comes first: what the group requests because of this loss must not be met with the lost agent.
        self.pool.remove_agent(session.agent_id, self.backend.restarts_agents and not self._closing.is_set())
        self.inspection.agent_left(session.agent_id)
        if session.work is not None:
            place = f"the agent on {session.hello.place} (executor {session.hello.executor_id}) was lost: {reason}"
            if run := self.runs.get(session.work[0]):
                report_sidecar_end(run, session, place)
                if not session.was_cut and not self._closing.is_set():
                    run.losses[session.agent_id] = self._loop.create_task(
                        self._watcher.publish_loss_reason(run, session)
                    )
            self._event(session.work[0], events.MemberLost(session.agent_id, place))
        self._watcher.agent_lost(session)
        self._pool(self.pool.grant_idle_agents())

    def silence_timeout_s(self, session: AgentSession) -> float:
        """Return the seconds without a message after which an agent counts as lost.

        A group that continues without lost members may set a shorter limit than the lease.
        """
        run = self.runs.get(session.work[0]) if session.work is not None else None
        silence_s = run.request.spec.group.silence_timeout_s if run is not None else None
        return self.lease_s if silence_s is None else silence_s

    def message_received(self, session: AgentSession, message: protocol.ToCoordinator) -> None:
        """Process an agent's message; see ``sessions.Listener``."""
        match message:
            case protocol.Heartbeat():
                return
            case protocol.ForkServerReady():
                session.modules = frozenset(message.modules)
                run = self.runs.get(session.work[0]) if session.work is not None else None
                if run is not None and has_imported_modules(session, run):
                    self._event(run.run_id, events.Ready(session.agent_id))
                return
            case protocol.PortsHeld():
                session.ports = message
                return
            case protocol.CommitServerReady():
                session.commit_door = (message.port, message.certificate)
                return
            case protocol.SidecarMessage():
                self._sidecar(session, message.run_id, SidecarReport(session.agent_id, message.data))
                return
            case protocol.SidecarEnded():
                sidecar_message = SidecarReport(session.agent_id, ended=message.reason, is_final=message.is_final)
                self._sidecar(session, message.run_id, sidecar_message)
                return
            case protocol.PreflightFacts() | protocol.PeerProbed():
                self.inspection.message_received(session, message)
                return
            case protocol.Draining():
                self._drain(session, message.reason, message.time_s)
                return
            case protocol.Persisted():
                self._persisted(session, message)
                return
            case protocol.WorkerUpdate():
                self._worker_update(session, message)
            case protocol.Hello():
                raise msgspec.DecodeError("a second hello")

    def _worker_update(self, session: AgentSession, message: protocol.WorkerUpdate) -> None:
        """Process an event of a worker, unless it is of another run or generation than its sender's."""
        key = (message.run_id, message.generation)
        run = self.runs.get(message.run_id)
        works_for_it = session.work is not None and session.work[0] == message.run_id
        if run is None or not works_for_it or not run.gang.is_current(session.agent_id, message.generation):
            self.door.record_refusal(
                "generation",
                f"{session.agent_id} sent a message about run {key[0]}, generation {key[1]}, of which "
                "it is not a member",
            )
            return
        event = group_start.apply(run, session.agent_id, message)
        if isinstance(message.event, worker_events.LogLines) and message.event.size:
            session.post(protocol.LogTaken(*key, message.event.size))
        if event is not None:
            self._event(message.run_id, event)

    def _sidecar(self, session: AgentSession, run_id: str, sidecar_message: SidecarReport) -> None:
        """Pass a sidecar's message to its run's driver, unless the agent has left the run."""
        run = self.runs.get(run_id)
        if run is not None and session.work is not None and session.work[0] == run_id:
            run.request.on_sidecar(sidecar_message)

    # ------------------------------------------------------------------------------------------ runs

    def _begin(self, request: RunRequest, state: RunState) -> None:
        """Start a run.

        After a standstill of this interpreter it is started a little later, as some agents may have ended.
        """
        now = time.monotonic()
        self._note_standstill(now)
        if now < self._caught_up_at and self.door.agents:
            self._loop.call_later(self._caught_up_at - now, self._begin_now, request, state)
        else:
            self._begin_now(request, state)

    def _note_standstill(self, now: float) -> None:
        """Detect a standstill of this interpreter, when a run is started or at a tick, whichever is first.

        Messages do not reveal it: those from before it are read after it.
        """
        stood_s, self._ticked = now - self._ticked, now
        if stood_s > STANDSTILL_S:
            self._caught_up_at = now + (CATCH_UP_S if stood_s < self.lease_s - RENEW_S else ENDING_S)

    def _begin_now(self, request: RunRequest, state: RunState) -> None:
        """Start a run: create its group state machine and request agents."""
        self._begun += 1
        if request.run_id in self.runs:  # projects of one application number their runs independently
            where = self.runs[request.run_id].request.run_url
            problem = f"a run with the id {request.run_id} is already running in {where}; wait for its end"
            state.conclude(CoordinatorLost(problem, request.run_url), b"")
            return
        run = ActiveRun(request, state, allowed=self._shares.share_of_newcomer(request))
        self.runs[request.run_id] = run
        self._preload = request.spec.modules
        self.inspection.add_run(request)
        now = time.monotonic()
        actions = run.gang.begin(now)
        run.log.add(now, None, actions)
        self._actions.carry_out(run, actions)
        self._share()
        self._requests.publish_waiting()

    def _granted(self, run_id: str, agent_ids: tuple[str, ...]) -> None:
        """Begin the pre-flight check of agents that the pool has granted to a run."""
        self.inspection.check_granted(run_id, agent_ids)

    def _note(self, text: str) -> None:
        """Report a text as a change of every run."""
        for run in self.runs.values():
            run.state.publish(Change("note", text=text))

    def _refuse_all(self, reason: str) -> None:
        """End all runs, as the backend is not available."""
        for run_id in list(self.runs):
            self._event(run_id, events.Refused(reason, "application"))

    def _resize(self, run_id: str, size: int) -> None:
        """Apply a new size, within the limit of all runs, to a run."""
        if run := self.runs.get(run_id):
            run.wanted_size = size
            self._event(run_id, events.ResizeRequested(run.size))

    def _allow(self, slots: int) -> None:
        """Apply a new limit of all runs together."""
        self._shares.allowed = slots
        self._pool(self.pool.limit_agents(slots))
        self._share()

    def _share(self) -> None:
        """Apply the runs' shares of the allowed slots."""
        self._shares.distribute(lambda run: self._event(run.run_id, events.ResizeRequested(run.size)))

    def _hold(self, slots: int, answer: concurrent.futures.Future[int]) -> None:
        """Count agents for ``dismiss_surplus_agents``, and dismiss idle ones beyond ``slots``."""
        # Each cancelled agent request counts as one agent: one of its agents may still exist.
        held = len(self.door.agents) + len(self.pool.expected) + len(self._requests.cancelled)
        if held > slots and (idle := tuple(self.pool.idle())):
            self._pool(self.pool.dismiss(idle, "its slot was granted to another job"))
        answer.set_result(held)

    def _event(self, run_id: str, event: events.Event) -> None:
        """Pass an event to a run's group, and carry out the actions."""
        run = self.runs.get(run_id)
        if run is None:
            return
        before, now = run.gang.phase, time.monotonic()
        actions = run.gang.handle(event, now)
        run.log.add(now, event, actions)
        if run.gang.phase is not before:
            run.state.phase, run.waits_for = run.gang.phase, ""
            if not run.gang.phase.is_final:
                run.state.publish(Change("phase", text=run.gang.phase.value))
        self._actions.carry_out(run, actions)

    def _complete(self, run_id: str, reason: str, result: bytes) -> None:
        """End a run of independent members as finished."""
        if run := self.runs.get(run_id):
            run.result = result
            self._event(run_id, events.CancelRequested(reason, complete=True))

    def _persisted(self, session: AgentSession, message: protocol.Persisted) -> None:
        """Record a checkpoint of an agent that the run holds, whatever the generation of its commit."""
        run = self.runs.get(message.run_id)
        if run is None or session.work is None or session.work[0] != message.run_id:
            return
        event = group_start.apply_persisted(run, session.agent_id, message)
        if event is not None:
            self._event(message.run_id, event)

    def _drain(self, session: AgentSession, reason: str, time_s: float | None) -> None:
        """Start the departure of an agent whose node leaves in ``time_s`` seconds, once for each agent.

        It leaves its group before that, or is dismissed at once if it has none.
        """
        if session.leaving:
            return
        session.leaving = reason
        run = self.runs.get(session.work[0]) if session.work is not None else None
        if run is None:
            self._pool(self.pool.dismiss((session.agent_id,), reason))
        else:
            self.pool.mark_leaving(session.agent_id, reason)
            self._event(run.run_id, events.DrainRequested(session.agent_id, reason, time_s))
            self._pool(self.pool.grant_idle_agents())

    def _bootstrap(self, action: pool.SubmitAgentRequest) -> Bootstrap:
        """Return the data that the agents of a request need to connect."""
        return Bootstrap(
            request_id=action.request_id,
            addresses=self.addresses,
            token=self.door.token,
            certificate=self.door.identity.certificate,
            preload=self._preload,
            lease_s=self.lease_s,
            sys_path=self.sys_path,
            port_range=self.port_range,
            gpus=0 if action.bare else self.backend.gpus_per_agent,
            bare=action.bare,
            cores=self.backend.cores_per_agent,
            zygote=self.zygote.name if self.zygote is not None else "",
            zygote_modules=self.zygote.modules if self.zygote is not None else (),
            has_tokens=self.has_tokens,
        )


def _log_aside(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an uncaught error of the loop without waiting for the log's reader, which asyncio would do."""
    log.error("%s", context.get("message", "an error in the coordinator's loop"), exc_info=context.get("exception"))
