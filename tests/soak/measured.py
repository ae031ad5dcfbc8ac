"""Program that runs a module unchanged and reports the resources of its process on request.

    python -m tests.soak.measured FILE MODULE ARGUMENT...

FILE.request has the number n of a request, which is answered in FILE.<n>: at SIGUSR1, after a garbage collection, bytes of
Python's objects, descriptors and threads; at SIGUSR2 the lines of code whose objects have grown most since the last one.
``Process`` sends the requests.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until

LINES = 12
REPEAT_S = 5.0  # between signals for the same request
ROOT = str(Path(__file__).resolve().parents[2]) + "/"


class Process:
    """Process of a measured module; ``measure`` must be called by one thread only."""

    def __init__(self, name: str, file: Path, module: str, *arguments: str, **options: Any) -> None:
        """Start the process; ``options`` are passed to Popen."""
        self.name, self._file, self._asked = name, file, 0
        command = [sys.executable, "-m", "tests.soak.measured", str(file), module, *arguments]
        self.popen = subprocess.Popen(command, text=True, **options)

    def measure(self) -> dict[str, float]:
        """Return the process's resources: ``objects`` and ``rss`` in bytes, ``descriptors``, ``threads``."""
        found: dict[str, float] = self._answer(signal.SIGUSR1)
        return {**found, "rss": float(psutil.Process(self.popen.pid).memory_info().rss)}

    def lines(self) -> list[str]:
        """Return the lines of code whose objects have grown most since the last call."""
        found: list[str] = self._answer(signal.SIGUSR2)
        return found

    def _answer(self, number: int) -> Any:
        """Request an answer by a signal, which is repeated: Python runs no handler if it comes just before a system call."""
        self._asked += 1
        answer = self._file.with_name(f"{self._file.name}.{self._asked}")
        _write(self._file.with_name(f"{self._file.name}.request"), str(self._asked))
        repeat_at = 0.0

        def is_answered() -> bool:
            nonlocal repeat_at
            if answer.exists() or self.popen.poll() is not None:
                return True
            if time.monotonic() > repeat_at:
                self.popen.send_signal(number)
                repeat_at = time.monotonic() + REPEAT_S
            return False

        wait_until(is_answered, f"an answer of {self.name}")
        found = json.loads(answer.read_text())
        answer.unlink()
        return found

    def end(self) -> int:
        """End the process by SIGTERM, and return its exit status."""
        self.popen.terminate()
        try:
            return self.popen.wait(END_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            raise


class _Answers:
    def __init__(self, file: Path) -> None:
        self._file, self._answered = file, ""
        self._before: tracemalloc.Snapshot | None = None
        signal.signal(signal.SIGUSR1, lambda *_: self._answer(self._resources))
        signal.signal(signal.SIGUSR2, lambda *_: self._answer(self._lines))

    def _answer(self, found: Callable[[], Any]) -> None:
        """Write the answer to the newest request, unless a repeated signal finds it answered."""
        request = self._file.with_name(f"{self._file.name}.request").read_text()
        if request != self._answered:
            self._answered = request
            _write(self._file.with_name(f"{self._file.name}.{request}"), json.dumps(found()))

    def _resources(self) -> dict[str, float]:
        gc.collect()
        descriptors = len(os.listdir("/proc/self/fd")) - 1
        objects = tracemalloc.get_traced_memory()[0]
        return {"objects": objects, "threads": threading.active_count(), "descriptors": descriptors}

    def _lines(self) -> list[str]:
        gc.collect()
        now, before = tracemalloc.take_snapshot(), self._before
        grown = now.compare_to(before, "lineno")[:LINES] if before is not None else []
        self._before = now
        places = ((f"{one.traceback[0].filename}:{one.traceback[0].lineno}", one.size_diff) for one in grown)
        return [f"{place.removeprefix(ROOT)} {size:+d} bytes" for place, size in places]


def _write(file: Path, text: str) -> None:
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_text(text)
    fresh.rename(file)


def main() -> None:
    """Install the signal handlers, and run the module."""
    file, module, *arguments = sys.argv[1:]
    tracemalloc.start()
    _answers = _Answers(Path(file))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
