"""Tests of the coordinator with real sockets and TLS: unauthenticated peers, and many simulated agents."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver import actions, sessions
from hopsml.cluster.driver.active_run import RunRequest
from hopsml.cluster.driver.backends.base import AskEnded, SlotEnded
from hopsml.cluster.driver.coordinator import Coordinator
from hopsml.cluster.driver.run_texts import waiting_text
from hopsml.cluster.driver.sessions import AgentSession
from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.spec import FixedGroup, RunSpec
from hopsml.cluster.shared.worker_events import FailureReport, ReportedStep, WorkerFinished, WorkerReports
from hopsml.core.callbacks import RECORDS
from hopsml.errors import CoordinatorLost, RunCancelled, StartTimeout
from hopsml.experiment import applications
from hopsml.experiment.run import Run
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.cluster import workloads
from tests.helpers.cluster.backend_contract import submit
from tests.helpers.cluster.simulated import SimulatedBackend, client_tls, connected, hello
from tests.helpers.cluster.workloads import WAIT_S, wait_until
from tests.helpers.local_application import SLOTS, local_application

pytestmark = pytest.mark.local
TRIES = 3


class AttackedRun:
    """A real running run of two workers, its coordinator, and the coordinator's log."""

    def __init__(self, run: Run, coordinator: Coordinator) -> None:
        self.run, self.coordinator = run, coordinator
        self.address = coordinator.addresses[0]
        self.certificate = coordinator.door.identity.certificate
        self.caplog: pytest.LogCaptureFixture

    def connected(self, token: str | None) -> Any:
        return connected(self.address, self.certificate, token)

    def check_refused(self, kind: str, count: int = TRIES) -> None:
        """Each one counted, the first one logged, and the run still there."""
        wait_until(
            lambda: self.coordinator.door.refused[kind] >= count, f"{count} refusals, {self.coordinator.door.refused}"
        )
        assert dict(self.coordinator.door.refused) == {kind: count}
        assert RECORDS.wait_until_delivered(WAIT_S)
        logged = [record.getMessage() for record in self.caplog.records if record.name == "hopsml.coordinator"]
        assert len(logged) == 1 and logged[0].startswith("refused: "), logged
        assert self.run.running() and self.run.status()["phase"] == "running"


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedRun]:
    """One run that all the strangers of this file besiege, and that finishes unharmed."""
    folder = tmp_path_factory.mktemp("besieged")
    with local_application(folder):
        submit(lambda: None, SLOTS, keep_warm=600).result(END_S)  # all agents are there, and stay
        run = submit(workloads.report_steps, args={"folder": str(folder)}, keep_warm=600)
        wait_until(lambda: [member["step"] for member in run.status()["members"]] == [4, 4], "the run")
        yield AttackedRun(run, applications.get_or_start(keep_warm_s=600.0).coordinator)
        (folder / "go-on").touch()
        assert run.result(END_S).value == 5
        assert [member["state"] for member in run.status()["members"]] == ["FINISHED", "FINISHED"]


@pytest.fixture
def attacked_run(long_run: AttackedRun, caplog: pytest.LogCaptureFixture) -> AttackedRun:
    long_run.caplog = caplog
    agents = long_run.coordinator.door.agents
    wait_until(lambda: len(agents) == SLOTS, "the end of what the test before this one has connected")
    long_run.coordinator.door.refused.clear()
    return long_run


@pytest.mark.parametrize("token", [None, "", "wrong", "x" * 43])
def test_peer_without_the_token_receives_401(attacked_run: AttackedRun, token: str | None) -> None:
    async def intrude() -> None:
        for _ in range(TRIES):
            with pytest.raises(InvalidStatus) as caught:
                async with attacked_run.connected(token):
                    pass
            assert caught.value.response.status_code == 401

    asyncio.run(intrude())
    attacked_run.check_refused("token")


