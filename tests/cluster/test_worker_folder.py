"""Tests of a worker's folder whose files cannot be stored."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hopsml.cluster.worker import returned
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
            returned.store_files(folder, disk / "kept")
        assert list((disk / "kept").iterdir()) == []


def test_a_folder_is_left_where_it_can_be(tmp_path: Path) -> None:
    folder, place = tmp_path / "cwd", tmp_path / "scratch"
    folder.mkdir()
    place.mkdir()
    (folder / "model").write_text("weights")
    with small_disk.mounted(tmp_path / "disk", 1_000) as elsewhere:
        left = returned.leave_folder(folder, "hopsml-left", (tmp_path / "missing", elsewhere, place))
        assert list(elsewhere.iterdir()) == []
    assert left.parent == place and (left / "model").read_text() == "weights" and not folder.exists()
    with pytest.raises(OSError, match="missing"):
        returned.leave_folder(left, "hopsml-left", (tmp_path / "missing",))


def test_where_a_relative_path_was_looked_for_is_no_matter_of_absolute_ones(tmp_path: Path) -> None:
    assert "is looked up in the worker's folder" in returned.missing_path_hint(
        FileNotFoundError(2, "gone", "data.csv"), tmp_path
    )
    assert "is looked up in the worker's folder" in returned.missing_path_hint(
        PathNotFound("it is gone", "data.csv"), tmp_path
    )
    for url in ("/data/clicks.csv", "hdfs:///data/clicks.csv"):
        assert returned.missing_path_hint(PathNotFound(f"{url} is gone", url), tmp_path) == ""


@pytest.mark.parametrize("order", [("little", b"\1"), ("big", b"\2")])
def test_a_core_dump_is_not_kept_whatever_its_name(tmp_path: Path, order: tuple[Any, bytes]) -> None:
    """Its memory holds tokens and secrets."""
    folder, target = tmp_path / "cwd", tmp_path / "artifacts"
    (folder / "below").mkdir(parents=True)
    head = b"\x7fELF\2" + order[1] + b"\1" + bytes(9)
    (folder / "core").write_bytes(head + (4).to_bytes(2, order[0]) + b"HF_TOKEN=abc")
    (folder / "below" / "crash.bin").write_bytes(head + (4).to_bytes(2, order[0]) + b"HF_TOKEN=abc")
    (folder / "library.so").write_bytes(head + (3).to_bytes(2, order[0]))
    (folder / "notes").write_bytes(b"\x7fELF")
    os.mkfifo(folder / "pipe")
    note = returned.store_files(folder, target)
    assert sorted(path.name for path in target.rglob("*")) == ["library.so", "notes"]
    assert note.startswith("below/crash.bin, core: a core dump is not stored")
