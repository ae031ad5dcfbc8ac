"""Tests of the mirror process between two local folders."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopsml.cluster.agent.local_tree import LocalTree
from hopsml.errors import ArgumentError
from hopsml.storage import checkpoints
from hopsml.storage.mirror import MirrorProcess
from hopsml.storage.mirror_loop import scan
from hopsml.storage.run_dir import step_name
from tests.helpers import clock
from tests.helpers.clock import WAIT_S, wait_until
from tests.helpers.clock_shift import DAY_S, HINDRANCE, shifted

pytestmark = pytest.mark.local


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("logs", "events", "checkpoints", "export"):
        (tmp_path / "root" / name).mkdir(parents=True)
    (tmp_path / "root" / "logs" / "a.log").write_text("one\n")
    return tmp_path / "root"


def write_checkpoint(root: Path, step: int, rename: bool = True) -> None:
    aside = root / "checkpoints" / f".tmp-{step}"
    aside.mkdir()
    (aside / "weights").write_bytes(os.urandom(1000))
    if rename:
        aside.rename(root / "checkpoints" / f"step-{step:09d}")


def test_scan_lists_regular_files_and_complete_checkpoints(root: Path) -> None:
    write_checkpoint(root, 1)
    write_checkpoint(root, 2, rename=False)
    (root / "checkpoints" / "best.keras").write_bytes(b"x")
    (root / "logs" / ".tmp-00").write_bytes(b"x")
    os.mkfifo(root / "logs" / "pipe")
    listing = scan(root)
    assert sorted(file.path for file in listing.files) == ["checkpoints/best.keras", "logs/a.log"]
    assert listing.checkpoints == ("checkpoints/step-000000001",)


@pytest.mark.parametrize("place", ["trials/t0", "a=1&b=5", "generation.0/a=1&b=5", "fit-2", "trials/t0/fit-2"])
def test_checkpoints_of_trials_and_further_fits_are_mirrored_completely(root: Path, tmp_path: Path, place: str) -> None:
    trial = root / place
    trial.mkdir(parents=True)
    (trial / "checkpoints").mkdir()
    for step in (1, 2, 3):
        write_checkpoint(trial, step)
    checkpoints.write_retention(trial / "checkpoints", 2)
    write_checkpoint(trial, 4, rename=False)
    (trial / "output.log").write_text("one\n")
    (root / "events" / "checkpoints" / "step-000000001").mkdir(parents=True)
    (root / "events" / "checkpoints" / "step-000000001" / "mine").write_text("not a checkpoint of hopsml's\n")
    assert sorted(file.path for file in scan(root).files) == sorted(
        ["logs/a.log", f"{place}/checkpoints/.keep", f"{place}/output.log", "events/checkpoints/step-000000001/mine"]
    )
    with MirrorProcess(root, str(tmp_path / "remote")) as mirror:
        assert mirror.flush(60).is_complete
    remote = str(tmp_path / "remote" / place / "checkpoints")
    assert checkpoints.steps(remote) == [2, 3] and checkpoints.latest_complete(remote) == 3


def test_corrupt_stored_checkpoint_does_not_replace_sound_ones(root: Path, tmp_path: Path) -> None:
    """A run went back to step 2, as the store's step 3 is corrupt, and keeps one checkpoint."""
    remote = str(tmp_path / "remote" / "checkpoints")
    for step in (2, 3):
        (tmp_path / str(step)).mkdir()
        (tmp_path / str(step) / "weights").write_text(f"good-{step}")
        checkpoints.commit(tmp_path / str(step), remote, step)
    Path(remote, "step-000000003", "weights").write_text("BAD!-3")
    (root / "checkpoints").mkdir(exist_ok=True)
    with MirrorProcess(root, str(tmp_path / "remote"), keep_checkpoints=1) as mirror:
        for step in (1, 2):  # lower steps than that one; the second is there already
            write_checkpoint(root, step)
            assert mirror.flush(60).is_complete
            assert checkpoints.latest_sound(remote) == 2


