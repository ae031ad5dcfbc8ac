"""Tests of logs of more than a gigabyte on YARN: readable from any position, and stored only once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.client import Client
from hopsml.core import log_stream
from hopsml.core.log_stream import ServerEvent
from hopsml.core.states import Lifecycle
from hopsml.errors import HopsmlError
from tests.helpers.cluster.workloads import wait_until
from tests.integration.yarn.conftest import Hadoop
from tests.integration.yarn.test_job_service import WAIT_S, YarnService, own_cluster, reaches, served
from tools.hadoop.settings import Shape

pytestmark = [pytest.mark.hadoop, pytest.mark.variant]

LONG_S = 400.0  # for a gigabyte to go by
LIMIT_MB = 1200  # of a container's logs
FILLING = ("x" * 99 + "\n") * 10_485
BLOCK_BYTES = 16 + len(FILLING)  # its number in a line, then these
BLOCKS = 1100  # 1.15 GB, within the limit
PRINTING = """
import os, sys, time
FILLING = ("x" * 99 + "\\n") * 10_485

def printed(blocks):
    for number in range(blocks):
        sys.stdout.write("%015d\\n%s" % (number, FILLING))
    sys.stdout.flush()
"""
DRIVER = f"""{PRINTING}
import argparse
from pyspark.sql import SparkSession
SparkSession.builder.getOrCreate()
parser = argparse.ArgumentParser()
parser.add_argument("--folder")
parser.add_argument("--blocks", type=int)
asked = parser.parse_args()
printed(asked.blocks)
open(f"{{asked.folder}}/printed", "w").close()
while not os.path.exists(f"{{asked.folder}}/end"):
    print("a tick", flush=True)
    time.sleep(0.1)
print("the last line", flush=True)
"""
WORKERS = f"""
def train(folder, blocks):
    names = {{}}
    exec({PRINTING!r}, names)
    names["printed"](blocks)
    return 1.0
