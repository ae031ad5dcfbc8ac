"""Spark standalone cluster (one master, some workers) from pip's pyspark, for tests and experiments.

    with StandaloneSpark(workers=2, gpus=1) as spark:
        ... spark.url ...                       # spark://127.0.0.1:PORT

    python -m tools.spark_standalone            # until Ctrl-C

Every daemon listens on loopback at a free port. The cluster ends with the block, and also if the process
that started it is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from tools.guard import Guard, guard_for
from tools.hadoop.ports import free_ports
from tools.hadoop.settings import LOOPBACK
from tools.hadoop.spark import DISCOVERY_SCRIPT, DROPPED, QUICK_JVM, pyspark_home

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
HEAP_MB = 256
READY_TIMEOUT_S = 60.0
HOME_MARK = "-Dhopsml.spark.home="


class StandaloneError(RuntimeError):
    """Error of a master or worker that did not start; the message ends with the last lines of its log."""


class StandaloneSpark:
    """Context manager of a cluster; cores, memory and GPUs are those of each worker.

    With ``own_addresses`` each worker has a loopback address of its own, so that Spark takes them for several machines.
    """

    def __init__(
        self, workers: int = 2, cores: int = 2, memory_mb: int = 1024, gpus: int = 0, own_addresses: bool = False
    ) -> None:
        if workers < 1 or cores < 1 or memory_mb < 1 or gpus < 0:
            raise ValueError(
                f"workers={workers} cores={cores} memory_mb={memory_mb} gpus={gpus}: at least 1, 1, 1 and 0"
            )
        self.workers, self.cores, self.memory_mb, self.gpus = workers, cores, memory_mb, gpus
        self.own_addresses = own_addresses
        self.home = Path()
        self.port = self.web_port = 0
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._guard: Guard | None = None

    @property
    def url(self) -> str:
        """URL of the master, for ``spark.master``."""
        return f"spark://{LOOPBACK}:{self.port}"

    def __enter__(self) -> StandaloneSpark:
        """Start master and workers, and return when every worker is ALIVE."""
        self.home = Path(tempfile.mkdtemp(prefix="spark-standalone-"))
        self._guard = guard_for([sys.executable, "-m", "tools.spark_standalone", "--end", str(self.home)])
        try:
            self.port, self.web_port = free_ports(2, LOOPBACK)
            ports = ["--port", str(self.port), "--webui-port", str(self.web_port)]
            self._launch("master", MASTER, "--host", LOOPBACK, *ports)
            self._wait_for(0)
            for index in range(self.workers):
                self._launch_worker(f"worker{index + 1}")
            self._wait_for(self.workers)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything, executors and drivers included."""
        self._end()

    def alive_workers(self) -> int:
        """Return the number of workers that the master lists as ALIVE.

        Raises:
            OSError: the master does not answer.
            ValueError: its answer is not JSON.
        """
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.web_port}/json/", timeout=5) as answer:
            return sum(worker["state"] == "ALIVE" for worker in json.load(answer)["workers"])

    def _launch_worker(self, name: str) -> None:
        folder = self.home / name / "work"
        host = f"127.0.0.{len(self._daemons) + 1}" if self.own_addresses else LOOPBACK
        options = ["--host", host, "--cores", str(self.cores), "--memory", f"{self.memory_mb}m"]
        options += ["--webui-port", "0", "--work-dir", str(folder)]
        if self.gpus:
            properties = self.home / f"{name}.properties"
            properties.write_text(
                f"spark.worker.resource.gpu.amount {self.gpus}\n"
                f"spark.worker.resource.gpu.discoveryScript {DISCOVERY_SCRIPT}\n"
            )
            options += ["--properties-file", str(properties)]
        self._launch(name, WORKER, *options, self.url)

    def _launch(self, name: str, main_class: str, *arguments: str) -> None:
        (self.home / name / "tmp").mkdir(parents=True)
        jvm = [f"-Xmx{HEAP_MB}m", *QUICK_JVM.split(), f"{HOME_MARK}{self.home}"]
        jvm += [f"-Djava.io.tmpdir={self.home / name / 'tmp'}", *_module_options()]
        command = ["java", *jvm, "-cp", f"{pyspark_home()}/jars/*", main_class, *arguments]
        with (self.home / f"{name}.log").open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(name),
                start_new_session=True,
            )

    def _environment(self, name: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(DROPPED)}
        return kept | {
            "SPARK_HOME": str(pyspark_home()),
            "SPARK_SCALA_VERSION": scala_version(),  # otherwise a worker searches a source tree for it
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self.home / name / "tmp"),
            "PYSPARK_PYTHON": sys.executable,
            # the worker assigns its GPUs to its executors, so it must see all of them
            "HOPSML_GPUS_PER_EXECUTOR": "all",
            "HOPSML_EMULATED_GPUS": str(self.gpus),
        }

    def _wait_for(self, workers: int) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            for name, process in self._daemons.items():
                if process.poll() is not None:
                    raise StandaloneError(f"the {name} ended with status {process.returncode}:\n{self._log(name)}")
            try:
                if self.alive_workers() == workers:
                    return
            except (OSError, ValueError):
                pass  # the master does not listen yet, or answers with another page before /json/ exists
            if time.monotonic() > deadline:
                name = list(self._daemons)[-1]
                raise StandaloneError(f"not ready within {READY_TIMEOUT_S} s; the {name} says\n{self._log(name)}")
            time.sleep(0.05)

    def _log(self, name: str) -> str:
        return "\n".join((self.home / f"{name}.log").read_text(errors="replace").splitlines()[-15:])

    def _end(self) -> None:
        for process in self._daemons.values():
            process.terminate()
        deadline = time.monotonic() + 5
        for process in self._daemons.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        end_everything(self.home)
        for process in self._daemons.values():
            process.wait()
        self._daemons.clear()
        if self._guard:
            self._guard.dismiss()
            self._guard = None


def scala_version() -> str:
    """Return the Scala version of pyspark's jars, for instance ``2.13``."""
    (core,) = pyspark_home().glob("jars/spark-core_*.jar")
    return core.name.removeprefix("spark-core_").partition("-")[0]


def _module_options() -> list[str]:
    """Return the options for Java 17's modules that Spark's own launcher would pass."""
    opened = ("java.base/java.lang", "java.base/java.nio", "java.base/java.util", "java.base/sun.nio.ch")
    return ["-XX:+IgnoreUnrecognizedVMOptions", *(f"--add-opens={package}=ALL-UNNAMED" for package in opened)]


def processes_of(home: Path) -> list[int]:
    """Return the pids of the cluster in ``home``: daemons, and executors with their children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                folder = os.readlink(entry / "cwd")
            except OSError:  # it has ended, or belongs to another user
                continue
            if f"{HOME_MARK}{home}".encode() in command or folder.startswith(f"{home}/"):
                found.append(int(entry.name))
    return found


def end_everything(home: Path) -> None:
    """Send SIGKILL to all processes of the cluster in ``home``, and delete the folder."""
    while left := processes_of(home):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
    shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    """Run a cluster until Ctrl-C, or end one on behalf of the guard."""
    parser = argparse.ArgumentParser(prog="python -m tools.spark_standalone", description="A standalone Spark.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2, help="of every worker")
    parser.add_argument("--memory-mb", type=int, default=1024, help="of every worker")
    parser.add_argument("--gpus", type=int, default=0, help="of every worker")
    parser.add_argument("--end", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.end:
        end_everything(args.end)
        return
    with StandaloneSpark(args.workers, args.cores, args.memory_mb, args.gpus) as spark:
        print(spark.url, flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