def test_silent_connection_is_closed(attacked_run: AttackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HELLO_TIMEOUT_S", 0.3)

    async def keep_silent() -> None:
        for _ in range(TRIES):
            async with attacked_run.connected(attacked_run.coordinator.door.token) as connection:
                with pytest.raises(ConnectionClosed):
                    await connection.recv()

    asyncio.run(keep_silent())
    attacked_run.check_refused("silence")


def test_plain_http_and_garbage_fail_the_tls_handshake(attacked_run: AttackedRun) -> None:
    async def plain() -> None:
        with pytest.raises(InvalidMessage):
            async with connect(f"ws://{attacked_run.address[0]}:{attacked_run.address[1]}/", proxy=None):
                pass

    asyncio.run(plain())
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096):
        with socket.create_connection(attacked_run.address, timeout=WAIT_S) as stranger:
            stranger.sendall(garbage)
            assert _hung_up(stranger)
    attacked_run.check_refused("tls")


UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def test_tls_connection_without_a_websocket_is_refused(attacked_run: AttackedRun) -> None:
    tls = client_tls(attacked_run.certificate)
    for requests in (b"\x16\x03garbage\r\n\r\n", b"GET / HTTP/1.1\r\nbroken\r\n\r\n", UPGRADE + b"x" * 10_000):
        with socket.create_connection(attacked_run.address, timeout=WAIT_S) as raw, tls.wrap_socket(raw) as stranger:
            stranger.sendall(requests)
            assert _hung_up(stranger)
    attacked_run.check_refused("handshake")
    assert not [record for record in attacked_run.caplog.records if record.name == "asyncio"], (
        "a traceback for each of them"
    )


def _hung_up(stranger: socket.socket) -> bool:
    try:
        while stranger.recv(4096):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    return True


def _closed_with(attacked_run: AttackedRun, *frames: bytes | str, welcome: bool, raw: bytes = b"") -> int:
    """The close code that an agent with the right token gets for these frames, or for raw bytes on the wire."""

    async def send_messages() -> int:
        async with attacked_run.connected(attacked_run.coordinator.door.token) as connection:
            if welcome:
                await connection.send(protocol.encode(hello(900, 0)))
                assert isinstance(protocol.decode_for_agent(await connection.recv()), protocol.Welcome)
            try:
                for frame in frames:
                    await connection.send(frame)
                connection.transport.write(raw)
                while True:
                    await asyncio.wait_for(connection.recv(), WAIT_S)
            except ConnectionClosed as closed:
                return closed.rcvd.code if closed.rcvd is not None else 0

    return asyncio.run(send_messages())


@pytest.mark.parametrize("welcome", [True, False], ids=["after the hello", "instead of the hello"])
@pytest.mark.parametrize(
    "frame",
    [
        b"\xc1garbage",
        b"",
        "a text frame",
        protocol.encode(protocol.Dismiss("go home")),  # the coordinator's own kind
        protocol.encode(protocol.Heartbeat())[:-3],
    ],
    ids=["garbage", "empty", "text", "wrong kind", "truncated"],
)
def test_invalid_message_ends_the_connection(attacked_run: AttackedRun, frame: bytes | str, welcome: bool) -> None:
    assert _closed_with(attacked_run, frame, welcome=welcome) == 1008
    attacked_run.check_refused("message", 1)


def test_hello_of_another_version_and_a_second_hello_are_refused(attacked_run: AttackedRun) -> None:
    assert _closed_with(attacked_run, protocol.encode(hello(900, 0, version=99)), welcome=False) == 1008
    assert _closed_with(attacked_run, protocol.encode(hello(900, 0)), welcome=True) == 1008
    attacked_run.check_refused("message", 2)


def test_agents_get_delegation_tokens_at_once_and_after_their_welcome(attacked_run: AttackedRun) -> None:
    """Those that are connected when tokens are given, and those that join later."""

    async def connected_agents() -> list[object]:
        coordinator, found = attacked_run.coordinator, list[object]()
        async with attacked_run.connected(coordinator.door.token) as early:
            await early.send(protocol.encode(hello(900, 0)))
            assert isinstance(protocol.decode_for_agent(await early.recv()), protocol.Welcome)
            coordinator.give_tokens(protocol.DelegationTokens(b"first"))
            found.append(await next_tokens(early))
            coordinator.give_tokens(protocol.DelegationTokens(b"second"))
            found.append(await next_tokens(early))
        async with attacked_run.connected(coordinator.door.token) as late:
            await late.send(protocol.encode(hello(900, 1)))
            assert isinstance(protocol.decode_for_agent(await late.recv()), protocol.Welcome)
            found.append(protocol.decode_for_agent(await late.recv()))
        return found

    async def next_tokens(agent: Any) -> object:
        while True:
            message = protocol.decode_for_agent(await asyncio.wait_for(agent.recv(), WAIT_S))
            if isinstance(message, protocol.DelegationTokens):
                return message

    try:
        found = asyncio.run(connected_agents())
    finally:
        attacked_run.coordinator.door._tokens = None
    assert found == [protocol.DelegationTokens(data) for data in (b"first", b"second", b"second")]
    assert "second" not in repr(found)


