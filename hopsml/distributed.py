"""Ranks and addresses of a run's workers in any framework, and exchange of values between them.

    def train():
        addresses = hopsml.distributed.exchange(f"{hopsml.distributed.host()}:{hopsml.distributed.port()}")
        ...

    experiment.distributed(train)

Outside of a run there is one worker, with rank 0. ``hopsml.all_reduce`` and related functions exchange arrays.
"""

from hopsml.training.distributed import (
    address,
    addresses,
    exchange,
    host,
    leader,
    local_rank,
    port,
    rank,
    role,
    world_size,
)

__all__ = [
    "address",
    "addresses",
    "exchange",
    "host",
    "leader",
    "local_rank",
    "port",
    "rank",
    "role",
    "world_size",
]


def __dir__() -> list[str]:
    return list(__all__)
