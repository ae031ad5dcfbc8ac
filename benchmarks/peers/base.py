"""Description of a launcher: the commands by which it starts a job of two workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import environments
from benchmarks.launched import Command

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@dataclass(frozen=True)
class Peer:
    """A launcher that is measured.

    ``script`` (in benchmarks/scripts) receives FOLDER WORKERS STEPS; with 0 steps it trains until it is killed.
    ``start`` builds the commands from (the peer's Python, the script with its arguments, number of workers).
    """

    name: str
    title: str
    script: str
    start: Callable[[Path, Sequence[str], int], list[Command]]
    has_driver: bool = True
    packages: str = ""  # name of the peer whose environment it uses, if not its own

    def python(self, say: Callable[[str], None] = print) -> Path:
        """Return the peer's interpreter; its environment is created on first use."""
        return environments.ensure(self.packages or self.name, say)

    def job(self, folder: Path, workers: int, steps: int, say: Callable[[str], None] = print) -> list[Command]:
        """Return the commands that start the training, which writes the times of its first steps into ``folder``."""
        arguments = [str(SCRIPTS / self.script), str(folder), str(workers), str(steps)]
        return self.start(self.python(say), arguments, workers)


@dataclass(frozen=True)
class SparkSubmit:
    """``spark-submit`` of the peer's own pyspark, with executors of one slot each and the settings ``conf``."""

    conf: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, python: Path, script: Sequence[str], workers: int) -> list[Command]:
        """Return the spark-submit command of a script."""
        home = environments.pyspark_home(python)
        line = [str(home / "bin" / "spark-submit"), "--master", local_cluster(workers)]
        for key, value in {**QUIET, **self.conf}.items():
            line += ["--conf", f"{key}={value}"]
        variables = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
        return [Command([*line, *script], variables)]


def local_cluster(workers: int) -> str:
    """Return a Spark master with ``workers`` executors of one core on this machine."""
    return f"local-cluster[{workers},1,1024]"


# The same for all; of these settings only the user interface's web server, which is not needed, affects the time of a
# launch.
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}


def by_python(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """Return a command that runs the script in the peer's Python."""
    return [Command([str(python), *script])]
