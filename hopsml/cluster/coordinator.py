"""The hands of the gangs and of the pool: one WebSocket server on a thread of the driver, and the timers.

Decisions are made in gang.py and pool.py; here messages become events and actions become messages. A connection must
bring the run's token in its HTTP request, before the upgrade; a message of the wrong type, size or generation is refused
and counted.
"""

from __future__ import annotations

import asyncio
import hmac
import http
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.cluster import endings, gang, pool, protocol
from hopsml.cluster.agent import Bootstrap
from hopsml.cluster.backends.base import Backend
from hopsml.cluster.gang import Gang, GangSpec, Phase
from hopsml.cluster.layout import Member, Placement, Roles, form
from hopsml.cluster.run_state import Change, MemberView, RunState
from hopsml.cluster.strangers import watched, watched_connection, websocket_log
from hopsml.cluster.tls import make_identity
from hopsml.errors import ArgumentError, CoordinatorLost

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response

log = logging.getLogger("hopsml.coordinator")

HELLO_TIMEOUT_S = 10.0
TICK_S = 0.25
RENEW_S = 1.0
LINGER_S = 2.0  # after the last agent has gone


@dataclass(frozen=True)
class RunRequest:
    """Everything that a run needs from the coordinator."""

    spec: GangSpec
    payload: bytes
    run_url: str
    preload: tuple[str, ...] = ()
    roles: Roles = field(default_factory=Roles)
    with_tf_config: bool = True
    resume_url: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    hooks: tuple[str, ...] = ()
    merge_scope: int | str = 32
    scoped_allocator: bool = True
    storage_timeout_s: float = 30.0
    local_logdir: bool = False


@dataclass
class _Session:
    """One connected agent."""

    agent_id: str
    connection: ServerConnection
    hello: protocol.Hello
    port: int
    heard: float
    modules: tuple[str, ...] = ()
    work: tuple[str, int] | None = None  # run and generation that it works for
    outbox: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)


@dataclass
class _Run:
    request: RunRequest
    gang: Gang
    state: RunState
    failures: dict[str, protocol.WorkerFailed] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    result: bytes = b""


