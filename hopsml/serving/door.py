"""Where agents of a serving on a cluster connect: each is a place for one replica, which the supervisor uses as a process.

A replica waits for a place while there is none: Spark runs a task again whose executor is lost, and its agent connects.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from hopsml.cluster.shared import tls
from hopsml.cluster.shared.acceptor import Acceptor, Pending, logged_once, with_streams
from hopsml.serving.front import Front
from hopsml.serving.messages import (
    LONGEST_HELLO,
    AgentHello,
    AgentWelcome,
    EndAgent,
    EndReplica,
    FromAgent,
    FromReplica,
    Line,
    LogSent,
    ReplicaAlive,
    ReplicaEnded,
    ReplicaSaid,
    ReplicaStarted,
    RouteTurned,
    SendLog,
    StartReplica,
    TellReplica,
    ToReplica,
)

log = logging.getLogger("hopsml.serving")

HELLO_S = 10.0
KILL_S = 5.0  # for an agent to kill its replica; else the agent is ended
LOG_S = 5.0
END_S = 30.0  # for agents to bring the request log to storage

Evict = Callable[[int], None]  # of a Spark task


class Place:
    """One agent, and the replica that it holds, if it holds one."""

    def __init__(self, line: Line, hello: AgentHello) -> None:
        self.line, self.hello = line, hello
        self.process: PlacedProcess | None = None
        self.started: asyncio.Future[ReplicaStarted] | None = None
        self.log: asyncio.Future[LogSent] | None = None

    def lose(self) -> None:
        """It is gone, or is to be."""
        if self.started is not None and not self.started.done():
            self.started.set_result(ReplicaStarted(error=f"its place on {self.hello.machine} was lost"))
        if self.process is not None:
            self.process.over(f"was lost with its place on {self.hello.machine}")
        self.line.abort()


class PlacedProcess:
    """A replica that an agent holds."""

    def __init__(self, place: Place, number: int, give_up: Callable[[Place], None]) -> None:
        self._place, self.number, self._give_up = place, number, give_up
        self.pid = 0
        self.address = ("", 0)
        self.line = self
        self.where = f"on {place.hello.machine}, shown by `hopsml serve logs`"
        self.follows = False  # a route: it answers
        self._heard: asyncio.Queue[FromReplica | None] = asyncio.Queue()
        self._how = ""
        self._over = asyncio.Event()

    def send(self, message: msgspec.Struct) -> None:
        """As ``Line.send``."""
        if not self._over.is_set():
            assert isinstance(message, ToReplica)
            self._place.line.send(TellReplica(message))

    async def receive(self) -> object | None:
        """As ``Line.receive``."""
        return await self._heard.get()

    def close(self) -> None:
        """Nothing more is heard."""

    def say(self, message: FromReplica) -> None:
        """The replica said this."""
        self._heard.put_nowait(message)

    def over(self, how: str) -> None:
        """It has ended; the first word counts."""
        if not self._over.is_set():
            self._how = how
            self._over.set()
            self._heard.put_nowait(None)

    def kill(self) -> None:
        """Let the agent kill it; an agent that does not is given up, and its task with it."""
        if not self._over.is_set():
            self._place.line.send(EndReplica())
            asyncio.get_running_loop().call_later(KILL_S, self._late)

    def _late(self) -> None:
        if not self._over.is_set():
            self._give_up(self._place)

    async def ended(self) -> str:
        """As ``ReplicaProcess.ended``."""
        await self._over.wait()
        return self._how


class Door:
    """Hands of a supervisor whose replicas run on a cluster; tells the front where they answer."""

    def __init__(self, welcome: AgentWelcome, token: str, evict: Evict) -> None:
        self._welcome, self._token, self._evict = welcome, token, evict
        self.front: Front | None = None
        self.identity = tls.make_identity("hopsml-serving")
        self._free: deque[Place] = deque()
        self._places: set[Place] = set()
        self._changed = asyncio.Event()

    # ------------------------------------------------------------------------------------------ hands

    async def start(self, number: int) -> PlacedProcess:
        """As ``Hands.start``."""
        while not self._free:
            self._changed.clear()
            await self._changed.wait()
        place = self._free.popleft()
        process = place.process = PlacedProcess(place, number, self._give_up)
        place.started = asyncio.get_running_loop().create_future()
        place.line.send(StartReplica(number))
        try:
            started = await place.started
        except BaseException:  # nobody wants it any more
            place.line.send(EndReplica())
            raise
        finally:
            place.started = None
        if started.error:
            place.process = None
            if place in self._places:
                self._free.append(place)
            raise OSError(started.error)
        process.pid, process.address = started.pid, (started.host, started.port)
        return process

    def machines(self) -> tuple[str, ...]:
        """Where replicas run."""
        return tuple(one.hello.machine for one in self._places if one.process is not None)

    async def logs(self, last: int) -> dict[str, str]:
        """The newest lines of the replicas' logs, by where they lie."""
        loop = asyncio.get_running_loop()
        waiting = []
        for place in self._places:
            place.log = place.log or loop.create_future()
            place.line.send(SendLog(last))
            waiting.append(place.log)
        done = (await asyncio.wait(waiting, timeout=LOG_S))[0] if waiting else set()
        found = [one.result() for one in done]
        return {one.where: one.text for one in found}

    # ------------------------------------------------------------------------------------------ agents

    @asynccontextmanager
    async def open(self, host: str) -> AsyncIterator[int]:
        """Agents may connect at the port that this yields; in the end they are told to go, and waited for."""
        acceptor = Acceptor(with_streams(self._agent), self.identity.context, logged_once(log))
        port = await acceptor.open(host)
        try:
            yield port
        finally:
            acceptor.close()
            for place in self._places:
                place.line.send(EndAgent())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    while self._places:
                        self._changed.clear()
                        await self._changed.wait()
            for place in list(self._places):
                self._lose(place)

    async def _agent(self, pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer, FromAgent)
        try:
            hello = await asyncio.wait_for(line.receive(LONGEST_HELLO), HELLO_S)
        except (TimeoutError, msgspec.MsgspecError):
            return
        if not isinstance(hello, AgentHello) or not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            return
        pending.release()
        place = Place(line, hello)
        line.send(self._welcome)
        self._places.add(place)
        self._free.append(place)
        self._changed.set()
        log.info("a place on %s", hello.machine)
        try:
            while (message := await line.receive()) is not None:
                self._hear(place, message)
        finally:
            self._lose(place)
            log.info("the place on %s is gone", hello.machine)

    def _hear(self, place: Place, message: object) -> None:
        process = place.process
        if isinstance(message, LogSent) and place.log is not None:
            place.log.set_result(message)
            place.log = None
        elif isinstance(message, ReplicaStarted):
            if place.started is not None and not place.started.done():
                place.started.set_result(message)
        elif isinstance(message, ReplicaEnded):
            self._gone(place)
            if process is not None:
                process.over(message.how)
            place.process = None
            if place.started is None:
                self._free.append(place)
                self._changed.set()
        elif isinstance(message, ReplicaSaid) and process is not None:
            if isinstance(message.message, RouteTurned):
                process.follows = True
            if process.follows and self.front is not None and isinstance(message.message, RouteTurned | ReplicaAlive):
                self.front.there(process.number, process.address)
            process.say(message.message)

    def _give_up(self, place: Place) -> None:
        log.warning("the agent on %s does not answer: its task is run anew", place.hello.machine)
        self._evict(place.hello.task)
        self._lose(place)

    def _lose(self, place: Place) -> None:
        self._places.discard(place)
        with contextlib.suppress(ValueError):
            self._free.remove(place)
        self._gone(place)
        place.lose()
        self._changed.set()

    def _gone(self, place: Place) -> None:
        if place.process is not None and self.front is not None:
            self.front.gone(place.process.number)
