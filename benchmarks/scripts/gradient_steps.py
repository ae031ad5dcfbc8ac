"""One member of a group that makes and reduces gradients when asked: WAY SOCKET RANK ADDRESSES LOADS.

ADDRESSES and LOADS are lists with commas. WAY is one of:

    tensorflow  TensorFlow's strategy by hand, as in its documentation; nothing of hopsml is loaded
    merged      the same with hopsml's reduction: 32 gradients in a collective, by TensorFlow's scoped allocator
    hopsml      the strategy over hopsml's own collective; hopsml-sockets: without the memory that members share
    ddp         torch's DistributedDataParallel over gloo
    horovod     horovod.tensorflow over gloo, started by its launcher; its ranks are in its own variables

A load is a set of gradients (benchmarks/gradient_sets.py): a step makes them and reduces them. SET/compute only makes
them; model:NAME is a training step of a network (scripts/networks.py). Each load is a separate method of the server,
"WAY LOAD".
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import gradient_sets
from benchmarks.scripts import turns

SECRET = b"not a secret: a benchmark on loopback"
Step = Callable[[], object]


@dataclass(frozen=True)
class Way:
    """A library's functions to run a step written for one worker, and to sum gradients over all workers."""

    run: Callable[[Callable[..., Any], tuple[Any, ...]], Any]
    reduce: Callable[[list[Any]], Sequence[Any]]
    scope: Callable[[], Any] = contextlib.nullcontext


def tensorflow_only(way: str, rank: int, addresses: Sequence[str]) -> Way:
    """Return the functions of TensorFlow's strategy; ``merged`` installs hopsml's reduction in it."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if way == "merged":
        from hopsml.training.tensorflow.distribution import merging

        merging.set_merging(strategy, merging.merge_scope_of_run(None), scoped_allocator=True)
    return of_strategy(strategy)


def of_hopsml(way: str, rank: int, addresses: Sequence[str]) -> Way:
    """Return the functions of the strategy over hopsml's own collective."""
    from hopsml.collective import Group

    hosts = ["here"] * len(addresses) if way == "hopsml" else None
    group = Group.form(rank, addresses, secret=SECRET, hosts=hosts)
    group.make_default()
    from hopsml.training.tensorflow.distribution.collective_strategy import CollectiveStrategy

    return of_strategy(CollectiveStrategy())


def of_strategy(strategy: Any) -> Way:
    """Return the functions of any ``tf.distribute`` strategy."""
    import tensorflow as tf

    def reduce(gradients: list[Any]) -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", gradients)

    return Way(lambda step, given: strategy.run(step, args=given), reduce, strategy.scope)


def of_horovod(way: str, rank: int, addresses: Sequence[str]) -> Way:
    """Return Horovod's functions: like its gradient tape each gradient separately, which Horovod then fuses."""
    import horovod.tensorflow as hvd

    hvd.init()
    return Way(
        lambda step, given: step(*given),
        lambda gradients: [
            hvd.allreduce(gradient, op=hvd.Sum, name=f"gradient_{number}") for number, gradient in enumerate(gradients)
        ],
    )


def tensorflow_step(way: Way, load: str) -> Step:
    """Return a step of a load for the methods that use TensorFlow."""
    import tensorflow as tf

    if load.startswith("model:"):
        from benchmarks.scripts import networks

        return networks.step(load.removeprefix("model:"), way.run, way.reduce, way.scope)
    name, _, part = load.partition("/")
    shapes = gradient_sets.shapes_of(name)
    filling = tf.constant(0.5)  # so that no memory is used between two turns

    def one(filling: Any) -> Any:
        gradients = [tf.fill(shape, filling) for shape in shapes]
        # TensorFlow knows the value of an element of a filled tensor, and would not fill it; the value of a snapshot it
        # does not know.
        made = [tf.raw_ops.Snapshot(input=one) for one in gradients] if part == "compute" else way.reduce(gradients)
        return tf.add_n([tf.reshape(value, [-1])[0] for value in made])

    @tf.function(autograph=False)
    def step(filling: Any) -> Any:
        return way.run(one, (filling,))

    return lambda: float(step(filling))


def ddp_step(load: str) -> Step:
    """Return a backward pass over a weighted sum of all weights, during which DistributedDataParallel reduces."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    weights = torch.nn.ParameterList(torch.ones(shape) for shape in gradient_sets.shapes_of(load))

    class Weighted(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weights = weights

        def forward(self) -> Any:
            return torch.stack([weight.sum() for weight in self.weights]).sum() * 0.5

    module = DistributedDataParallel(Weighted())

    def step() -> float:
        module.zero_grad()
        module().backward()
        return float(sum(weight.grad.view(-1)[0] for weight in weights))

    return step


def of_ddp(rank: int, addresses: Sequence[str]) -> None:
    """Join a group of torch.distributed over gloo."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=len(addresses))


class Loads:
    """Steps of the loads, each made at its first turn; at most ``most`` exist at once, as they use memory."""

    def __init__(self, make: Callable[[str], Step], most: int) -> None:
        self._make, self._most = make, most
        self._steps: dict[str, Step] = {}

    def steps(self, load: str) -> turns.Steps:
        """Return a function that makes steps of this load and returns the time of each."""

        def times(count: int) -> list[float]:
            if load not in self._steps:
                while len(self._steps) >= self._most:
                    del self._steps[next(iter(self._steps))]
                self._steps[load] = self._make(load)
            return turns.one_by_one(self._steps[load])(count)

        return times


def main() -> None:
    """Serve until the server sends 0.

    The process exits without the frameworks' shutdown, in which members wait for each other.
    """
    way, path, number, listed, loads = sys.argv[1:]
    rank, addresses = int(number), listed.split(",")
    make: Callable[[str], Step]
    if way == "ddp":
        of_ddp(rank, addresses)
        make = ddp_step
    else:
        of = {"horovod": of_horovod, "hopsml": of_hopsml}.get(way.partition("-")[0], tensorflow_only)
        built = of(way, rank, addresses)
        if way == "horovod":
            rank = int(os.environ["HOROVOD_RANK"])

        def make(load: str) -> Step:
            return tensorflow_step(built, load)

    made = Loads(make, 1 if way == "ddp" else 100)
    turns.serve_all(path, rank, {f"{way} {load}": made.steps(load) for load in loads.split(",")})
    os._exit(0)


if __name__ == "__main__":
    main()