class Coordinator:
    """One for each application; ``launch``, ``cancel`` and ``close`` may be called from any thread."""

    def __init__(
        self,
        backend: Backend,
        *,
        keep_warm_s: float = 10.0,
        lease_s: float = 10.0,
        port_range: tuple[int, int] | None = None,
        sys_path: tuple[str, ...] = (),
    ) -> None:
        self.backend, self.lease_s, self.port_range = backend, lease_s, port_range
        self.sys_path = sys_path
        self.token = secrets.token_urlsafe(32)
        self.identity = make_identity()
        self.pool = pool.Pool(keep_warm_s=keep_warm_s)
        self.runs: dict[str, _Run] = {}
        self.sessions: dict[str, _Session] = {}
        self.refused: Counter[str] = Counter()
        self.addresses: tuple[tuple[str, int], ...] = ()
        self._idle_since: float | None = None
        self._others_wait = False  # another job of the application finds no free slot
        self._gate = threading.Lock()  # a launch and the decision to close for idleness exclude each other
        self._launched = 0  # runs that callers have handed over
        self._begun = 0
        self._agents = 0
        self._preload: tuple[str, ...] = ()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._ready = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run_loop, name="hopsml-coordinator", daemon=True)

    # ------------------------------------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Open the server; raises OSError when no port can be had."""
        self._thread.start()
        self._ready.wait()
        if self._problem is not None:
            raise self._problem

    @property
    def is_alive(self) -> bool:
        """Whether runs can still be launched."""
        return self._thread.is_alive() and not self._closing.is_set()

    def launch(self, request: RunRequest) -> RunState:
        """Begin a run; returns at once."""
        state = RunState(request.spec.run_id, request.spec.size)
        with self._gate:
            if not self.is_alive:
                raise CoordinatorLost("the coordinator of this application is closed; start the run again")
            self._call(self._begin, request, state)
            self._launched += 1
        return state

    def cancel(self, run_id: str, reason: str) -> None:
        """Ask a run to end; its state tells when it has."""
        self._call(self._event, run_id, gang.CancelAsked(reason))

    def close(self, timeout_s: float = 15.0) -> None:
        """End all runs, dismiss all agents, close the server and its thread."""
        if self._thread.is_alive():
            self._call(self._closing.set)
            self._thread.join(timeout_s)
        self.backend.close()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:
            raise CoordinatorLost("the coordinator of this application is closed; start the run again") from error

    # ------------------------------------------------------------------------------------------ the loop

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 handed to start(), or to the runs
            self._problem = error
            for run in self.runs.values():
                if not run.state.is_over:
                    run.state.conclude(CoordinatorLost(f"the coordinator broke: {error!r}"), b"")
        finally:
            self._ready.set()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        from websockets.asyncio.server import serve

        bind, advertised = await asyncio.to_thread(self.backend.addresses)
        server: Server = await serve(
            self._session,
            bind,
            0,
            ssl=watched(self.identity.context, self._refuse),
            ssl_handshake_timeout=HELLO_TIMEOUT_S,
            open_timeout=HELLO_TIMEOUT_S,
            create_connection=watched_connection(self._refuse),
            logger=websocket_log(),
            process_request=self._admit,
            compression=None,
            max_size=protocol.MAX_TO_COORDINATOR,
            ping_interval=None,
            backlog=4096,
            server_header=None,
        )
        async with server:
            port = next(iter(server.sockets)).getsockname()[1]
            self.addresses = tuple((host, port) for host in advertised)
            self._ready.set()
            others = asyncio.create_task(self._watch_others())
            await self._keep_time()
            others.cancel()
            await self._wind_up()

    async def _keep_time(self) -> None:
        renew = protocol.encode(protocol.Renew())
        renewed = 0.0
        while not self._closing.is_set():
            now = time.monotonic()
            for run_id in list(self.runs):
                self._event(run_id, gang.Tick())
            if now - renewed >= RENEW_S:
                renewed = now
                self._cut_silent(now)
                for session in self.sessions.values():
                    session.outbox.put_nowait(renew)
            self._pool(self.pool.tick(time.monotonic(), self._others_wait))
            self._close_when_idle()
            try:
                await asyncio.wait_for(self._closing.wait(), TICK_S)
            except TimeoutError:
                pass

    async def _watch_others(self) -> None:
        """Beside the timers, not among them: a JVM that does not answer must not stop leases and deadlines."""
        while True:
            idle = bool(self.pool.idle())
            self._others_wait = idle and await asyncio.to_thread(self.backend.others_wait)
            await asyncio.sleep(TICK_S)

    def _close_when_idle(self) -> None:
        """With no run and no agent for a while, the thread, the port and the certificate go too."""
        now = time.monotonic()
        if self.runs or self.sessions or self.pool.expected:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > LINGER_S:
            with self._gate:
                if self._launched == self._begun:
                    self._closing.set()

    def _cut_silent(self, now: float) -> None:
        for session in list(self.sessions.values()):
            if now - session.heard > self.lease_s:
                self._cut(session, f"no sign of life for {self.lease_s:g} s")

    def _cut(self, session: _Session, reason: str) -> None:
        session.connection.transport.abort()
        self._forget(session, reason)

    async def _wind_up(self) -> None:
        for run_id in list(self.runs):
            self._event(run_id, gang.CancelAsked("the application ends"))
        deadline = time.monotonic() + 10
        while self.runs and time.monotonic() < deadline:
            for run_id in list(self.runs):
                self._event(run_id, gang.Tick())
            await asyncio.sleep(0.05)
        for session in self.sessions.values():
            self._post(session, protocol.Dismiss("the application ends"))
        while self.sessions and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    # ------------------------------------------------------------------------------------------ connections

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Before the upgrade: nobody without the token gets further."""
        offered = request.headers.get("Authorization", "")
        if hmac.compare_digest(offered.encode(), f"Bearer {self.token}".encode()):
            return None
        self._refuse("token", f"{connection.remote_address} came without the token of this application")
        return connection.respond(http.HTTPStatus.UNAUTHORIZED, "hopsml: a token is needed\n")

    def _refuse(self, kind: str, text: str) -> None:
        """Count every refusal, log the first of each kind."""
        self.refused[kind] += 1
        if self.refused[kind] == 1:
            log.warning("refused: %s (further ones of this kind are only counted)", text)

    async def _session(self, connection: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        session: _Session | None = None
        delivery: asyncio.Task[None] | None = None
        try:
            session = await self._welcome(connection)
            delivery = asyncio.create_task(self._deliver(session))
            async for frame in connection:
                session.heard = time.monotonic()
                if isinstance(frame, str):
                    raise msgspec.DecodeError("a text frame")
                self._on_message(session, protocol.decode_for_coordinator(frame))
        except msgspec.MsgspecError as error:
            self._refuse("message", f"{connection.remote_address} sent what is no message of ours: {error}")
            await connection.close(1008, "not a message of this protocol")
        except ConnectionClosed as closed:
            if closed.sent is not None and closed.sent.code == 1009:
                self._refuse("size", f"{connection.remote_address} sent too large a message: {closed.sent.reason}")
        except TimeoutError:
            self._refuse("silence", f"{connection.remote_address} did not say who it is")
        except OSError:
            pass
        finally:
            if delivery is not None:
                delivery.cancel()
            if session is not None:
                self._forget(session, "its connection broke: the executor or the agent in it was ended")

    async def _welcome(self, connection: ServerConnection) -> _Session:
        frame = await asyncio.wait_for(connection.recv(), HELLO_TIMEOUT_S)
        hello = protocol.decode_for_coordinator(frame if isinstance(frame, bytes) else frame.encode())
        if not isinstance(hello, protocol.Hello) or hello.version != protocol.VERSION:
            raise msgspec.DecodeError(f"expected a hello of version {protocol.VERSION}, got {hello!r:.200}")
        self._agents += 1
        session = _Session(f"a{self._agents}", connection, hello, hello.port, time.monotonic())
        self.sessions[session.agent_id] = session
        self._post(session, protocol.Welcome(session.agent_id, self.lease_s))
        slot = (hello.ask, hello.index)
        self._pool(self.pool.connected(session.agent_id, slot, hello.executor_id, time.monotonic()))
        for run in self._waiting():
            run.state.publish(Change("phase", text=self._waiting_text(run)))
        return session

    def _forget(self, session: _Session, reason: str) -> None:
        if self.sessions.pop(session.agent_id, None) is None:
            return
        if session.work is not None:
            place = f"the agent on {session.hello.host} (executor {session.hello.executor_id}) is gone: {reason}"
            self._event(session.work[0], gang.MemberLost(session.agent_id, place))
        returns = self.backend.restarts_agents and not self._closing.is_set()
        self._pool(self.pool.disconnected(session.agent_id, returns, time.monotonic()))

    async def _deliver(self, session: _Session) -> None:
        """Send what is posted, in order; cut off an agent that takes nothing."""
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                frame = await session.outbox.get()
                await asyncio.wait_for(session.connection.send(frame), self.lease_s)
        except TimeoutError:
            self._cut(session, f"took no message for {self.lease_s:g} s")
        except ConnectionClosed:
            pass  # its session ends by itself

    @staticmethod
    def _post(session: _Session, *messages: protocol.Message | bytes) -> None:
        for message in messages:
            session.outbox.put_nowait(message if isinstance(message, bytes) else protocol.encode(message))

    # ------------------------------------------------------------------------------------------ messages

    def _on_message(self, session: _Session, message: protocol.ToCoordinator) -> None:
        match message:
            case protocol.Heartbeat():
                return
            case protocol.PortHeld():
                session.port = message.port
                return
            case protocol.ServerReady():
                session.modules = message.modules
                return
            case protocol.Hello():
                raise msgspec.DecodeError("a second hello")
        key = (message.run_id, message.generation)
        run = self.runs.get(message.run_id)
        if run is None or session.work != key or key[1] != run.gang.generation:
            self._refuse(
                "generation",
                f"{session.agent_id} spoke of run {key[0]}, generation {key[1]}, which is not its own",
            )
            return
        self._on_work(session, run, message)

    def _on_work(self, session: _Session, run: _Run, message: Any) -> None:
        agent, generation = session.agent_id, message.generation
        rank = run.gang.rank(agent)
        view = run.state.members[rank]
        match message:
            case protocol.WorkerStarted():
                view.state = "running"
                self._event(run.request.spec.run_id, gang.Started(agent, generation))
            case protocol.WorkerReport():
                view.step = message.step if message.step is not None else view.step
                view.metrics.update(message.metrics)
                run.state.publish(Change("report", rank, "", dict(message.metrics), message.step, message.time))
            case protocol.WorkerFinished():
                view.state = "finished"
                if rank == 0:
                    run.result = message.result
                self._event(run.request.spec.run_id, gang.Finished(agent, generation))
            case protocol.WorkerFailed():
                view.state = "failed"
                run.failures[agent] = message
                failed = gang.Failed(agent, generation, message.cause, message.secondary)
                self._event(run.request.spec.run_id, failed)
            case protocol.WorkerClosed():
                if message.behind:
                    run.state.behind[rank] = message.behind
                self._event(run.request.spec.run_id, gang.Closed(agent, generation))
            case protocol.LogLines():
                run.state.publish(Change("log", rank, message.text))
            case protocol.MirrorState():
                view.mirror_problem = message.problem
                run.state.publish(Change("note", rank, message.problem or f"rank {rank}: mirroring has caught up"))

    # ------------------------------------------------------------------------------------------ runs

    def _begin(self, request: RunRequest, state: RunState) -> None:
        self._begun += 1
        if request.spec.run_id in self.runs:  # two projects of one application count their runs alike
            where = self.runs[request.spec.run_id].request.run_url
            problem = f"a run of the id {request.spec.run_id} is going on already, in {where}; wait for its end"
            state.conclude(CoordinatorLost(problem, request.run_url), b"")
            return
        run = _Run(request, Gang(request.spec), state)
        self.runs[request.spec.run_id] = run
        self._preload = request.preload
        self._gang(run, run.gang.begin(time.monotonic()))
        state.publish(Change("phase", text=self._waiting_text(run)))

    def _event(self, run_id: str, event: gang.Event) -> None:
        run = self.runs.get(run_id)
        if run is None:
            return
        before = run.gang.phase
        actions = run.gang.handle(event, time.monotonic())
        if run.gang.phase is not before:
            run.state.phase = run.gang.phase
            if not run.gang.phase.is_final:
                run.state.publish(Change("phase", text=run.gang.phase.value))
        self._gang(run, actions)

    def _gang(self, run: _Run, actions: list[gang.Action]) -> None:
        for action in actions:
            match action:
                case gang.AskAgents():
                    run_id = run.request.spec.run_id
                    self._pool(self.pool.demand(run_id, action.count, time.monotonic()))
                case gang.StartGeneration():
                    self._start_or_refuse(run, action)
                case gang.StopWorkers():
                    for agent_id in action.agent_ids:
                        if session := self.sessions.get(agent_id):
                            run_id = run.request.spec.run_id
                            stop = protocol.Stop(run_id, action.generation, action.grace_s, action.flush_s)
                            self._post(session, stop)
                case gang.DropAgents():
                    for agent_id in action.agent_ids:
                        if session := self.sessions.get(agent_id):
                            self._cut(session, action.reason)
                case gang.ReturnAgents():
                    for agent_id in action.agent_ids:
                        if session := self.sessions.get(agent_id):
                            session.work = None
                    self._pool(self.pool.returned(action.agent_ids, time.monotonic()))
                case gang.Conclude():
                    self._conclude(run, action)

    def _conclude(self, run: _Run, outcome: gang.Conclude) -> None:
        run_id = run.request.spec.run_id
        del self.runs[run_id]
        self._pool(self.pool.withdraw(run_id, time.monotonic()))
        missing = self._why_missing(run, outcome) if outcome.error == "start" else ""
        failure = run.failures.get(outcome.agent_id)
        error = endings.error_of(
            outcome, run.state, run.request.run_url, failure, run.hosts.get(outcome.agent_id, ""), missing
        )
        run.state.conclude(error, run.result)

    # ------------------------------------------------------------------------------------------ pool

    def _pool(self, actions: list[pool.Action]) -> None:
        for action in actions:
            match action:
                case pool.Grant():
                    self._grant(self.runs[action.run_id], action.agent_ids)
                case pool.Submit():
                    self._loop.run_in_executor(None, self._submit, self._bootstrap(action.ask), action.count)
                case pool.DismissAgents():
                    for agent_id in action.agent_ids:
                        if session := self.sessions.get(agent_id):
                            self._post(session, protocol.Dismiss(action.reason))

    def _bootstrap(self, ask: int) -> Bootstrap:
        return Bootstrap(
            ask=ask,
            addresses=self.addresses,
            token=self.token,
            certificate=self.identity.certificate,
            preload=self._preload,
            lease_s=self.lease_s,
            sys_path=self.sys_path,
            port_range=self.port_range,
            gpus=self.backend.gpus_per_agent,
        )

    def _submit(self, bootstrap: Bootstrap, count: int) -> None:
        """On a thread that may block."""

        def ended(ask: int, problem: str) -> None:
            try:
                self._loop.call_soon_threadsafe(self._ask_ended, ask, problem)
            except RuntimeError:
                pass  # the coordinator is closed: nobody asks any more

        try:
            self.backend.submit(bootstrap, count, ended)
        except Exception as error:  # noqa: BLE001 whatever Spark throws is the waiting runs' to know
            ended(bootstrap.ask, f"{type(error).__name__}: {error}")

    def _ask_ended(self, ask: int, problem: str) -> None:
        waiting = self._waiting()
        if problem:
            for run in waiting:
                self._event(run.request.spec.run_id, gang.Refused(problem, "launcher"))
        self._pool(self.pool.ask_ended(ask, time.monotonic()))

    def _waiting(self) -> list[_Run]:
        return [run for run in self.runs.values() if run.gang.phase is Phase.WAITING]

    # ------------------------------------------------------------------------------------------ forming a group

    def _grant(self, run: _Run, agent_ids: tuple[str, ...]) -> None:
        members = [self._member(self.sessions[agent_id]) for agent_id in agent_ids]
        for agent_id in agent_ids:
            self.sessions[agent_id].work = (run.request.spec.run_id, run.gang.generation)
        try:
            layout = form(members, run.request.roles)
        except ArgumentError as error:
            self.pool.returned(agent_ids, time.monotonic())
            self._event(run.request.spec.run_id, gang.Refused(str(error), "launcher"))
            return
        run.state.layout = layout
        run.placements = {placement.agent_id: placement for placement in layout.placements}
        run.hosts = {agent_id: self.sessions[agent_id].hello.host for agent_id in agent_ids}
        ranked = tuple(placement.agent_id for placement in layout.placements)
        self._event(run.request.spec.run_id, gang.Granted(ranked))

    def _member(self, session: _Session) -> Member:
        hello = session.hello
        return Member(
            agent_id=session.agent_id,
            host=hello.host,
            port=session.port,
            hostname=hello.hostname,
            rack=hello.rack,
            executor_id=hello.executor_id,
            gpu_indices=hello.gpu_indices,
            gpu_bus_ids=hello.gpu_bus_ids,
            topology=hello.topology,
            slot=hello.slot,
        )

    def _start_or_refuse(self, run: _Run, action: gang.StartGeneration) -> None:
        """What goes wrong with one run's messages must be that run's error, not the end of an agent's session."""
        try:
            self._start(run, action)
        except Exception as error:
            log.exception("run %s cannot be started", run.request.spec.run_id)
            self._event(run.request.spec.run_id, gang.Refused(f"{type(error).__name__}: {error}", "launcher"))

    def _start(self, run: _Run, action: gang.StartGeneration) -> None:
        request, layout = run.request, run.state.layout
        assert layout is not None
        formation = protocol.encode(
            protocol.Formation(
                run_id=request.spec.run_id,
                generation=action.generation,
                payload=request.payload,
                cluster_json=layout.cluster_json if request.with_tf_config else "",
                leader=layout.leader,
                world_size=request.spec.size,
                run_url=request.run_url,
                resume_url=request.resume_url,
                environment=request.environment,
                hooks=request.hooks,
                merge_scope=request.merge_scope,
                scoped_allocator=request.scoped_allocator,
                grace_s=request.spec.grace_s,
                flush_s=request.spec.flush_s,
                storage_timeout_s=request.storage_timeout_s,
                local_logdir=request.local_logdir,
            )
        )
        for agent_id in action.agent_ids:
            if session := self.sessions.get(agent_id):
                self._launch(run, session, action.generation, formation)

    def _launch(self, run: _Run, session: _Session, generation: int, formation: bytes) -> None:
        placement = run.placements[session.agent_id]
        hello = session.hello
        run.state.members[placement.rank] = MemberView(
            placement.rank, hello.host, hello.executor_id, placement.gpu_indices
        )
        launch = protocol.Launch(
            run_id=run.request.spec.run_id,
            generation=generation,
            rank=placement.rank,
            local_rank=placement.local_rank,
            role=placement.role,
            task_index=placement.task_index,
            gpu_indices=placement.gpu_indices,
            ring_order=placement.ring_order,
            environment=placement.env,
        )
        self._post(session, protocol.Preload(run.request.preload), formation, launch)

    # ------------------------------------------------------------------------------------------ words

    def _waiting_text(self, run: _Run) -> str:
        return f"waiting for executors: {min(len(self.pool.idle()), run.state.size)} of {run.state.size} agents there"

    def _why_missing(self, run: _Run, outcome: gang.Conclude) -> str:
        if run.placements:
            return "; ".join(
                f"rank {rank} on {run.state.members[rank].host} has not begun the training function: its worker "
                f"{run.state.members[rank].state} but is still importing or unpickling"
                for rank, _ in outcome.missing
            )
        held = [f"{run_id} holds some" for run_id in self.runs]
        reasons = [self.backend.why_missing(ask) for ask in sorted({ask for ask, _ in self.pool.expected})]
        there = len(self.pool.idle())
        return f"{there} of {run.state.size} agents are connected; " + "; ".join([*reasons, *held])
