"""A hopsml run with one worker and one parameter server on this machine: SOCKET MODE; see server_steps.py.

MODE steps: makes steps when asked. MODE recovery: appends a line ``time step recoveries`` at each report to SOCKET,
which is a file in this mode, until the process is killed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import hopsml
from benchmarks.scripts import server_steps, turns


def train(socket: str, mode: str) -> None:
    """Serve steps until the server sends 0, or report steps until killed."""
    import tensorflow as tf  # noqa: F401 as in user code: what a function imports is preloaded

    model = server_steps.build(hopsml.tensorflow.strategy())
    every = 50 if mode == "recovery" else 1_000_000
    loop = hopsml.tensorflow.ServerLoop(model, server_steps.batches, checkpoint_every_steps=every)
    if mode == "steps":
        turns.serve_all(socket, 0, _turns(loop))
        return
    with open(socket, "a", buffering=1) as lines:
        while True:
            loop.run(loop.steps + 10)
            print(time.time(), loop.steps, loop.recoveries, file=lines)


def _turns(loop: Any) -> dict[str, turns.Steps]:
    """Return the steps with and without the time until the checkpoint is on disk.

    In both cases no other method's turn begins before the checkpoint is on disk.
    """

    def make(count: int) -> None:
        loop.run(loop.steps + count)

    def make_and_save(count: int) -> None:
        make(count)
        loop._checkpointer.wait()

    made = server_steps.timed(make)

    def settled(count: int) -> list[float]:
        taken = made(count)
        loop._checkpointer.wait()
        return taken

    return {"hopsml-saved": server_steps.timed(make_and_save), "hopsml": settled}


if __name__ == "__main__":
    hopsml.experiment.parameter_server(
        train, args={"socket": sys.argv[1], "mode": sys.argv[2]}, num_workers=1, num_ps=1, progress=False
    )
