"""Who is who in a run of any framework, and a way to exchange values: ``experiment.distributed(train)``.

    def train():
        addresses = hopsml.distributed.exchange(f"{hopsml.distributed.host()}:{hopsml.distributed.port()}")
        ...

Outside of a run there is one worker, of rank 0. ``hopsml.all_reduce`` and its like exchange arrays.
"""

from hopsml.training.exchange import exchange
from hopsml.training.whereabouts import address, addresses, host, leader, local_rank, port, rank, role, world_size

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
