"""Tests that checkpoints are complete or absent, whatever interrupts them."""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.cluster.worker.context import WorkerContext
from hopsml.errors import ArgumentError, PathExists, PathNotFound, QuotaExceeded, StorageError
from hopsml.search.messages import RunTrial
from hopsml.storage import checkpoints, tree, urls
from hopsml.storage.checkpoints import CorruptCheckpoint
from hopsml.storage.filesystem import for_url, walk
from hopsml.training import checkpoint_files
from hopsml.training.trials import trial_files
from hopsml.training.trials.trial import Trial

pytestmark = pytest.mark.fast


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "remote" / "checkpoints")
    return f"memory://b/{secrets.token_hex(8)}/checkpoints"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    folder = tmp_path / "local"
    (folder / "variables").mkdir(parents=True)
    (folder / "weights").write_bytes(os.urandom(100_000))
    (folder / "variables" / "0").write_bytes(b"zero")
    return folder


def test_committed_checkpoint_can_be_fetched(store: str, local: Path, tmp_path: Path) -> None:
    assert (checkpoints.steps(store), checkpoints.latest_complete(store)) == ([], None)
    url = checkpoints.commit(local, store, 120)
    assert url == f"{store}/step-000000120"
    assert checkpoints.latest_complete(store) == 120
    back = checkpoints.fetch(store, 120, tmp_path / "back")
    assert (back / "weights").read_bytes() == (local / "weights").read_bytes()
    assert (back / "variables" / "0").read_bytes() == b"zero"
    assert [entry.name for entry in for_url(store).list_dir(store)] == ["step-000000120"]
    with pytest.raises(PathExists):
        checkpoints.fetch(store, 120, tmp_path / "back")
    with pytest.raises(PathNotFound, match="step 7"):
        checkpoints.fetch(store, 7, tmp_path / "seven")


def test_complete_checkpoint_is_not_overwritten(store: str, local: Path, tmp_path: Path) -> None:
    checkpoints.commit(local, store, 1)
    before = (local / "weights").read_bytes()
    (local / "weights").write_bytes(b"other")
    checkpoints.commit(local, store, 1)
    assert (checkpoints.fetch(store, 1, tmp_path / "back") / "weights").read_bytes() == before


