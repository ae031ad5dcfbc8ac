"""Tests of the rows that a stage stores and returns, and that workers read from stages, by real calls over TLS."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from hopsml.cluster.shared import acceptor
from hopsml.cluster.shared.acceptor import ConnectionLimits
from hopsml.cluster.shared.tls import make_key_pair, server_context
from hopsml.cluster.worker import context as contexts
from hopsml.cluster.worker.context import WorkerContext
from hopsml.errors import ArgumentError, RunError
from hopsml.training.data import staged_rows
from hopsml.training.data.dataset import Dataset
from hopsml.training.data.frame_log import FrameTable, StageAddress, StagedPartition, StagedShard, attempt_file_path
from hopsml.training.data.stage import StageEndpoint, StageFolder, StageServer
from hopsml.training.data.staged_rows import CERTIFIED, StageClient, StagedRows
from tests.helpers import small_disk
from tests.helpers.clock import END_S
from tests.helpers.cluster.simulated import client_tls
from tests.helpers.cluster.workloads import WAIT_S

ELSEWHERE = "another machine"
Stage = Callable[[Sequence[list[Any]]], None]
pytestmark = pytest.mark.local
TOKEN = "a token"


@pytest.fixture(params=["here", ELSEWHERE])
def where(request: pytest.FixtureRequest) -> str:
    """Host name of the rows' machine: files are mapped if it is this one, else fetched."""
    return socket.gethostname() if request.param == "here" else ELSEWHERE


