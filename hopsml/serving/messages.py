"""Messages between supervisor, replicas, agents and clients of the supervisor.

Those of agents are msgpack, one WebSocket frame each, as between the coordinator and its agents; others are one line of
JSON each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from hopsml.core.decoding import checked
from hopsml.model.description import ModelDescription
from hopsml.serving.definitions import ServingLimits
from hopsml.serving.routes import Route

LONGEST_LINE = 64 << 20  # bytes; a description lists all files of a model


class ServedVersion(msgspec.Struct, frozen=True):
    """Version of a model, with the folder of its files on this machine."""

    files: str
    description: ModelDescription


class ServingSettings(msgspec.Struct, frozen=True):
    """Settings with which a serving was started, stored as ``settings.json`` in its folder.

    Attributes:
        name: Name of the serving.
        project: URL of its project.
        model: Name of the model.
        host: Address to listen at.
        port: Port to listen at; 0 for a free one.
        replicas: Number of replicas.
        log_requests: True to write the request log.
        limits: Limits of requests.
        route: First route.
        versions: Version number -> version, for the route.
        trusted: Users whose models the starting user trusts.
    """

    name: str
    project: str
    model: str
    host: str
    port: int
    replicas: int
    log_requests: bool
    limits: ServingLimits
    route: Route
    versions: dict[int, ServedVersion]
    trusted: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------ to a replica


class FollowRoute(msgspec.Struct, frozen=True, tag=True):
    """Command to load the versions of a route and to switch to it."""

    route: Route
    versions: dict[int, ServedVersion]


class DrainNow(msgspec.Struct, frozen=True, tag=True):
    """Command to answer the received requests, accept no more, and end."""


class SendCounts(msgspec.Struct, frozen=True, tag=True):
    """Command to send the current counts at once."""


class TotalCounts(msgspec.Struct, frozen=True, tag=True):
    """Sum of the counts of all replicas."""

    counts: dict[str, float]


ToReplica = FollowRoute | DrainNow | SendCounts | TotalCounts

# ------------------------------------------------------------------------------------------ from a replica


class ReplicaAlive(msgspec.Struct, frozen=True, tag=True):
    """Heartbeat of a replica, sent each second, with its counts."""

    is_loading: bool
    counts: dict[str, float]


class RouteActivated(msgspec.Struct, frozen=True, tag="RouteTurned"):
    """Report that the route with this number is in effect."""

    number: int


class RouteRejected(msgspec.Struct, frozen=True, tag="RouteKept"):
    """Report that the route with this number cannot take effect; the previous one remains."""

    number: int
    reason: str


class TotalCountsRequest(msgspec.Struct, frozen=True, tag="TotalRequest"):
    """Request for the counts of all replicas, with those of the sender."""

    counts: dict[str, float]


FromReplica = ReplicaAlive | RouteActivated | RouteRejected | TotalCountsRequest

# ------------------------------------------------------------------------------------------ to the supervisor


class StatusRequest(msgspec.Struct, frozen=True, tag=True):
    """Command to return the status of the serving."""


class ChangeRoute(msgspec.Struct, frozen=True, tag=True):
    """Command to switch to a route within ``timeout_s`` seconds; the route's number is ignored."""

    route: Route
    versions: dict[int, ServedVersion]
    timeout_s: float


class StopServing(msgspec.Struct, frozen=True, tag=True):
    """Command to answer the received requests and to end the serving."""


class LogsRequest(msgspec.Struct, frozen=True, tag=True):
    """Command to return the newest lines of each log of a serving on a cluster."""

    last: int


Command = StatusRequest | ChangeRoute | StopServing | LogsRequest


class SupervisorAnswer(msgspec.Struct, frozen=True):
    """Answer of the supervisor to a command.

    Attributes:
        error: Error of the command; empty if it succeeded.
        host: Address at which the serving listens.
        port: Port at which it listens.
        pid: Process ID of the supervisor.
        ready: Number of replicas that answer.
        pids: Process IDs of the running replicas.
        route: Route that all replicas follow; None before the first one.
        restarts: Number of restarts of replicas.
        logs: Location of a log -> its newest lines, on a cluster.
        machines: Machines on which replicas run, on a cluster.
        replicas: Configured number of replicas.
    """

    error: str = ""
    host: str = ""
    port: int = 0
    pid: int = 0
    ready: int = 0
    pids: tuple[int, ...] = ()
    route: Route | None = None
    restarts: int = 0
    logs: dict[str, str] = {}
    machines: tuple[str, ...] = ()
    replicas: int = 0


# ------------------------------------------------------------------------------------------ to an agent


