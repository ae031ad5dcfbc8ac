"""Tests of replicas held by agents, as on a cluster, with local processes instead of Spark tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from hopsml import model
from hopsml.cluster.shared import tls
from hopsml.core.delegation_tokens import HDFS_KIND, VARIABLE, Credentials, Token, read
from hopsml.serving import agent_server, messages
from hopsml.serving.agent import AgentBootstrap
from hopsml.serving.agent_server import AgentServer
from hopsml.serving.definitions import ServingLimits
from hopsml.serving.front import Front, serve_front
from hopsml.serving.messages import (
    AgentHello,
    AgentWelcome,
    ChangeRoute,
    EndReplica,
    FromAgent,
    JsonLinesConnection,
    ReplicaEnded,
    ReplicaLogLines,
    ReplicaStarted,
    ServedVersion,
    ServingSettings,
    StartReplica,
    StatusRequest,
    ToAgent,
    decode_for_agent,
    encode_for_agents,
)
from hopsml.serving.routes import Route
from hopsml.serving.supervisor import Supervisor, listening_socket
from hopsml.storage import python_child
from tests.helpers.cluster.workloads import WAIT_S

pytestmark = pytest.mark.local
TOKEN = "t" * 20
AGENT = """
import sys
import msgspec
from hopsml.serving.agent import AgentBootstrap, AgentResources, run_agent
run_agent(msgspec.json.decode(sys.stdin.buffer.readline(), type=AgentBootstrap), AgentResources())
"""


def versions() -> dict[int, ServedVersion]:
    return {one.version: ServedVersion("", one.description) for one in model.versions("digits")}


class Agents:
    """Agent processes with one slot each."""

    def __init__(self, bootstrap: AgentBootstrap) -> None:
        self.bootstrap = msgspec.json.encode(bootstrap) + b"\n"
        self.processes: list[subprocess.Popen[bytes]] = []

    def more(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", AGENT], env=python_child.environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(self.bootstrap)
        process.stdin.flush()
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stderr):
                assert stream is not None
                stream.close()


SETTINGS = ServingSettings("m", "file:///p", "m", "127.0.0.1", 0, 1, False, ServingLimits(), Route(1, 1), {})
AGENTS_TOKEN = "a" * 20


@asynccontextmanager
async def agent_of(server: AgentServer, token: str = AGENTS_TOKEN) -> AsyncIterator[ClientConnection]:
    """Open a connection to an agent server."""
    async with server.listen("127.0.0.1") as port, asyncio.timeout(WAIT_S):
        certificate = server.identity.certificate
        async with await tls.connect([("127.0.0.1", port)], token, certificate, 1 << 20) as connection:
            yield connection


@pytest.mark.parametrize(
    "first", [b"[" * 300_000, encode_for_agents(ReplicaLogLines("here", ""))], ids=["no message", "no hello"]
)
def test_agent_without_token_or_hello_is_refused(first: bytes) -> None:
    async def greeted(first: bytes, token: str) -> object:
        server = AgentServer(AgentWelcome(SETTINGS, TOKEN), AGENTS_TOKEN, lambda task: None)
        async with agent_of(server, token) as connection:
            await connection.send(first)
            return decode_for_agent(await connection.recv(decode=False))

    hello = encode_for_agents(AgentHello("here", 0))
    assert isinstance(asyncio.run(greeted(hello, AGENTS_TOKEN)), AgentWelcome)
    with pytest.raises(ConnectionClosed):
        asyncio.run(greeted(first, AGENTS_TOKEN))
    with pytest.raises(InvalidStatus, match="401"):
        asyncio.run(greeted(hello, "b" * 20))


@pytest.mark.parametrize("how", ["fails after it was cancelled", "ends at once"])
def test_agent_is_free_again_after_a_failed_or_cancelled_replica_start(how: str) -> None:
    async def run() -> None:
        server = AgentServer(AgentWelcome(SETTINGS, TOKEN), AGENTS_TOKEN, lambda task: None)
        async with agent_of(server) as connection:

            async def send(*messages: FromAgent) -> None:
                for message in messages:
                    await connection.send(encode_for_agents(message))

            async def received() -> ToAgent:
                return decode_for_agent(await connection.recv(decode=False))

            await send(AgentHello("here", 0))
            assert isinstance(await received(), AgentWelcome)
            starting = asyncio.create_task(server.start_replica(0))
            assert await received() == StartReplica(0)
            if how == "ends at once":  # both messages are there before the task that starts it continues
                await send(ReplicaStarted(1, "127.0.0.1", 1), ReplicaEnded("exit status 1"))
                assert await (await starting).wait_for_end() == "exit status 1"
            else:
                starting.cancel()
                assert await received() == EndReplica()
                await send(ReplicaStarted(error="no memory"))
            again = asyncio.create_task(server.start_replica(1))
            assert await received() == StartReplica(1)
            await send(ReplicaStarted(2, "127.0.0.1", 2))
            assert (await again).pid == 2 and server.replica_hosts() == ("here",)

    asyncio.run(run())


def test_repeated_end_of_a_replica_frees_its_agent_once() -> None:
    async def run() -> None:
        server = AgentServer(AgentWelcome(SETTINGS, TOKEN), AGENTS_TOKEN, lambda task: None)
        async with agent_of(server) as connection:
            for message in (AgentHello("here", 0), *[ReplicaEnded("again")] * 3, AgentHello("here", 1)):
                await connection.send(encode_for_agents(message))
            assert isinstance(decode_for_agent(await connection.recv(decode=False)), AgentWelcome)
            starting = asyncio.create_task(server.start_replica(0))
            assert decode_for_agent(await connection.recv(decode=False)) == StartReplica(0)
            await connection.send(encode_for_agents(ReplicaStarted(1, "127.0.0.1", 1)))
            first, second = await starting, asyncio.create_task(server.start_replica(1))
            await connection.send(
                encode_for_agents(ReplicaLogLines("here", ""))
            )  # is handled after the start was tried
            await connection.ping()
            assert not second.done() and server.replica_hosts() == ("here",)
            await connection.send(encode_for_agents(ReplicaEnded("exit status 1")))
            assert await first.wait_for_end() == "exit status 1"
            assert decode_for_agent(await connection.recv(decode=False)) == StartReplica(1), "on the place that is free"
            second.cancel()

    asyncio.run(run())


def test_agent_that_does_not_start_its_replica_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended agent, or one without power, keeps its connection open for long."""
    monkeypatch.setattr(agent_server, "START_S", 0.05)
    evicted: list[int] = []

    async def run() -> None:
        server = AgentServer(AgentWelcome(SETTINGS, TOKEN), AGENTS_TOKEN, evicted.append)
        async with agent_of(server) as connection:
            await connection.send(encode_for_agents(AgentHello("here", 7)))
            assert isinstance(decode_for_agent(await connection.recv(decode=False)), AgentWelcome)
            with pytest.raises(OSError, match="here"):
                await server.start_replica(0)
            assert evicted == [7]

    asyncio.run(run())


