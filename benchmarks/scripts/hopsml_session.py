"""A user's Spark session with default settings that starts runs on command; JSON lines in, answer files out.

{"do": "idle", "workers": 2}                   a task on each executor, held until the next line: {"ready": ...}
{"do": "job", "workers": 2}                    a plain Python job, as any session has run
{"do": "import"}                               imports hopsml, as the first cell of a notebook does
{"do": "call", "folder": ..., "workers": 2}    collective_all_reduce; answers {"called": when}
{"do": "elastic", "folder": ..., "least": 1, "most": 2}    an elastic run, without waiting for its end
{"do": "search", "case": "sixteen", "executors": 2, "trials": 0}    one search; answers its seconds
{"do": "agents"}                               {"pids": of the agents' processes, "zygote": pid of the zygote}
{"do": "give back"}                            releases the agents; the session stays
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def train(folder: str, steps: int, held: str) -> None:
    """Train the model, then wait until the file ``held`` exists, if it is not empty."""
    import tensorflow as tf  # noqa: F401 as in user code: what a function imports is preloaded

    import hopsml
    from benchmarks.scripts import model

    model.train(hopsml.tensorflow.strategy(), folder, steps)
    while held and not Path(held).exists():
        time.sleep(0.02)


def call(context: Any, folder: str, workers: int, steps: int = 1, held: str = "") -> dict[str, Any]:
    """Run the training function; its agents stay warm for the next call."""
    from hopsml import experiment

    arguments = {"folder": folder, "steps": steps, "held": held}
    began = time.monotonic()
    experiment.collective_all_reduce(train, args=arguments, num_workers=workers, keep_warm=600, progress=False)
    return {"called": began}


def idle(context: Any, workers: int, release: str) -> dict[str, Any]:
    """Run plain Python tasks that occupy their Python workers until the file ``release`` exists."""

    def hold(_: Iterator[int]) -> Iterator[int]:
        import os

        Path(f"{release}.{os.getpid()}").touch()
        while not Path(release).exists():
            time.sleep(0.02)
        yield os.getpid()

    return {"pids": context.parallelize(range(workers), workers).mapPartitions(hold).collect()}


def elastic(
    context: Any, folder: str, least: int, most: int, implementation: str = "tensorflow", ballast_mb: int = 0
) -> dict[str, Any]:
    """Begin an elastic run, which trains until the session ends."""
    from benchmarks.scripts import elastic_job
    from hopsml import experiment

    run = experiment.submit(
        elastic_job.train,
        args={"folder": folder, "ballast_mb": ballast_mb},
        min_workers=least,
        max_workers=most,
        implementation=implementation,
        preload=["tensorflow"],
    )
    return {"run": run.run_id}


def search(context: Any, case: str, executors: int, trials: int) -> dict[str, Any]:
    """Run one search of the benchmark."""
    from benchmarks.scripts import hopsml_searches

    return hopsml_searches.run(case, executors, trials)


def job(context: Any, workers: int) -> dict[str, Any]:
    """Run a plain Python job on every executor."""
    return {"sum": context.parallelize(range(100), workers).map(lambda number: number * number).sum()}


def get_ready(context: Any) -> dict[str, Any]:
    """Import hopsml, as the first cell of a notebook does."""
    import hopsml

    return {"imported": str(hopsml.experiment)}


def agents(context: Any) -> dict[str, Any]:
    """Return the pids of the agents and of the zygote on this machine."""
    from hopsml.experiment import applications

    coordinator = applications.get_or_start().coordinator
    pids = [session.hello.pid for session in coordinator.door.agents.values()]
    return {"pids": pids, "zygote": coordinator.zygote.pid if coordinator.zygote is not None else 0}


def give_back(context: Any) -> dict[str, Any]:
    """Release agents and coordinator, so that the next call is a first one again."""
    from hopsml import experiment

    experiment.shutdown()
    return {}


VERBS: dict[str, Callable[..., dict[str, Any]]] = {
    "call": call,
    "search": search,
    "elastic": elastic,
    "agents": agents,
    "idle": idle,
    "job": job,
    "import": get_ready,
    "give back": give_back,
}


def executors(context: Any) -> int:
    """Return the number of executors registered now, without the driver."""
    return len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1


def main() -> None:
    """Start the session, wait for its executors, and carry out commands."""
    from pyspark.sql import SparkSession

    answers = Path(sys.argv[1])
    context = SparkSession.builder.getOrCreate().sparkContext
    while executors(context) < int(sys.argv[2]):
        time.sleep(0.02)
    (answers / "0.answer").write_text("{}")
    for number, line in enumerate(sys.stdin, start=1):
        command = json.loads(line)
        answer = VERBS[command.pop("do")](context, **command)
        aside = answers / f"{number}.tmp"
        aside.write_text(json.dumps(answer))
        aside.rename(answers / f"{number}.answer")


if __name__ == "__main__":
    main()
