"""What supervisor, replicas and those who ask the supervisor say to one another: a line of JSON each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from hopsml.model.description import ModelDescription
from hopsml.serving.limits import ServingLimits
from hopsml.serving.routes import Route

LONGEST_LINE = 64 << 20  # bytes; a description names each file of a model
LONGEST_HELLO = 4 << 10  # bytes; it is read before its token is known


class ServedVersion(msgspec.Struct, frozen=True):
    """A version whose files lie in this folder of this machine."""

    files: str
    description: ModelDescription


class ServingSettings(msgspec.Struct, frozen=True):
    """What a serving was started with; ``settings.json`` of its folder. ``project``: the URL of its project. ``trusted``:
    users whose models whoever started it believes.
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
    """Go over to this route."""

    route: Route
    versions: dict[int, ServedVersion]


class DrainNow(msgspec.Struct, frozen=True, tag=True):
    """Answer what has come, take nothing more, and end."""


class SendCounts(msgspec.Struct, frozen=True, tag=True):
    """Say at once what has been counted."""


class TotalCounts(msgspec.Struct, frozen=True, tag=True):
    """What all replicas have counted."""

    counts: dict[str, float]


ToReplica = FollowRoute | DrainNow | SendCounts | TotalCounts

# ------------------------------------------------------------------------------------------ from a replica


class ReplicaAlive(msgspec.Struct, frozen=True, tag=True):
    """A sign of life, each second."""

    is_loading: bool
    counts: dict[str, float]


class RouteTurned(msgspec.Struct, frozen=True, tag=True):
    """The route with this number is followed."""

    number: int


class RouteKept(msgspec.Struct, frozen=True, tag=True):
    """The route with this number cannot be followed."""

    number: int
    reason: str


class AskTotal(msgspec.Struct, frozen=True, tag=True):
    """What have all counted?"""

    counts: dict[str, float]


FromReplica = ReplicaAlive | RouteTurned | RouteKept | AskTotal

# ------------------------------------------------------------------------------------------ to the supervisor


class AskStatus(msgspec.Struct, frozen=True, tag=True):
    """How does it stand?"""


class ChangeRoute(msgspec.Struct, frozen=True, tag=True):
    """Go over to this route, within so many seconds; its number does not count."""

    route: Route
    versions: dict[int, ServedVersion]
    timeout_s: float


class StopServing(msgspec.Struct, frozen=True, tag=True):
    """Let requests that are under way be answered, and end."""


class AskLogs(msgspec.Struct, frozen=True, tag=True):
    """The newest lines of each log of a serving on a cluster."""

    last: int


Command = AskStatus | ChangeRoute | StopServing | AskLogs


class SupervisorAnswer(msgspec.Struct, frozen=True):
    """``error`` is empty where what was asked for was done."""

    error: str = ""
    host: str = ""
    port: int = 0
    pid: int = 0
    ready: int = 0  # replicas that answer
    pids: tuple[int, ...] = ()  # of replicas that run
    route: Route | None = None  # that all follow
    restarts: int = 0
    logs: dict[str, str] = {}  # of a cluster, by where they lie
    machines: tuple[str, ...] = ()  # of a cluster, that replicas run on
    replicas: int = 0  # that there are to be


# ------------------------------------------------------------------------------------------ to an agent


class AgentWelcome(msgspec.Struct, frozen=True, tag=True):
    """What is served; ``token``: what requests must bear."""

    settings: ServingSettings
    token: str


class StartReplica(msgspec.Struct, frozen=True, tag=True):
    """Start this replica."""

    number: int


class EndReplica(msgspec.Struct, frozen=True, tag=True):
    """End it at once."""


class TellReplica(msgspec.Struct, frozen=True, tag=True):
    """Pass this on; the agent knows where a version's files lie on its machine."""

    message: ToReplica


class SendLog(msgspec.Struct, frozen=True, tag=True):
    """Send the newest lines of the replica's log."""

    last: int


class EndAgent(msgspec.Struct, frozen=True, tag=True):
    """Nothing is served any more."""


ToAgent = AgentWelcome | StartReplica | EndReplica | TellReplica | SendLog | EndAgent

# ------------------------------------------------------------------------------------------ from an agent


class AgentHello(msgspec.Struct, frozen=True, tag=True):
    """Here is a place for a replica. ``task``: Spark's number of the task that holds it, -1 for none."""

    token: str
    machine: str
    task: int


class ReplicaStarted(msgspec.Struct, frozen=True, tag=True):
    """The replica's process, and where it will listen; ``error`` where it could not be started."""

    pid: int = 0
    host: str = ""
    port: int = 0
    error: str = ""


class ReplicaSaid(msgspec.Struct, frozen=True, tag=True):
    """A message of the replica's."""

    message: FromReplica


class ReplicaEnded(msgspec.Struct, frozen=True, tag=True):
    """The replica's process has ended, in this way."""

    how: str


class LogSent(msgspec.Struct, frozen=True, tag=True):
    """The newest lines of the log at ``where``."""

    where: str
    text: str


FromAgent = AgentHello | ReplicaStarted | ReplicaSaid | ReplicaEnded | LogSent


decode_command: Callable[[bytes], Command] = msgspec.json.Decoder(Command).decode
decode_answer = msgspec.json.Decoder(SupervisorAnswer).decode
decode_settings = msgspec.json.Decoder(ServingSettings).decode


def encode_line(message: msgspec.Struct) -> bytes:
    """With the end of the line."""
    return msgspec.json.encode(message) + b"\n"


class Line:
    """A connection on which messages come and go; ``types``: what may come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, types: object) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = msgspec.json.Decoder(types)

    def send(self, message: msgspec.Struct) -> None:
        """Does not wait; whoever does not read is found by its silence."""
        if not self._writer.is_closing():
            self._writer.write(encode_line(message))

    async def receive(self, most: int = LONGEST_LINE) -> object | None:
        """Return the next message; None when the other side is gone.

        Args:
            most: bytes of the message.

        Raises:
            msgspec.MsgspecError: the line is no message, or longer than ``most``.
        """
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                line += await self._next()
            except (ConnectionError, asyncio.IncompleteReadError):
                return None
            if len(line) > most:
                raise msgspec.DecodeError(f"a line of more than {most} bytes; a message has no more")
        try:
            message: object = self._decoder.decode(line)
        except RecursionError as error:
            raise msgspec.DecodeError("a line of JSON that is nested too deeply for a message") from error
        return message

    async def _next(self) -> bytes:
        """Return what is left of a line, or a part of it that is longer than the reader reads ahead."""
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            return await self._reader.readexactly(error.consumed)

    def close(self) -> None:
        """End it."""
        self._writer.close()

    def abort(self) -> None:
        """End it at once, whether the other side listens or not."""
        self._writer.transport.abort()


def known_versions(route: Route, versions: Mapping[int, ServedVersion]) -> dict[int, ServedVersion]:
    """Those that a route needs."""
    return {number: versions[number] for number in route.versions}
