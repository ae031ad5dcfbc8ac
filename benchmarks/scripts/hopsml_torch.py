"""Runs of hopsml with torch and JAX on this machine.

steps SOCKET WORKERS      groups that serve steps: by prepare(), by DDP over hopsml's collective, of JAX
warm FOLDER WORKERS       calls one after another; each prints the seconds until the first step of all is done
elastic FOLDER WORKERS    an elastic run, each step logged, until it is killed
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

import hopsml
from benchmarks.scripts import torch_model, turns
from benchmarks.scripts.steps_log import StepsLog
from hopsml import experiment

CALLS = 4  # the first one imports


def take_turns(socket: str, way: str) -> None:
    """Serve steps of one method."""
    place = hopsml.distributed
    if way.startswith("jax"):
        turns.serve(socket, way, place.rank(), torch_model.jax_step())
        return
    import torch

    torch.set_num_threads(1)
    wrap = torch.nn.parallel.DistributedDataParallel if way == "hopsml-ddp" else hopsml.torch.prepare
    turns.serve(socket, way, place.rank(), torch_model.torch_step(wrap, place.world_size()))


def steps(socket: str, workers: int) -> None:
    """Run all groups at once, each waiting for its turn."""
    import concurrent.futures

    calls = [(experiment.torch, "hopsml"), (experiment.torch, "hopsml-ddp"), (experiment.jax, "jax-hopsml")]
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
        runs = [
            threads.submit(verb, take_turns, args={"socket": socket, "way": way}, num_workers=workers, progress=False)
            for verb, way in calls
        ]
        for run in runs:
            run.result()


def once(folder: str, number: int) -> None:
    """Make one step and write its time for this worker."""
    place = hopsml.distributed
    torch_model.torch_step(hopsml.torch.prepare, place.world_size())()
    Path(folder, f"{number}-{place.rank()}").write_text(repr(time.time()))


def warm(folder: str, workers: int) -> None:
    """Call the same run repeatedly, like a notebook cell that is run again."""
    for number in range(CALLS):
        began = time.time()
        experiment.torch(
            once, args={"folder": folder, "number": number}, num_workers=workers, keep_warm=600, progress=False
        )
        ends = [float(Path(folder, f"{number}-{rank}").read_text()) for rank in range(workers)]
        print(json.dumps(max(ends) - began), flush=True)
    experiment.shutdown()


def log_steps(folder: str) -> None:
    """Log each step of an elastic training, with a commit every ten steps."""
    import torch

    from benchmarks.scripts.elastic_job import COMMIT_EVERY, STEP_S
    from benchmarks.scripts.model import EXAMPLES, GLOBAL_BATCH
    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    log = StepsLog(folder, context.rank, context.generation)
    made: list[torch.nn.Module] = []

    def wrap(model: torch.nn.Module) -> torch.nn.Module:
        made.append(hopsml.torch.prepare(model))
        return made[0]

    step = torch_model.torch_step(wrap, context.world_size)
    state = hopsml.elastic.State(model=made[0])
    for _ in state.resume(hopsml.elastic.Sampler(EXAMPLES, GLOBAL_BATCH, epochs=10**6)):
        step()
        if (context := current() or context).generation != log.generation:
            log = StepsLog(folder, context.rank, context.generation)
        log.finished(state.batches)
        time.sleep(STEP_S)
        state.commit(every=COMMIT_EVERY)


def elastic(folder: str, workers: int) -> None:
    """Run an elastic training until it is killed."""
    with contextlib.suppress(KeyboardInterrupt):
        experiment.torch(log_steps, args={"folder": folder}, min_workers=1, max_workers=workers, progress=False)


if __name__ == "__main__":
    {"steps": steps, "warm": warm, "elastic": elastic}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
