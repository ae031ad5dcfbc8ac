"""Airflow for a test: its environment, a database of the test, and ``program.py`` as its processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import clock
from tests.helpers.clock import END_S, wait_until
from tools import airflow_environment

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("program.py")
FORKER = Path(__file__).with_name("forker.py")
RUN_AFTER = "2026-01-02T03:04:05+00:00"


def environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return Airflow's settings for a folder: SQLite, no examples, nothing of the caller's own Airflow."""
    kept = {key: value for key, value in os.environ.items() if "AIRFLOW" not in key and key != "HOPSML_PROFILE"}
    return {
        **kept,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "HOPSML_PYTHON": sys.executable,
        "HOPSML_CONF_DIR": str(ROOT / "conf"),
        "HOPSML_PROJECT_URL": f"file://{home}/project",
        "PYTHONPATH": str(ROOT),
        **more,
    }


def make_database(home: Path) -> Path:
    """Create an empty database, which takes Airflow seconds; tests copy it."""
    home.mkdir(parents=True)
    python = airflow_environment.ensure()
    subprocess.run(
        [python, "-m", "airflow", "db", "migrate"],
        env=environment(home, {}),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=END_S,
    )
    return home / "airflow.db"


class Forked:
    """A process created by the forker, with the used part of ``subprocess.Popen``."""

    def __init__(self, pid: int, exited: Path) -> None:
        self.pid = pid
        self._exited = exited

    def poll(self) -> int | None:
        """Return its exit status, minus a signal's number; None while it runs."""
        try:
            return int(self._exited.read_text())
        except FileNotFoundError:
            return None

    def wait(self, timeout: float = 60.0) -> int:
        """Wait for its end; raise ``subprocess.TimeoutExpired`` if that takes longer."""
        deadline = clock.awake() + timeout
        while (status := self.poll()) is None:
            if clock.awake() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Forker:
    """forker.py, which imports Airflow once for many processes."""

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [airflow_environment.PYTHON, FORKER],
            env={**environment(home, {}), "_AIRFLOW__AS_LIBRARY": "1"},
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, arguments: Sequence[str], variables: Mapping[str, str], folder: Path, output: Path) -> Forked:
        """Start a process of program.py."""
        asked = {"arguments": arguments, "environment": variables, "folder": str(folder), "output": str(output)}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Forked(int(self._process.stdout.readline()), Path(f"{output}.exit"))

    def close(self) -> None:
        """End it, and the processes that it has forked."""
        self._process.communicate(timeout=END_S)


@dataclass
class Ended:
    """A program that has ended."""

    returncode: int
    output: str

    @property
    def told(self) -> dict[str, Any]:
        """Return the JSON object of its last line."""
        assert self.returncode == 0, self.output[-6000:]
        content: dict[str, Any] = json.loads(self.output.rstrip().rpartition("\n")[2])
        return content

    def lines_with(self, text: str) -> list[str]:
        """Return lines of its output that contain a text."""
        return [line for line in self.output.splitlines() if text in line]


@dataclass
class Airflow:
    """One Airflow: a home, a database, DAG files."""

    home: Path
    more: dict[str, str] = field(default_factory=dict)
    forker: Forker | None = None  # None: each process imports Airflow again

    @property
    def jobs(self) -> Path:
        """Return the folder of its local jobs."""
        return self.home / "hopsml_jobs"

    def dag(self, text: str, dag_id: str = "pipeline", imports: str = "") -> tuple[str, str]:
        """Write a DAG file whose ``with DAG`` block has this content, and return the arguments of ``test`` and ``again``."""
        folder = self.home / "dags"
        folder.mkdir(exist_ok=True)
        head = "from airflow.sdk import DAG\nfrom hopsml.airflow import *\n" + imports
        body = textwrap.indent(textwrap.dedent(text), "    ")
        file = folder / f"{dag_id}.py"
        file.write_text(f"{head}\nwith DAG({dag_id!r}, schedule=None) as dag:\n{body}\n")
        return str(file), dag_id

    def script(self, name: str, text: str) -> str:
        """Write a script, and return its path."""
        path = self.home / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def run(self, *arguments: str, timeout_s: float = 240) -> Ended:
        """Run the program to its end."""
        with self.started(*arguments) as started:
            return started.wait(timeout_s)

    @contextmanager
    def started(self, *arguments: str) -> Iterator[Started]:
        """Yield the running program, which is killed at the end of the block."""
        output = self.home / f"program-{time.monotonic_ns()}.log"
        process = self._process(arguments, output)
        try:
            yield Started(process, output)
        finally:
            process.kill()
            process.wait()

    def _process(self, arguments: Sequence[str], output: Path) -> subprocess.Popen[bytes] | Forked:
        variables = environment(self.home, self.more)
        output.touch()
        if self.forker is not None:
            return self.forker.start(arguments, variables, self.home, output)
        with output.open("wb") as file:
            return subprocess.Popen(
                [airflow_environment.PYTHON, PROGRAM, *arguments],
                env=variables,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )


@dataclass
class Started:
    """The running program."""

    process: subprocess.Popen[bytes] | Forked
    path: Path

    @property
    def output(self) -> str:
        """Return its output so far."""
        return self.path.read_text(errors="replace")

    def wait(self, timeout_s: float = 240) -> Ended:
        """Wait for its end."""
        try:
            return Ended(self.process.wait(timeout_s), self.output)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not over after {timeout_s} s:\n{self.output[-6000:]}") from None

    def wait_for(self, text: str, timeout_s: float = 180) -> None:
        """Wait until it has printed this."""
        wait_until(
            lambda: text in self.output or self.process.poll() is not None, lambda: self.output[-6000:], timeout_s
        )
        assert text in self.output, self.output[-6000:]

    def kill(self) -> None:
        """Send SIGKILL, as an operator or the kernel does."""
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(END_S) == -signal.SIGKILL


@contextmanager
def pipelines_server(airflow: Airflow, folder: Path) -> Iterator[None]:
    """Stop the pipeline's server, which outlives it; ``hopsml`` in this process uses the same settings."""
    from hopsml import serving

    with pytest.MonkeyPatch.context() as patch:
        airflow.more["HOPSML_SERVING_FOLDER"] = str(folder)
        variables = environment(airflow.home, airflow.more)
        for name in ("HOPSML_PROJECT_URL", "HOPSML_SERVING_FOLDER"):
            patch.setenv(name, variables[name])
        try:
            yield
        finally:
            if serving.exists("digits"):
                serving.stop("digits")


@contextmanager
def airflow_in(home: Path, database: Path, more: Mapping[str, str], forker: Forker | None = None) -> Iterator[Airflow]:
    """Yield an Airflow with a copy of an empty database; its local jobs are ended afterwards."""
    from hopsml.airflow import local_jobs
    from hopsml.airflow.jobs import Job

    home.mkdir()
    shutil.copy(database, home / "airflow.db")
    (home / "dags").mkdir()
    made = Airflow(home, dict(more), forker)
    yield made
    for folder in made.jobs.glob("*/[0-9]*"):
        local_jobs.end(Job("local", str(folder)))
