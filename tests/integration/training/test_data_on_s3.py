"""Tests of the three data sources and a run directory on a real S3 server in a separate process."""

from __future__ import annotations

import gzip
import io
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopsml
from hopsml import experiment
from hopsml.errors import ArgumentError, PathNotFound, StorageError, WorkerFailed
from hopsml.storage import filesystem
from hopsml.storage.filesystem import for_url
from tests.helpers.storage import s3_server
from tests.helpers.training import record_files
from tests.helpers.training.jobs.loader_processes import ids, loader

pytestmark = pytest.mark.local
FILES, ROWS = 3, 40


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3_server.running() as variables:
        yield variables


@pytest.fixture
def bucket(server: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a new folder on S3, for each test."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOPSML_DATA_CACHE", str(tmp_path / "cache"))
    yield f"s3://{s3_server.BUCKET}/{secrets.token_hex(8)}"
    filesystem.close_all()


def parquet(ids: range) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table({"id": np.array(ids), "x": [[one, -one] for one in ids]}), content, row_group_size=15)
    return content.getvalue()


def records(ids: range) -> bytes:
    return record_files.content({"id": one, "x": [one, -one]} for one in ids)


SOURCES = [
    (hopsml.data.parquet, "parquet", parquet),
    (hopsml.data.tfrecords, "tfrecord", records),
    (hopsml.data.tfrecords, "tfrecord.gz", lambda ids: gzip.compress(records(ids))),
]


def write(bucket: str, suffix: str, content: Callable[[range], bytes]) -> str:
    for number in range(FILES):
        url = f"{bucket}/rows/day={number}/part-{number}.{suffix}"
        for_url(url).write_bytes(url, content(range(number * ROWS, (number + 1) * ROWS)))
    return f"{bucket}/rows"


@pytest.mark.parametrize(
    ("source", "suffix", "content"),
    [SOURCES[0], *(pytest.param(*one, marks=pytest.mark.variant) for one in SOURCES[1:])],
)
def test_rows_on_s3_are_read_once_per_epoch_with_and_without_cache(
    bucket: str, source: Any, suffix: str, content: Any
) -> None:
    folder = write(bucket, suffix, content)
    for cache in (False, True):
        seen = np.zeros(FILES * ROWS, int)
        for batch in source(folder, cache=cache).batch(16).shuffle(seed=1, window=30).repeat(2):
            assert batch["x"].tolist() == [[one, -one] for one in batch["id"]]
            np.add.at(seen, batch["id"], 1)
        assert (seen == 2).all()


def test_whole_files_on_s3_are_read_in_order(bucket: str) -> None:
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/empty.jpg", "dog/notes.txt"):
        for_url(bucket).write_bytes(f"{bucket}/{name}", b"" if "empty" in name else name.encode())
    (batch,) = hopsml.data.files(bucket, [".jpg"], cache=True).batch(10)
    assert batch["path"].tolist() == [
        f"{bucket}/{name}" for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/empty.jpg")
    ]
    assert batch["folder"].tolist() == ["cat", "cat", "dog", "dog"]
    assert batch["content"].tolist() == [b"cat/1.jpg", b"cat/2.jpg", b"dog/1.jpg", b""]


def test_errors_on_s3_name_the_file(bucket: str) -> None:
    folder = write(bucket, "tfrecord", records)
    with pytest.raises(PathNotFound, match="nowhere"):
        hopsml.data.tfrecords(f"{bucket}/nowhere")
    with pytest.raises(ArgumentError, match="contains no Parquet file"):
        hopsml.data.parquet(folder)
    rows = hopsml.data.tfrecords(folder).batch(16)
    missing = f"{folder}/day=1/part-1.tfrecord"
    for_url(missing).delete(missing)
    with pytest.raises(PathNotFound, match=r"day=1/part-1\.tfrecord was deleted while it was read"):
        list(rows)
    for_url(missing).write_bytes(missing, records(range(3)))
    with pytest.raises(StorageError, match=r"day=1/part-1\.tfrecord was changed while it was read"):
        list(rows)
    for_url(missing).write_bytes(missing, records(range(3))[:-3])
    with pytest.raises(StorageError, match=r"day=1/part-1\.tfrecord ends after \d+ bytes, within record 2"):
        hopsml.data.tfrecords(folder)


def count_rows(url: str) -> dict[str, Any]:
    """Return each worker's row counts, after storing a checkpoint, an event and a file."""
    from pathlib import Path

    import numpy as np

    import hopsml

    counts, state = np.zeros(120, np.int64), hopsml.elastic.State(n=0)
    for batch in state.resume(hopsml.data.tfrecords(url, ["id"], cache=True).batch(16).shuffle(seed=1).repeat(2)):
        counts[batch["id"]] += 1
        state.commit(every=4)
    total = hopsml.all_reduce(counts, "sum")
    Path(hopsml.tensorboard.logdir(), f"events.rank{hopsml.distributed.rank()}").write_bytes(b"event" * 1000)
    hopsml.hdfs.mkdir(hopsml.tensorboard.logdir() + "/model")
    hopsml.hdfs.dump("of the model", hopsml.tensorboard.logdir() + "/model/f")
    if url.endswith("fails"):
        raise RuntimeError("as was asked")
    return {"least": int(total.min()), "most": int(total.max()), "logdir": hopsml.tensorboard.logdir()}


@pytest.fixture
def project(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"{bucket}/project")
    monkeypatch.setenv("HOPSML_PROFILE", "local")
    yield f"{bucket}/project"
    experiment.shutdown()


def names(url: str) -> set[str]:
    return {file.url[len(url) + 1 :] for file in filesystem.walk(url) if not file.is_dir}


def test_run_on_s3_reads_its_data_and_stores_its_files_there(bucket: str, project: str) -> None:
    rows = write(bucket, "tfrecord", records)
    result = experiment.collective_all_reduce(
        count_rows, args={"url": rows}, min_workers=2, max_workers=2, progress=False
    )
    assert (result.metrics["least"], result.metrics["most"]) == (2, 2)
    assert result.run_dir.startswith(project) and "s3://" in result.metrics["logdir"]
    left = names(result.run_dir)
    assert left >= {
        "run.json", "status.json", "events/events.rank0", "events/events.rank1", "events/model/f", "logs/g0-rank0.log",
        "logs/g0-rank1.log",
    }  # fmt: skip
    assert any(name.startswith("checkpoints/") for name in left)
    status = f"{result.run_dir}/status.json"
    assert json.loads(for_url(status).read_bytes(status))["state"] == "FINISHED"
    with pytest.raises(WorkerFailed, match=r"fails"):
        experiment.collective_all_reduce(count_rows, args={"url": f"{bucket}/fails"}, num_workers=1, progress=False)


@pytest.mark.torch
@pytest.mark.variant  # of test_rows_for_torch.py, on a store whose clients a fork does not share
def test_forked_loader_processes_read_s3_with_separate_clients(bucket: str) -> None:
    rows = hopsml.data.parquet(write(bucket, "parquet", parquet), cache=True).batch(10).shuffle(seed=1)
    wanted = ids(rows.repeat(2))  # by helper processes of this one, which live on
    batches = loader(rows, num_workers=2)
    assert [*ids(batches), *ids(batches)] == wanted
    assert ids(rows) == wanted[: FILES * ROWS]
