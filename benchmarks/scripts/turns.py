"""Client of ``TurnServer``: a worker that makes steps on request, so that groups of different launchers can alternate.

For each of its methods it connects to a Unix socket, sends its identity (one JSON line), then answers each line with a
number of steps by a JSON list of the seconds that each of them took; 0 ends the method. Idle groups wait and use no
processor time.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TextIO

Steps = Callable[[int], list[float]]  # makes a number of steps; returns the seconds of each


def serve(path: str, way: str, rank: int, step: Callable[[], object]) -> None:
    """Serve one method until the number is 0 or the server has closed the connection."""
    serve_all(path, rank, {way: one_by_one(step)})


def serve_all(path: str, rank: int, ways: Mapping[str, Steps]) -> None:
    """Serve several methods from one process, until each has received 0 or lost its connection."""
    with ExitStack() as stack, selectors.DefaultSelector() as waiting:
        for way, steps in ways.items():
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.connect(path)
            lines = stack.enter_context(connection.makefile("rw", encoding="utf-8"))
            _say(lines, {"way": way, "rank": rank})
            waiting.register(connection, selectors.EVENT_READ, (lines, steps))
        while waiting.get_map():
            for key, _ in waiting.select():
                lines, steps = key.data
                count = int(lines.readline() or 0)
                if count == 0:
                    waiting.unregister(key.fileobj)
                else:
                    _say(lines, steps(count))


def one_by_one(step: Callable[[], object]) -> Steps:
    """Return a function that calls ``step`` a number of times and returns the time of each call."""

    def times(count: int) -> list[float]:
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            step()
            taken.append(time.perf_counter() - began)
        return taken

    return times


def _say(lines: TextIO, what: object) -> None:
    print(json.dumps(what), file=lines, flush=True)
