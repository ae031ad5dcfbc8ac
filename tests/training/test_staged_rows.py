"""Tests of a DataFrame's rows that a worker and its processes read from stages, by real calls over TLS."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from hopsml.cluster.shared.tls import make_key_pair
from hopsml.cluster.worker import context as contexts
from hopsml.cluster.worker.context import WorkerContext
from hopsml.errors import ArgumentError, RunError
from hopsml.training.data import staged_rows
from hopsml.training.data.dataset import Dataset
from hopsml.training.data.frame_log import FrameTable, StageAddress, StagedPartition
from hopsml.training.data.stage import StageFolder, StageServer
from hopsml.training.data.staged_rows import CERTIFIED, StageClient, StagedRows
from tests.clock import END_S

pytestmark = pytest.mark.local

ELSEWHERE = "another machine"
Stage = Callable[[Sequence[list[Any]]], None]


@pytest.fixture(params=["here", ELSEWHERE])
def where(request: pytest.FixtureRequest) -> str:
    """Whose machine the rows are on: files are mapped, or fetched."""
    return socket.gethostname() if request.param == "here" else ELSEWHERE


@pytest.fixture
def stage(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Keeps partitions with these values of column ``x``, and makes this process a worker that reads them."""
    certificate, key = make_key_pair(CERTIFIED)
    folder, told = tmp_path / "stage", tmp_path / "address"
    folder.mkdir()
    server = StageServer(StageFolder(folder), "a token", "grpc+tls://127.0.0.1:0", certificate, key)
    url = f"grpc+tls://127.0.0.1:{server.port}"
    address = StageAddress(url, certificate.decode(), "a token", where, str(folder), client_key=key.decode())
    told.write_bytes(msgspec.msgpack.encode(address))
    places = [tmp_path] * 4
    monkeypatch.setattr(
        contexts, "_current", WorkerContext("run", 0, 0, 1, 0, "chief", "file:///run", *places, sidecar=told)
    )

    def keep(partitions: Sequence[list[Any]]) -> None:
        client, kept = StageClient(address), []
        for number, values in enumerate(partitions):
            batch = pa.record_batch({"x": values})
            shards = client.put("rows", number, 0, batch.schema, [batch] if values else [])
            kept.append(StagedPartition(number, 0, url, shards))
        waves = tuple((number,) for number in range(len(kept)))
        client.publish(FrameTable("rows", 1, tuple(kept), {url: address}, waves, is_whole=True, is_settled=True))
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


def test_lists_of_another_length_at_another_worker_are_named(stage: Stage) -> None:
    stage([[], [[1, 2]] * 5, [[1, 2, 3]] * 5])
    with pytest.raises(
        ArgumentError,
        match=r"column 'x' of data='rows', partition 2, holds lists of 3 .* data='rows', partition 1 there are lists of 2",
    ):
        read(Dataset(StagedRows("rows")).batch(2), rank=1, size=2)  # who reads no row of the other length


def test_lists_that_are_alike_are_read_by_all(stage: Stage) -> None:
    stage([[[n, n + 1] for n in range(5)], [], [[n, n + 1] for n in range(5, 9)]])
    rows = Dataset(StagedRows("rows")).batch(4).shuffle(seed=1)
    both = [*read(rows, 0, 2), *read(rows, 1, 2)]
    assert sorted(both) == [[n, n + 1] for n in range(9)]


def send(rows: Any, answers: Any) -> None:
    answers.put(read(rows))


@pytest.mark.parametrize("where", ["here"], indirect=True)
def test_a_process_that_a_worker_starts_reads_the_same(stage: Stage) -> None:
    stage([[1, 2, 3], [4, 5]])
    rows = Dataset(StagedRows("rows")).batch(2).shuffle(seed=1)
    wanted = read(rows)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=send, args=(rows, answers))
    process.start()
    assert answers.get(timeout=60) == wanted
    process.join(END_S)
    assert process.exitcode == 0
    answers.close()
    answers.join_thread()


def test_a_fork_of_a_process_that_has_read_is_told_what_to_do(stage: Stage) -> None:
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
    with open(answer) as said:
        assert "data='rows' cannot be had in a process that was forked from a worker" in (text := said.read())
    assert "give the DataLoader multiprocessing_context='forkserver'" in text
    os.waitpid(pid, 0)


def test_outside_of_the_run_there_are_no_rows(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "_current", None)
    with pytest.raises(RunError, match="are there in the function that they were given to, while its run goes on"):
        read(Dataset(StagedRows("rows")).batch(2))


def test_a_process_that_has_asked_nobody_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for first, cut_off in ((0, False), (os.getpid(), False), (os.getppid(), True)):
        monkeypatch.setattr(staged_rows, "_first_in", first)
        assert staged_rows.is_cut_off() is cut_off
