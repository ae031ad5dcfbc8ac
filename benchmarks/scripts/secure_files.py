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
    local, copy = answer.with_name("local"), answer.with_name("copy")
    with local.open("wb") as file:
        for _ in range(size // PIECE):
            file.write(content)
    names = {who: f"{folder}/{who}" for who in (OURS, BARE)}

    def upload() -> None:
        with local.open("rb") as source, client.create(names[BARE], WriteOptions(overwrite=True)) as file:
            while piece := source.read(PIECE):
                file.write(piece)

    def download() -> None:
        with copy.open("wb") as target:
            _read(client.read(names[BARE]), size, target.write)

    ways: dict[str, dict[str, Callable[[], None]]] = {
        "write": {OURS: lambda: store.upload(local, root + names[OURS]), BARE: upload},
        "read": {OURS: lambda: store.download(root + names[BARE], copy), BARE: download},
        "stream": {
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


def _read(file: Any, size: int, use: Callable[[bytes], object] = len) -> None:
    with file:
        got = 0
        while piece := file.read(PIECE):
            use(piece)
            got += len(piece)
    assert got == size, f"{got} of {size} bytes"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
