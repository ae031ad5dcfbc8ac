"""A user's running Spark session (scripts/hopsml_session.py), controlled by a benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.launched import Command, Launched
from benchmarks.peers.base import QUIET, SCRIPTS, local_cluster
from benchmarks.peers.hopsml import PEER, variables_of

START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 120.0


class Session(Launched):
    """A driver with a SparkSession of Spark's default settings, and its executors; ends with its context."""

    def __init__(self, folder: Path, workers: int, say: Callable[[str], None] = print) -> None:
        """Start the session and wait until all executors have registered.

        Raises:
            RuntimeError: they have not registered in time.
        """
        python = PEER.python(say)
        settings = " ".join(f"--conf {key}={value}" for key, value in QUIET.items())
        arguments = f"--master {local_cluster(workers)} {settings} pyspark-shell"
        script = [str(python), str(SCRIPTS / "hopsml_session.py"), str(folder), str(workers)]
        super().__init__(
            [Command(script, {**variables_of(python, folder), "PYSPARK_SUBMIT_ARGS": arguments})],
            folder,
        )
        self.asked = 0
        try:
            self.answer(START_TIMEOUT_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    @property
    def driver(self) -> int:
        """The pid of the driver's Python process."""
        return self.processes[0].pid

    def tell(self, do: str, **arguments: Any) -> None:
        """Begin a command, whose end ``answer`` awaits."""
        self.asked += 1
        pipe = self.processes[0].stdin
        assert pipe is not None
        pipe.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        pipe.flush()

    def answer(self, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Wait for the end of the last command and return its result."""
        path = self.folder / f"{self.asked}.answer"
        self.wait_until(path.exists, timeout_s, f"answer {self.asked} of the session")
        return dict(json.loads(path.read_text()))

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Run a command and return its result."""
        self.tell(do, **arguments)
        return self.answer()
