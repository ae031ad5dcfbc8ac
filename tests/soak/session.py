"""Program with one session of very many runs, and a long run that recovers repeatedly.

    python -m tests.soak.session FOLDER

For each line on its standard input it runs a round, and answers with a line: {"runs": n, "recoveries": n}; it ends with
its input. FOLDER has files of the workers; ``logs`` in it is a link to the logs of the long run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import hopsml
from hopsml import experiment
from hopsml.cluster.driver import run_state
from hopsml.errors import WorkerFailed
from hopsml.experiment import applications, takeover
from hopsml.experiment.run import Run
from hopsml.storage import run_logs
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until

REPORTS = 500
RECOVERIES = 2  # a round
KEPT = 3  # generations of logs


def reporting(count: int) -> dict[str, int]:
    for step in range(count):
        hopsml.report(step=step, loss=1 / (1 + step), accuracy=step / count)
    print("has reported", count)
    return {"n": count}


def bad() -> None:
    raise ValueError("a bug in the user's code")


def trial(x: float) -> float:
    hopsml.report(step=1, metric=x)
    return x


def long(folder: str) -> dict[str, int]:
    import time

    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    fresh = Path(folder, f"pid-{context.rank}.{os.getpid()}")
    fresh.write_text(f"{context.generation} {os.getpid()}")
    state = hopsml.elastic.State(n=0)
    for batch in state.resume(hopsml.elastic.Sampler(1000, 10, epochs=1 << 30)):
        state.n += len(batch)
        hopsml.report(step=state.n, n=state.n)
        state.commit(every=1)
        if fresh.exists():  # it works
            fresh.rename(Path(folder, f"pid-{context.rank}"))
        if Path(folder, "stop").exists():
            break
        time.sleep(0.05)
    return {"n": state.n}


class Session:
    """Session whose ``round`` does one run of each kind, and makes the long one recover."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._runs, self._recoveries = folder, 0, 0
        self._long: Run | None = None

    def round(self) -> dict[str, int]:
        """Do a round, and return the numbers of runs and recoveries so far."""
        self._run(reporting, args={"count": REPORTS}, num_workers=2)
        result = experiment.search(
            trial, {"x": ("DOUBLE", [0.0, 1.0])}, searcher="random", num_trials=3, metric="metric", progress=False
        )
        assert result.counts["completed"] == 3
        self._runs += 1
        try:
            self._run(bad, num_workers=1)
        except WorkerFailed:
            self._runs += 1
        else:
            raise AssertionError("a run whose function raises has finished")
        for _ in range(RECOVERIES):
            self._recover()
        return {"runs": self._runs, "recoveries": self._recoveries}

    def _run(self, function: Any, **named: Any) -> None:
        experiment.collective_all_reduce(function, progress=False, **named)
        self._runs += 1

    def _recover(self) -> None:
        if self._long is None:
            named = {"args": {"folder": str(self._folder)}, "min_workers": 2, "max_workers": 2}
            self._long = experiment.submit(long, progress=False, **named)  # type: ignore[arg-type]
            logs = self._long.directory.logs.removeprefix("file://")
            (self._folder / "logs").symlink_to(logs)
        generation, pid = self._working()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self._working()[0] > generation, "the next generation")
        self._recoveries += 1

    def _working(self) -> tuple[int, int]:
        path = self._folder / "pid-1"
        wait_until(path.exists, "a worker that makes steps")
        generation, pid = path.read_text().split()
        return int(generation), int(pid)

    def end(self) -> None:
        """End the long run and all agents."""
        (self._folder / "stop").touch()
        if self._long is not None:
            assert self._long.result(END_S).metrics["n"] > 0
        experiment.shutdown()


def main() -> None:
    """Do a round for each line of the input."""
    run_logs.KEPT_GENERATIONS, takeover.TIDY_GENERATIONS, takeover.BEAT_S = KEPT, 1, 0.5
    run_state.PART = 32  # events: full before the warm-up is over
    session = Session(Path(sys.argv[1]))
    for _ in sys.stdin:
        done = session.round()
        pool = applications.get_or_start().coordinator.pool
        wait_until(lambda: sum(bool(agent.run_id) for agent in pool.agents.values()) <= 2, "agents given back")  # noqa: B023
        print(json.dumps(done), flush=True)
    session.end()


if __name__ == "__main__":
    main()
