"""A hopsml job that alternates between blocks of steps with and without checkpoints; writes its results to a file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import hopsml
from benchmarks.scripts import model

BATCH = 8192
BLOCK = 50  # steps; a block with a checkpoint has one, in its middle
WARM_UP = 20


def train(blocks: int, report: str, hdfs: list[int]) -> None:
    """Train ``blocks`` pairs of blocks and write their times to ``report`` with the worker's rank.

    By kind of block they are: seconds of each block; processor seconds of this worker, of the processes ``hdfs`` and of
    all; and the seconds for which each checkpoint stopped the training.
    """
    import tensorflow as tf

    strategy = hopsml.tensorflow.strategy()
    step, variables = model.prepare(strategy, BATCH)
    checkpointer = hopsml.tensorflow.Checkpointer(variables=tf.train.Checkpoint(variables=variables))
    for _ in range(WARM_UP):
        step()
    checkpointer.save(0)
    times: dict[str, Any] = {"with": [], "without": [], "saves": []}
    used: dict[str, list[list[float]]] = {"with": [], "without": []}
    daemons = [psutil.Process(pid) for pid in hdfs]
    done = WARM_UP
    for number in range(2 * blocks):
        kind = ("with", "without")[(number + number // 2) % 2]  # with, without, without, with, ...
        saving = checkpointer.save if kind == "with" else None
        before = _processor_s(daemons)
        times[kind].append(_block(step, saving, done, times["saves"]))
        used[kind].append([after - earlier for after, earlier in zip(_processor_s(daemons), before, strict=True)])
        done += BLOCK
    Path(f"{report}-{model.rank()}").write_text(json.dumps({**times, "used": used}))


def _processor_s(daemons: list[psutil.Process]) -> tuple[float, float, float]:
    """Return the processor seconds of this process, of the daemons, and of all processes."""
    machine, of_daemons = psutil.cpu_times(), sum(sum(daemon.cpu_times()[:2]) for daemon in daemons)
    return time.process_time(), of_daemons, sum(machine) - machine.idle - machine.iowait - machine.steal - machine.guest


def _block(step: Callable[[], float], save: Callable[[int], Path] | None, done: int, saves: list[float]) -> float:
    """Run one block and return its seconds; append those of a save.

    The checkpoint is in the middle, so that copying to shared storage falls into the same block.
    """
    began = time.perf_counter()
    for number in range(1, BLOCK + 1):
        step()
        if save is not None and number == BLOCK // 2:
            saving = time.perf_counter()
            save(done + number)
            saves.append(time.perf_counter() - saving)
    return time.perf_counter() - began


if __name__ == "__main__":
    hopsml.experiment.collective_all_reduce(
        train,
        args={"blocks": int(sys.argv[2]), "report": sys.argv[1], "hdfs": [int(pid) for pid in sys.argv[3:]]},
        num_workers=2,
        progress=False,
    )
