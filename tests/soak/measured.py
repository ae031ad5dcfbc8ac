"""Program that runs a module unchanged and reports the resources of its process on request.

    python -m tests.soak.measured FILE MODULE ARGUMENT...

At SIGUSR1 the garbage is collected, and FILE.<n> is written, n from 1 on: bytes of Python's objects, descriptors, threads.
At SIGUSR2 FILE.lines has the lines of code whose objects have grown most since the last SIGUSR2. ``Process`` sends them.
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
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until

LINES = 12
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
        self._asked += 1
        answer = self._file.with_name(f"{self._file.name}.{self._asked}")
        found: dict[str, float] = json.loads(self._answer(signal.SIGUSR1, answer))
        return {**found, "rss": float(psutil.Process(self.popen.pid).memory_info().rss)}

    def lines(self) -> list[str]:
        """Return the lines of code whose objects have grown most since the last call."""
        text = self._answer(signal.SIGUSR2, self._file.with_name(f"{self._file.name}.lines"))
        found: list[str] = json.loads(text)
        return found

    def _answer(self, number: int, file: Path) -> str:
        self.popen.send_signal(number)
        wait_until(lambda: file.exists() or self.popen.poll() is not None, f"an answer of {self.name}")
        text = file.read_text()
        file.unlink()
        return text

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
        self._file, self._count = file, 0
        self._before: tracemalloc.Snapshot | None = None
        signal.signal(signal.SIGUSR1, self._tell)
        signal.signal(signal.SIGUSR2, self._tell_lines)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        gc.collect()
        self._count += 1
        threads = threading.active_count()
        found = {"objects": tracemalloc.get_traced_memory()[0], "threads": threads}
        found["descriptors"] = len(os.listdir("/proc/self/fd")) - 1
        self._write(str(self._count), found)

    def _tell_lines(self, number: int, frame: FrameType | None) -> None:
        gc.collect()
        now, before = tracemalloc.take_snapshot(), self._before
        grown = now.compare_to(before, "lineno")[:LINES] if before is not None else []
        self._before = now
        places = ((f"{one.traceback[0].filename}:{one.traceback[0].lineno}", one.size_diff) for one in grown)
        self._write("lines", [f"{place.removeprefix(ROOT)} {size:+d} bytes" for place, size in places])

    def _write(self, ending: str, told: Any) -> None:
        fresh = self._file.with_name(f"{self._file.name}.new")
        fresh.write_text(json.dumps(told))
        fresh.rename(self._file.with_name(f"{self._file.name}.{ending}"))


def main() -> None:
    """Install the signal handlers, and run the module."""
    file, module, *arguments = sys.argv[1:]
    tracemalloc.start()
    _answers = _Answers(Path(file))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
