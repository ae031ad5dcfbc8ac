"""Server to which the agents of a serving on a cluster connect; each agent provides one replica process.

A replica waits until an agent is free: Spark runs the task of a lost executor again, and its agent connects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from hopsml.cluster.driver.sessions import AgentHandler, Connection
from hopsml.cluster.shared import tls
from hopsml.cluster.shared.acceptor import Acceptor, Pending, log_once_per_kind, report_failed_handshakes
from hopsml.core.delegation_tokens import Credentials
from hopsml.core.newer_python import asyncio_timeout
from hopsml.serving.front import Front
from hopsml.serving.messages import (
    LONGEST_LINE,
    AgentHello,
    AgentWelcome,
    EndAgent,
    EndReplica,
    ForwardToReplica,
    FromAgent,
    FromReplica,
    ReplicaAlive,
    ReplicaEnded,
    ReplicaLogLines,
    ReplicaMessage,
    ReplicaStarted,
    RouteActivated,
    SendLog,
    StartReplica,
    ToAgent,
    ToReplica,
    UseTokens,
    decode_of_agent,
    encode_for_agents,
)

log = logging.getLogger("hopsml.serving")

KILL_S = 5.0  # time for an agent to kill its replica; after that the agent is evicted
START_S = 60.0  # time for an agent to start the process of a replica; after that the agent is evicted
LOG_S = 5.0
END_S = 30.0  # time for agents to upload the request log

Evict = Callable[[int], None]  # kills a Spark task attempt


class AgentConnection:
    """Connection to one agent, and the replica that it holds, if any."""

    def __init__(self, connection: Connection, hello: AgentHello) -> None:
        self.connection, self.hello = connection, hello
        self.process: RemoteReplica | None = None
        self.started: asyncio.Future[ReplicaStarted] | None = None
        self.log: asyncio.Future[ReplicaLogLines] | None = None

    def disconnect(self) -> None:
        """Close the connection to the agent; its replica counts as ended."""
        if self.started is not None and not self.started.done():
            self.started.set_result(ReplicaStarted(error=f"its agent on {self.hello.machine} was lost"))
        if self.process is not None:
            self.process.mark_ended(f"was lost with its agent on {self.hello.machine}")
        self.connection.transport.abort()

    def send(self, message: ToAgent) -> None:
        """Send a message without waiting."""
        self.connection.write(encode_for_agents(message))


class RemoteReplica:
    """Replica that an agent holds; implements ``ReplicaProcess`` and ``ReplicaConnection``."""

    def __init__(self, place: AgentConnection, number: int, give_up: Callable[[AgentConnection], None]) -> None:
        self._place, self.number, self._give_up = place, number, give_up
        self.pid = 0
        self.address = ("", 0)
        self.connection = self
        self.log_location = f"on {place.hello.machine}, shown by `hopsml serve logs`"
        self.follows = False  # a route, so that it answers requests
        self._heard: asyncio.Queue[FromReplica | None] = asyncio.Queue()
        self._how = ""
        self._over = asyncio.Event()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message to the replica by its agent."""
        if not self._over.is_set():
            assert isinstance(message, ToReplica)
            self._place.send(ForwardToReplica(message))

    async def receive(self) -> object | None:
        """Return the replica's next message; None when it has ended."""
        return await self._heard.get()

    def close(self) -> None:
        """Do nothing: the connection belongs to the agent."""

    def add_message(self, message: FromReplica) -> None:
        """Add a message that the replica sent."""
        self._heard.put_nowait(message)

    def mark_ended(self, how: str) -> None:
        """Mark the replica as ended; only the first reason counts."""
        if not self._over.is_set():
            self._how = how
            self._over.set()
            self._heard.put_nowait(None)

    def kill(self) -> None:
        """Request the agent to kill the replica; if it does not, the agent and its task are evicted."""
        if not self._over.is_set():
            self._place.send(EndReplica())
            asyncio.get_running_loop().call_later(KILL_S, self._late)

    def _late(self) -> None:
        """Evict the agent if the replica has not ended."""
        if not self._over.is_set():
            self._give_up(self._place)

    async def wait_for_end(self) -> str:
        """Wait for the replica's end, and return how it ended."""
        await self._over.wait()
        return self._how


