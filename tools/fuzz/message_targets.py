"""Targets of what arrives on sockets and pipes: messages of agents, stages and servings, requests, answers of YARN."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec

from tools.fuzz.target import Target

TOKEN = "t" * 43
Decode = Callable[[bytes], object]


def _by_first_byte(decoders: tuple[Decode, ...]) -> Decode:
    """Return a reader that chooses the decoder by the first byte of the input."""

    def read(data: bytes) -> object:
        return decoders[data[0] % len(decoders)](data[1:]) if data else None

    return read


def _seeds(*groups: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the seeds of each decoder, with its number as the first byte."""
    return tuple(bytes([number]) + seed for number, group in enumerate(groups) for seed in group)


def _hello() -> Any:
    from hopsml.cluster.shared import protocol

    return protocol.Hello(
        protocol.VERSION, request_id=1, index=0, host="127.0.0.1", port=4000, collective_port=4001, hostname="node-1",
        executor_id="1", pid=12, gpu_indices=(0,), gpu_bus_ids=("0000:01:00.0",),
    )  # fmt: skip


def agent_messages() -> Target:
    """Return the target of the protocol between driver, agents and workers."""
    from hopsml.cluster.agent import network
    from hopsml.cluster.shared import protocol, worker_events
    from hopsml.cluster.shared.spec import RunSpec

    formation = protocol.Formation(
        "a_1", 0, RunSpec(), b"pickle", "file:///tmp/a_1", "{}", "h:1", 2, collective=("h:2",)
    )
    launch = protocol.Launch("a_1", 0, 0, 0, "worker", 0, (0,), "r0", {"A": "b"})
    of_worker = (
        worker_events.ReportedStep(3, {"loss": 0.5, "name": "x", "none": None}, 1.7e9),
        worker_events.WorkerFinished(b"result", {"collectives": 3}),
        worker_events.FailureReport("cause", "traceback", raised=True),
        worker_events.CheckpointSaved(1, 0, "file:///tmp/c"),
    )
    to_driver = worker_events.WorkerStatus(3, True, 1.5, 7.0), worker_events.LogLines("text\n", 5)
    bootstrap = network.Bootstrap(1, (("h", 1),), TOKEN, "PEM", ("os",), 60.0, ("/tmp",), (4000, 4100))
    encode = protocol.encode
    decoders: tuple[Decode, ...] = (
        protocol.decode_for_coordinator, protocol.decode_for_agent, protocol.decode_for_group, worker_events.decode,
        network.decode_bootstrap,
    )  # fmt: skip
    seeds = _seeds(
        (encode(_hello()), *(encode(protocol.WorkerUpdate("a_1", 0, each)) for each in (*to_driver, of_worker[1]))),
        (encode(protocol.Welcome(60.0, 1.7e9)), encode(formation), encode(launch)),
        (
            encode(protocol.ReconfigureInPlace("a_1", 1, "h:1", ("h:1", "h:2"), b"key")),
            encode(protocol.Pause("a_1", 1)),
        ),
        tuple(worker_events.encode(each) for each in of_worker),
        (msgspec.msgpack.encode(bootstrap),),
    )
    return Target(_by_first_byte(decoders), (msgspec.MsgspecError,), seeds)


def frames() -> Target:
    """Return the target of frames in pipes: pieces of any size, and a blocking file."""
    from hopsml.cluster.shared import framing

    def read(data: bytes) -> object:
        decoder, size = framing.FrameDecoder(), 1 + data[0] % 64 if data else 1
        found = [each for at in range(1, len(data), size) for each in decoder.feed(data[at : at + size])]
        file = io.BytesIO(data[1:])
        assert [framing.read_frame(file) for _ in found] == found
        return framing.read_frame(file) if file.tell() < len(data) - 1 else found

    return Target(read, (ValueError, EOFError), (b"\3" + framing.framed(b"abc") + framing.framed(b""), b"\0\0\0\0\1"))