@pytest.mark.parametrize("change", ["longer", "later", "one more", "one fewer"])
def test_checkpoint_that_changes_during_upload_is_not_committed(
    store: str, local: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upload_beside_a_writer(*arguments: Any) -> None:
        tree.upload_into(*arguments)
        zero = local / "variables" / "0"
        if change == "longer":
            zero.write_bytes(b"zero and more")
        elif change == "later":
            os.utime(zero, ns=(0, zero.stat().st_mtime_ns + 1))
        elif change == "one more":
            (local / "optimizer").write_bytes(b"")
        else:
            zero.unlink()

    monkeypatch.setattr(checkpoints, "upload_into", upload_beside_a_writer)
    with pytest.raises(StorageError) as refused:
        checkpoints.commit(local, store, 1)
    target = f"{store}/step-000000001"
    assert str(refused.value) == f"{local} changed while it was uploaded to {target}; commit it again"
    assert for_url(store).list_dir(store) == []
    monkeypatch.undo()
    assert checkpoints.commit(local, store, 1) == target


@pytest.mark.parametrize("harm", ["no manifest", "cut manifest", "no file", "cut file", "foreign manifest"])
def test_incomplete_checkpoint_is_skipped(store: str, local: Path, tmp_path: Path, harm: str) -> None:
    checkpoints.commit(local, store, 1)
    url = checkpoints.commit(local, store, 2)
    system, manifest = for_url(store), urls.join(url, checkpoints.MANIFEST)
    if harm == "no manifest":
        system.delete(manifest)
    elif harm == "cut manifest":
        system.write_bytes(manifest, system.read_bytes(manifest)[:40])
    elif harm == "foreign manifest":
        system.write_bytes(manifest, json.dumps({"files": [1, 2]}).encode())
    elif harm == "no file":
        system.delete(urls.join(url, "variables/0"))
    else:
        system.write_bytes(urls.join(url, "weights"), b"short")
    assert checkpoints.steps(store) == [1, 2]
    assert checkpoints.latest_complete(store) == 1
    with pytest.raises(PathNotFound):
        checkpoints.fetch(store, 2, tmp_path / "two")
    checkpoints.fetch(store, 1, tmp_path / "one")
    checkpoints.commit(local, store, 2)  # made good by committing again
    assert checkpoints.latest_complete(store) == 2


def test_changed_content_of_equal_length_is_detected_at_fetch(store: str, local: Path, tmp_path: Path) -> None:
    checkpoints.commit(local, store, 1)
    url = checkpoints.commit(local, store, 2)
    for_url(store).write_bytes(urls.join(url, "variables/0"), b"ZERO")
    with pytest.raises(CorruptCheckpoint, match="variables/0"):
        checkpoints.fetch(store, 2, tmp_path / "two")
    assert not (tmp_path / "two").exists()
    checkpoints.fetch(store, 1, tmp_path / "one")
    assert sorted(os.listdir(tmp_path / "one")) == ["manifest.json", "variables", "weights"]
    assert (tmp_path / "one" / "variables" / "0").read_bytes() == (local / "variables" / "0").read_bytes()
    assert not [name for name in os.listdir(tmp_path) if urls.is_temporary(name)]


@pytest.mark.parametrize("entry", [{"bytes": 1e999}, {"name": "v" * 5000}, {"name": "a\0b"}, {"name": "../weights"}])
def test_manifest_with_impossible_values_is_no_checkpoint(
    local: Path, tmp_path: Path, entry: dict[str, object]
) -> None:
    (tmp_path / "weights").write_bytes((local / "weights").read_bytes())
    checkpoints.write_manifest(local, 1)
    manifest = json.loads((local / checkpoints.MANIFEST).read_text())
    manifest["files"][-1].update(entry)
    (local / checkpoints.MANIFEST).write_text(json.dumps(manifest))
    assert not checkpoints.is_complete(str(local))
    with pytest.raises(CorruptCheckpoint):
        checkpoints.verify_checksums(local)


def test_temporary_names_are_not_checkpoints(store: str, local: Path) -> None:
    half = urls.join(store, ".tmp-0011223344556677")
    for_url(store).write_bytes(urls.join(half, "weights"), b"x")
    for_url(store).write_bytes(urls.join(store, "checkpoint"), b"x")
    assert checkpoints.steps(store) == []
    checkpoints.commit(local, store, 5)
    assert checkpoints.latest_complete(store) == 5


def test_local_checkpoint_directory_must_contain_a_file(store: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(ArgumentError, match="at least one file"):
            checkpoints.commit(wrong, store, 1)
    with pytest.raises(ArgumentError, match="whole number"):
        checkpoints.commit(tmp_path, store, -1)


def test_full_disk_leaves_the_earlier_checkpoint(full_disk: Path, local: Path) -> None:
    store = str(full_disk / "checkpoints")
    checkpoints.commit(local, store, 1)
    (local / "weights").write_bytes(bytes(2 << 20))
    with pytest.raises(QuotaExceeded):
        checkpoints.commit(local, store, 2)
    assert checkpoints.steps(store) == [1]
    assert [entry.name for entry in for_url(store).list_dir(store)] == ["step-000000001"]
    checkpoints.commit(local, str(local.parent / "c"), 3)
    with pytest.raises(QuotaExceeded):
        checkpoints.fetch(str(local.parent / "c"), 3, full_disk / "back")
    assert sorted(os.listdir(full_disk)) == ["checkpoints"]


def test_prune_deletes_all_but_the_newest_complete_checkpoints(store: str, local: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpoints.commit(local, store, step)
    for_url(store).delete(urls.join(store, "step-000000002", checkpoints.MANIFEST))
    assert checkpoints.prune(store, 2) == [1, 2]
    assert checkpoints.steps(store) == [3, 4]
    assert checkpoints.prune(store, 5) == []
    assert len(list(walk(store))) == 2 * (1 + 4)
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ArgumentError, match="keep"):
            checkpoints.prune(store, wrong)  # type: ignore[arg-type]


def test_prune_does_not_read_manifests_of_known_checkpoints(store: str, local: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpoints.commit(local, store, step)
    for_url(store).delete(urls.join(store, "step-000000003", checkpoints.MANIFEST))  # a reader would drop it
    assert checkpoints.prune(store, 2, known={3, 4, 9}) == [1, 2]
    assert checkpoints.steps(store) == [3, 4]
    assert checkpoints.prune(store, 2) == [3]


def corrupt_checkpoint(store: str, step: int) -> None:
    """Change one file's bytes, not its length, as a bad block of a disk does."""
    url = urls.join(store, f"step-{step:09d}", "variables/0")
    Path(url).write_bytes(b"ZERO") if urls.is_local(url) else for_url(url).write_bytes(url, b"ZERO")


def test_prune_prefers_sound_checkpoints_to_newer_corrupt_ones(store: str, local: Path) -> None:
    checkpoints.commit(local, store, 200)
    checkpoints.commit(local, store, 300)
    corrupt_checkpoint(store, 300)
    for step, deleted in ((210, [200]), (220, [210])):  # the run went back to 200
        checkpoints.commit(local, store, step)
        assert checkpoints.prune(store, 1, known={step}) == deleted
        assert checkpoints.latest_complete(store) == checkpoints.latest_sound(store) == step
    checkpoints.commit(local, store, 310)
    assert checkpoints.prune(store, 2, known={310}) == [300]
    assert checkpoints.steps(store) == [220, 310]


def test_checkpoint_that_fails_its_fetch_is_marked_and_skipped(store: str, local: Path, tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoints.commit(local, store, step)
    corrupt_checkpoint(store, 2)
    assert checkpoints.latest_complete(store) == 2, "contents are not read"
    with pytest.raises(CorruptCheckpoint):
        checkpoints.fetch(store, 2, tmp_path / "two")
    assert checkpoints.latest_complete(store) == 1
    assert checkpoints.prune(store, 1, known={1, 2}) == [], "though this process committed it itself"
    with pytest.raises(CorruptCheckpoint, match="marked as corrupt"):
        checkpoints.verify_checksums(str(tree_copy(store, 2, tmp_path)))
    checkpoints.commit(local, store, 2)
    assert checkpoints.latest_sound(store) == 2
    checkpoints.fetch(store, 2, tmp_path / "two")


def tree_copy(store: str, step: int, folder: Path) -> Path:
    tree.download_tree(f"{store}/step-{step:09d}", folder / "copy")
    return folder / "copy"


def test_committing_a_step_again_replaces_a_corrupt_checkpoint(store: str, local: Path, tmp_path: Path) -> None:
    checkpoints.commit(local, store, 3)
    corrupt_checkpoint(store, 3)
    checkpoints.commit(local, store, 3)
    assert (checkpoints.fetch(store, 3, tmp_path / "three") / "variables" / "0").read_bytes() == b"zero"


def test_single_failed_read_does_not_mark_a_checkpoint(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tmp_path / "checkpoints")
    checkpoints.commit(local, store, 1)
    downloads: list[Path] = []

    def damaged_once(url: str, target: Path, *how: Any) -> None:
        tree.download_tree(url, target, *how)
        if not downloads:
            (target / "weights").write_bytes(bytes(100_000))
        downloads.append(target)

    monkeypatch.setattr(checkpoints, "download_tree", damaged_once)
    back = checkpoints.fetch(store, 1, tmp_path / "back")
    assert (back / "weights").read_bytes() == (local / "weights").read_bytes() and len(downloads) == 2
    assert checkpoints.latest_complete(store) == 1


def test_prune_retains_the_last_committed_step_below_a_higher_one(store: str, local: Path) -> None:
    for step in (200, 300, 210):
        checkpoints.commit(local, store, step)
    assert checkpoints.prune(store, 1, latest=210) == [200]
    assert checkpoints.steps(store) == [210, 300]


def test_temporary_names_of_dead_processes_are_removed_after_a_day(local: Path, tmp_path: Path) -> None:
    store = tmp_path / "checkpoints"
    checkpoints.commit(local, str(store), 1)
    now = time.time()
    for number, age_s in enumerate((0.0, 24 * 3600.0 - 600, 24 * 3600.0 + 1)):
        half = store / f".tmp-{number:016x}"
        (half / "variables").mkdir(parents=True)
        os.utime(half, (now - age_s, now - age_s))
    (store / "notes").mkdir()
    os.utime(store / "notes", (0, 0))  # of another user
    assert checkpoints.prune(str(store), 1) == []
    assert sorted(os.listdir(store)) == [f".tmp-{0:016x}", f".tmp-{1:016x}", "notes", "step-000000001"]


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(1, 5))
def test_prune_retains_the_newest_complete_checkpoints(complete: set[int], partial: set[int], keep: int) -> None:
    present = sorted(complete | partial)
    doomed = set(checkpoints.steps_to_prune(present, sorted(complete), keep))
    retained = set(present) - doomed
    assert retained & complete == set(sorted(complete)[-keep:])
    newest = max(complete, default=-1)
    assert {step for step in present if step > newest} <= retained  # perhaps still being uploaded
    assert all(step > newest for step in retained - complete)


def save_locally(directory: Path, step: int, keep: int = 2) -> None:
    """Save a checkpoint as a worker does whose run directory is on its local disk."""
    target = str(directory / f"step-{step:09d}")
    description = checkpoint_files.CheckpointDescription(
        target, json.dumps({"step": step}).encode(), step, keep, True, 0o077
    )
    checkpoint_files.write_checkpoint(description, lambda prefix: Path(prefix).write_text(f"state {step}"))


def test_worker_ignores_and_prunes_a_corrupt_local_checkpoint(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    for step in (100, 200, 300):
        save_locally(directory, step)
    (directory / "step-000000300" / "variables").write_text("STATE 300")
    checkpoint_files._written.clear()  # the worker is another process now
    newest = checkpoint_files.newest_valid_checkpoint(directory)
    assert newest is not None and newest.step == 200
    for step, left in ((210, [200, 210]), (220, [210, 220])):
        save_locally(directory, step)
        assert [saved.step for saved in checkpoint_files.complete_checkpoints(directory)] == left
    save_locally(directory, 300)
    assert [saved.step for saved in checkpoint_files.complete_checkpoints(directory)] == [220, 300]


def test_saved_step_is_retained_below_higher_steps(tmp_path: Path) -> None:
    for step in (100, 200, 50):
        save_locally(tmp_path / "checkpoints", step)
        trial = Trial(0, "t0", {}, tmp_path / "trial")
        with trial.checkpoint(step, keep=1) as folder:
            (folder / "weights").write_text(str(step))
    assert [saved.step for saved in checkpoint_files.complete_checkpoints(tmp_path / "checkpoints")] == [50, 200]
    assert os.listdir(tmp_path / "trial" / "step-000000050") == ["weights"]


def test_trial_resumes_from_the_newest_sound_stored_checkpoint(local: Path, tmp_path: Path) -> None:
    url = f"memory://b/{secrets.token_hex(8)}/Experiments/app_1"
    places = {f"{name}_dir": tmp_path / name for name in ("work", "events", "checkpoint", "export")}
    context = WorkerContext("app_1", 0, 0, 1, 0, "chief", url, **places)
    for step in (1, 2):
        checkpoints.commit(local, f"{url}/trials/t0/checkpoints", step)
    corrupt_checkpoint(f"{url}/trials/t0/checkpoints", 2)
    requested = RunTrial(1, 0, trial_id="t1", config=b"", resume_from="t0", resume_step=2)
    found = trial_files.obtain_checkpoint(context, requested, timeout_s=5.0)
    assert found is not None and found.name == "step-000000001"
    assert (found / "variables" / "0").read_bytes() == b"zero"
    corrupt_checkpoint(f"{url}/trials/t0/checkpoints", 1)
    assert trial_files.obtain_checkpoint(context, msgspec.structs.replace(requested, resume_step=1), 5.0) is None
