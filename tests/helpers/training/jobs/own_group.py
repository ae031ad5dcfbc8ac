"""Strategy of a job, over TensorFlow's collectives or over hopsml's group, which is joined as in workers."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import hopsml
from hopsml.cluster.worker.context import current
from hopsml.collective import Group

SECRET = b"a secret of sixteen bytes or more"


def strategy_of(kind: str) -> Any:
    """Return the strategy; ``kind``: "tensorflow" or "hopsml"."""
    if kind == "tensorflow":
        return hopsml.tensorflow.strategy()
    join_own(1)
    from hopsml.training.tensorflow import setup
    from hopsml.training.tensorflow.distribution.collective_strategy import CollectiveStrategy

    setup.prepare()
    return CollectiveStrategy()


def join_own(
    generation: int, rank: int | None = None, size: int | None = None, timeout_s: float = 60.0, apart: bool = False
) -> None:
    """Call ``join`` with the worker's context, in the folder of its run."""
    context = current()
    assert context is not None
    rank, size = context.rank if rank is None else rank, size or context.world_size
    join(Path(context.run_url) / "group", rank, size, generation, timeout_s, apart)


def join(folder: Path, rank: int, size: int, generation: int = 1, timeout_s: float = 60.0, apart: bool = False) -> None:
    """Become member ``rank`` of a group of ``size``, instead of an earlier group; members meet in ``folder``.

    ``apart``: treat each member as a separate machine, so that all data passes through sockets.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    folder.mkdir(parents=True, exist_ok=True)
    mine = folder / f"{generation}-{rank}"
    mine.with_suffix(".part").write_text(f"127.0.0.1:{listener.getsockname()[1]}")
    mine.with_suffix(".part").rename(mine)
    places = [folder / f"{generation}-{other}" for other in range(size)]
    while not all(place.exists() for place in places):
        time.sleep(0.005)
    group = Group.form(
        rank,
        [place.read_text() for place in places],
        secret=SECRET,
        hosts=None if apart else ["here"] * size,
        listener=listener.detach(),
        generation=generation,
        timeout_s=timeout_s,
    )
    group.make_default()
