"""Server side of scripts/turns.py: groups of workers that make their steps one group after another."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

ACCEPT_S = 0.2
STEPS_TIMEOUT_S = 120.0


class TurnServer:
    """Server that waits for all ranks of all groups; then ``steps`` lets one group work while the others wait."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.workers: dict[tuple[str, int], TextIO] = {}
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._listener.settimeout(ACCEPT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for lines in self.workers.values():
            lines.close()
        for connection in [*self._connections, self._listener]:
            connection.close()

    def accept(self) -> int:
        """Accept a connection, waiting at most ``ACCEPT_S``; return the number of connected workers."""
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            return len(self.workers)
        connection.settimeout(STEPS_TIMEOUT_S)
        self._connections.append(connection)
        lines = connection.makefile("rw", encoding="utf-8")
        hello = json.loads(lines.readline())
        self.workers[(hello["way"], hello["rank"])] = lines
        return len(self.workers)

    def steps(self, way: str, count: int) -> list[float]:
        """Return the time of each step: the slowest rank's, since no step is done before all ranks are."""
        group = [lines for (of, _), lines in sorted(self.workers.items()) if of == way]
        for lines in group:
            print(count, file=lines, flush=True)
        if count == 0:
            return []
        return [max(step) for step in zip(*(self._answer(lines) for lines in group), strict=True)]

    @staticmethod
    def _answer(lines: TextIO) -> list[float]:
        line = lines.readline()
        if not line:
            raise RuntimeError("a worker has ended in the middle of its steps")
        return [float(value) for value in json.loads(line)]


def take_turns(server: TurnServer, ways: Sequence[str], steps: int) -> dict[str, Callable[[], list[float]]]:
    """Return for each method a function that makes its next ``steps`` steps."""

    def turn(way: str) -> Callable[[], list[float]]:
        return lambda: server.steps(way, steps)

    return {way: turn(way) for way in ways}
