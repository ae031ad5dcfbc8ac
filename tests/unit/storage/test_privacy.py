"""Tests of file permissions: runs are private unless shared, and files are as accessible as their folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.errors import ArgumentError, PathExists
from hopsml.storage import privacy
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import create_run_dir

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def usual_umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(privacy.VARIABLE, raising=False)
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("share", "expected"), [(None, 0o700), ("private", 0o700), ("group", 0o750), ("all", 0o755), ("770", 0o770)]
)
def test_share_determines_the_mode_of_a_run(share: str | None, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert privacy.share_mode(share) == expected
    if share:
        monkeypatch.setenv(privacy.VARIABLE, share)
        assert privacy.share_mode(None) == expected
        assert privacy.share_mode("private") == 0o700, "the argument wins"


@pytest.mark.parametrize("share", ["everybody", "777", "070", "600", "75", "0o750"])
def test_invalid_share_is_refused(share: str) -> None:
    with pytest.raises(ArgumentError, match=rf"share='{share}': the value must be 'private', 'group', 'all', or"):
        privacy.share_mode(share)


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/Projects/p/Experiments/app_1/checkpoints/step-1/x", "/Projects/p/Experiments/app_1"),
        ("/Projects/p/Experiments/app_1/run.json", "/Projects/p/Experiments/app_1"),
        ("/Projects/p/Experiments/app_1", "/Projects/p/Experiments"),
        ("/user/anna/x", "/user/anna"),
        ("/x", "/"),
    ],
)
def test_run_folder_determines_the_permissions(path: str, folder: str) -> None:
    assert privacy.permission_folder(path) == folder


def test_new_file_in_a_sticky_folder_is_writable_by_its_owner_only() -> None:
    assert (privacy.new_folder_mode(0o1777), privacy.new_file_mode(0o1777)) == (0o755, 0o644)


@pytest.mark.parametrize(
    ("share", "folder", "file"), [(None, 0o700, 0o600), ("group", 0o750, 0o640), ("all", 0o755, 0o644)]
)
def test_all_files_of_a_run_have_the_requested_permissions(
    tmp_path: Path, share: str | None, folder: int, file: int
) -> None:
    project = tmp_path / "project"
    run = create_run_dir(f"file://{project}", "app_1", share=share)
    system, root = for_url(run.url), Path(run.url.removeprefix("file://"))
    system.write_bytes(f"{run.url}/code/x", b"")
    system.append_bytes(f"{run.url}/journal/y", b"")
    system.upload(__file__, f"{run.url}/export/1/z")
    system.make_dirs(f"{run.url}/events/deep")
    with system.open_write(f"{run.url}/w") as writer:
        writer.write(b"w")
    assert {mode(path) for path in [root, *root.rglob("*")] if path.is_dir()} == {folder}
    assert {mode(path) for path in root.rglob("*") if path.is_file()} == {file}
    assert mode(project) == mode(project / "Experiments") == folder


def test_shared_run_opens_its_parent_folders_and_leaves_other_runs_private(tmp_path: Path) -> None:
    private = create_run_dir(f"file://{tmp_path}/project", "app_1")
    create_run_dir(f"file://{tmp_path}/project", "app_1", share="group")
    assert mode(tmp_path / "project") & 0o050 == mode(tmp_path / "project/Experiments") & 0o050 == 0o050
    assert mode(Path(private.url.removeprefix("file://"))) == 0o700


def test_run_folder_planted_by_another_user_is_not_used(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    planted = tmp_path / "Experiments/app_1_1"
    planted.mkdir(parents=True, mode=0o777)
    os.chown(planted, 65534, 65534)
    with pytest.raises(PathExists, match="belongs to another user"):
        for_url(str(planted)).make_dirs(str(planted), 0o700)
    assert create_run_dir(str(tmp_path), "app_1").run_id == "app_1_2"