def test_message_longer_than_the_read_buffer_is_received_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sent(text: str) -> object:
        ours, theirs = socket.socketpair()
        one = JsonLinesConnection(*await asyncio.open_connection(sock=ours), ReplicaLogLines)
        other = JsonLinesConnection(*await asyncio.open_connection(sock=theirs), ReplicaLogLines)
        try:
            one.send(ReplicaLogLines("here", text))
            return await asyncio.wait_for(other.receive(), WAIT_S)
        finally:
            one.close()
            other.close()

    assert asyncio.run(sent("x" * 300_000)) == ReplicaLogLines("here", "x" * 300_000)
    monkeypatch.setattr(messages, "LONGEST_LINE", 100_000)
    with pytest.raises(msgspec.DecodeError, match="a line of more than 100000 bytes"):
        asyncio.run(sent("x" * 300_000))


@asynccontextmanager
async def served(project: Path) -> AsyncIterator[tuple[Supervisor, Agents, int]]:
    """Serve version 1 by two replicas; yield the supervisor, its agents and the port."""
    settings = ServingSettings(
        "digits", f"file://{project}", "digits", "127.0.0.1", 0, 2, False, ServingLimits(), Route(1, 1), versions()
    )
    agent_acceptor = AgentServer(AgentWelcome(settings, TOKEN), "a" * 20, lambda task: None)
    agents: Agents | None = None
    with listening_socket("127.0.0.1", 0) as listener:
        listener.setblocking(False)
        supervisor = Supervisor(settings, agent_acceptor, listener.getsockname()[:2])
        agent_acceptor.front = Front("digits", settings.limits, TOKEN, "o" * 20, supervisor.execute_command)
        try:
            async with agent_acceptor.listen("127.0.0.1") as port, serve_front(agent_acceptor.front, listener):
                agents = Agents(AgentBootstrap("127.0.0.1", port, agent_acceptor.identity.certificate, "a" * 20))
                agents.more(), agents.more()
                assert await asyncio.wait_for(supervisor.start(), 120) == ""
                yield supervisor, agents, listener.getsockname()[1]
                supervisor.stop()
                await supervisor.wait_for_end()
            ended = [await asyncio.to_thread(one.wait, 30) for one in agents.processes]
            assert [code for code in ended if code != -signal.SIGKILL] == [0, 0]
        finally:
            if agents is not None:
                agents.end()


