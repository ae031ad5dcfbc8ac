"""Parts of the soak that repeat rounds of work: a job service with its page, and a session with runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from hopsml.client import Client
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.service.project import ProjectOnDisk
from tests.soak.measured import Process

KEEP_S = 6.0  # files of jobs
MEMORY_MB = 4  # of what the page's server has read
VIEWED = 60  # runs that are there from the begin, more than fit
JOBS = 3  # a round, the last of which trains
FOLLOWS = 2  # streams of events a round
TRAIN = """
import sys
print({round!r})

def train():
    import hopsml
    for step in range(50):
        hopsml.report(step=step, loss=1 / (1 + step))
    return {{"n": 1}}
"""


@dataclass(frozen=True)
class Sample:
    """Measurements of a process after an amount of work; ``unit``: unit of the work."""

    what: str
    quantity: str
    unit: str
    work: float
    value: float


class Part(Protocol):
    """Interface of a long-lived part of the soak."""

    def round(self) -> Iterator[Sample]:
        """Do a round of work, and yield measurements."""

    def lines(self) -> list[str]:
        """Return the lines of code whose objects have grown most since the last call."""

    def end(self) -> None:
        """End the part, with all processes that it has started."""


def files(folder: Path, *without: str) -> dict[str, float]:
    """Return the numbers of files and folders below a folder, except names that begin with one of ``without``."""
    found = Counter[str]()
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(without or ("\0",))]
        found["folders"] += len(folders)
        found["files"] += sum(not name.startswith(without or ("\0",)) for name in names)
    return {"files": float(found["files"]), "folders": float(found["folders"])}


@dataclass
class Service:
    """``hopsml server`` on this machine: jobs with new code in each round, and requests of its page."""

    folder: Path
    planted: str = "-"
    _jobs: int = 0
    _known: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._state, self._code = self.folder / "state", self.folder / "code"
        self._code.mkdir(parents=True)
        self._project = ProjectOnDisk(self.folder / "project")
        for number in range(VIEWED):
            run = self._project.run(f"viewed_{number}")
            run.report_all("loss", [1 / (1 + step) for step in range(3_000)])
            run.print(0, *(f"line {line}" for line in range(200)))
            self._known.append(run.id)
        arguments = (str(self._state), self._project.url, f"{KEEP_S:g}", self.planted)
        variables = {**os.environ, "HOPSML_UI_MEMORY_MB": str(MEMORY_MB), "HOPSML_MLFLOW": "0"}
        with open(self.folder / "server.log", "a") as log:
            self._server = Process(
                *("server", self.folder / "measured", "tests.soak.soaked_server", *arguments),
                env=variables,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._server.popen.stdout is not None
        address = self._server.popen.stdout.readline().strip()
        assert address, (self.folder / "server.log").read_text()
        self._address, _, self._token = address.partition("?token=")
        self._client = Client(self._address, self._token)

    def round(self) -> Iterator[Sample]:
        """Run jobs, one of which trains and one of which fails; request all of the page's addresses; drop streams."""
        submitted = [self._submit(number) for number in range(JOBS)]
        for job in submitted:
            self._client.wait(job, 300, poll_s=0.2)
        self._jobs += JOBS
        self._view(submitted)
        yield from self._measured()

    def _submit(self, number: int) -> str:
        name = f"soak-{number}"
        (self._code / "train.py").write_text(TRAIN.format(round=f"{name} of round {self._jobs}"))
        what = {0: "script: train.py", 1: "command: [sh, -c, exit 3]", 2: "function: train.py:train"}[number % 3]
        file = self._code / f"{name}.yaml"
        file.write_text(f"name: {name}\ntasks: {{main: {{{what}, resources: {{cores: 1, memory: 1g}}}}}}\n")
        return self._client.submit(file).id

    def _view(self, jobs: list[str]) -> None:
        made = [run.id for job in jobs for run in self._client.runs(job)]
        turn = self._jobs // JOBS
        looked_at = [*made, *(self._known[(turn * 7 + number) % VIEWED] for number in range(15))]
        for run in looked_at:
            for path in ("", "/metrics?tag=loss", "/logs?rank=0", "/slow", "/files"):
                self._get(f"api/runs/{run}{path}")
        self._get("api/compare?" + urllib.parse.urlencode({"run": looked_at[:12], "tag": "loss"}, doseq=True))
        for path in ("api/runs", "api/about", "api/v1/jobs?limit=100", "api/v1/nodes", "api/v1/queues", "metrics"):
            self._get(path)
        for job in jobs:
            self._client.log(job)
            self._client.changes(job)
            self._client.metrics(job)
        for _ in range(FOLLOWS):
            with self._open("api/events") as stream:
                stream.readline()

    def _get(self, path: str) -> None:
        with self._open(path) as answer:
            answer.read()

    def _open(self, path: str) -> Any:
        request = urllib.request.Request(self._address + path, headers={"authorization": f"Bearer {self._token}"})
        return urllib.request.urlopen(request, timeout=60)

    def _measured(self) -> Iterator[Sample]:
        found = self._server.measure()
        found |= files(self._state, "service.db", "client.json")
        exchanged = files(self.folder / "project" / "Jobs") if (self.folder / "project" / "Jobs").is_dir() else {}
        for what, known in {"server": found, "project's Jobs": exchanged}.items():
            for quantity, value in known.items():
                yield Sample(what, quantity, "job", self._jobs, value)

    def lines(self) -> list[str]:
        """Return the server's lines of code with the most growth."""
        return self._server.lines()

    def end(self) -> None:
        """End the server; jobs have ended after each round, except those of an interrupted one, which are killed."""
        with contextlib.suppress(Exception):
            for job in self._client.jobs():
                self._client.cancel(job.id)
        self._server.end()
        if self._server.popen.stdout is not None:
            self._server.popen.stdout.close()
        for process in _of(str(self._state)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _of(state: str) -> list[int]:
    """Return the process ids of watchers and drivers of a service's jobs, which survive the service."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(word.startswith(state) for word in process.cmdline()):
                found.append(process.pid)
    return found


class Session:
    """Driver with its agents, fork servers and workers."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._done = folder, {"runs": 0, "recoveries": 0}
        for name in ("conf", "workers", "tmp"):
            (folder / name).mkdir(parents=True)
        (folder / "conf" / "local.yaml").write_text("master: none\nlocal_slots: 6\n")
        variables = {
            **{name: value for name, value in os.environ.items() if name not in ("HOPSML_PROFILE", "TF_CONFIG")},
            "HOPSML_CONF_DIR": str(folder / "conf"),
            "HOPSML_PROJECT_URL": f"file://{folder}/project",
            "TMPDIR": str(folder / "tmp"),
            "HOPSML_MLFLOW": "0",
        }
        with open(folder / "session.log", "a") as log:
            self._driver = Process(
                *("driver", folder / "measured", "tests.soak.session", str(folder / "workers")),
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def round(self) -> Iterator[Sample]:
        """Do a round of the session, and yield measurements."""
        stdin, stdout = self._driver.popen.stdin, self._driver.popen.stdout
        assert stdin is not None and stdout is not None
        stdin.write("\n")
        stdin.flush()
        line = stdout.readline()
        assert line, (self._folder / "session.log").read_text()[-4000:]
        self._done = json.loads(line)
        yield from self._measured()

    def _measured(self) -> Iterator[Sample]:
        runs, recoveries = self._done["runs"], self._done["recoveries"]
        for quantity, value in {**self._driver.measure(), **files(self._folder / "tmp", "hopsml-tests-")}.items():
            yield Sample("driver", quantity, "run", runs, value)
        for kind, known in self._helpers().items():
            for quantity, value in known.items():
                yield Sample(kind, quantity, "run", runs, value)
        logs = self._folder / "workers" / "logs"
        for quantity, value in files(logs.resolve()).items():
            yield Sample("long run's logs", quantity, "recovery", recoveries, value)

    def _helpers(self) -> dict[str, dict[str, float]]:
        """Return, for each kind of long-lived process, the largest resources of one of them."""
        found: dict[str, dict[str, float]] = {}
        for process in psutil.Process(self._driver.popen.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                kind = next((word for word in process.cmdline() if word.startswith("hopsml.")), "")
                if kind:
                    now = {
                        "rss": float(process.memory_info().rss),
                        "descriptors": float(process.num_fds()),
                        "threads": float(process.num_threads()),
                    }
                    known = found.setdefault(kind, dict.fromkeys(now, 0.0))
                    found[kind] = {name: max(known[name], value) for name, value in now.items()}
        return found

    def lines(self) -> list[str]:
        """Return the driver's lines of code with the most growth."""
        return self._driver.lines()

    def end(self) -> None:
        """End the session in an orderly way."""
        helpers = psutil.Process(self._driver.popen.pid).children(recursive=True)
        stdin, stdout = self._driver.popen.stdin, self._driver.popen.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.close()
            self._driver.popen.wait(END_S)
        finally:
            stdout.close()
            for process in (*helpers, self._driver.popen):
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    process.kill()


PARTS: dict[str, Callable[[Path], Part]] = {"service": Service, "session": Session}


def deadline(minutes: float) -> Callable[[], bool]:
    """Return a function that returns True once ``minutes`` minutes have passed."""
    ends = time.monotonic() + 60 * minutes
    return lambda: time.monotonic() >= ends


__all__ = ["PARTS", "Part", "Sample", "Service", "Session", "deadline", "files", "wait_until"]
