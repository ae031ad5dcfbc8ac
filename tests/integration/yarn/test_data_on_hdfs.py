"""Tests that workers read files of a real HDFS, each row once, and name truncated, missing or changed ones."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopsml
from hopsml import experiment
from hopsml.errors import PathNotFound, SafeMode, StorageError, WorkerFailed
from hopsml.storage import filesystem
from tests.helpers.training import record_files
from tests.integration.yarn.conftest import Hadoop

pytestmark = pytest.mark.hadoop
FILES, ROWS = 3, 1000


@pytest.fixture
def root(hadoop: Hadoop) -> Iterator[str]:
    """Yield the URL of a new folder on HDFS."""
    yield f"{hadoop.namenode_url}/Data/{time.monotonic_ns()}"
    experiment.shutdown()


@pytest.fixture
def rows(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a folder of three files, and configure a project next to it."""
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"{root}/project")
    monkeypatch.setenv("HOPSML_PROFILE", "local")
    for number in range(FILES):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        content = io.BytesIO()
        pq.write_table(pa.table({"id": ids, "x": list(np.stack([ids, -ids], 1))}), content, row_group_size=150)
        url = f"{root}/rows/part-{number}.parquet"
        filesystem.for_url(url).write_bytes(url, content.getvalue())
    return f"{root}/rows"


def read_all(url: str) -> dict[str, Any]:
    import numpy as np

    import hopsml

    counts, state = np.zeros(3000, np.int64), hopsml.elastic.State(n=0)
    for batch in state.resume(hopsml.data.parquet(url).batch(64).shuffle(seed=1, window=500).repeat(2)):
        assert (batch["x"] == np.stack([batch["id"], -batch["id"]], 1)).all()
        counts[batch["id"]] += 1
        state.commit(every=10)
    total = hopsml.all_reduce(counts, "sum")
    return {"least": int(total.min()), "most": int(total.max()), "mine": int(counts.sum())}


def test_two_workers_read_every_row_once_per_epoch(rows: str) -> None:
    result = experiment.collective_all_reduce(
        read_all, args={"url": rows}, min_workers=2, max_workers=2, progress=False
    )
    assert (result.metrics["least"], result.metrics["most"]) == (2, 2)
    assert abs(result.metrics["mine"] - FILES * ROWS) <= 2


@pytest.mark.variant
def test_truncated_parquet_file_is_named(rows: str) -> None:
    url = f"{rows}/part-1.parquet"
    system = filesystem.for_url(url)
    system.write_bytes(url, system.read_bytes(url)[:-20])
    with pytest.raises(WorkerFailed, match=r"part-1\.parquet is not a complete Parquet file"):
        experiment.collective_all_reduce(read_all, args={"url": rows}, num_workers=1, progress=False)


def read_records(url: str) -> dict[str, Any]:
    """Read records and whole files twice, in a group."""
    import numpy as np

    import hopsml

    counts, state = np.zeros(3000, np.int64), hopsml.elastic.State(n=0)
    rows = hopsml.data.tfrecords(f"{url}/records", {"id": (), "x": (2, 1)}, cache=True)
    for batch in state.resume(rows.batch(64).shuffle(seed=1, window=500).repeat(2)):
        assert (batch["x"][:, :, 0] == np.stack([batch["id"], -batch["id"]], 1)).all()
        counts[batch["id"]] += 1
        state.commit(every=10)
    total = hopsml.all_reduce(counts, "sum")
    sizes = np.zeros(1, np.int64)
    for batch in hopsml.data.files(f"{url}/files", [".bin"], cache=True).batch(5).repeat(2):
        sizes += sum(len(content) for content in batch["content"])
        assert all(path.split("/")[-2] == folder for path, folder in zip(batch["path"], batch["folder"], strict=True))
    return {"least": int(total.min()), "most": int(total.max()), "bytes": int(hopsml.all_reduce(sizes, "sum")[0])}


@pytest.mark.variant  # of unit/training/test_tfrecords.py, test_whole_files.py and test_block_cache.py
def test_records_and_files_are_read_once_per_epoch_through_the_cache(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_DATA_CACHE", str(tmp_path / "cache"))
    root = rows.rpartition("/")[0]
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        url = f"{root}/records/part-{number}"
        content = record_files.content({"id": one, "x": [float(one), -float(one)]} for one in ids)
        filesystem.for_url(url).write_bytes(url, content)
        for size in (0, 10, 3_000_000):
            url = f"{root}/files/kind-{number}/{size}.bin"
            filesystem.for_url(url).write_bytes(url, bytes(size))
    result = experiment.collective_all_reduce(
        read_records, args={"url": root}, min_workers=2, max_workers=2, progress=False
    )
    assert (result.metrics["least"], result.metrics["most"]) == (2, 2)
    assert result.metrics["bytes"] == 2 * FILES * 3_000_010
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) > FILES * 3_000_010


@pytest.mark.variant  # of unit/training/test_tfrecords.py
def test_deleted_or_changed_file_on_hdfs_is_named(rows: str) -> None:
    root = rows.rpartition("/")[0]
    urls = [f"{root}/records/part-{number}" for number in range(3)]
    for url in urls:
        filesystem.for_url(url).write_bytes(url, record_files.content({"id": one} for one in range(10)))
    data = hopsml.data.tfrecords(f"{root}/records").batch(10)
    filesystem.for_url(urls[1]).delete(urls[1])
    with pytest.raises(PathNotFound, match=r"records/part-1 was deleted while it was read"):
        list(data)
    filesystem.for_url(urls[1]).write_bytes(urls[1], record_files.content({"id": one} for one in range(3)))
    with pytest.raises(StorageError, match=r"records/part-1 was changed while it was read"):
        list(data)


@pytest.mark.variant  # of test_tf_hdfs.py's
def test_data_are_readable_but_not_writable_in_safe_mode(hadoop: Hadoop, rows: str) -> None:
    hadoop.dfsadmin("-safemode", "enter")
    try:
        ids = [int(one) for batch in hopsml.data.parquet(rows, ["id"]).batch(100) for one in batch["id"]]
        assert sorted(ids) == list(range(FILES * ROWS))
        with pytest.raises(SafeMode, match="safe mode"):
            filesystem.for_url(rows).write_bytes(f"{rows}/more", b"x")
    finally:
        hadoop.dfsadmin("-safemode", "leave")


@pytest.mark.variant  # of integration/spark/test_data.py, on YARN's containers
def test_dataframe_and_hdfs_files_reach_workers_on_yarn(hadoop: Hadoop, root: str) -> None:
    for first in (0, 500):
        content = record_files.content({"id": one, "x": [float(one), -float(one)]} for one in range(first, first + 500))
        filesystem.for_url(root).write_bytes(f"{root}/records/part-{first}", content)
    for number in range(6):
        filesystem.for_url(root).write_bytes(f"{root}/files/kind-{number % 2}/{number}.bin", bytes(100_000))
    conf = hadoop.spark_conf(executors=2, cores=2) | {"spark.yarn.appMasterEnv.HOPSML_PROJECT_URL": f"{root}/project"}
    done = hadoop.submit(Path(__file__).parent / "jobs" / "fed.py", root, conf=conf, timeout_s=400)
    assert (done.returncode, done.state.final_status) == (0, "SUCCEEDED"), done.output[-3000:]
