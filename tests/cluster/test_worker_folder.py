"""A worker's folder whose files cannot be kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hopsml.cluster.worker import worker_folder
from hopsml.errors import PathNotFound
from tests import small_disk

pytestmark = pytest.mark.fast


def test_a_copy_that_breaks_off_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a quota, of which the disk's free space says nothing."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    (folder / "model").write_bytes(bytes(2_000_000))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40))  # type: ignore[attr-defined]
    with small_disk.mounted(tmp_path / "disk", 1_000) as disk:
        with pytest.raises(OSError, match="No space left on device"):
            worker_folder.keep(folder, disk / "kept")
        assert list((disk / "kept").iterdir()) == []


def test_a_folder_is_left_where_it_can_be(tmp_path: Path) -> None:
    folder, place = tmp_path / "cwd", tmp_path / "scratch"
    folder.mkdir()
    place.mkdir()
    (folder / "model").write_text("weights")
    with small_disk.mounted(tmp_path / "disk", 1_000) as elsewhere:
        left = worker_folder.leave(folder, "hopsml-left", (tmp_path / "missing", elsewhere, place))
        assert list(elsewhere.iterdir()) == []
    assert left.parent == place and (left / "model").read_text() == "weights" and not folder.exists()
    with pytest.raises(OSError, match="missing"):
        worker_folder.leave(left, "hopsml-left", (tmp_path / "missing",))


def test_where_a_relative_path_was_looked_for_is_no_matter_of_absolute_ones(tmp_path: Path) -> None:
    assert "is looked up in the worker's folder" in worker_folder.hint(
        FileNotFoundError(2, "gone", "data.csv"), tmp_path
    )
    assert "is looked up in the worker's folder" in worker_folder.hint(PathNotFound("it is gone", "data.csv"), tmp_path)
    for url in ("/data/clicks.csv", "hdfs:///data/clicks.csv"):
        assert worker_folder.hint(PathNotFound(f"{url} is gone", url), tmp_path) == ""
