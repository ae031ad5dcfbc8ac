"""Files of an HDFS by TensorFlow and by the bare client, alternating in one process: URL ROUNDS BYTES FILES ANSWER.

The file ANSWER receives the seconds of each, by operation and by library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pairing import alternate

PIECE = 1 << 20  # bytes of one read or write
SMALL = 1000  # bytes of a small file
OURS, BARE = "tf.io.gfile", "hdfs-native"


def main(root: str, rounds: int, size: int, files: int, answer: Path) -> None:
    """Measure all operations and write the seconds of each round."""
    import tensorflow as tf
    from hdfs_native import Client

    from hopsml.tensorflow import register_hdfs

    register_hdfs()
    client, folder = Client(root), "/bench"
    client.mkdirs(folder, 0o755, True)
    content, gfile = os.urandom(PIECE), tf.io.gfile
    with gfile.GFile(f"{root}{folder}/large", "wb") as file:
        _write(file, content, size)
    client.mkdirs(f"{folder}/small", 0o755, True)
    for number in range(files):
        with client.create(f"{folder}/small/{number:05d}") as file:
            file.write(content[:SMALL])
    ways: dict[str, dict[str, Callable[[], None]]] = {
        "read": {
            OURS: lambda: _read(gfile.GFile(f"{root}{folder}/large", "rb"), size),
            BARE: lambda: _read(client.read(f"{folder}/large"), size),
        },
        "write": {
            OURS: lambda: _closed(gfile.GFile(f"{root}{folder}/new", "wb"), content, size),
            BARE: lambda: _closed(client.create(f"{folder}/new", _overwriting()), content, size),
        },
        "small": {
            OURS: lambda: _small_of_tensorflow(gfile, f"{root}{folder}/small", files),
            BARE: lambda: _small_of_client(client, f"{folder}/small", files),
        },
    }
    found = {
        name: alternate(rounds, {who: timed(way) for who, way in by.items()}, lambda line: print(line, flush=True))
        for name, by in ways.items()
    }
    part = answer.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.rename(answer)


def _overwriting() -> Any:
    from hdfs_native import WriteOptions

    return WriteOptions(overwrite=True)


def timed(way: Callable[[], None]) -> Callable[[], float]:
    """Return a function that calls ``way`` and returns the seconds that it took."""

    def turn() -> float:
        began = time.perf_counter()
        way()
        return time.perf_counter() - began

    return turn


def _read(file: Any, size: int) -> None:
    with file:
        got = 0
        while piece := file.read(PIECE):
            got += len(piece)
    assert got == size, f"{got} of {size} bytes"


def _closed(file: Any, content: bytes, size: int) -> None:
    with file:
        _write(file, content, size)


def _write(file: Any, content: bytes, size: int) -> None:
    for _ in range(size // len(content)):
        file.write(content)


def _small_of_tensorflow(gfile: Any, folder: str, files: int) -> None:
    names = gfile.listdir(folder)
    assert len(names) == files
    for name in names:
        with gfile.GFile(f"{folder}/{name}", "rb") as file:
            assert len(file.read()) == SMALL


def _small_of_client(client: Any, folder: str, files: int) -> None:
    entries = list(client.list_status(folder))
    assert len(entries) == files
    for entry in entries:
        with client.read(entry.path) as file:
            assert len(file.read()) == SMALL


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
