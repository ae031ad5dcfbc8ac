"""Tests of whole files as rows: each once an epoch, empty ones too, and missing or changed ones named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopsml
from hopsml.errors import ArgumentError, ArgumentTypeError, PathNotFound, StorageError
from hopsml.training.data.stored_files import group_files

pytestmark = pytest.mark.fast


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of twenty images, one of them empty, and other files."""
    folder = tmp_path / "images"
    for kind in ("cat", "dog"):
        (folder / kind).mkdir(parents=True)
        for number in range(20):
            (folder / kind / f"{number:02d}.{'JPG' if number % 3 else 'png'}").write_bytes(f"{kind}{number}".encode())
    (folder / "cat" / "01.JPG").write_bytes(b"")
    (folder / "dog" / "notes.txt").write_text("x")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "30.jpg").touch()
    return folder


def test_files_yield_every_file_once_per_epoch(images: Path) -> None:
    rows = hopsml.data.files(f"file://{images}", [".jpg", ".png"]).batch(7).shuffle(seed=1).repeat(2)
    batches = list(rows)
    for epoch in (batches[:6], batches[6:]):
        found = {
            path: (folder, content) for batch in epoch for path, folder, content in zip(*columns(batch), strict=True)
        }
        assert len(found) == 40
        for path, (folder, content) in found.items():
            kind, name = path.split("/")[-2:]
            assert path.startswith(f"file://{images}/") and folder == kind
            assert content == (b"" if path.endswith("cat/01.JPG") else f"{kind}{int(name[:2])}".encode())


def columns(batch: Any) -> tuple[Any, Any, Any]:
    assert sorted(batch) == ["content", "folder", "path"] and all(column.dtype == object for column in batch.values())
    return batch["path"], batch["folder"], batch["content"]


def test_unshuffled_files_are_in_the_order_of_their_names(images: Path) -> None:
    (batch,) = hopsml.data.files([str(images / "dog"), str(images / "cat" / "03.png")]).batch(100)
    names = [path.rsplit("/", 1)[1] for path in batch["path"]]
    assert names == [*sorted(path.name for path in (images / "dog").iterdir()), "03.png"]


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([5], [(0, 1)]),
        ([5, 5, 1], [(0, 2), (2, 3)]),
        ([50, 1, 50], [(0, 1), (1, 2), (2, 3)]),
        ([0] * 9, [(0, 4), (4, 8), (8, 9)]),
    ],
)
def test_small_files_are_grouped_up_to_size_and_count_limits(sizes: list[int], groups: list[tuple[int, int]]) -> None:
    assert group_files(sizes, 10, 4) == groups


def test_shuffle_window_of_files_is_limited_by_memory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(4 << 20))
    assert hopsml.data.files(str(tmp_path)).shuffle().window == 63
    (tmp_path / "a").write_bytes(b"")
    assert hopsml.data.files(str(tmp_path)).shuffle().window == 65_536


def test_file_deleted_or_changed_while_reading_is_named(images: Path) -> None:
    rows = hopsml.data.files(str(images), [".png"]).batch(4)
    (images / "dog" / "03.png").unlink()
    with pytest.raises(PathNotFound, match=r"dog/03\.png was deleted while it was read"):
        list(rows)
    (images / "dog" / "03.png").write_bytes(b"longer than before")
    with pytest.raises(
        StorageError, match=r"dog/03\.png was changed while it was read as data: it had 4 bytes .* has more now"
    ):
        list(rows)


def test_invalid_files_input_is_refused(images: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PathNotFound, match="nowhere"):
        hopsml.data.files(str(tmp_path / "nowhere"))
    with pytest.raises(ArgumentError, match=r"empty contains no file among its 0 file"):
        hopsml.data.files(str(tmp_path / "empty"))
    with pytest.raises(ArgumentError, match=r"contains no file whose name matches \*\.gif among its 42 file"):
        hopsml.data.files(str(images), [".gif"])
    with pytest.raises(ArgumentTypeError, match=r"pass a list of names: suffixes=\['\.jpg'\]"):
        hopsml.data.files(str(images), ".jpg")
