"""Workers of a run read Parquet files of a real HDFS: each row once; a DataNode that is gone is an error with the path."""

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

from hopsml import experiment
from hopsml.errors import WorkerFailed
from hopsml.storage import filesystem
from tests.hadoop_tests.conftest import Hadoop

pytestmark = pytest.mark.hadoop
FILES, ROWS = 3, 1000


@pytest.fixture
def rows(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of three files, and a project beside it."""
    root = f"{hadoop.namenode_url}/Data/{time.monotonic_ns()}"
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"{root}/project")
    monkeypatch.setenv("HOPSML_PROFILE", "local")
    for number in range(FILES):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        content = io.BytesIO()
        pq.write_table(pa.table({"id": ids, "x": list(np.stack([ids, -ids], 1))}), content, row_group_size=150)
        url = f"{root}/rows/part-{number}.parquet"
        filesystem.for_url(url).write_bytes(url, content.getvalue())
    yield f"{root}/rows"
    experiment.shutdown()


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


def test_two_workers_read_every_row_once_an_epoch(rows: str) -> None:
    result = experiment.collective_all_reduce(
        read_all, args={"url": rows}, min_workers=2, max_workers=2, progress=False
    )
    assert (result.metrics["least"], result.metrics["most"]) == (2, 2)
    assert abs(result.metrics["mine"] - FILES * ROWS) <= 2


def test_a_file_that_is_cut_off_is_named(rows: str) -> None:
    url = f"{rows}/part-1.parquet"
    system = filesystem.for_url(url)
    system.write_bytes(url, system.read_bytes(url)[:-20])
    with pytest.raises(WorkerFailed, match=r"part-1\.parquet is no whole Parquet file"):
        experiment.collective_all_reduce(read_all, args={"url": rows}, num_workers=1, progress=False)


@pytest.mark.variant  # of cluster_tests/test_data.py, on YARN's containers
@pytest.mark.timeout(600)
def test_a_dataframe_of_hdfs_reaches_workers_on_yarn(hadoop: Hadoop) -> None:
    root = f"{hadoop.namenode_url}/Data/{time.monotonic_ns()}"
    conf = hadoop.spark_conf(executors=2, cores=2) | {"spark.yarn.appMasterEnv.HOPSML_PROJECT_URL": f"{root}/project"}
    done = hadoop.submit(Path(__file__).parent / "jobs" / "fed.py", f"{root}/rows", conf=conf, timeout_s=400)
    assert (done.returncode, done.state.final_status) == (0, "SUCCEEDED"), done.output[-3000:]