class _Transport(asyncio.Transport):
    """Transport of a connection whose bytes are the input."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4000)})
        self.closed = False

    def write(self, data: Any) -> None:
        """Drop what the server sends."""

    def is_closing(self) -> bool:
        """Return True after ``close`` or ``abort``."""
        return self.closed

    def close(self) -> None:
        """Mark the connection as closed."""
        self.closed = True

    def abort(self) -> None:
        """Mark the connection as closed, without waiting."""
        self.closed = True


class _Listener:
    """Server of agents that decodes their messages, and records errors that the connection reports as its own fault."""

    def __init__(self) -> None:
        self.token, self.inside, self.refused = TOKEN, set[Any](), list[str]()

    def record_refusal(self, kind: str, text: str) -> None:
        """Append a refusal to the list."""
        self.refused.append(kind)

    def create_session(self, connection: Any, frame: bytes, admitted: float) -> object:
        """Decode the first message."""
        return self.process_frame(None, frame)

    def process_frame(self, session: object, frame: bytes) -> object:
        """Decode a further message."""
        from hopsml.cluster.shared import protocol

        return protocol.decode_for_coordinator(frame)

    def end_session(self, session: object, reason: str) -> None:
        """Do nothing at the end of a connection."""


class _Pending:
    """Place of a connection among those without a token."""

    def release(self) -> None:
        """Do nothing."""


def agent_connection() -> Target:
    """Return the target of a connection to the coordinator, from its first byte after the TLS handshake."""
    from websockets.frames import Frame, Opcode

    from hopsml.cluster.driver.sessions import AgentHandler, Connection
    from hopsml.cluster.shared import protocol

    loop = asyncio.new_event_loop()

    async def connected(data: bytes) -> list[str]:
        listener = _Listener()
        handler = AgentHandler[Any](listener, _Pending())  # type: ignore[arg-type]
        handled = handler.failed

        def failed(connection: Connection, error: Exception) -> None:
            if not isinstance(error, msgspec.MsgspecError):
                raise error
            handled(connection, error)

        handler.failed = failed  # type: ignore[method-assign]
        connection, transport = Connection(handler, 1 << 20), _Transport()
        connection.connection_made(transport)
        size = 1 + data[0] * 16 if data else 1
        for at in range(1, len(data), size):
            if not transport.closed:
                connection.data_received(data[at : at + size])
        connection.eof_received()
        connection.connection_lost(None)
        return listener.refused

    upgrade = (
        f"GET / HTTP/1.1\r\nHost: h:1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    ).encode()
    content = protocol.encode(_hello())
    hello = Frame(Opcode.BINARY, content).serialize(mask=True)
    seeds = (b"\xff" + upgrade + hello, b"\3" + upgrade.replace(TOKEN.encode(), b"x") + hello, b"\xff\x16\x03\x01")
    return Target(lambda data: loop.run_until_complete(connected(data)), (), seeds)


def other_messages() -> Target:
    """Return the target of messages of lanes, stages and servings."""
    from hopsml.search import messages as of_search
    from hopsml.serving import messages as of_serving
    from hopsml.training.data import frame_log, staged_rows

    decoders: tuple[Decode, ...] = (
        of_search.decode_for_lane, of_search.decode_for_driver, frame_log.decode_address,
        frame_log.decode_addresses, frame_log.decode_partition, frame_log.decode_shards, frame_log.decode_table,
        staged_rows.decode_fetch, staged_rows.decode_question, of_serving.decode_command, of_serving.decode_answer,
        of_serving.decode_for_agent, of_serving.decode_of_agent, of_serving.decode_settings,
    )  # fmt: skip
    packed = msgspec.msgpack.encode
    lane = of_search.RunTrial(1, 1, "t1", b"config", "loss"), of_search.EndTrial(1, 1, "stop", 2.0)
    fetch, question = staged_rows.FetchRequest("data-x/0-0.arrow", 0, 3), staged_rows.TableRequest("x", 2)
    table = frame_log.FrameTable("x", 1, (), {}, ((0,),), True, False)
    ended = of_search.TrialEnded(1, 1, "failed", error="e")
    seeds = _seeds(
        tuple(map(packed, lane)), (packed(ended),), (), (b"\x90",), (), (b"\x90",), (packed(table),), (packed(fetch),),
        (packed(question),), (msgspec.json.encode(of_serving.StatusRequest()),),
        (msgspec.json.encode(of_serving.SupervisorAnswer()),), (), (packed(of_serving.ReplicaLogLines("out", "text")),), (),
    )  # fmt: skip
    return Target(_by_first_byte(decoders), (msgspec.MsgspecError,), seeds)


def serving_request() -> Target:
    """Return the target of a request to a server of models: its path, and its body by both protocols."""
    import numpy as np

    from hopsml.model.description import Signature, TensorSpec
    from hopsml.model.flavors.contract import MissingValues
    from hopsml.serving import bodies, receiving

    inputs = {"x": TensorSpec("float32", (None, 2)), "n": TensorSpec("int64", (None,)), "s": TensorSpec("str", (None,))}
    single = {"x": TensorSpec("float32", (None, 2))}
    output = {"y": np.zeros((2, 1), np.float32)}

    def of_path(data: bytes) -> object:
        method, _, path = data.decode("latin-1").partition(" ")
        return receiving.parse_target(method, path)

    def of_v1(data: bytes) -> object:
        return bodies.encode_answer_v1(output, bodies.parse_v1(data, inputs, MissingValues()))

    def of_v1_single(data: bytes) -> object:
        return bodies.parse_v1(data, single)

    def of_v2(data: bytes) -> object:
        asked = bodies.parse_v2(data, Signature(inputs, {"y": TensorSpec("float32", (None, 1))}))
        return bodies.encode_answer_v2(output, asked, "m", 1)

    rows = [{"x": [1.0, 2], "n": 3, "s": {"b64": "YQ=="}}, {"x": [0, 1], "n": 4, "s": "b"}]
    tensors = [
        {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5]},
        {"name": "n", "shape": [1], "datatype": "INT64", "data": [7]},
        {"name": "s", "shape": [1], "datatype": "BYTES", "data": ["a"]},
    ]
    columns = {"x": [[1, 2]], "n": [1], "s": ["a"]}
    seeds = _seeds(
        (b"POST /v1/models/m/versions/2:predict", b"GET /v2/models/m%2F/ready", b"POST /v2/models/m/infer"),
        (json.dumps({"instances": rows}).encode(), json.dumps({"inputs": columns}).encode()),
        (b'{"instances": [[1, 2], [3, 4.5]]}',),
        (json.dumps({"id": "1", "inputs": tensors, "outputs": [{"name": "y"}]}).encode(),),
    )
    return Target(_by_first_byte((of_path, of_v1, of_v1_single, of_v2)), (receiving.RequestRefused,), seeds)


def yarn_answers() -> Target:
    """Return the target of a ResourceManager's answers about applications and nodes, whatever their status."""
    from hopsml.core.hadoop_http import Answer
    from hopsml.errors import ClusterError
    from hopsml.yarn import resource_manager
    from hopsml.yarn.resource_manager import ResourceManager

    statuses = (200, 200, 200, 401, 404, 500, 503)
    kinds = ("application/json", "application/json;charset=utf-8", "text/html", "")
    manager = ResourceManager(("rm:8088",), user="anna")
    calls: tuple[Callable[[], object], ...] = (
        lambda: manager.application("application_1_0001"), lambda: manager.find_by_tag("tag"), manager.nodes,
        lambda: manager.kill("application_1_0001"),
    )  # fmt: skip

    def read(data: bytes) -> object:
        if len(data) < 2:
            return None
        status, kind = statuses[data[0] % len(statuses)], kinds[data[1] % len(kinds)]
        with mock.patch.object(resource_manager, "request", return_value=Answer(status, data[2:], kind)):
            return calls[data[0] // len(statuses) % len(calls)]()

    app = {
        "id": "application_1_0001", "state": "RUNNING", "finalStatus": "UNDEFINED", "applicationTags": "tag,b",
        "startedTime": 1700000000000, "runningContainers": 2, "amContainerLogs": "http://n:8042/node/containerlogs/container_1/a",
    }  # fmt: skip
    gpu = {"resourceInformations": {"resourceInformation": [{"name": "yarn.io/gpu", "value": 2}]}}
    node = {
        "id": "n:1",
        "state": "RUNNING",
        "usedMemoryMB": 1,
        "availMemoryMB": 9,
        "totalResource": gpu,
        "nodeLabels": ["a"],
    }
    seeds = (
        b"\0\0" + json.dumps({"app": app}).encode(),
        b"\7\0" + json.dumps({"apps": {"app": [app]}}).encode(),
        b"\x0e\0" + json.dumps({"nodes": {"node": [node]}}).encode(),
        b"\x18\0" + json.dumps({"RemoteException": {"message": "no"}}).encode(),
        b"\3\2<html>Error 401</html>",
    )
    return Target(read, (ClusterError,), seeds)


def yarn_logs() -> Target:
    """Return the target of a NodeManager's page with a log, and of an aggregated log file."""
    import zlib

    from hopsml.core.hadoop_http import Answer
    from hopsml.errors import ClusterError
    from hopsml.yarn import logs, tfile

    def page(data: bytes) -> object:
        return logs.parse_log_answer(Answer((200, 404, 500)[data[0] % 3], data[1:]), 100) if data else None

    def stored(data: bytes) -> object:
        with logs.converting_format_errors("application_1_0001"):
            return logs.read_from_aggregated_file(io.BytesIO(data), "container_1", "stdout", -20, 100)

    def text(content: bytes) -> bytes:
        return bytes([len(content)]) + content

    def file(codec: bytes) -> bytes:
        value = b"\0\6stdout\0\x0211hello world"
        key = b"\0\x0bcontainer_1"
        data = text(key) + text(value)
        block = zlib.compress(data) if codec == b"gz" else data
        index = text(codec) + b"\1" + bytes([0, len(block), len(data)])
        place = len(block)
        listing = b"\1" + text(b"data:BCFile.index") + text(b"none") + bytes([place, len(index), len(index)])
        begin = len(block) + len(index)
        return block + index + listing + begin.to_bytes(8, "big") + bytes(4) + tfile.MAGIC

    answer = b"\0LogType:stdout\nLogLength:11\nLogContents:\nhello world\nEnd of LogType:stdout"
    return Target(_by_first_byte((page, stored)), (ClusterError,), _seeds((answer,), (file(b"none"), file(b"gz"))))


def log_stream() -> Target:
    """Return the target of a driver's log that a job service sends as server-sent events."""
    import itertools

    from hopsml.core import log_stream as stream
    from hopsml.errors import ServiceError

    def read(data: bytes) -> object:
        moments = itertools.count(0, 2 * stream.PATIENCE_S)
        opened = contextlib.nullcontext(data.splitlines(keepends=True))
        return list(stream.follow_log(lambda *_: opened, "train", pause=lambda _: None, clock=lambda: next(moments)))

    event = b'id: 3\nevent: log\ndata: {"text": "a", "application": "application_1_0001"}\n\n'
    return Target(read, (ServiceError,), (event + b"id: 4\nevent: end\ndata: {}\n\n", event + event))


def spnego() -> Target:
    """Return the target of the challenges, and of the page, by which a service of Hadoop refuses a request."""
    from hopsml.core import hadoop_http
    from hopsml.core import spnego as sign_in

    def read(data: bytes) -> object:
        head, _, page = data.partition(b"\r\n\r\n")
        challenges = head.decode("latin-1").split("\r\n")
        return sign_in.negotiate_token(challenges), hadoop_http.visible_text(page.decode(errors="replace"))

    page = (
        b"<html><head><style>p {}</style></head><!-- x --><body><h1>Error 401</h1><p>Authentication required</p></html>"
    )
    return Target(read, (), (b"Negotiate YWJj\r\nBasic x\r\n\r\n" + page, b"Basic realm=x, Negotiate\r\n\r\ntext"))


def yarn_reports() -> Target:
    """Return the target of a report that Hadoop's client prints about an application, over RPC."""
    from hopsml.errors import ClusterError
    from hopsml.yarn import rpc

    application = "application_1_0001"

    def read(data: bytes) -> object:
        found = rpc.parse_report(application, data.decode(errors="replace"))
        assert isinstance(found.started_s, float) and found.id == application
        return found

    rows = {
        "Application-Id": application, "Application-Name": "name", "User": "anna", "Queue": "default",
        "Start-Time": "1700000000000", "Finish-Time": "0", "State": "RUNNING", "Final-State": "UNDEFINED",
        "Diagnostics": "null",
    }  # fmt: skip
    report = "Application Report : \n" + "".join(f"\t{name} : {value}\n" for name, value in rows.items())
    missing = f"Application with id '{application}' doesn't exist in RM or Timeline Server.\n"
    return Target(read, (ClusterError,), (report.encode(), missing.encode()))


def kerberos_errors() -> Target:
    """Return the target of a KDC's answer from which the doctor takes the KDC's time."""
    from hopsml.core import krb5

    def read(data: bytes) -> object:
        times = krb5.server_times(data)
        assert all(isinstance(found, float) for found in times)
        return times

    error = b"\x7e\x5a\x30\x58\xa0\x03\x02\x01\x05\xa1\x03\x02\x01\x1e\xa4\x11\x18\x0f20261129120000Z\xa5\x05\x02\x03"
    return Target(read, (), (error, b"\x6b" + error[1:]))


class _DirectChannel:
    """Both ends of the channel to a storage helper, which handles a request in this thread as soon as it is sent."""

    def __init__(self) -> None:
        self._frames: list[Any] = []

    def send(self, message: dict[str, Any], timeout_s: float | None = None) -> None:
        """Let the helper's server handle a request, or append a message of the server."""
        from hopsml.storage.remote.server import StoreServer
        from hopsml.storage.remote.store import ChannelClosed

        if "verb" not in message:
            self._frames.append(msgspec.msgpack.decode(msgspec.msgpack.encode(message)))
            return
        requests = [message]
        server_end: Any = types.SimpleNamespace(
            send=self.send,
            send_data=lambda data: self._frames.append(bytearray(data)),
            receive=lambda *_: requests.pop() if requests else _raise(ChannelClosed("the end")),
        )
        with contextlib.suppress(ChannelClosed):
            StoreServer(server_end).serve()

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the next frame of the server."""
        return self._frames.pop(0)


def _raise(error: Exception) -> Any:
    raise error


def webhdfs_answers() -> Target:
    """Return the target of a NameNode's answers by WebHDFS, as they arrive at the caller of a store."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import HTTPHeaderDict, HTTPResponse

    from hopsml.errors import StorageError
    from hopsml.storage.filesystem import FileStatus
    from hopsml.storage.remote.adapter import RemoteFileSystem

    statuses, kinds = (200, 200, 200, 307, 400, 401, 403, 404, 500, 503), ("application/json", "text/html", "")
    url = "webhdfs://127.0.0.1:9/user/anna/file"
    store = RemoteFileSystem(url, 10.0)

    def list_dir() -> object:
        return [_typed(found) for found in store.list_dir(url)]

    calls: tuple[Callable[[], object], ...] = (
        lambda: _typed(store.status(url)), list_dir, lambda: store.read_bytes(url), lambda: store.delete(url),
        lambda: store.rename(url, f"{url}-2"), lambda: store.make_dirs(url),
    )  # fmt: skip

    def _typed(found: FileStatus) -> FileStatus:
        assert isinstance(found.length, int) and isinstance(found.is_dir, bool) and isinstance(found.owner, str)
        assert isinstance(found.permission, int) and isinstance(found.modified_s, float), found
        return found

    def read(data: bytes) -> object:
        if len(data) < 2:
            return None
        bodies = data[2:].split(b"\n\n")

        def send(adapter: HTTPAdapter, asked: Any, **_: Any) -> requests.Response:
            headers = HTTPHeaderDict({"Content-Type": kinds[data[1] % len(kinds)], "Location": "http://127.0.0.1:9/d"})
            content = bodies.pop(0) if len(bodies) > 1 else bodies[0]
            raw = HTTPResponse(io.BytesIO(content), headers, statuses[data[0] % len(statuses)], preload_content=False)
            return adapter.build_response(asked, raw)

        with (
            mock.patch.object(HTTPAdapter, "send", send),
            mock.patch.object(RemoteFileSystem, "_helper", return_value=contextlib.nullcontext(_DirectChannel())),
        ):
            return calls[data[0] // len(statuses) % len(calls)]()

    file = {
        "type": "FILE", "length": 4, "modificationTime": 1700000000000, "accessTime": 0, "owner": "anna", "group": "g",
        "permission": "644", "replication": 1, "blockSize": 128, "pathSuffix": "file",
    }  # fmt: skip
    status = json.dumps({"FileStatus": file}).encode()
    refused = {"exception": "AccessControlException", "javaClassName": "a.b.AccessControlException", "message": "no"}
    seeds = (
        b"\0\0" + status,
        b"\x0a\0" + json.dumps({"FileStatuses": {"FileStatus": [file]}}).encode(),
        b"\x14\0" + status + b"\n\n" + status + b"\n\ntext",
        b"\x1e\0" + b'{"boolean": true}',
        b"\x28\0" + b'{"boolean": false}',
        b"\x32\0",
        b"\x06\0" + json.dumps({"RemoteException": refused}).encode(),
        b"\x05\1<html>Error 401</html>",
    )
    return Target(read, (StorageError,), seeds)


TARGETS: dict[str, Callable[[], Target]] = {
    "agent-messages": agent_messages,
    "frames": frames,
    "agent-connection": agent_connection,
    "other-messages": other_messages,
    "serving-request": serving_request,
    "yarn-answers": yarn_answers,
    "yarn-logs": yarn_logs,
    "log-stream": log_stream,
    "spnego": spnego,
    "yarn-reports": yarn_reports,
    "kerberos-errors": kerberos_errors,
    "webhdfs-answers": webhdfs_answers,
}
