"""Tests that acknowledged data survives a power failure, on a disk that loses unsynced data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from hopsml import model
from hopsml.storage import checkpoints, segments, tree, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir, create_run_dir
from hopsml.training import checkpoint_files
from hopsml.training.trials.trial import Trial
from tests.helpers import lossy_disk
from tests.helpers.clock import END_S

pytestmark = pytest.mark.local


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes().decode(errors="replace") for path in files}


def test_lossy_disk_loses_unsynced_data(tmp_path: Path) -> None:
    """Without this the other tests could not fail."""
    with lossy_disk.mounted(tmp_path / "disk") as disk:
        (disk.folder / "gone").write_text("x")
        (disk.folder / "empty").write_text("x")
        descriptor = os.open(disk.folder, os.O_RDONLY)
        (disk.folder / "gone").unlink()
        os.fsync(descriptor)
        os.close(descriptor)
        (disk.folder / "empty").rename(disk.folder / "renamed")
        disk.cut_power()
        assert contents(disk.folder) == {"empty": ""}


def written(folder: Path) -> dict[str, str]:
    for_url(f"file://{folder}").write_bytes(f"file://{folder}/a/b/c.json", b"1")
    return {"a/b/c.json": "1"}


def overwritten(folder: Path) -> dict[str, str]:
    for content in (b"1", b"2"):
        for_url(str(folder)).write_bytes(f"{folder}/a/c.json", content)
    return {"a/c.json": "2"}


def claimed(folder: Path) -> dict[str, str]:
    for_url(str(folder)).write_bytes(f"{folder}/a/c.json", b"1", overwrite=False)
    return {"a/c.json": "1"}


def appended(folder: Path) -> dict[str, str]:
    writer, _ = segments.register_writer(f"{folder}/journal", ["one"])
    writer.add(["two"])
    writer.add(["three", "four"])
    return {"journal/" + os.listdir(folder / "journal")[0]: "one\ntwo\nthree\nfour\n"}


def streamed(folder: Path) -> dict[str, str]:
    with for_url(str(folder)).open_write(f"{folder}/a/stream") as file:
        file.write(b"1")
    return {"a/stream": "1"}


def moved(folder: Path) -> dict[str, str]:
    written(folder)
    for_url(str(folder)).make_dirs(f"{folder}/other")
    tree.move(f"{folder}/a/b", f"{folder}/other/b")
    return {"other/b/c.json": "1"}


def source(folder: Path) -> Path:
    """Return a folder with files that is not on the lossy disk."""
    made = folder.parent / "source"
    (made / "inner").mkdir(parents=True)
    (made / "weights").write_text("w")
    (made / "inner" / "more").write_text("m")
    return made


def uploaded(folder: Path) -> dict[str, str]:
    tree.upload_tree(source(folder), f"{folder}/Models/a/1")
    return {"Models/a/1/weights": "w", "Models/a/1/inner/more": "m"}


def committed(folder: Path) -> dict[str, str]:
    (folder / "run" / "checkpoints").mkdir(parents=True)  # created without a sync
    url = checkpoints.commit(source(folder), f"{folder}/run/checkpoints", 7)
    found = contents(folder)
    assert set(found) == {
        f"run/checkpoints/{urls.name(url)}/{name}" for name in ("weights", "inner/more", "manifest.json")
    }
    return found


def saved(folder: Path) -> dict[str, str]:
    """Save a checkpoint as a worker does, in a run directory on its disk."""
    target = folder / "run" / "checkpoints" / "step-000000007"
    description = checkpoint_files.CheckpointDescription(str(target), b"{}", 7, 2, True, 0o077)
    checkpoint_files.write_checkpoint(description, lambda prefix: Path(prefix).write_text("state"))
    return {name: text for name, text in contents(folder).items() if ".keep" not in name}


def saved_by_a_trial(folder: Path) -> dict[str, str]:
    with Trial(0, "t0", {}, folder / "trials" / "t0" / "checkpoints").checkpoint(3) as place:
        (place / "weights").write_text("w")
    return {"trials/t0/checkpoints/step-000000003/weights": "w"}


def ended(folder: Path) -> dict[str, str]:
    run = create_run_dir(f"file://{folder}/project", "app", {"name": "digits"})
    there = Path(urls.split(run.url)[2])
    (there / "logs").mkdir()
    (there / "logs" / "g0-rank0.log").write_text("line\n")
    (there / "metrics.jsonl").write_text("{}\n")
    for number in range(50):
        (there / "logs" / f"g{number}-rank0.log").write_text(str(number))
    run.write_status_once({"state": "FINISHED"})
    assert RunDir(run.url).read_status() == {"state": "FINISHED"}
    return contents(folder)


def exported(folder: Path) -> dict[str, str]:
    assert model.export(source(folder), "digits") is not None
    assert (folder / "project" / "Models" / "digits" / "1" / "model.json").exists()
    return contents(folder)


@pytest.mark.parametrize(
    "act",
    [
        written, overwritten, claimed, appended, streamed, moved, uploaded, committed, saved, saved_by_a_trial, ended,
        exported,
    ],
)  # fmt: skip
def test_stored_data_survives_a_power_failure(
    tmp_path: Path, act: Callable[[Path], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_MLFLOW", "0")
    with lossy_disk.mounted(tmp_path / "disk") as disk:
        monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{disk.folder}/project")
        expected = act(disk.folder)
        disk.cut_power()
        found = contents(disk.folder)
    assert expected.items() <= found.items() and expected


RUN = textwrap.dedent("""
    import sys
    from hopsml import experiment

    def train():
        import hopsml
        from pathlib import Path
        from hopsml.cluster.worker.context import current
        hopsml.report(1, loss=0.5)
        print("trained", flush=True)
        (current().export_dir / "model").write_text("weights")
        Path("artifact").write_text("saved")
        return {"loss": 0.5}

    print(experiment.submit(train, num_workers=1, progress=False).result(600).run_dir, flush=True)
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
""")


def test_run_with_a_returned_result_is_complete_after_a_power_failure(tmp_path: Path) -> None:
    with lossy_disk.mounted(tmp_path / "disk") as disk:
        (tmp_path / "train.py").write_text(RUN)
        (tmp_path / "scratch").mkdir()
        places = {"TMPDIR": str(tmp_path / "scratch"), "HOPSML_PROJECT_URL": f"file://{disk.folder}/project"}
        environment = {**os.environ, **places, "HOPSML_PROFILE": "local"}
        ran = subprocess.run(
            [sys.executable, str(tmp_path / "train.py")], env=environment, capture_output=True, text=True, timeout=END_S
        )
        assert ran.stdout.startswith("file://"), ran.stderr
        folder = Path(urls.split(ran.stdout.strip())[2])
        disk.cut_power()
        found = contents(folder)
    assert json.loads(found["status.json"])["state"] == "FINISHED"
    assert json.loads(found[".outputs.json"])["loss"] == 0.5
    assert "trained" in found["logs/g0-rank0.log"] and found["export/model"] == "weights"
    assert '"loss"' in found["metrics.jsonl"] and found["artifacts/artifact"] == "saved"