def test_oversized_message_is_refused(attacked_run: AttackedRun) -> None:
    length = (protocol.MAX_TO_COORDINATOR + 1).to_bytes(8, "big")
    for _ in range(TRIES):
        assert _closed_with(attacked_run, welcome=True, raw=b"\x82\xff" + length + b"mask") == 1009
    attacked_run.check_refused("size")


@pytest.mark.parametrize("generation", [0, 1, -1])
def test_messages_about_runs_of_other_agents_are_refused(attacked_run: AttackedRun, generation: int) -> None:
    key = (attacked_run.run.run_id, generation)
    messages = [
        protocol.WorkerUpdate(*key, FailureReport("sabotage")),
        protocol.WorkerUpdate(*key, WorkerFinished(b"sabotage")),
        protocol.WorkerUpdate("another_run", generation, WorkerReports((ReportedStep(99, {"loss": 99.0}, 0.0),))),
    ]

    async def send_messages() -> None:
        async with attacked_run.connected(attacked_run.coordinator.door.token) as connection:
            for message in (hello(900, 0), *messages):
                await connection.send(protocol.encode(message))
            while attacked_run.coordinator.door.refused.total() < len(messages):
                await asyncio.wait_for(connection.recv(), WAIT_S)  # the lease's renewals keep coming

    asyncio.run(send_messages())
    attacked_run.check_refused("generation", len(messages))
    assert attacked_run.run.status()["members"][0]["metrics"] == {"loss": 0.2}


def test_messages_of_an_agent_are_acknowledged_as_they_are_handled(attacked_run: AttackedRun) -> None:
    """An agent without acknowledgements stops reading its worker: see ``connection.py``."""
    word = protocol.encode(protocol.ForkServerReady(("x" * 1000,)))
    count = 3 * sessions.TAKEN_BYTES // len(word)

    async def send_messages() -> None:
        async with attacked_run.connected(attacked_run.coordinator.door.token) as connection:
            for data in (protocol.encode(hello(900, 0)), *[word] * count, *[protocol.encode(protocol.Heartbeat())] * 9):
                await connection.send(data)
            taken = 0
            while taken <= len(word) * count - sessions.TAKEN_BYTES:
                message = protocol.decode_for_agent(await asyncio.wait_for(connection.recv(), WAIT_S))
                taken += message.size if isinstance(message, protocol.MessagesTaken) else 0

    asyncio.run(send_messages())


def test_ordinary_runs_cause_no_refusals(attacked_run: AttackedRun) -> None:
    for _ in range(2):
        submit(lambda: print("hello"), keep_warm=600).result(END_S)
    assert not attacked_run.coordinator.door.refused


# ---------------------------------------------------------------------------------------------- many agents


@pytest.fixture
def coordinator_of_200() -> Iterator[Coordinator]:
    coordinator = Coordinator(SimulatedBackend(200))
    coordinator.start()
    yield coordinator
    coordinator.close()


def request(run_id: str, size: int, **times: float) -> RunRequest:
    spec = RunSpec(group=FixedGroup(size=size, **times), preflight="off")
    return RunRequest(run_id, spec, payload=bytes(20_000), run_url="file:///nowhere")


def test_two_hundred_agents_join_start_workers_and_finish(coordinator_of_200: Coordinator) -> None:
    start_s = clock.awake()
    state = coordinator_of_200.start_run(request("app_1", 200))
    assert state.wait(WAIT_S) and state.error is None
    assert state.result == b"rank 0"
    assert sorted(state.members) == list(range(200))
    assert {rank: view.step for rank, view in state.members.items()} == {rank: rank for rank in range(200)}
    again = coordinator_of_200.start_run(request("app_2", 200))  # on the agents that are there
    assert again.wait(WAIT_S) and again.error is None
    assert clock.awake() - start_s < WAIT_S
    assert not coordinator_of_200.door.refused


