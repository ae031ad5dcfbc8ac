"""Driver that runs groups of two workers which lose a process, a search, and an agent whose request has lost the other.

Arguments: a folder, and the names of the functions in ``PLAYS`` to call; each is called with a folder of its own.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopsml import experiment
from hopsml.experiment import applications
from tests.helpers.clock import END_S, wait_until
from tests.helpers.cluster import elastic_workload
from tests.helpers.cluster.finding import agent_of
from tests.helpers.cluster.workloads import living, wait_for_files

WARM_S = 600.0  # agents stay for the next play
PATIENCE_S = 5.0  # longest duration of a step before the loss: see elastic_workload


def agents() -> list[psutil.Process]:
    """Return the processes of the connected agents."""
    return [
        psutil.Process(session.hello.pid) for session in applications.get_or_start().coordinator.door.agents.values()
    ]


def executor_of(agent: psutil.Process) -> psutil.Process:
    """Return the process of an agent's executor JVM."""
    return next(parent for parent in agent.parents() if parent.name() == "java")


def launch(folder: Path) -> None:
    """Two workers begin and return, each on an agent."""
    run = experiment.submit(lambda: "works", num_workers=2, keep_warm=WARM_S, progress=False, start_timeout=END_S)
    result = run.result(END_S)
    assert result.value == "works" and len(result.workers) == 2 and len(agents()) == 2


def lose(folder: Path, victim: Callable[[Any], psutil.Process]) -> None:
    """The group continues with two workers after the loss, and no sample was skipped or counted twice."""
    args = {"folder": str(folder), "patience_s": PATIENCE_S}
    run = experiment.submit(
        elastic_workload.train, args=args, min_workers=2, max_workers=2, keep_warm=WARM_S, progress=False
    )
    wait_until(lambda: all((folder / f"step-{rank}").exists() for rank in (0, 1)), "a step of both", END_S)
    other = agent_of(run, 0)
    victim(run).kill()
    wait_until(
        lambda: any(folder.glob("pid-0-[1-9]*")) and any(folder.glob("pid-1-[1-9]*")), "a next generation", END_S
    )
    workers = {int(path.read_text()) for path in folder.glob("pid-*")}
    assert len(living(list(workers))) == 2, workers
    elastic_workload.announce(folder / "disturbed", "")
    value = run.result(END_S).value
    elastic_workload.check_history(value)
    assert value["weight"] == pytest.approx(elastic_workload.expected_weight()) and value["world_size"] == 2
    assert len(agents()) == 2 and other in agents(), "the agent of rank 0 has ended, too"


def lose_worker(folder: Path) -> None:
    """kill -9 of the worker of rank 1."""
    lose(folder, lambda run: psutil.Process(int((folder / "pid-1-0").read_text())))


def lose_agent(folder: Path) -> None:
    """kill -9 of the agent of rank 1, in whose place Spark or hopsml starts another."""
    lose(folder, lambda run: agent_of(run, 1))


def lose_executor(folder: Path) -> None:
    """kill -9 of the executor of rank 1."""
    lose(folder, lambda run: executor_of(agent_of(run, 1)))


def search(folder: Path) -> None:
    """Each configuration is tried once."""

    def score(a: int, folder: str) -> float:
        with Path(folder, "tried").open("a") as file:
            file.write(f"{a}\n")
        return float(a)

    space = {"a": ("DISCRETE", list(range(6)))}
    result = experiment.search(
        score, space, searcher="grid", num_trials=None, args={"folder": str(folder)}, progress=False, keep_warm=WARM_S
    )
    assert result.value == 5.0 and sorted((folder / "tried").read_text().split()) == list("012345")


def remain(folder: Path, then: Callable[[], None] = lambda: None) -> None:
    """Check that one agent of a request continues after the other was dismissed, and call ``then`` meanwhile."""
    experiment.shutdown()
    experiment.submit(lambda: None, num_workers=2, keep_warm=0.5, progress=False).result(END_S)
    held = str(folder)
    run = experiment.submit(lambda: wait_for_files(held, "go-on"), num_workers=1, keep_warm=0.5, progress=False)
    wait_until(lambda: run.status()["phase"] == "running" and len(agents()) == 1, "the end of the idle agent", END_S)
    then()
    assert len(agents()) == 1 and run.running()
    (folder / "go-on").touch()
    run.result(END_S)


def remain_uncopied(folder: Path) -> None:
    """The same, while Spark copies the slow task of another job: it had every reason to copy the agent."""
    from pyspark import SparkContext, TaskContext

    place, context = str(folder), SparkContext._active_spark_context

    def hold(index: int, _: Any) -> Iterator[int]:  # by what Spark's own Python workers can import: not the tests
        import time

        task = TaskContext.get()
        assert task is not None
        if index == 0 and task.attemptNumber() > 0:
            Path(place, "copied").touch()
        while index == 0 and not Path(place, "copied").exists():
            time.sleep(0.01)
        yield index

    def have_copied() -> None:
        assert sorted(context.parallelize(range(3), 3).mapPartitionsWithIndex(hold).collect()) == [0, 1, 2]

    remain(folder, have_copied)


def shuffle(folder: Path) -> None:
    """Spark exchanges rows between its tasks, which other settings may change, while the agents are idle."""
    from pyspark import SparkContext

    numbers = SparkContext._active_spark_context.parallelize(range(6000), 6)
    assert dict(numbers.map(lambda n: (n % 6, 1)).reduceByKey(lambda a, b: a + b, 3).collect()) == dict.fromkeys(
        range(6), 1000
    )


PLAYS = (launch, lose_worker, lose_agent, lose_executor, search, shuffle, remain, remain_uncopied)


def main() -> None:
    for play in PLAYS:
        if play.__name__ in sys.argv[2:]:
            folder = Path(sys.argv[1]) / play.__name__
            folder.mkdir(parents=True)
            play(folder)
            print("held:", play.__name__, flush=True)


if __name__ == "__main__":
    main()
