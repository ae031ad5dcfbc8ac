"""One member of a group that makes and reduces gradients in turns: WAY SOCKET RANK ADDRESSES LOADS, these two with commas.

    tensorflow  TensorFlow's strategy by hand, as in its documentation; nothing of hopsml is loaded
    merged      the same with hopsml's reduction: 32 gradients in a collective, by TensorFlow's scoped allocator
    hopsml      the strategy over hopsml's own collective; hopsml-sockets: without the memory that members share
    ddp         torch's DistributedDataParallel over gloo
    horovod     horovod.tensorflow over gloo, started by its launcher; its ranks are in its own variables

A load is a set of gradients (benchmarks/gradient_sets.py): a step makes them and reduces them. SET/compute only makes them;
model:NAME is a training step of a network (scripts/networks.py). Each is a way of its own,
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
    """How a library runs a step written for one worker, and sums a list of gradients over all of them."""

    run: Callable[[Callable[..., Any], tuple[Any, ...]], Any]
    reduce: Callable[[list[Any]], Sequence[Any]]
    scope: Callable[[], Any] = contextlib.nullcontext


def of_tensorflow(way: str, rank: int, addresses: Sequence[str]) -> Way:
    """TensorFlow's strategy; ``merged`` puts hopsml's reduction into it."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if way == "merged":
        from hopsml.training.tensorflow import reducer

        reducer.set_merging(strategy, reducer.scope_of_run(None), scoped_allocator=True)
    return of_strategy(strategy)


def of_hopsml(way: str, rank: int, addresses: Sequence[str]) -> Way:
    """The strategy over hopsml's own collective."""
    from hopsml.collective import Group

    hosts = ["here"] * len(addresses) if way == "hopsml" else None
    group = Group.form(rank, addresses, secret=SECRET, hosts=hosts)
    group.use()
    from hopsml.training.tensorflow.collective_strategy import CollectiveStrategy

    return of_strategy(CollectiveStrategy())


def of_strategy(strategy: Any) -> Way:
    """Whatever is a ``tf.distribute`` strategy."""
    import tensorflow as tf

    def reduce(gradients: list[Any]) -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", gradients)

    return Way(lambda step, given: strategy.run(step, args=given), reduce, strategy.scope)


def of_horovod(way: str, rank: int, addresses: Sequence[str]) -> Way:
    """As Horovod's gradient tape does: each gradient by itself, which Horovod then fuses."""
    import horovod.tensorflow as hvd

    hvd.init()
    return Way(
        lambda step, given: step(*given),
        lambda gradients: [
            hvd.allreduce(gradient, op=hvd.Sum, name=f"gradient_{number}") for number, gradient in enumerate(gradients)
        ],
    )


def tensorflow_step(way: Way, load: str) -> Step:
    """A step of a load for the ways that are TensorFlow's."""
    import tensorflow as tf

    if load.startswith("model:"):
        from benchmarks.scripts import networks

        return networks.step(load.removeprefix("model:"), way.run, way.reduce, way.scope)
    name, _, part = load.partition("/")
    shapes = gradient_sets.shapes_of(name)
    filling = tf.constant(0.5)  # what is held between two turns is as good as nothing

    def one(filling: Any) -> Any:
        gradients = [tf.fill(shape, filling) for shape in shapes]
        # TensorFlow knows what one element of a filled tensor is, and would not fill it; of a snapshot it does not.
        made = [tf.raw_ops.Snapshot(input=one) for one in gradients] if part == "compute" else way.reduce(gradients)
        return tf.add_n([tf.reshape(value, [-1])[0] for value in made])

    @tf.function(autograph=False)
    def step(filling: Any) -> Any:
        return way.run(one, (filling,))

    return lambda: float(step(filling))


def ddp_step(load: str) -> Step:
    """The gradient of a weighted sum of all weights, which DistributedDataParallel reduces while it is computed."""
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
    """Join torch's group."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=len(addresses))


class Loads:
    """Makes a load's step when its turn comes first, and keeps ``most`` of them, which hold memory."""

    def __init__(self, make: Callable[[str], Step], most: int) -> None:
        self._make, self._most = make, most
        self._steps: dict[str, Step] = {}

    def steps(self, load: str) -> turns.Steps:
        """So many steps of this load, each with its time."""

        def times(count: int) -> list[float]:
            if load not in self._steps:
                while len(self._steps) >= self._most:
                    del self._steps[next(iter(self._steps))]
                self._steps[load] = self._make(load)
            return turns.one_by_one(self._steps[load])(count)

        return times


def main() -> None:
    """Serve until told to end; the process ends without the frameworks' own ends, which wait for each other."""
    way, path, number, listed, loads = sys.argv[1:]
    rank, addresses = int(number), listed.split(",")
    make: Callable[[str], Step]
    if way == "ddp":
        of_ddp(rank, addresses)
        make = ddp_step
    else:
        of = {"horovod": of_horovod, "hopsml": of_hopsml}.get(way.partition("-")[0], of_tensorflow)
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
