"""Calls of the backend on threads, as they may block, and polling of its state for the coordinator's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import TypeVar

from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.active_run import ActiveRun
from hopsml.cluster.driver.backends.base import Backend, Warned
from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.driver.sessions import AgentSession
from hopsml.cluster.gang.pool import Pool
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.newer_python import asyncio_wait_for

log = nonblocking_logger("hopsml.coordinator")
Answer = TypeVar("Answer")

POLL_S = 0.25


class InterpreterEnds(Exception):
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
        self.others_wait = False  # another job of the application finds no free slot

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
            except InterpreterEnds:
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
            going: dict[int, Warned] = {}
            try:
                self.others_wait = False
                if tasks or self._runs:
                    self.others_wait, going = await self._on_thread(self._look, idle, tasks)
            except InterpreterEnds:
                return
            except Exception:
                log.exception("the executors that are being decommissioned could not be determined")
            for session in list(self._agents.values()):
                if reason := going.get(session.hello.task):
                    drain(session, reason.text, reason.time_s)
            await asyncio.sleep(POLL_S)

    def _look(self, idle: bool, tasks: frozenset[int]) -> tuple[bool, dict[int, Warned]]:
        """Return whether other jobs wait for idle slots, and the executors that are about to end; may block."""
        return idle and self._backend.others_wait(), self._backend.leaving(tasks)

    # ------------------------------------------------------------------------------------------ lost agents

    def agent_lost(self, session: AgentSession) -> None:
        """Poll the backend's state now; end the task of an agent that was cut, which would hold its slot for ever."""
        self._agent_lost.set()
        if session.was_cut:
            self._start(self._backend.evict, session.hello.task, session.hello.pid)

    async def explain_loss(self, run: ActiveRun, session: AgentSession) -> str:
        """Return the backend's reason why an agent of the run was lost; publish it as a note of the run."""
        rank = run.gang.rank(session.agent_id)
        try:
            why = await self._on_thread(self._backend.why_lost, session.hello.task, session.hello.pid)
        except InterpreterEnds:
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
        asks: list[tuple[Bootstrap, int]],
        ended: Callable[[int, str], None],
        slot_ended: Callable[[int, int, str], None],
    ) -> None:
        """Submit agent requests one after the other, as their order may matter to the cluster.

        Args:
            asks: Data that the agents of each request need to connect, and their number.
            ended: Called with the number of a request that has ended, and its problem or "".
            slot_ended: The same for one agent of a request, with its index.
        """

        def on_loop(function: Callable[..., None], *arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # the coordinator is closed, so no run waits for agents
                self._loop.call_soon_threadsafe(function, *arguments)

        def in_order() -> None:
            for bootstrap, count in asks:
                self._submit_one(bootstrap, count, *(functools.partial(on_loop, told) for told in (ended, slot_ended)))

        self._start(in_order)

    def _submit_one(
        self, bootstrap: Bootstrap, count: int, ended: Callable[..., None], slot_ended: Callable[..., None]
    ) -> None:
        """Submit an agent request, on a thread that may block."""
        try:
            self._backend.submit(bootstrap, count, ended, slot_ended)
        except Exception as error:  # noqa: BLE001 any error of Spark is reported by the waiting runs
            ended(bootstrap.ask, f"{type(error).__name__}: {error}")

    def cancel(self, ask: int) -> None:
        """Withdraw an agent request."""
        self._start(self._backend.cancel, ask)

    # ------------------------------------------------------------------------------------------ threads

    async def _on_thread(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        """Call a function that may block on another thread and return its result; may raise InterpreterEnds."""
        try:
            answer = self._loop.run_in_executor(None, function, *arguments)
        except RuntimeError as error:  # concurrent.futures is closed before functions registered with atexit are called
            raise InterpreterEnds from error
        return await answer

    def _start(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on another thread without waiting for it.

        It is not called if the interpreter is ending: ``Coordinator.close`` releases everything then.
        """
        with contextlib.suppress(RuntimeError):
            self._loop.run_in_executor(None, function, *arguments)