"""
JOB = "name: {name}\ntasks: {{main: {{{how}, arguments: {{folder: {folder}, blocks: {blocks}}}}}}}\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Hadoop]:
    shape = Shape(datanodes=1, nodemanagers=1, gpus=0, memory_mb=4352, log_mb=LIMIT_MB)
    with own_cluster("logs", shape) as made:
        yield made


@pytest.fixture
def service(cluster: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[YarnService]:
    with served(cluster, tmp_path, monkeypatch) as made:
        for name, text in (("driver", DRIVER), ("workers", WORKERS)):
            (tmp_path / "code" / f"{name}.py").write_text(text)
        yield made
    cluster.make_whole()


def submitted(service: YarnService, name: str, how: str, blocks: int) -> str:
    """Submit a job and return its id."""
    path = service.folder / "code" / f"{name}.yaml"
    path.write_text(JOB.format(name=name, how=how, folder=service.folder, blocks=blocks))
    return service.client.submit(path).id


def events(client: Client, job: str, offset: int = 0, last: str = "") -> Iterator[ServerEvent]:
    with client._open(f"jobs/{job}/log/events", {"offset": offset}, last) as lines:
        yield from log_stream.parse_events(lines)


def text_from(client: Client, job: str, offset: int = 0, last: str = "") -> ServerEvent:
    """Return the first text event of a log stream."""
    return next(event for event in events(client, job, offset, last) if event.kind == "log")


class Listener(threading.Thread):
    """Thread that follows a log to its end and checks each byte; ``rest`` is the text after the blocks."""

    def __init__(self, client: Client, job: str) -> None:
        super().__init__(daemon=True)
        self._client, self._job = client, job
        self.begin = -1  # the byte of the first block: before it come warnings of Spark's
        self.blocks, self.problem, self.rest = 0, "", ""

    def run(self) -> None:
        try:
            for text in self._client.follow(self._job):
                self._take(text)
        except (HopsmlError, ValueError) as error:
            self.problem = repr(error)

    def _take(self, text: str) -> None:
        self.rest += text
        if self.begin < 0 and (at := self.rest.find(f"{0:015d}\n")) >= 0:
            self.begin, self.rest = len(self.rest[:at].encode()), self.rest[at:]
        if self.begin < 0 and len(self.rest) > BLOCK_BYTES:
            raise ValueError(f"the first block was left out: {self.rest[:100]}")
        while self.begin >= 0 and self.blocks < BLOCKS and len(self.rest) >= BLOCK_BYTES:
            if not self.rest.startswith(f"{self.blocks:015d}\n{FILLING}"):
                raise ValueError(f"block {self.blocks} is another one: {self.rest[:100]}")
            self.rest = self.rest[BLOCK_BYTES:]
            self.blocks += 1

    def reaches(self, blocks: int) -> bool:
        assert not self.problem, self.problem
        return self.blocks >= blocks


def peak_mb(process: subprocess.Popen[str] | subprocess.Popen[bytes] | None) -> int:
    """Return the peak memory of a process, in MiB."""
    assert process is not None
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))


def test_driver_log_is_readable_from_start_end_and_a_listener_position(service: YarnService) -> None:
    client = service.start()
    before = peak_mb(service.process)
    job = submitted(service, "driver", "script: driver.py", BLOCKS)
    wait_until(lambda: (service.folder / "printed").exists(), "all of it", LONG_S)
    newest = text_from(client, job, -50)
    assert "tick" in newest.data["text"] and newest.data["offset"] >= BLOCKS * BLOCK_BYTES
    listener = Listener(client, job)
    listener.start()
    wait_until(lambda: listener.reaches(BLOCKS // 2), "half of it", LONG_S)
    peaks = [peak_mb(service.process)]
    service.signal(signal.SIGKILL)
    client = service.start()
    wait_until(lambda: listener.reaches(BLOCKS), "the rest, of the next server", LONG_S)
    (service.folder / "end").touch()
    wait_until(reaches(client, job, Lifecycle.FINISHED), "its end", WAIT_S)
    wait_until(lambda: not listener.is_alive(), "the end of the log", WAIT_S)
    assert not listener.problem and set(listener.rest.split("\n")) == {"a tick", "the last line", ""}
    assert text_from(client, job, -14).data["text"] == "the last line\n", "of the log that YARN has put away"
    place = listener.begin + 700 * BLOCK_BYTES
    middle = text_from(client, job, last=str(place))
    assert middle.data["offset"] == place and middle.data["text"].startswith(f"{700:015d}\nxxx")
    peaks.append(peak_mb(service.process))
    assert max(peaks) - before < 100, (before, peaks)
    assert service.signal(signal.SIGTERM) == 0


def disk_mb(folder: Path) -> int:
    """Return the size of a folder in MiB, while its files change."""
    output = subprocess.run(["du", "-sm", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return int(output.stdout.split()[0])


def test_worker_output_is_stored_once_and_not_limited_by_yarn(service: YarnService) -> None:
    client, blocks = service.start(), LIMIT_MB + 100
    node, most = service.hadoop.home / "nm1", 0
    job = submitted(service, "workers", "function: workers.py:train, framework: distributed", blocks)

    def over() -> bool:
        nonlocal most
        most = max(most, disk_mb(node))
        return client.job(job).state.is_final

    wait_until(over, "its end", LONG_S)
    assert client.job(job).state == Lifecycle.FINISHED, client.job(job).cause
    length = blocks * BLOCK_BYTES >> 20
    assert length <= most < length * 1.2, "once, and besides it what Spark needs"
    assert disk_mb(node) < length // 4, "it goes with the application"
    assert len("".join(client.follow(job))) < 4 << 20, "a driver's log has the beginning of a flood, and its end"
    command = [sys.executable, "-c", "from hopsml.cli import main; main()", "runs", "logs", client.runs(job)[0].id]
    environment = {**service.hadoop.submit_env(), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["HOPSML_PROJECT_URL"] = f"{service.hadoop.namenode_url}/Projects/{service.folder.name}"
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as printing:
        assert printing.stdout is not None
        for number in range(blocks):
            assert printing.stdout.read(BLOCK_BYTES) == f"{number:015d}\n{FILLING}".encode()
            peak = peak_mb(printing)
        assert printing.stdout.read() == b"" and printing.wait() == 0
    assert peak < 300
    assert service.signal(signal.SIGTERM) == 0


def test_driver_beyond_the_yarn_log_limit_fails_with_the_cause(service: YarnService) -> None:
    client = service.start()
    job = submitted(service, "driver", "script: driver.py", 1 << 20)
    ended = client.wait(job, LONG_S)
    assert ended.state == Lifecycle.FAILED
    assert "is logging beyond the container single log directory limit" in ended.cause
    assert service.signal(signal.SIGTERM) == 0