class AgentServer:
    """Replica launcher for a cluster, and server to which agents connect; updates the front's replicas."""

    def __init__(self, welcome: AgentWelcome, token: str, evict: Evict) -> None:
        """Initialize the server without agents.

        Args:
            welcome: Message to each agent that connects.
            token: Token of the agents.
            evict: Function that kills a Spark task attempt.
        """
        self._welcome, self.token, self._evict = welcome, token, evict
        self.inside: set[Connection] = set()
        self.record_refusal = log_once_per_kind(log)
        self.front: Front | None = None
        self.identity = tls.make_identity("hopsml-serving")
        self._free: deque[AgentConnection] = deque()
        self._places: set[AgentConnection] = set()
        self._changed = asyncio.Event()
        self._tokens: UseTokens | None = None  # the newest, for agents that connect later

    def give_tokens(self, tokens: Credentials) -> None:
        """Send delegation tokens to all agents, and to those that connect later."""
        self._tokens = UseTokens(tokens.encode())
        for place in self._places:
            place.send(self._tokens)

    # ------------------------------------------------------------------------------------------ replica launcher

    async def start_replica(self, number: int) -> RemoteReplica:
        """Start a replica on a free agent, and wait for one if necessary.

        Raises:
            OSError: The agent could not start the process.
        """
        while not self._free:
            self._changed.clear()
            await self._changed.wait()
        place = self._free.popleft()
        process = place.process = RemoteReplica(place, number, self._give_up)
        waiting = place.started = asyncio.get_running_loop().create_future()
        place.send(StartReplica(number))
        due = asyncio.get_running_loop().call_later(START_S, self._late_start, place, waiting)
        try:
            started = await waiting
        except BaseException:  # the start was cancelled
            if place.process is process:  # else the start has failed, and the agent may hold another replica
                place.send(EndReplica())
            raise
        finally:
            due.cancel()
        if started.error:
            raise OSError(started.error)
        process.pid, process.address = started.pid, (started.host, started.port)
        return process

    def replica_hosts(self) -> tuple[str, ...]:
        """Return the host names of the machines on which replicas run."""
        return tuple(one.hello.machine for one in self._places if one.process is not None)

    async def logs(self, last: int) -> dict[str, str]:
        """Request the newest lines of the replicas' logs; return them by the location of each log."""
        loop = asyncio.get_running_loop()
        waiting = []
        for place in self._places:
            place.log = place.log or loop.create_future()
            place.send(SendLog(last))
            waiting.append(place.log)
        done = (await asyncio.wait(waiting, timeout=LOG_S))[0] if waiting else set()
        found = [one.result() for one in done]
        return {one.where: one.text for one in found}

    # ------------------------------------------------------------------------------------------ agents

    @asynccontextmanager
    async def listen(self, host: str) -> AsyncIterator[int]:
        """Accept agents for the duration of the context, which yields the port.

        At the end, all agents are requested to end, and waited for.
        """

        def make(pending: Pending) -> Connection:
            return Connection(AgentHandler(self, pending), LONGEST_LINE)

        acceptor = Acceptor(
            make, report_failed_handshakes(self.identity.context, self.record_refusal), self.record_refusal
        )
        port = await acceptor.open(host)
        try:
            yield port
        finally:
            acceptor.close()
            for place in self._places:
                place.send(EndAgent())
            with contextlib.suppress(TimeoutError):
                async with asyncio_timeout(END_S):
                    while self._places:
                        self._changed.clear()
                        await self._changed.wait()
            for connection in list(self.inside):
                connection.transport.abort()
            while self.inside:
                await asyncio.sleep(0.01)

    def create_session(self, connection: Connection, frame: bytes, admitted: float) -> AgentConnection:
        """Add an agent by its hello; see ``AgentListener``."""
        hello = decode_of_agent(frame)
        if not isinstance(hello, AgentHello):
            raise msgspec.DecodeError(f"expected a hello, got {hello!r:.200}")
        place = AgentConnection(connection, hello)
        place.send(self._welcome)
        if self._tokens is not None:
            place.send(self._tokens)
        self._places.add(place)
        self._free.append(place)
        self._changed.set()
        log.info("a place on %s", hello.machine)
        return place

    def process_frame(self, place: AgentConnection, frame: bytes) -> None:
        """Process a message of an agent."""
        self._hear(place, decode_of_agent(frame))

    def end_session(self, place: AgentConnection, reason: str) -> None:
        """Remove an agent whose connection has ended."""
        self._lose(place)
        log.info("the agent on %s has disconnected: %s", place.hello.machine, reason)

    def _hear(self, place: AgentConnection, message: FromAgent) -> None:
        """Handle a message of an agent."""
        process = place.process
        if isinstance(message, ReplicaLogLines) and place.log is not None:
            place.log.set_result(message)
            place.log = None
        elif isinstance(message, ReplicaStarted):
            if place.started is not None and not place.started.done():
                place.started.set_result(message)
            if message.error:
                self._vacate(place)
        elif isinstance(message, ReplicaEnded):
            self._gone(place)
            if process is not None:
                process.mark_ended(message.how)
            self._vacate(place)
        elif isinstance(message, ReplicaMessage) and process is not None:
            if isinstance(message.message, RouteActivated):
                process.follows = True
            if (
                process.follows
                and self.front is not None
                and isinstance(message.message, RouteActivated | ReplicaAlive)
            ):
                self.front.add_replica(process.number, process.address)
            process.add_message(message.message)

    def _late_start(self, place: AgentConnection, waiting: asyncio.Future[ReplicaStarted]) -> None:
        """Evict an agent that has not started its replica: it stands still, or its machine is gone."""
        if not waiting.done():
            self._give_up(place)

    def _vacate(self, place: AgentConnection) -> None:
        """Record that an agent holds no replica and is free, also if nobody waits for the start any more."""
        place.process = place.started = None
        if place not in self._free:
            self._free.append(place)
        self._changed.set()

    def _give_up(self, place: AgentConnection) -> None:
        """Evict the Spark task of an agent that does not respond."""
        log.warning("the agent on %s does not answer; its task is started again", place.hello.machine)
        self._evict(place.hello.task)
        self._lose(place)

    def _lose(self, place: AgentConnection) -> None:
        """Remove an agent that has disconnected, with its replica."""
        self._places.discard(place)
        with contextlib.suppress(ValueError):
            self._free.remove(place)
        self._gone(place)
        place.disconnect()
        self._changed.set()

    def _gone(self, place: AgentConnection) -> None:
        """Remove an agent's replica from the front."""
        if place.process is not None and self.front is not None:
            self.front.remove_replica(place.process.number)
