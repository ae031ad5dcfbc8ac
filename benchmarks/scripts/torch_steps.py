"""A worker of torch or JAX started by hand that serves steps: SOCKET WAY; nothing of hopsml is loaded."""

from __future__ import annotations

import os
import sys

from benchmarks.scripts import torch_model, turns

if __name__ == "__main__":
    path, way = sys.argv[1:]
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if way.startswith("jax"):
        import jax

        jax.distributed.initialize(f"127.0.0.1:{os.environ['MASTER_PORT']}", workers, rank)
        turns.serve(path, way, rank, torch_model.jax_step())
        jax.distributed.shutdown()
    else:
        import torch

        torch.distributed.init_process_group("gloo")
        torch.set_num_threads(1)
        turns.serve(path, way, rank, torch_model.torch_step(torch.nn.parallel.DistributedDataParallel, workers))
