"""What a benchmark must know of a launcher: how a job of two workers is started by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import environments
from benchmarks.launched import Command

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@dataclass(frozen=True)
class Peer:
    """``script`` (of benchmarks/scripts) gets FOLDER WORKERS STEPS; steps 0 trains until it is killed.

    ``start`` builds the commands from (the peer's Python, the script with its arguments, number of workers).
    """

    name: str
    title: str
    script: str
    start: Callable[[Path, Sequence[str], int], list[Command]]
    has_driver: bool = True
    packages: str = ""  # whose environment it uses, if not one of its own

    def python(self, say: Callable[[str], None] = print) -> Path:
        """Its interpreter; makes its environment on first use."""
        return environments.ensure(self.packages or self.name, say)

    def job(self, folder: Path, workers: int, steps: int, say: Callable[[str], None] = print) -> list[Command]:
        """The commands that start the training; it writes its first steps' times into ``folder``."""
        arguments = [str(SCRIPTS / self.script), str(folder), str(workers), str(steps)]
        return self.start(self.python(say), arguments, workers)


@dataclass(frozen=True)
class SparkSubmit:
    """``spark-submit`` of the peer's own pyspark, two executors of one slot each; ``conf`` is what the peer asks for."""

    conf: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, python: Path, script: Sequence[str], workers: int) -> list[Command]:
        home = environments.pyspark_home(python)
        line = [str(home / "bin" / "spark-submit"), "--master", local_cluster(workers)]
        for key, value in {**QUIET, **self.conf}.items():
            line += ["--conf", f"{key}={value}"]
        variables = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
        return [Command([*line, *script], variables)]


def local_cluster(workers: int) -> str:
    """A Spark master and ``workers`` executors of one core on this machine."""
    return f"local-cluster[{workers},1,1024]"


# The same for all: nothing here changes how long a launch takes but the user interface's web server, which nobody needs.
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}


def by_python(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """The script alone."""
    return [Command([str(python), *script])]
