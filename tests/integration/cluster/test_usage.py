"""Tests of a worker's resource use, from real processes and control group files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hopsml
from hopsml import experiment
from hopsml.cluster.agent import usage
from hopsml.cluster.agent.usage import UsageSampler
from hopsml.storage.filesystem import for_url
from tests.helpers.cluster.workloads import wait_until

WRITTEN_MB = 16
SCRIPT = """
import os, subprocess, sys
for line in sys.stdin:
    if line.strip() == "write":  # a child does so, too, and is gone before anybody looks again
        subprocess.run([sys.executable, "-c",
            "import os, sys; f = open(sys.argv[1], 'wb'); f.write(os.urandom(16_000_000)); f.flush(); os.fsync(f.fileno())",
            sys.argv[1] + ".child"], check=True)
        with open(sys.argv[1], "wb") as file:
            file.write(os.urandom(16_000_000))
            file.flush()
            os.fsync(file.fileno())
    if line.strip() == "keep":
        kept = bytearray(os.urandom(64_000_000))
    if line.strip() == "work":
        sum(range(20_000_000))
    print("done", flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        yield child
        child.kill()


def send_command(worker: subprocess.Popen[str], what: str) -> None:
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(what + "\n")
    worker.stdin.flush()
    assert worker.stdout.readline() == "done\n"


@pytest.mark.local
def test_processor_memory_and_disk_use_of_a_worker_are_sampled(worker: subprocess.Popen[str]) -> None:
    send_command(worker, "begin")
    sampler = UsageSampler(worker.pid)
    first = sampler.sample()
    assert "cpu_utilization_percentage" not in first
    assert first["disk_write_megabytes"] == first["network_receive_megabytes"] == 0.0
    send_command(worker, "write")
    send_command(worker, "keep")
    send_command(worker, "work")
    second = sampler.sample()
    assert second["cpu_utilization_percentage"] > 0
    assert second["memory_usage_megabytes"] >= first["memory_usage_megabytes"] + 60
    assert second["disk_write_megabytes"] == pytest.approx(2 * WRITTEN_MB, rel=0.05), "its child's, too, and once"
    third = sampler.sample()
    assert third["disk_write_megabytes"] == second["disk_write_megabytes"]
    assert third["network_transmit_megabytes"] >= second["network_transmit_megabytes"] >= 0.0
    worker.kill()
    worker.wait()
    assert sampler.sample() == {}


def moves_bytes(project: str, store: str) -> None:
    """Use the collective and a remote store, then run until the samples have it."""
    hopsml.all_reduce(np.ones(10))
    rank = hopsml.distributed.rank()
    for_url(store).write_bytes(f"{store}/{rank}", b"x" * 3_000_000)
    files = Path(project, "Experiments")

    def is_sampled() -> bool:
        found = [path.read_text() for path in files.glob(f"*/logs/g0-rank{rank}.system.jsonl")]
        return any("network_storage_transmit" in text and "network_collective" in text for text in found)

    wait_until(is_sampled, "samples with the bytes")


@pytest.mark.local
def test_samples_of_a_run_have_the_bytes_of_each_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
    experiment.collective_all_reduce(
        moves_bytes, args={"project": f"{tmp_path}/project", "store": f"local://{tmp_path}/store"}, num_workers=2,
        environment={"HOPSML_SYSTEM_METRICS_S": "0.2"}, progress=False,
    )  # fmt: skip
    files = sorted((tmp_path / "project" / "Experiments").glob("*/logs/*.system.jsonl"))
    assert len(files) == 2
    for file in files:
        last = json.loads(file.read_text().splitlines()[-1])
        assert last["network_storage_transmit_megabytes"] == 3.0
        assert last["network_collective_transmit_megabytes"] > 0


@pytest.mark.fast
def test_bytes_that_hopsml_moves_are_sampled_by_purpose() -> None:
    moved = {"collective": (3_000_000, 4_000_000), "feed": (0, 0)}
    sampler = UsageSampler(os.getpid(), traffic=lambda: moved)
    values = sampler.sample()
    assert values["network_collective_receive_megabytes"] == 3.0
    assert values["network_collective_transmit_megabytes"] == 4.0
    assert not any("feed" in name for name in values), "a purpose without bytes has no column"
    moved["feed"] = (500_000, 0)
    assert sampler.sample()["network_feed_receive_megabytes"] == 0.5


@pytest.mark.fast
class TestControlGroups:
    def proc(self, folder: Path, text: str) -> Path:
        (folder / "proc" / "7").mkdir(parents=True)
        (folder / "proc" / "7" / "cgroup").write_text(text)
        return folder / "proc"

    def group(self, folder: Path, **files: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return folder

    def test_nearest_limit_of_control_group_v2_counts(self, tmp_path: Path) -> None:
        root = self.group(tmp_path / "fs")
        self.group(root / "a", memory__current="300\n", memory__max="1000\n")
        self.group(root / "a" / "b", memory__current="200\n", memory__max="max\n")
        found = usage.memory_of(7, root, self.proc(tmp_path, "0::/a/b\n"))
        assert found is not None
        assert (found.limit_bytes, found.usage_bytes()) == (1000, 300)

    def test_unlimited_memory_of_control_group_v1_is_no_limit(self, tmp_path: Path) -> None:
        root = tmp_path / "fs"
        names = {"memory__usage_in_bytes": "5\n", "memory__limit_in_bytes": "9223372036854771712\n"}
        self.group(root / "memory" / "a", **names)
        proc = self.proc(tmp_path, "9:cpu:/\n4:memory:/a\n")
        assert usage.memory_of(7, root, proc) is None
        self.group(root / "memory" / "a", memory__limit_in_bytes="10\n")
        found = usage.memory_of(7, root, proc)
        assert found is not None
        assert found.limit_bytes == 10

    def test_root_group_counts_inside_a_container(self, tmp_path: Path) -> None:
        root = self.group(tmp_path / "fs", memory__current="1\n", memory__max="4\n")
        found = usage.memory_of(7, root, self.proc(tmp_path, "0::/docker/1234\n"))
        assert found is not None
        assert found.limit_bytes == 4

    def test_unreadable_control_group_has_no_memory_limit(self, tmp_path: Path) -> None:
        assert usage.memory_of(7, tmp_path, tmp_path) is None
        assert usage.memory_of(7, tmp_path, self.proc(tmp_path, "strange\n0::/x\n")) is None

    def test_removed_control_group_has_no_usage(self, tmp_path: Path) -> None:
        assert usage.MemoryFiles(tmp_path / "gone", 10).usage_bytes() is None

    @pytest.mark.parametrize(
        ("line", "group", "file"),
        [("0::/a/b\n", "a/b", "memory.events"), ("4:memory:/a/b\n", "memory/a/b", "memory.oom_control")],
    )
    def test_oom_counter_of_the_control_group_explains_sigkill(
        self, tmp_path: Path, line: str, group: str, file: str
    ) -> None:
        version_2 = file == "memory.events"
        folder = self.group(tmp_path / "fs" / group)
        current, limit = ("memory.current", "memory.max") if version_2 else (
            "memory.usage_in_bytes", "memory.limit_in_bytes")  # fmt: skip
        (folder / current).write_text("5\n")
        (folder / limit).write_text(f"{64 << 20}\n")
        (folder / file).write_text("max 9\noom_kill 2\n")
        watch = usage.OomWatch(7, tmp_path / "fs", self.proc(tmp_path, line))
        assert watch.explain().startswith(
            f"neither hopsml nor the kernel (for lack of memory) sent this signal, since "
            f"oom_kill in {folder / file} is still 2; check"
        )
        (folder / file).write_text("max 99\noom_kill 3\n")
        assert watch.explain() == (
            f"the kernel sent this signal for lack of memory: oom_kill in {folder / file} went from 2 to 3; "
            "its memory limit is 64 MB"
        )

    def test_sigkill_is_unexplained_without_an_oom_counter(self, tmp_path: Path) -> None:
        watch = usage.OomWatch(7, tmp_path / "fs", self.proc(tmp_path, "0::/\n"))
        assert watch.explain().startswith("hopsml did not send this signal; whether the kernel")


@pytest.mark.fast
def test_sampler_covers_this_process() -> None:
    assert set(UsageSampler(os.getpid()).sample()) >= {
        "memory_usage_megabytes", "disk_read_megabytes", "disk_write_megabytes",
        "network_receive_megabytes", "network_transmit_megabytes",
    }  # fmt: skip


@pytest.mark.fast
@pytest.mark.parametrize(("value", "interval_s"), [(None, 0.0), ("", 0.0), ("0", 0.0), ("2.5", 2.5)])
def test_empty_sampling_interval_disables_samples(value: str | None, interval_s: float) -> None:
    environment = {} if value is None else {"HOPSML_SYSTEM_METRICS_S": value}
    assert usage.sampling_interval_s(environment) == interval_s
