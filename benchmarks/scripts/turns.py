"""A worker that makes steps when it is told to, so that groups of different launchers can take turns.

For each way that it knows it connects to a Unix socket, says who it is (one JSON line), then answers each line with a number
of steps by a JSON list of what each of them took, in seconds; 0 ends the way. Idle groups wait and cost nothing.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TextIO

Steps = Callable[[int], list[float]]  # makes so many steps; what each took, in seconds


def serve(path: str, way: str, rank: int, step: Callable[[], object]) -> None:
    """Obey until the number is 0 or the other end is gone."""
    serve_all(path, rank, {way: one_by_one(step)})


def serve_all(path: str, rank: int, ways: Mapping[str, Steps]) -> None:
    """As ``serve``, for several ways of one process."""
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
    """So many calls of ``step``, each with its time."""

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
