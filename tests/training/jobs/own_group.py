"""Joins hopsml's own group from a job: as agents will have workers do it."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from hopsml.collective import Group

SECRET = b"a secret of sixteen bytes or more"


def join(folder: Path, rank: int, size: int, generation: int = 1, timeout_s: float = 60.0) -> None:
    """Become member ``rank`` of a group of ``size``, in the place of any group before; members meet in ``folder``."""
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
        hosts=["here"] * size,
        listener=listener.detach(),
        generation=generation,
        timeout_s=timeout_s,
    )
    group.use()
