"""Tests of the model registry on a real HDFS, with its exclusive files and renames."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hopsml import model
from tests.integration.yarn.conftest import Hadoop

pytestmark = [pytest.mark.hadoop, pytest.mark.usefixtures("no_helpers_left")]


def test_concurrent_exports_on_hdfs_get_distinct_versions(
    hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{hadoop.namenode_url}/Projects/{time.monotonic_ns()}"
    monkeypatch.setenv("HOPSML_PROJECT_URL", url)
    monkeypatch.setenv("HOPSML_MLFLOW", "0")
    monkeypatch.setenv("HOPSML_MODEL_CACHE", str(tmp_path / "models"))
    (tmp_path / "weights" / "inner").mkdir(parents=True)
    (tmp_path / "weights" / "inner" / "w.bin").write_bytes(b"w" * 1_000_000)
    (tmp_path / "weights" / "notes.txt").write_text("notes")

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: model.export(tmp_path / "weights", "digits"), range(4)))
    assert sorted(version.version for version in made if version is not None) == [1, 2, 3, 4]
    assert [version.version for version in model.versions("digits")] == [1, 2, 3, 4]
    assert (model.find("digits").local_files() / "inner" / "w.bin").stat().st_size == 1_000_000
    for number in (1, 2):
        assert model.set_alias("digits", number, "production").url == f"{url}/Models/digits/{number}"
    model.delete("digits", 1)
    assert model.find("digits", "production").version == 2 and model.find("digits", "latest").version == 4
