"""Tests that runs on a real HDFS leave no planted secret, and that other users cannot read them."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from hopsml.storage import filesystem
from tests.helpers.secrets_found import of_store
from tests.helpers.tracking import planted
from tests.integration.yarn.conftest import Hadoop

pytestmark = pytest.mark.hadoop


def test_planted_secrets_are_in_no_file_on_hdfs(
    hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    project = f"{hadoop.namenode_url}/Projects/{secrets.token_hex(8)}"
    done = planted.run(tmp_path / "code", project, {"HADOOP_CONF_DIR": str(hadoop.conf_dir)})
    assert done.returncode == 0, done.stderr
    assert planted.leaks({"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}) == {}
    files = of_store(project)
    assert {"function.pickle", "git.diff", "trials.parquet", "worker.json"} <= {Path(name).name for name in files}
    assert planted.leaks(files) == {}
    assert planted.open_to_others(project) == []
    filesystem.close_all()
