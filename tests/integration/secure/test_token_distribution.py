"""Tests of delegation tokens in runs on this machine, against a Kerberized HDFS whose tokens last for 15 s."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.core import delegation_tokens as tokens
from hopsml.errors import WorkerFailed
from hopsml.storage import filesystem
from hopsml.storage.filesystem import for_url
from tests.helpers import tokens as test_tokens
from tests.helpers.clock import WAIT_S, wait_until
from tests.helpers.local_application import local_application
from tests.helpers.storage.token_workload import store_until

pytestmark = pytest.mark.hadoop

LIFE_S = 15.0  # of a token that nobody renews: see the fixture


@pytest.fixture
def token_file(secure_hdfs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the token file of a local application whose project is in the secure HDFS; there is no ticket."""
    path = tmp_path / "given-tokens"
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure_hdfs.conf_dir))
    monkeypatch.setenv(tokens.VARIABLE, str(path))
    for variable, value in secure_hdfs.kdc.environment().items():
        monkeypatch.setenv(variable, value)
    with local_application(tmp_path), pytest.MonkeyPatch.context() as project:
        project.setenv("HOPSML_PROJECT_URL", f"{secure_hdfs.namenode_url}/user/alice/{tmp_path.name}")
        yield path
    filesystem.close_all()


def start(cluster: Any, local: Path, **named: Any) -> tuple[Any, str]:
    """Start a run of two workers that store files until ``stop`` exists in ``local``; return it and their folder."""
    folder = f"{cluster.namenode_url}/user/alice/{local.name}/stored"
    args = {"local": str(local), "folder": folder, **named}
    return experiment.submit(store_until, args=args, num_workers=2, progress=False), folder


def test_run_outlives_its_first_tokens_several_times(secure_hdfs: Any, token_file: Path, tmp_path: Path) -> None:
    """Worker, child, mirror and driver store all their files, although each token lasts for a third of the run."""
    with test_tokens.renewing(secure_hdfs, token_file, LIFE_S / 3):
        run, folder = start(secure_hdfs, tmp_path, with_child=True)
        began = time.monotonic()
        wait_until(
            lambda: time.monotonic() - began > 3 * LIFE_S or not run.running(), "three lives", 4 * LIFE_S + WAIT_S
        )
        (tmp_path / "stop").touch()
        run.result(WAIT_S)
        stored = {status.url.rpartition("/")[2] for status in for_url(folder).list_dir(folder)}
        log = for_url(run.run_dir).read_bytes(f"{run.run_dir}/logs/g0-rank0.log").decode()
        status = for_url(run.run_dir).read_bytes(f"{run.run_dir}/status.json").decode()
    values = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    for rank, value in enumerate(values):
        assert value["count"] > 10
        assert {f"{rank}-{i}{child}" for i in range(value["count"]) for child in ("", "-child")} <= stored
        assert value["mode"] == 0o600 and value["path"] != str(token_file)
    assert len({value["path"] for value in values}) == 2, "each agent has its own file"
    assert f"file {values[0]['count']}" in log
    assert '"FINISHED"' in status


def test_run_whose_tokens_nobody_renews_fails_with_the_cause(
    secure_hdfs: Any, token_file: Path, tmp_path: Path
) -> None:
    """The counterpart: without new tokens the same run cannot store its files."""
    tokens.write(token_file, test_tokens.obtain(secure_hdfs))
    run, _ = start(secure_hdfs, tmp_path)
    with pytest.raises(WorkerFailed, match="the delegation token is expired or unknown"):
        run.result(6 * LIFE_S + WAIT_S)
