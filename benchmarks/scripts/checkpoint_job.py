"""A hopsml job that trains blocks of steps with checkpoints and blocks without, in turns; results into a file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hopsml
from benchmarks.scripts import model

BATCH = 8192
EVERY = 50
BLOCK = 100
WARM_UP = 20


def train(blocks: int, report: str) -> None:
    """``blocks`` pairs of blocks; seconds a block by kind, and seconds that the training stood still for a checkpoint."""
    import tensorflow as tf

    strategy = hopsml.tensorflow.strategy()
    step, variables = model.prepare(strategy, BATCH)
    checkpointer = hopsml.tensorflow.Checkpointer(variables=tf.train.Checkpoint(variables=variables))
    for _ in range(WARM_UP):
        step()
    checkpointer.save(0)
    times: dict[str, Any] = {"with": [], "without": [], "saves": []}
    done = WARM_UP
    for number in range(2 * blocks):
        kind = ("with", "without")[(number + number // 2) % 2]  # with, without, without, with, ...
        saving = checkpointer.save if kind == "with" else None
        times[kind].append(_block(step, saving, done, times["saves"]))
        done += BLOCK
    if model.rank() == 0:
        Path(report).write_text(json.dumps(times))


def _block(step: Callable[[], float], save: Callable[[int], Path] | None, done: int, saves: list[float]) -> float:
    """A save lies half-way between two others, so that its copying to shared storage falls into the same block."""
    began = time.perf_counter()
    for number in range(1, BLOCK + 1):
        step()
        if save is not None and number % EVERY == EVERY // 2:
            saving = time.perf_counter()
            save(done + number)
            saves.append(time.perf_counter() - saving)
    return time.perf_counter() - began


if __name__ == "__main__":
    hopsml.experiment.collective_all_reduce(
        train, args={"blocks": int(sys.argv[2]), "report": sys.argv[1]}, num_workers=2, progress=False
    )
