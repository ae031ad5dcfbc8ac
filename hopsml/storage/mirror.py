"""A mirror of a local folder to a URL, in a process of its own: ``python -m hopsml.storage.mirror``.

Training writes to the local disk and never waits for the store. The mirror copies what changes, retries while
the store is down, and ends with its owner: a last flush within ``grace_s`` when the owner closes its input,
is killed, or on SIGTERM.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopsml import settings
from hopsml.errors import ArgumentError
from hopsml.storage import python_child, urls
from hopsml.storage.mirror_plan import Behind

_MARGIN_S = 2.0  # for the answer to come after the mirror's own deadline


@dataclass(frozen=True)
class MirrorReport:
    """How far the mirror is. ``behind`` names at most 50 of ``behind_count`` paths, each with its reason."""

    behind_count: int
    behind: tuple[Behind, ...]
    answered: bool = True  # False: the mirror itself did not answer in time, or is dead

    @property
    def is_complete(self) -> bool:
        """Whether all that was on the local disk is on the store."""
        return self.answered and self.behind_count == 0


_NO_ANSWER = MirrorReport(0, (), answered=False)


class MirrorProcess:
    """Starts and owns one mirror. All calls end within their deadlines; they are meant for a thread of an agent.

    ``on_message`` is called, from the reading thread, with each message that nobody asked for: ``{"event":
    "behind"}`` and ``{"event": "recovered"}`` with ``behind_count`` and ``behind``. The process may be
    watched by ``process.pid``. Without ``keep_checkpoints`` as many checkpoints stay on the store as the owner of
    the local directory says by ``checkpoints.write_keep``; all of them where nobody does.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        url: str,
        *,
        interval_s: float = 1.0,
        grace_s: float = 5.0,
        keep_checkpoints: int | None = None,
        timeout_s: float | None = None,
        on_message: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        if not interval_s > 0 or not grace_s >= 0:
            raise ArgumentError(f"interval_s={interval_s!r} must be above 0, grace_s={grace_s!r} at least 0 seconds")
        if keep_checkpoints is not None and keep_checkpoints < 1:
            raise ArgumentError(f"keep_checkpoints={keep_checkpoints!r}: at least 1, or None to keep all")
        self.root = Path(root).absolute()
        self.url = os.path.abspath(url) if not urls.split(url)[0] else url
        self.process: subprocess.Popen[bytes] | None = None
        self._asked = {
            "root": str(self.root),
            "url": self.url,
            "interval_s": interval_s,
            "grace_s": grace_s,
            "timeout_s": settings.storage_timeout_s() if timeout_s is None else timeout_s,
            "keep_checkpoints": keep_checkpoints,
        }
        self._grace_s = grace_s
        self._on_message = on_message
        self._ids = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._last: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Start the process; once it has died, again: it then finds out what is on the store already."""
        if self.is_alive:
            return
        again = self.process is not None
        if again:
            self._close()
        asked = json.dumps({**self._asked, "resume": again})
        self.process = python_child.start("hopsml.storage.mirror", asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, args=(self.process,), name="mirror", daemon=True)
        self._reader.start()

    @property
    def is_alive(self) -> bool:
        """Whether the mirror's process has been started and still runs."""
        return self.process is not None and self.process.poll() is None

    def flush(self, timeout_s: float) -> MirrorReport:
        """Copy all that is on disk now; what is behind when that is done or time is up. A dead mirror is restarted."""
        if not self.is_alive:
            self.start()
        number = next(self._ids)
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._waiting[number] = answer
        try:
            self._send({"do": "flush", "timeout_s": timeout_s, "id": number})
            return _report(answer.get(timeout=timeout_s + _MARGIN_S))
        except (queue.Empty, OSError):
            return _NO_ANSWER
        finally:
            self._waiting.pop(number, None)

    def stop(self, timeout_s: float | None = None) -> MirrorReport:
        """A last flush within ``grace_s``, then the process is gone; killed when ``timeout_s`` passes."""
        process = self.process
        if process is None:
            return _NO_ANSWER
        deadline_s = time.monotonic() + (self._grace_s + _MARGIN_S if timeout_s is None else timeout_s)
        with contextlib.suppress(OSError):
            self._send({"do": "stop"})  # closing alone would not do: a forked process may hold the pipe as well
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._close()
        last = self._last
        return _report(last) if last.get("event") == "stopped" else _NO_ANSWER

    def __enter__(self) -> MirrorProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _send(self, message: dict[str, Any]) -> None:
        process = self.process
        assert process is not None
        assert process.stdin is not None
        with self._lock:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            waiting = self._waiting.get(message.get("id", 0))
            if waiting is not None:
                waiting.put(message)
            elif message["event"] == "stopped":
                self._last = message
            elif self._on_message is not None and message["event"] in ("behind", "recovered"):
                self._on_message(message)
        for waiting in list(self._waiting.values()):  # it died: nobody will answer
            waiting.put({"event": "died"})

    def _close(self) -> None:
        if self.process is not None:
            for pipe in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is self.process.stdout and self._reader is not None:
                        self._reader.join(_MARGIN_S)
                    pipe.close()  # type: ignore[union-attr]


def _report(message: Mapping[str, Any]) -> MirrorReport:
    if message["event"] == "died":
        return _NO_ANSWER
    late = tuple(Behind(one["path"], one["reason"]) for one in message["behind"])
    return MirrorReport(message["behind_count"], late)


if __name__ == "__main__":
    from hopsml.storage.mirror_loop import main

    main(sys.argv[1:])