@pytest.fixture
def stage(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Keeps partitions with these values of column ``x``, and makes this process a worker that reads them."""
    certificate, key = make_key_pair(CERTIFIED)
    folder, address_file = tmp_path / "stage", tmp_path / "address"
    folder.mkdir()
    server = StageServer(StageFolder(folder), "a token", "grpc+tls://127.0.0.1:0", certificate, key)
    url = f"grpc+tls://127.0.0.1:{server.port}"
    address = StageAddress(url, certificate.decode(), "a token", where, str(folder), client_key=key.decode())
    address_file.write_bytes(msgspec.msgpack.encode(address))
    places = [tmp_path] * 4
    monkeypatch.setattr(
        contexts, "_current", WorkerContext("run", 0, 0, 1, 0, "chief", "file:///run", *places, sidecar=address_file)
    )

    def keep(partitions: Sequence[list[Any]]) -> None:
        client, staged = StageClient(address), []
        for number, values in enumerate(partitions):
            batch = pa.record_batch({"x": values})
            shards = client.put("rows", number, 0, batch.schema, [batch] if values else [])
            staged.append(StagedPartition(number, 0, url, shards))
        waves = tuple((number,) for number in range(len(staged)))
        client.publish(FrameTable("rows", 1, tuple(staged), {url: address}, waves, is_whole=True, is_settled=True))
        client.close()

    yield keep
    server.shutdown()


def read(rows: Any, rank: int = 0, size: int = 1) -> list[Any]:
    reader, found = rows.reader(), []
    try:
        reader.join(rank, size)
        while not reader.is_exhausted:
            found += reader.next_batch()["x"].tolist()
    finally:
        reader.close()
    return found


def test_list_lengths_that_differ_at_another_worker_are_named(stage: Stage) -> None:
    stage([[], [[1, 2]] * 5, [[1, 2, 3]] * 5])
    with pytest.raises(
        ArgumentError,
        match=r"column 'x' of data='rows', partition 2, holds lists of 3 .* data='rows', partition 1 there are lists of 2",
    ):
        read(Dataset(StagedRows("rows")).batch(2), rank=1, size=2)  # a rank that reads no row of the other length


def test_staged_lists_of_equal_length_are_read_by_all_workers(stage: Stage) -> None:
    stage([[[n, n + 1] for n in range(5)], [], [[n, n + 1] for n in range(5, 9)]])
    rows = Dataset(StagedRows("rows")).batch(4).shuffle(seed=1)
    both = [*read(rows, 0, 2), *read(rows, 1, 2)]
    assert sorted(both) == [[n, n + 1] for n in range(9)]


def send(rows: Any, answers: Any) -> None:
    answers.put(read(rows))


@pytest.mark.parametrize("where", ["here"], indirect=True)
def test_process_started_by_a_worker_reads_the_staged_rows(stage: Stage) -> None:
    stage([[1, 2, 3], [4, 5]])
    rows = Dataset(StagedRows("rows")).batch(2).shuffle(seed=1)
    wanted = read(rows)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=send, args=(rows, answers))
    process.start()
    assert answers.get(timeout=END_S) == wanted
    process.join(END_S)
    assert process.exitcode == 0
    answers.close()
    answers.join_thread()


def test_forked_process_is_refused_with_a_remedy(stage: Stage) -> None:
    stage([[1, 2, 3]])
    rows = Dataset(StagedRows("rows")).batch(2)
    assert read(rows) == [1, 2, 3]
    answer, end = os.pipe()
    if not (pid := os.fork()):
        try:
            read(rows)
        except ArgumentError as error:
            os.write(end, str(error).encode())
        finally:
            os._exit(0)
    os.close(end)
    with open(answer) as file:
        assert "data='rows' cannot be read in a process that was forked from a worker" in (text := file.read())
    assert "give the DataLoader multiprocessing_context='forkserver'" in text
    os.waitpid(pid, 0)


def test_staged_rows_cannot_be_read_outside_of_the_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "_current", None)
    with pytest.raises(RunError, match="can be read only in the training function that received them"):
        read(Dataset(StagedRows("rows")).batch(2))


def test_only_a_fork_of_a_process_that_has_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for first, cut_off in ((0, False), (os.getpid(), False), (os.getppid(), True)):
        monkeypatch.setattr(staged_rows, "_first_in", first)
        assert staged_rows.was_forked_after_connecting() is cut_off


def batch(first: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(first, first + rows), pa.int64())})


def serving(folder: Path) -> tuple[StageServer, StageAddress]:
    certificate, key = make_key_pair(CERTIFIED)
    stage = StageServer(StageFolder(folder), TOKEN, "grpc+tls://127.0.0.1:0", certificate, key)
    url = f"grpc+tls://127.0.0.1:{stage.port}"
    return stage, StageAddress(url, certificate.decode(), TOKEN, "host", str(folder), client_key=key.decode())


@pytest.fixture
def address(tmp_path: Path) -> Iterator[StageAddress]:
    folder = tmp_path / "stage"
    folder.mkdir()
    stage, address = serving(folder)
    yield address
    stage.shutdown()


@pytest.fixture
def client(address: StageAddress) -> Iterator[StageClient]:
    client = StageClient(address)
    yield client
    client.close()


def test_stage_stores_and_returns_a_partition(client: StageClient, address: StageAddress) -> None:
    shards = client.put("clicks", 3, 17, batch(0, 1).schema, [batch(0, 5), batch(5, 0), batch(5, 7)])
    assert [(one.first, one.count, one.rows) for one in shards] == [(0, 2, 12)]
    one = StagedPartition(3, 17, address.url, shards)
    assert client.fetch(one.file_path("clicks"), shards[0])["id"].to_pylist() == list(range(12))
    assert Path(address.folder, one.file_path("clicks")).stat().st_mode & 0o777 == 0o600


def test_large_partition_is_split_into_several_shards(client: StageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsml.training.data.stage.SHARD_BYTES", 1000)
    batches = [batch(100 * number, 100) for number in range(5)]  # of 800 bytes
    shards = client.put("clicks", 0, 0, batches[0].schema, batches)
    assert [(one.first, one.count, one.rows, one.size) for one in shards] == [
        (0, 2, 200, 1600),
        (2, 2, 200, 1600),
        (4, 1, 100, 800),
    ]
    assert client.fetch("data-clicks/0-0.arrow", shards[1])["id"].to_pylist() == list(range(200, 400))


def test_empty_partition_has_no_shards(client: StageClient) -> None:
    assert client.put("clicks", 0, 0, pa.schema([]), []) == ()


def test_interrupted_upload_leaves_no_file(client: StageClient, address: StageAddress) -> None:
    def break_off() -> Iterator[pa.RecordBatch]:
        yield batch(0, 10)
        raise RuntimeError("the task is over")

    with pytest.raises(RuntimeError, match="the task is over"):
        client.put("clicks", 0, 0, batch(0, 1).schema, break_off())
    assert client.put("clicks", 0, 1, batch(0, 1).schema, [batch(0, 10)])[0].rows == 10
    assert [path.name for path in Path(address.folder, "data-clicks").iterdir()] == ["0-1.arrow"]


def test_table_request_waits_and_outdated_files_are_deleted(client: StageClient, address: StageAddress) -> None:
    first, second = (client.put("clicks", 0, attempt, batch(0, 1).schema, [batch(0, 10)]) for attempt in (0, 1))
    assert first == second
    found: list[FrameTable | None] = []
    waits = threading.Thread(target=lambda: found.append(client.wait_for_table("clicks", 0)))
    waits.start()
    counts, stages = (StagedPartition(0, 1, address.url, second),), {address.url: address}
    table = FrameTable("clicks", 1, counts, stages, ((0,),), is_whole=True, is_settled=False)
    client.publish(table)
    waits.join(END_S)
    assert found == [table]
    assert len(list(Path(address.folder, "data-clicks").iterdir())) == 2  # unfinished files may be of any attempt
    client.publish(msgspec.structs.replace(table, version=2, is_settled=True))
    assert [path.name for path in Path(address.folder, "data-clicks").iterdir()] == ["0-1.arrow"]


def test_table_request_returns_none_after_its_timeout(client: StageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsml.training.data.stage._WAIT_S", 0.05)
    assert client.wait_for_table("clicks", 0) is None


@pytest.mark.parametrize("is_certified", [False, True], ids=["no certificate", "a certificate of its own"])
def test_unauthenticated_request_of_any_size_is_not_read(address: StageAddress, is_certified: bool) -> None:
    """Were it read, the answer would be about the token."""
    certificate, key = make_key_pair(CERTIFIED) if is_certified else (None, None)
    stranger = flight.FlightClient(
        address.url,
        tls_root_certs=address.certificate,
        override_hostname=CERTIFIED,
        cert_chain=certificate,
        private_key=key,
    )
    try:
        with pytest.raises(flight.FlightUnavailableError):
            list(stranger.do_action(flight.Action("table", bytes(1 << 20)), flight.FlightCallOptions(timeout=WAIT_S)))
    finally:
        stranger.close()


@pytest.mark.parametrize("token", ["", "another", "a token\nBearer a token"])
def test_stage_refuses_requests_without_the_token(address: StageAddress, token: str) -> None:
    stranger = StageClient(msgspec.structs.replace(address, token=token))
    try:
        with pytest.raises((flight.FlightUnauthenticatedError, flight.FlightInternalError, flight.FlightServerError)):
            stranger.wait_for_table("clicks", 0)
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            stranger.put("clicks", 0, 0, batch(0, 1).schema, [batch(0, 10)])
    finally:
        stranger.close()
    assert not list(Path(address.folder).rglob("*.arrow"))


@pytest.mark.parametrize("file", ["../secret/0-0.arrow", "data-x/../../secret/0-0.arrow", "/etc/x/passwd"])
def test_stage_refuses_paths_outside_of_its_folder(client: StageClient, address: StageAddress, file: str) -> None:
    secret = Path(address.folder).parent / "secret"
    secret.mkdir()
    with pa.ipc.new_file(str(secret / "0-0.arrow"), batch(0, 1).schema) as writer:
        writer.write_batch(batch(0, 1))
    with pytest.raises(flight.FlightServerError, match="none of this stage's files"):
        client.fetch(file, StagedShard(0, 1, 1, 8))


def test_full_disk_error_names_the_stage_folder(tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path / "small", 256) as folder:
        stage, address = serving(folder)
        client = StageClient(address)
        try:
            with pytest.raises(
                flight.FlightServerError, match=r"cannot store the rows of data-clicks in .*small.*: No space"
            ):
                client.put("clicks", 0, 0, batch(0, 1).schema, [batch(0, 10_000) for _ in range(20)])
            assert not list(folder.rglob("*.part"))
        finally:
            client.close()
            stage.shutdown()


def test_idle_connections_do_not_block_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "PATIENCE", 1)
    limits = ConnectionLimits(pending=8, of_one_peer=6, descriptors=1 << 20)
    monkeypatch.setattr(ConnectionLimits, "of_this_process", lambda: limits)
    (tmp_path / "stage").mkdir()
    certificate, key = make_key_pair(CERTIFIED)
    folder, listening = StageFolder(tmp_path / "stage"), socket.create_server(("127.0.0.1", 0))
    door = StageEndpoint(listening, server_context(certificate, key), TOKEN, folder)
    door.serve()
    before = threading.active_count()
    with ExitStack() as idle:
        for number in range(40):
            connection = idle.enter_context(socket.create_connection(("127.0.0.1", door.port), timeout=WAIT_S))
            if number % 2:
                connection.sendall(b"\x16")
        for name, token in (
            (attempt_file_path("clicks", 3, 17), TOKEN),
            (attempt_file_path("clicks", 4, 18), "another token"),
        ):
            raw = idle.enter_context(socket.create_connection(("127.0.0.1", door.port), timeout=WAIT_S))
            with client_tls(certificate.decode()).wrap_socket(raw) as task:
                task.sendall(b"".join(len(one).to_bytes(2) + one for one in (token.encode(), name.encode())))
                task.sendall((4).to_bytes(4) + b"rows" + (0).to_bytes(4))
                assert task.recv(2) == (b"\0\0" if token == TOKEN else b"")
        assert threading.active_count() <= before + limits.pending
    stored = [path.read_bytes() for path in (tmp_path / "stage").rglob("*") if path.is_file()]
    assert stored == [b"rows"]
    door.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", door.port), timeout=WAIT_S)


@pytest.mark.parametrize("piece", [(-5).to_bytes(4, signed=True), (-(1 << 31)).to_bytes(4, signed=True)])
@pytest.mark.parametrize("name", [attempt_file_path("clicks", 3, 17).encode(), b"\xff\xfe"])
def test_piece_of_negative_length_closes_the_connection_without_a_file(
    tmp_path: Path, piece: bytes, name: bytes
) -> None:
    certificate, key = make_key_pair(CERTIFIED)
    listening = socket.create_server(("127.0.0.1", 0))
    door = StageEndpoint(listening, server_context(certificate, key), TOKEN, StageFolder(tmp_path))
    door.serve()
    with (
        socket.create_connection(("127.0.0.1", door.port), timeout=WAIT_S) as raw,
        client_tls(certificate.decode()).wrap_socket(raw) as task,
    ):
        task.sendall(b"".join(len(one).to_bytes(2) + one for one in (TOKEN.encode(), name)) + piece)
        assert task.recv(2) == b""
    door.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