async def predicted(port: int) -> tuple[int, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = msgspec.json.encode({"inputs": np.ones((1, 4)).tolist()})
    head = f"authorization: Bearer {TOKEN}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(f"POST /v1/models/digits:predict HTTP/1.1\r\nhost: x\r\n{head}".encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.startswith(b"content-length"))
    content = msgspec.json.decode(await reader.readexactly(length))
    writer.close()
    return int(answer.split(b" ")[1]), float(content["outputs"][0]) if "outputs" in content else 0.0


class Clients:
    """Four clients that send requests one after another."""

    def __init__(self, port: int) -> None:
        self.port, self.answers = port, list[tuple[int, float]]()
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(4)]

    async def _ask(self) -> None:
        while True:
            self.answers.append(await predicted(self.port))

    async def more(self, count: int) -> None:
        wanted = len(self.answers) + count
        while len(self.answers) < wanted:
            failed = [task.exception() for task in self._tasks if task.done()]
            assert not failed, failed
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


async def until_ready(supervisor: Supervisor, restarts: int) -> None:
    while (status := supervisor.status()).restarts < restarts or status.ready < 2:
        await asyncio.sleep(0.02)


async def check_wrong_token_is_rejected(agents: Agents) -> None:
    """Assert that an agent without the token is rejected."""
    bootstrap = msgspec.json.decode(agents.bootstrap, type=AgentBootstrap)
    rejected = Agents(msgspec.structs.replace(bootstrap, token="b" * 20))
    try:
        process = rejected.more()
        errors = (await asyncio.to_thread(process.communicate))[1]
        assert process.returncode == 1 and b"has rejected this agent" in errors
    finally:
        rejected.end()


def test_no_request_fails_when_a_replica_or_agent_is_lost_or_the_version_changes(project: Path) -> None:
    async def run() -> None:
        async with served(project) as (supervisor, agents, port), asyncio.timeout(240):
            clients = Clients(port)
            await clients.more(20)
            os.kill(supervisor.status().pids[0], signal.SIGKILL)  # the replica: its agent starts the next one
            await until_ready(supervisor, 1)
            await clients.more(20)
            agents.processes[1].kill()  # the place, and its replica with it: another place takes it over
            agents.more()
            await until_ready(supervisor, 2)
            await clients.more(20)
            await check_wrong_token_is_rejected(agents)
            answer = await supervisor.execute_command(ChangeRoute(Route(0, 2), versions(), 60.0))
            assert answer.error == "" and await predicted(port) == (200, 2.0)
            await clients.end()
            assert {status for status, _ in clients.answers} == {200}
            assert {value for _, value in clients.answers} <= {1.0, 2.0}
            assert (await supervisor.execute_command(StatusRequest())).restarts == 2

    asyncio.run(run())
    assert not list((project.parent / "machine" / "places").iterdir())  # nor of the agent that was killed


def test_replica_has_the_newest_delegation_tokens_in_a_private_file(project: Path) -> None:
    def credentials(password: bytes) -> Credentials:
        return Credentials((Token("", b"identifier", password, HDFS_KIND, "ha-hdfs:ns1"),))

    async def run() -> None:
        settings = msgspec.structs.replace(SETTINGS, project=f"file://{project}")
        server = AgentServer(AgentWelcome(settings, TOKEN), AGENTS_TOKEN, lambda task: None)
        server.give_tokens(credentials(b"first"))
        agents: Agents | None = None
        try:
            async with server.listen("127.0.0.1") as port, asyncio.timeout(WAIT_S):
                certificate = server.identity.certificate
                agents = Agents(AgentBootstrap("127.0.0.1", port, certificate, AGENTS_TOKEN, has_tokens=True))
                agents.more()
                replica = await server.start_replica(0)
                environ = Path(f"/proc/{replica.pid}/environ").read_bytes().split(b"\0")
                (named,) = [line.partition(b"=")[2] for line in environ if line.startswith(VARIABLE.encode())]
                file = Path(os.fsdecode(named))
                assert read(file) == credentials(b"first")
                assert file.stat().st_mode & 0o777 == 0o600
                server.give_tokens(credentials(b"second"))
                while read(file) != credentials(b"second"):
                    await asyncio.sleep(0.02)
            await asyncio.to_thread(agents.processes[0].wait, WAIT_S)
            assert not file.exists()
        finally:
            if agents is not None:
                agents.end()

    asyncio.run(run())