def test_mirror_copies_new_and_growing_files_periodically(root: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    with MirrorProcess(root, str(remote), interval_s=0.1) as mirror:
        wait_until(lambda: (remote / "logs/a.log").exists())
        (root / "export" / "model.bin").write_bytes(b"model")
        write_checkpoint(root, 7)
        with open(root / "logs" / "a.log", "a") as log:
            log.write("two\n")
        wait_until(lambda: checkpoints.latest_complete(str(remote / "checkpoints")) == 7)
        wait_until(lambda: (remote / "export/model.bin").exists())
        wait_until(lambda: (remote / "logs/a.log").read_text() == "one\ntwo\n")
        assert not mirror.flush(60).behind
        process = mirror.process
    assert process is not None
    assert process.returncode == 0


def test_flush_copies_without_delay_and_names_files_behind(root: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "remote"
    (blocked / "export").mkdir(parents=True)
    (blocked / "export" / "model.bin").mkdir()  # a directory has the name: this file can never be copied
    messages = queue.SimpleQueue[dict[str, Any]]()
    with MirrorProcess(root, str(blocked), on_message=messages.put) as mirror:
        (root / "export" / "model.bin").write_bytes(b"fresh")  # would rest for a second first
        (root / "events" / "x.tfevents.1").write_bytes(b"fresh")
        started_s = clock.awake()
        report = mirror.flush(20)
        assert clock.awake() - started_s < 10  # no waiting for what time does not mend
        assert [late.path for late in report.behind] == ["export/model.bin"]
        assert "Is a directory" in report.behind[0].reason
        assert (blocked / "events/x.tfevents.1").read_bytes() == b"fresh"
        assert messages.get(timeout=30)["event"] == "behind"
        (blocked / "export" / "model.bin").rmdir()
        assert mirror.flush(60).is_complete
        assert messages.get(timeout=30) == {"event": "recovered", "behind_count": 0, "behind": []}


def test_mirror_recovers_from_a_full_disk(full_disk: Path, root: Path) -> None:
    ballast = full_disk / "ballast"
    ballast.write_bytes(bytes(900_000))
    (root / "logs" / "a.log").write_bytes(b"x" * 300_000)
    with MirrorProcess(root, str(full_disk / "run")) as mirror:
        report = mirror.flush(10)
        assert [late.path for late in report.behind] == ["logs/a.log"]
        assert "No space left" in report.behind[0].reason
        ballast.unlink()
        assert mirror.flush(60).is_complete
        assert sorted(path.name for path in full_disk.rglob("*")) == ["a.log", "logs", "run"]


def test_end_of_input_causes_a_last_flush(root: Path, tmp_path: Path) -> None:
    mirror = MirrorProcess(root, str(tmp_path / "remote"), interval_s=60)
    mirror.start()
    assert mirror.flush(60).is_complete
    with open(root / "logs" / "a.log", "a") as log:
        log.write("last words\n")
    write_checkpoint(root, 3)
    report = mirror.stop()
    assert report.is_complete
    assert (tmp_path / "remote/logs/a.log").read_text() == "one\nlast words\n"
    assert checkpoints.latest_complete(str(tmp_path / "remote/checkpoints")) == 3
    assert not mirror.is_alive
    assert not any(thread.name == "mirror" for thread in threading.enumerate())


@pytest.mark.parametrize("how", [signal.SIGTERM, "owner killed"])
def test_mirror_flushes_and_ends_with_its_owner(root: Path, tmp_path: Path, how: object) -> None:
    remote = tmp_path / "remote"
    script = f"""
from hopsml.storage.mirror import MirrorProcess
import os, signal
mirror = MirrorProcess({str(root)!r}, {str(remote)!r}, interval_s=60)
mirror.start()
complete = mirror.flush(60).is_complete
held = os.fork()  # holds the mirror's input open: its end alone would not tell of the owner's
if held:
    print(complete, mirror.process.pid, flush=True)
signal.pause()
"""
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    try:
        complete, pid = owner.stdout.readline().split()
        assert complete == "True"
        mirror, family = psutil.Process(int(pid)), psutil.Process(owner.pid).children(recursive=True)
        with open(root / "logs" / "a.log", "a") as log:
            log.write("last words\n")
        if how == signal.SIGTERM:
            mirror.send_signal(signal.SIGTERM)
            wait_until(lambda: not mirror.is_running() or mirror.status() == psutil.STATUS_ZOMBIE)
        else:
            owner.kill()
            assert psutil.wait_procs([mirror], timeout=10)[1] == []
        assert (remote / "logs/a.log").read_text() == "one\nlast words\n"
    finally:
        for process in family:
            if process.is_running():
                process.kill()
        owner.kill()
        owner.wait()
        owner.stdout.close()


def test_killed_mirror_is_restarted_and_copies_only_new_files(root: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    (root / "export" / "old.bin").write_bytes(b"old")
    mirror = MirrorProcess(root, str(remote))
    mirror.start()
    try:
        assert mirror.flush(60).is_complete
        assert mirror.process is not None
        inode = (remote / "export/old.bin").stat().st_ino
        mirror.process.kill()
        mirror.process.wait()
        (root / "export" / "new.bin").write_bytes(b"new")
        assert mirror.flush(10).is_complete
        assert (remote / "export/new.bin").read_bytes() == b"new"
        assert (remote / "export/old.bin").stat().st_ino == inode
    finally:
        mirror.stop()


@pytest.mark.skipif(HINDRANCE != "", reason=HINDRANCE)
def test_restarted_mirror_on_a_host_a_day_behind_copies_a_changed_file_of_equal_length(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's new content is younger than the copy, but its time by the host's clock is older."""
    for name, value in shifted(-DAY_S, tmp_path).items():
        monkeypatch.setenv(name, value)
    remote, file = tmp_path / "remote", root / "export" / "state.json"

    def write(content: str) -> None:
        file.write_text(content)
        now_s = file.stat().st_mtime
        os.utime(file, (now_s - DAY_S, now_s - DAY_S))

    write("1")
    with MirrorProcess(root, str(remote)) as mirror:
        assert mirror.flush(60).is_complete and mirror.process is not None
        mirror.process.kill()
        mirror.process.wait()
        write("2")
        assert mirror.flush(60).is_complete
    assert (remote / "export" / "state.json").read_text() == "2"


def test_frozen_mirror_does_not_block_its_owner(root: Path, tmp_path: Path) -> None:
    mirror = MirrorProcess(root, str(tmp_path / "remote"))
    mirror.start()
    assert mirror.flush(60).is_complete
    assert mirror.process is not None
    mirror.process.send_signal(signal.SIGSTOP)
    started_s = clock.awake()
    assert mirror.flush(0.2).answered is False
    assert mirror.stop(timeout_s=0.5).answered is False
    assert clock.awake() - started_s < 6
    assert not mirror.is_alive


def test_mirror_retains_the_requested_number_of_checkpoints(root: Path, tmp_path: Path) -> None:
    with MirrorProcess(root, str(tmp_path / "remote"), keep_checkpoints=2) as mirror:
        for step in (1, 2, 3):
            write_checkpoint(root, step)
            assert mirror.flush(60).is_complete
    assert checkpoints.steps(str(tmp_path / "remote/checkpoints")) == [2, 3]


def test_mirror_retains_as_many_checkpoints_as_its_owner(root: Path, tmp_path: Path) -> None:
    remote = str(tmp_path / "remote/checkpoints")
    with MirrorProcess(root, str(tmp_path / "remote")) as mirror:
        for step in (1, 2, 3):
            write_checkpoint(root, step)
        assert mirror.flush(60).is_complete
        assert checkpoints.steps(remote) == [1, 2, 3], "nobody has said how many"
        checkpoints.write_retention(root / "checkpoints", 2)
        write_checkpoint(root, 4)
        assert mirror.flush(60).is_complete
        assert checkpoints.steps(remote) == [3, 4]
        checkpoints.write_retention(root / "checkpoints", 1)
        shutil.rmtree(root / "checkpoints" / step_name(4))  # the owner prunes before the newer one is on the store
        mirror.flush(10)
        assert checkpoints.steps(remote) == [3, 4], "only a newer complete one makes an older one go"
        write_checkpoint(root, 5)
        assert mirror.flush(60).is_complete
        assert checkpoints.steps(remote) == [5] and checkpoints.is_complete(f"{remote}/{step_name(5)}")


def test_mirror_arguments_are_validated(root: Path) -> None:
    for wrong in ({"interval_s": 0}, {"grace_s": -1}, {"keep_checkpoints": 0}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            MirrorProcess(root, "/x", **wrong)  # type: ignore[arg-type]


def test_agent_that_ends_while_it_retries_waits_for_no_mirror(tmp_path: Path) -> None:
    """The store refuses: a file is in the way of its folder. The agent's loop ends without the time of the retries."""
    (tmp_path / "store").write_text("in the way")
    problems: queue.SimpleQueue[str] = queue.SimpleQueue()

    async def scenario() -> subprocess.Popen[bytes]:
        tree = LocalTree(
            f"local://{tmp_path}/store/run", tmp_path / "agent", 5.0, lambda text, count: problems.put(text)
        )
        await tree.open()
        assert tree._mirror is not None and tree._mirror.process is not None
        process = tree._mirror.process
        (tree.base / "logs" / "a.log").write_text("one\n")
        closing = asyncio.create_task(tree.close(WAIT_S * 10, WAIT_S * 10))
        await asyncio.to_thread(problems.get)
        assert tree.fails
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        return process

    started_s = clock.awake()
    process = asyncio.run(scenario())  # waits for the threads of the loop
    assert clock.awake() - started_s < WAIT_S * 10 and process.poll() is not None
