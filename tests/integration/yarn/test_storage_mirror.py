"""Tests of the mirror with failures of a real HDFS: it falls behind, reports it, and catches up."""

from __future__ import annotations

import os
import queue
import secrets
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopsml.storage import checkpoints, filesystem, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.mirror import MirrorProcess
from tests.helpers import clock
from tests.helpers.clock import END_S

pytestmark = pytest.mark.hadoop


@pytest.fixture
def folder(hadoop: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a new directory on HDFS, deleted afterwards."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    url = f"{hadoop.namenode_url}/tests/{secrets.token_hex(8)}"
    for_url(url).make_dirs(url)
    yield url
    for_url(url).delete(url, recursive=True)
    filesystem.close_all()


class Training:
    """Writes a log, events and checkpoints to the local disk, as a worker does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.step = 0
        for name in ("logs", "events", "checkpoints"):
            (root / name).mkdir(parents=True)

    def work(self) -> None:
        """Write the files of one step."""
        self.step += 1
        with open(self.root / "logs" / "g0-rank0.log", "a") as log:
            log.write(f"step {self.step}\n")
        with open(self.root / "events" / "events.out.tfevents.1", "ab") as events:
            events.write(os.urandom(5000))

    def checkpoint(self) -> int:
        """Write a complete checkpoint of this step, by rename."""
        aside = self.root / "checkpoints" / f".tmp-{self.step}"
        aside.mkdir()
        (aside / "weights").write_bytes(os.urandom(300_000))
        (aside / "index").write_bytes(b"i")
        aside.rename(self.root / "checkpoints" / f"step-{self.step:09d}")
        return self.step

    def is_mirrored(self, url: str) -> bool:
        """Return True if the store has exactly the content of the disk."""
        system = for_url(url)
        for name in ("logs/g0-rank0.log", "events/events.out.tfevents.1"):
            if system.read_bytes(urls.join(url, name)) != (self.root / name).read_bytes():
                return False
        local = sorted(int(path.name[5:]) for path in (self.root / "checkpoints").glob("step-*"))
        remote = checkpoints.steps(urls.join(url, "checkpoints"))
        return local == remote == [s for s in remote if _is_complete(url, s)]


def _is_complete(url: str, step: int) -> bool:
    return checkpoints.is_complete(urls.join(url, "checkpoints", f"step-{step:09d}"))


@pytest.mark.variant  # of a NameNode that is frozen
def test_mirror_catches_up_after_a_killed_namenode_is_restarted(hadoop: Any, folder: str, tmp_path: Path) -> None:
    training, messages = Training(tmp_path), queue.SimpleQueue[dict[str, Any]]()
    training.work()
    with MirrorProcess(tmp_path, folder, timeout_s=10, on_message=messages.put) as mirror:
        assert mirror.flush(30).is_complete
        hadoop.kill("nn")
        try:
            training.work()
            training.checkpoint()
            began_s = clock.awake()
            report = mirror.flush(4)
            assert clock.awake() - began_s < 7
            assert {late.path for late in report.behind} == {
                "logs/g0-rank0.log",
                "events/events.out.tfevents.1",
                "checkpoints/step-000000002",
            }
            message = messages.get(timeout=20)
            assert message["event"] == "behind"
            assert any("refused" in late["reason"] for late in message["behind"])
            training.work()
        finally:
            hadoop.revive("nn")
        assert messages.get(timeout=END_S)["event"] == "recovered"
        assert mirror.flush(60).is_complete
        assert training.is_mirrored(folder)
    assert checkpoints.latest_complete(urls.join(folder, "checkpoints")) == 2


def test_mirror_catches_up_after_a_frozen_namenode_continues(hadoop: Any, folder: str, tmp_path: Path) -> None:
    training, messages = Training(tmp_path), queue.SimpleQueue[dict[str, Any]]()
    training.work()
    with MirrorProcess(tmp_path, folder, timeout_s=3, on_message=messages.put) as mirror:
        assert mirror.flush(30).is_complete
        hadoop.kill("nn", signal_number=signal.SIGSTOP)
        try:
            training.work()
            training.checkpoint()
            message = messages.get(timeout=30)
            assert message["event"] == "behind"
            assert "within 3 s" in str(message["behind"])
            training.work()
        finally:
            hadoop.kill("nn", signal_number=signal.SIGCONT)
        assert mirror.flush(60).is_complete
        assert training.is_mirrored(folder)
        left = [e.url for e in filesystem.walk(folder) if urls.is_temporary(e.url)]
        assert left == []


@pytest.mark.variant  # of one that is frozen
def test_mirror_continues_while_a_datanode_is_killed(hadoop: Any, folder: str, tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.work()
    with MirrorProcess(tmp_path, folder, timeout_s=10) as mirror:
        assert mirror.flush(30).is_complete
        hadoop.kill("dn1")
        try:
            training.work()
            training.checkpoint()
            assert mirror.flush(60).is_complete  # the other one takes it
            # What lay on the dead node alone cannot be read; what was written since can.
            assert _is_complete(folder, training.step)
        finally:
            hadoop.revive("dn1")
        training.work()
        assert mirror.flush(60).is_complete
        assert training.is_mirrored(folder)


@pytest.mark.variant  # of a NameNode that is frozen
def test_mirror_continues_while_a_datanode_is_frozen(hadoop: Any, folder: str, tmp_path: Path) -> None:
    """Writes that meet it do not end by themselves for minutes: the deadline ends them, and they are done
    again.
    """
    training = Training(tmp_path)
    training.work()
    with MirrorProcess(tmp_path, folder, timeout_s=3) as mirror:
        assert mirror.flush(30).is_complete
        hadoop.kill("dn1", signal_number=signal.SIGSTOP)
        try:
            training.work()
            training.checkpoint()
            assert mirror.flush(90).is_complete
        finally:
            hadoop.kill("dn1", signal_number=signal.SIGCONT)
        training.work()
        assert mirror.flush(60).is_complete
        assert training.is_mirrored(folder)


def test_reader_always_sees_a_complete_prefix(folder: str, tmp_path: Path) -> None:
    training, stop, wrong = Training(tmp_path), threading.Event(), queue.SimpleQueue[str]()
    training.work()
    url, seen = urls.join(folder, "logs/g0-rank0.log"), set()

    def read() -> None:
        longest = 0
        while not stop.is_set():
            data = for_url(url).read_bytes(url)
            whole = (tmp_path / "logs/g0-rank0.log").read_bytes()
            if not whole.startswith(data) or len(data) < longest:
                wrong.put(f"{len(data)} after {longest} of {len(whole)}")
            longest = max(longest, len(data))
            seen.add(len(data))

    with MirrorProcess(tmp_path, folder, interval_s=0.1) as mirror:
        assert mirror.flush(30).is_complete
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(8):
            training.work()
            assert mirror.flush(30).is_complete
        stop.set()
        reader.join(END_S)
    assert wrong.empty(), wrong.get()
    assert len(seen) > 2


def test_killed_mirror_is_restarted_without_loss(folder: str, tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.work()
    mirror = MirrorProcess(tmp_path, folder)
    mirror.start()
    try:
        assert mirror.flush(30).is_complete
        assert mirror.process is not None
        mirror.process.kill()
        mirror.process.wait()
        training.work()
        training.checkpoint()
        report = mirror.flush(30)
        assert report.is_complete
        assert training.is_mirrored(folder)
    finally:
        mirror.stop()


def test_mirror_ends_with_its_agent(hadoop: Any, folder: str, tmp_path: Path) -> None:
    """The agent is killed while HDFS is frozen: the mirror and its helpers end within the grace period."""
    import subprocess
    import sys

    Training(tmp_path).work()
    script = f"""
from hopsml.storage.mirror import MirrorProcess
import signal
mirror = MirrorProcess({str(tmp_path)!r}, {folder!r}, grace_s=3, timeout_s=60)
mirror.start()
print(mirror.flush(30).is_complete, flush=True)
signal.pause()
"""
    agent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    try:
        assert agent.stdout.readline() == "True\n"
        descendants = psutil.Process(agent.pid).children(recursive=True)
        assert len(descendants) >= 2
        hadoop.kill("nn", signal_number=signal.SIGSTOP)
        with open(tmp_path / "logs" / "g0-rank0.log", "a") as log:
            log.write("more\n")
        agent.kill()
        _, alive = psutil.wait_procs(descendants, timeout=10)
        assert not alive
    finally:
        hadoop.kill("nn", signal_number=signal.SIGCONT)
        agent.kill()
        agent.wait()
        agent.stdout.close()
