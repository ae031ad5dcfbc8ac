"""A large file of an encrypted HDFS by hopsml and by the bare client, alternating in one process: URL ROUNDS BYTES ANSWER.

The file ANSWER receives the seconds of each, by operation and by library.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pairing import alternate
from benchmarks.scripts.hdfs_files import timed

PIECE = 4 << 20  # bytes of one read or write
OURS, BARE = "hopsml", "hdfs-native"


def main(root: str, rounds: int, size: int, answer: Path) -> None:
    """Measure both operations and write the seconds of each round."""
    from hdfs_native import Client, WriteOptions

    from hopsml.storage import filesystem

    client, store = Client(root), filesystem.for_url(root)
    folder, content = "/user/alice/bench", os.urandom(PIECE)
    client.mkdirs(folder, 0o755, True)
    names = {who: f"{folder}/{who}" for who in (OURS, BARE)}
    ways: dict[str, dict[str, Callable[[], None]]] = {
        "write": {
            OURS: lambda: _write(store.open_write(root + names[OURS]), content, size),
            BARE: lambda: _write(client.create(names[BARE], WriteOptions(overwrite=True)), content, size),
        },
        "read": {
            OURS: lambda: _read(store.open_read(root + names[BARE]), size),
            BARE: lambda: _read(client.read(names[BARE]), size),
        },
    }
    found = {}
    for name, by in ways.items():
        for way in by.values():
            way()  # connections, and hopsml's helper process, exist from now on
        found[name] = alternate(
            rounds, {who: timed(way) for who, way in by.items()}, lambda line: print(line, flush=True)
        )
    part = answer.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.rename(answer)
    filesystem.close_all()


def _write(file: Any, content: bytes, size: int) -> None:
    with file:
        for _ in range(size // len(content)):
            file.write(content)


def _read(file: Any, size: int) -> None:
    with file:
        got = 0
        while piece := file.read(PIECE):
            got += len(piece)
    assert got == size, f"{got} of {size} bytes"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
