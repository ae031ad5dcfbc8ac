"""Slowdown of a training by an evaluator on the same machine: one figure of ``frameworks``."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers.base import SCRIPTS
from benchmarks.scripts.hopsml_evaluated import WAY
from benchmarks.turn_server import TurnServer
from hopsml.storage import checkpoints, urls
from hopsml.storage.run_dir import RunDir, step_name
from hopsml.training import evaluation

STEPS = 200  # of a turn
TIMEOUT_S = 300.0


def run(options: Options) -> Report:
    """Compare a step while the evaluator computes with one while it sleeps."""
    with temporary_folder() as name, TurnServer(Path(name) / "turns") as server:
        folder = Path(name)
        with both(folder, server) as evaluator:
            turns: dict[str, Callable[[], float]] = {
                "with": lambda: evaluator.beside(lambda: _mean_ms(server)),
                "without": lambda: _mean_ms(server),
            }
            alternate(2, turns)  # warm
            found = alternate(options.rounds_of(16, 6), turns, options.say)
            evaluator.end()
            server.steps(WAY, 0)
            evaluator.launched.wait_until(lambda: not evaluator.launched.alive(), TIMEOUT_S, "the end of both")
    peer = "the same while the evaluator sleeps"
    cores = len(os.sched_getaffinity(0))
    return Report(
        [
            ratio_of("evaluator.stall_ratio", found["with"], found["without"], peer),
            measured("evaluator.step_ms", found["with"], "ms", peer, found["without"]),
        ],
        [
            f"evaluator: a worker that trains on {max(cores // 2, 1)} of {cores} cores, an evaluator that computes on the "
            f"others all through a turn of {STEPS} steps, or sleeps; the mean step of each turn; what checkpoints cost is "
            "checkpoint.stall_ratio"
        ],
    )


class BesideTraining:
    """Control of the evaluator of scripts/hopsml_evaluated.py, which sleeps at a checkpoint except during a turn."""

    def __init__(self, launched: Launched, run: RunDir, folder: Path) -> None:
        self.launched, self._run, self._folder = launched, run, folder
        self._step = 0
        self._next()

    def beside(self, turn: Callable[[], float]) -> float:
        """Return the result of ``turn``, called while the evaluator computes."""
        self._wake()
        value = turn()
        self._stop()
        self._next()
        return value

    def end(self) -> None:
        """Let the evaluator finish, with no further checkpoint to evaluate."""
        (self._folder / "stop").touch()
        self._wake()

    def _wake(self) -> None:
        (self._folder / "go").write_text("now\n")  # a pipe: the evaluator waits for it, and reads it at once

    def _stop(self) -> None:
        (self._folder / "stop").touch()
        self.launched.wait_until(self._is_judged, TIMEOUT_S, f"the evaluation of {step_name(self._step)}")
        (self._folder / "stop").unlink()

    def _is_judged(self) -> bool:
        return self._step in [one.step for one in evaluation.EvaluationStore(self._run).read_results()]

    def _next(self) -> None:
        self._step += 1
        made = self._folder / "made"
        made.mkdir(exist_ok=True)
        (made / "weights").write_text(str(self._step))
        checkpoints.commit(made, urls.join(self._run.url, "checkpoints"), self._step)
        ready = self._folder / f"ready-{step_name(self._step)}"
        self.launched.wait_until(ready.exists, TIMEOUT_S, f"the evaluator at {step_name(self._step)}")


@contextmanager
def both(folder: Path, server: TurnServer) -> Iterator[BesideTraining]:
    """Start a training that waits for its turn, and an evaluator that sleeps at its first checkpoint."""
    conf = folder / "conf"
    conf.mkdir()
    (conf / "local.yaml").write_text("master: none\nlocal_slots: 2\n")
    os.mkfifo(folder / "go")
    variables = {"HOPSML_CONF_DIR": str(conf), "HOPSML_PROJECT_URL": f"file://{folder}/project", "HOPSML_MLFLOW": "0"}
    script = [sys.executable, str(SCRIPTS / "hopsml_evaluated.py"), str(server.path), str(folder)]
    with Launched([Command(script, variables)], folder) as launched:
        launched.wait_until(lambda: server.accept() == 1, TIMEOUT_S, "the training ready")
        launched.wait_until((folder / "run").exists, TIMEOUT_S, "the evaluator's start")
        yield BesideTraining(launched, RunDir((folder / "run").read_text()), folder)


def _mean_ms(server: TurnServer) -> float:
    return 1000 * statistics.mean(server.steps(WAY, STEPS))
