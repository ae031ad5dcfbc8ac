"""One member of groups that alternate in reducing arrays: WAYS SOCKET RANK ADDRESSES SIZES, lists with commas.

    hopsml    hopsml.collective, where members of one machine share memory; hopsml-sockets: over sockets; -fp16: as float16;
              -encrypted: encrypted; -direct, -pairwise, -ring: over sockets, by this algorithm
    gloo      torch.distributed
    tensorflow  TensorFlow's ring over gRPC

Sizes count float32. Each size is a separate method: WAY-SIZE. With several methods the second uses ports one higher,
and so on. The arrays are zeros, and are reduced in place where the library can.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.scripts import turns

SECRET = b"not a secret: a benchmark on loopback"
Reduce = Callable[[], object]


def of_hopsml(way: str, rank: int, addresses: list[str], sizes: list[int]) -> dict[int, Reduce]:
    """Form a group of ``hopsml.collective`` and return a reduction for each size."""
    import numpy as np

    from hopsml.collective.group import ALGORITHMS, Group

    hosts = ["here"] * len(addresses) if way == "hopsml" else None
    kind = way.partition("-")[2]
    algorithm = kind if kind in ALGORITHMS else "auto"
    group = Group.form(rank, addresses, secret=SECRET, hosts=hosts, algorithm=algorithm, encryption=kind == "encrypted")
    wire = "float16" if way.endswith("fp16") else "same"
    arrays = {size: np.zeros(size, np.float32) for size in sizes}

    def reduce(array: Any) -> Reduce:
        return lambda: group.all_reduce(array, "sum", wire=wire, out=array)

    return {size: reduce(array) for size, array in arrays.items()}


def of_gloo(way: str, rank: int, addresses: list[str], sizes: list[int]) -> dict[int, Reduce]:
    """Form a group of torch.distributed with gloo and return a reduction for each size."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=len(addresses))
    tensors = {size: torch.zeros(size) for size in sizes}

    def reduce(tensor: Any) -> Reduce:
        return lambda: dist.all_reduce(tensor)

    return {size: reduce(tensor) for size, tensor in tensors.items()}


def tensorflow_only(way: str, rank: int, addresses: list[str], sizes: list[int]) -> dict[int, Reduce]:
    """Form TensorFlow's strategy and return a reduction by its ring for each size."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
    import tensorflow as tf
    from tensorflow.python.ops import collective_ops

    communication = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)
    count = len(addresses)

    def reduce(size: int, key: int) -> Reduce:
        @tf.function(autograph=False)
        def reduced(x: Any) -> Any:
            return collective_ops.all_reduce(x, count, 12, key, "Add", "Id", communication_hint="ring")

        x = tf.zeros([size])
        return lambda: reduced(x)

    made = {size: reduce(size, number + 100) for number, size in enumerate(sizes)}
    made[sizes[0]].strategy = strategy  # type: ignore[attr-defined]  # it must live as long as they
    return made


MAKERS = {"hopsml": of_hopsml, "gloo": of_gloo, "tensorflow": tensorflow_only}


def moved(addresses: str, by: int) -> list[str]:
    """Return the addresses with ports higher by ``by``, for another method."""
    split = [address.rpartition(":") for address in addresses.split(",")]
    return [f"{host}:{int(port) + by}" for host, _, port in split]


def main() -> None:
    """Serve until the server sends 0.

    The process exits without the frameworks' shutdown, in which members wait for each other.
    """
    ways, path, rank, addresses, sizes = sys.argv[1:]
    counts = [int(size) for size in sizes.split(",")]
    served: dict[str, turns.Steps] = {}
    for number, way in enumerate(ways.split(",")):
        reduces = MAKERS[way.partition("-")[0]](way, int(rank), moved(addresses, number), counts)
        served |= {f"{way}-{size}": turns.one_by_one(one) for size, one in reduces.items()}
    turns.serve_all(path, int(rank), served)
    os._exit(0)


if __name__ == "__main__":
    main()