class AgentWelcome(msgspec.Struct, frozen=True, tag=True):
    """Settings of the serving for a new agent, with the token required for requests."""

    settings: ServingSettings
    token: str


class StartReplica(msgspec.Struct, frozen=True, tag=True):
    """Command to start this replica."""

    number: int


class EndReplica(msgspec.Struct, frozen=True, tag=True):
    """Command to kill the agent's replica."""


class ForwardToReplica(msgspec.Struct, frozen=True, tag=True):
    """Message to be forwarded to the replica; the agent inserts the folders of versions on its machine."""

    message: ToReplica


class SendLog(msgspec.Struct, frozen=True, tag=True):
    """Command to send the newest lines of the replica's log."""

    last: int


class EndAgent(msgspec.Struct, frozen=True, tag=True):
    """Command to end the agent, because the serving ends."""


class UseTokens(msgspec.Struct, frozen=True, tag=True):
    """Delegation tokens for the agent and its replica, as a Hadoop token file; they replace those sent before."""

    data: bytes

    def __repr__(self) -> str:
        return f"UseTokens({len(self.data)} bytes)"  # a log must not contain them


ToAgent = AgentWelcome | StartReplica | EndReplica | ForwardToReplica | SendLog | EndAgent | UseTokens

# ------------------------------------------------------------------------------------------ from an agent


class AgentHello(msgspec.Struct, frozen=True, tag=True):
    """First message of an agent, which offers a slot for a replica.

    Attributes:
        machine: Host name of its machine.
        task: ID of its Spark task attempt; -1 without Spark.
    """

    machine: str
    task: int


class ReplicaStarted(msgspec.Struct, frozen=True, tag=True):
    """Report of a started replica: its process and its address, or ``error`` if it could not be started."""

    pid: int = 0
    host: str = ""
    port: int = 0
    error: str = ""


class ReplicaMessage(msgspec.Struct, frozen=True, tag=True):
    """Message of the replica that its agent forwards."""

    message: FromReplica


class ReplicaEnded(msgspec.Struct, frozen=True, tag=True):
    """Report that the replica's process has ended, and how."""

    how: str


class ReplicaLogLines(msgspec.Struct, frozen=True, tag="LogSent"):
    """Newest lines of the log at ``where``."""

    where: str
    text: str


FromAgent = AgentHello | ReplicaStarted | ReplicaMessage | ReplicaEnded | ReplicaLogLines


decode_command: Callable[[bytes], Command] = checked(msgspec.json.Decoder(Command).decode)
decode_answer = checked(msgspec.json.Decoder(SupervisorAnswer).decode)
encode_for_agents = msgspec.msgpack.Encoder().encode
decode_for_agent: Callable[[bytes], ToAgent] = checked(msgspec.msgpack.Decoder(ToAgent).decode)
decode_of_agent: Callable[[bytes], FromAgent] = checked(msgspec.msgpack.Decoder(FromAgent).decode)
decode_settings = checked(msgspec.json.Decoder(ServingSettings).decode)


def encode_line(message: msgspec.Struct) -> bytes:
    """Return a message as one line of JSON with its line break."""
    return msgspec.json.encode(message) + b"\n"


class JsonLinesConnection:
    """Connection on which messages are sent and received as lines of JSON."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, types: object) -> None:
        """Initialize the connection with its streams.

        Args:
            reader: Stream of incoming lines.
            writer: Stream of outgoing lines.
            types: Types of the incoming messages.
        """
        self._reader, self._writer = reader, writer
        self._decode = checked(msgspec.json.Decoder(types).decode)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message without waiting; a peer that does not read is detected by missing heartbeats."""
        if not self._writer.is_closing():
            self._writer.write(encode_line(message))

    async def receive(self) -> object | None:
        """Return the next message; None when the other side has disconnected.

        Raises:
            msgspec.MsgspecError: The line is not a message, or is longer than ``LONGEST_LINE``.
        """
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                line += await self._next()
            except (ConnectionError, asyncio.IncompleteReadError):
                return None
            if len(line) > LONGEST_LINE:
                raise msgspec.DecodeError(f"a line of more than {LONGEST_LINE} bytes; a message has no more")
        message: object = self._decode(line)
        return message

    async def _next(self) -> bytes:
        """Return the rest of a line, or a part of it that exceeds the reader's buffer."""
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            return await self._reader.readexactly(error.consumed)

    def close(self) -> None:
        """Close the connection after pending messages are sent."""
        self._writer.close()


def versions_of_route(route: Route, versions: Mapping[int, ServedVersion]) -> dict[int, ServedVersion]:
    """Return the versions that a route needs."""
    return {number: versions[number] for number in route.versions}
