"""A worker that makes steps when it is told to, so that groups of different launchers can take turns.

It connects to a Unix socket, says who it is (one JSON line), then answers each line with a number of steps by a JSON list
of what each of them took, in seconds; 0 ends it. Idle groups wait in a read and cost nothing.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator


def serve(path: str, way: str, rank: int, step: Callable[[], float]) -> None:
    """Obey until the number is 0 or the other end is gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        with connection.makefile("rw", encoding="utf-8") as lines:
            _say(lines, {"way": way, "rank": rank})
            for line in lines:
                count = int(line)
                if count == 0:
                    return
                _say(lines, list(_times(step, count)))


def _times(step: Callable[[], float], count: int) -> Iterator[float]:
    for _ in range(count):
        began = time.perf_counter()
        step()
        yield time.perf_counter() - began


def _say(lines: object, what: object) -> None:
    print(json.dumps(what), file=lines, flush=True)  # type: ignore[call-overload]