def test_waiting_text_is_updated_per_tick_not_per_agent(
    coordinator_of_200: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    tick, ticks = coordinator_of_200.pool.tick, 0

    def counted(now: float, is_contended: bool = False) -> list[Any]:
        nonlocal ticks
        ticks += 1
        return tick(now, is_contended)

    def noted(*of: Any) -> str:
        texts.append(waiting_text(*of))
        return texts[-1]

    monkeypatch.setattr(coordinator_of_200.pool, "tick", counted)
    monkeypatch.setattr(actions, "waiting_text", noted)
    state = coordinator_of_200.start_run(request("app_1", 200))
    assert state.wait(WAIT_S) and state.error is None
    assert texts[0] == "waiting for executors: 0 of 200 agents are connected"
    assert len(texts) <= ticks + 1  # the one when it begins


def test_runs_queue_for_slots_and_all_of_them_finish(coordinator_of_200: Coordinator) -> None:
    states = [coordinator_of_200.start_run(request(f"app_{number}", 90)) for number in range(5)]
    assert all(state.wait(WAIT_S) and state.error is None for state in states)


def test_closed_coordinator_ends_its_runs_and_accepts_no_more() -> None:
    class SilentBackend(SimulatedBackend):
        def submit(self, *_: Any) -> None:
            pass

    coordinator = Coordinator(SilentBackend(2))
    coordinator.start()
    waits = coordinator.start_run(request("app_1", 2))
    late = coordinator.start_run(request("app_2", 2, start_timeout_s=0.5))
    assert late.wait(WAIT_S) and isinstance(late.error, StartTimeout)
    assert "0 of 2 agents are connected; simulated agents are slow" in str(late.error)
    coordinator.close()
    assert waits.wait(0) and isinstance(waits.error, RunCancelled)
    with pytest.raises(CoordinatorLost, match="closed"):
        coordinator.start_run(request("app_3", 2))


def test_failed_start_of_agents_is_the_error_of_the_run() -> None:
    class Broken(SimulatedBackend):
        def submit(self, *_: Any) -> None:
            raise OSError("no room for a process")

    coordinator = Coordinator(Broken(2))
    coordinator.start()
    try:
        state = coordinator.start_run(request("app_1", 2))
        assert state.wait(WAIT_S) and isinstance(state.error, CoordinatorLost)
        assert "no room for a process" in str(state.error)
    finally:
        coordinator.close()


def test_run_that_cannot_be_encoded_fails_and_other_runs_do_not(coordinator_of_200: Coordinator) -> None:
    class Unencodable:
        pass

    broken = request("app_1", 2, grace_s=0.1, failed_flush_s=0.1)
    broken.spec.environment["A"] = Unencodable()  # type: ignore[assignment]
    state = coordinator_of_200.start_run(broken)
    assert state.wait(WAIT_S) and isinstance(state.error, CoordinatorLost)
    good = coordinator_of_200.start_run(request("app_2", 2))
    assert good.wait(WAIT_S) and good.error is None


def test_run_with_the_id_of_a_running_one_is_refused(coordinator_of_200: Coordinator) -> None:
    big = coordinator_of_200.start_run(request("app_1", 201))  # waits: there are 200
    same = coordinator_of_200.start_run(request("app_1", 2))
    assert same.wait(WAIT_S) and "app_1 is already running" in str(same.error)
    assert not big.is_over
    coordinator_of_200.cancel("app_1", "enough")
    assert big.wait(WAIT_S) and isinstance(big.error, RunCancelled)


def test_unresponsive_backend_delays_no_deadline() -> None:
    answer, called = threading.Event(), threading.Event()

    class Frozen(SimulatedBackend):
        def submit(self, bootstrap: Bootstrap, count: int, ended: AskEnded, slot_ended: SlotEnded) -> None:
            if bootstrap.request_id == 1:
                super().submit(bootstrap, count, ended, slot_ended)

        def is_contended(self) -> bool:
            called.set()
            return not answer.wait(WAIT_S)

    coordinator = Coordinator(Frozen(4))
    coordinator.start()
    try:
        assert coordinator.start_run(request("app_1", 2)).wait(WAIT_S)
        assert called.wait(WAIT_S)  # about the two agents that are idle now
        late = coordinator.start_run(request("app_2", 3, start_timeout_s=0.2))  # the third agent never connects
        assert late.wait(WAIT_S / 2) and isinstance(late.error, StartTimeout)
    finally:
        answer.set()
        coordinator.close()


def test_agent_that_sends_heartbeats_but_reads_nothing_is_disconnected() -> None:
    lost: list[str] = []

    class Recording(Coordinator):
        def session_ended(self, session: AgentSession, reason: str) -> None:
            lost.append(reason)
            super().session_ended(session, reason)

    coordinator = Recording(SimulatedBackend(2), lease_s=1.0)
    coordinator.start()

    async def take_nothing() -> None:
        token, certificate = coordinator.door.token, coordinator.door.identity.certificate
        async with connected(coordinator.addresses[0], certificate, token) as connection:
            await connection.send(protocol.encode(hello(1, 0)))
            await connection.recv()
            connection.transport.pause_reading()
            (session,) = coordinator.door.agents.values()
            coordinator._call(session.post, bytes(32 << 20))  # more than sockets hold
            while True:
                await connection.send(protocol.encode(protocol.Heartbeat()))
                await asyncio.sleep(0.05)

    try:
        with pytest.raises(ConnectionClosed):
            asyncio.run(asyncio.wait_for(take_nothing(), WAIT_S))
        assert lost == ["read no message for 1 s"]
    finally:
        coordinator.close()


def test_peer_that_does_not_close_its_connection_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CLOSE_S", 0.2)
    alone = Coordinator(SimulatedBackend(0))
    alone.start()
    request = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    request += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    request += f"Authorization: Bearer {alone.door.token}\r\n\r\n"
    tls = client_tls(alone.door.identity.certificate)
    try:
        with socket.create_connection(alone.addresses[0], timeout=WAIT_S) as raw, tls.wrap_socket(raw) as mute:
            mute.sendall(request.encode())
            assert mute.recv(4096).startswith(b"HTTP/1.1 101 ")
            alone.close(WAIT_S)
            assert not alone.is_alive and not alone.door.inside
            assert _hung_up(mute)
    finally:
        alone.close()


def test_agent_that_joins_during_close_is_dismissed() -> None:
    closing = Coordinator(SimulatedBackend(0))
    closing.start()

    async def until_dismissed(connection: Any) -> None:
        while not isinstance(protocol.decode_for_agent(await connection.recv()), protocol.Dismiss):
            pass

    async def join_during_close() -> None:
        endpoint = (closing.addresses[0], closing.door.identity.certificate, closing.door.token)
        async with connected(*endpoint) as early:
            await early.send(protocol.encode(hello(1, 0)))
            await early.recv()
            closed = asyncio.get_running_loop().run_in_executor(None, closing.close)
            await until_dismissed(early)
            async with connected(*endpoint) as late:
                await late.send(protocol.encode(hello(1, 1)))
                await until_dismissed(late)
        await closed

    try:
        asyncio.run(join_during_close())
    finally:
        closing.close()


def test_internal_error_ends_only_the_connection_that_caused_it() -> None:
    class Fragile(Coordinator):
        def message_received(self, session: AgentSession, message: protocol.ToCoordinator) -> None:
            raise RuntimeError("not thought of")

    fragile = Fragile(SimulatedBackend(0))
    fragile.start()

    async def send_messages() -> int | None:
        endpoint = (fragile.addresses[0], fragile.door.identity.certificate, fragile.door.token)
        async with connected(*endpoint) as other, connected(*endpoint) as one:
            for index, connection in enumerate((other, one)):
                await connection.send(protocol.encode(hello(1, index)))
                await connection.recv()
            await one.send(protocol.encode(protocol.PortsHeld(4000, 4001)))
            await asyncio.wait_for(one.wait_closed(), WAIT_S)
            assert [session.hello.index for session in fragile.door.agents.values()] == [0]
            assert isinstance(await asyncio.wait_for(other.recv(), WAIT_S), bytes)
            return one.close_code

    try:
        assert asyncio.run(send_messages()) == 1011
    finally:
        fragile.close()
