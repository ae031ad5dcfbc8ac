"""Mirror of a local folder to a URL, in a separate process: ``python -m hopsml.storage.mirror``.

Training writes to the local disk and never waits for the shared storage. The mirror copies changed files, retries while
the storage does not respond, and ends with its owner: with a last flush within ``grace_s`` when the owner closes the
mirror's input, is killed, or on SIGTERM.
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

from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError
from hopsml.storage import python_child, urls
from hopsml.storage.mirror_plan import PathBehind

_MARGIN_S = 2.0  # time for the response after the mirror's own deadline


@dataclass(frozen=True)
class MirrorReport:
    """State of the mirror; ``behind`` lists at most 50 of ``behind_count`` paths, each with its reason."""

    behind_count: int
    behind: tuple[PathBehind, ...]
    answered: bool = True  # False: the mirror did not respond in time, could not scan the folder in time, or is dead

    @property
    def is_complete(self) -> bool:
        """True if all files on the local disk are on the shared storage."""
        return self.answered and self.behind_count == 0


_NO_ANSWER = MirrorReport(0, (), answered=False)


class MirrorProcess:
    """Process that mirrors one folder, with the calls that start, flush and stop it.

    All calls end within their deadlines; they are meant for a thread of an agent. The process may be watched by
    ``process.pid``.

    Args:
        root: the local folder.
        url: where it is mirrored.
        interval_s: seconds between two scans of the folder, at least.
        grace_s: seconds that the last flush may take.
        keep_checkpoints: number of checkpoints retained on the shared storage; None: the number that the owner of the
            local directory records by ``checkpoints.write_retention``, all of them if there is none.
        timeout_s: deadline of one storage step, in seconds.
        on_message: called on the reading thread with each message that is not a response: ``{"event": "behind"}``,
            repeated while copies fail, and ``{"event": "recovered"}``, with ``behind_count`` and ``behind``.

    Raises:
        ArgumentError: an invalid value.
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
            raise ArgumentError(
                f"interval_s={interval_s!r} must be greater than 0 seconds, and grace_s={grace_s!r} at least 0 seconds"
            )
        if keep_checkpoints is not None and keep_checkpoints < 1:
            raise ArgumentError(
                f"keep_checkpoints={keep_checkpoints!r}: the number must be at least 1, or None to keep all checkpoints"
            )
        self.root = Path(root).absolute()
        self.url = os.path.abspath(url) if not urls.split(url)[0] else url
        self.process: subprocess.Popen[bytes] | None = None
        self._asked = {
            "root": str(self.root),
            "url": self.url,
            "interval_s": interval_s,
            "grace_s": grace_s,
            "timeout_s": SETTINGS.storage_timeout_s if timeout_s is None else timeout_s,
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
        """Start the process if it does not run.

        One that replaces a dead process first finds out which files are on the shared storage already.
        """
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
        """True if the mirror's process has been started and still runs."""
        return self.process is not None and self.process.poll() is None

    def flush(self, timeout_s: float, retry_s: float | None = None) -> MirrorReport:
        """Copy all files that are on disk now, and return the state at the end or when the time is up.

        A dead mirror is restarted.

        Args:
            timeout_s: time limit in seconds.
            retry_s: seconds for which failed copies are retried; None: until the time is up if the store is
                unavailable, not at all if it refuses them, as with a full quota.
        """
        if not self.is_alive:
            self.start()
        number = next(self._ids)
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._waiting[number] = answer
        try:
            self._send({"do": "flush", "timeout_s": timeout_s, "retry_s": retry_s, "id": number})
            return _report(answer.get(timeout=timeout_s + _MARGIN_S))
        except (queue.Empty, OSError):
            return _NO_ANSWER
        finally:
            self._waiting.pop(number, None)

    def shorten_flush(self) -> None:
        """Let a flush in progress return soon; the process ends after a last flush within ``grace_s``."""
        if self.process is not None and self.is_alive:
            self.process.terminate()

    def stop(self, timeout_s: float | None = None) -> MirrorReport:
        """Stop the process after a last flush within ``grace_s``; it is killed after ``timeout_s``."""
        process = self.process
        if process is None:
            return _NO_ANSWER
        deadline_s = time.monotonic() + (self._grace_s + _MARGIN_S if timeout_s is None else timeout_s)
        with contextlib.suppress(OSError):
            self._send({"do": "stop"})  # closing is not enough: a forked process may hold the pipe as well
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
        for waiting in list(self._waiting.values()):  # it died, so no response will come
            waiting.put({"event": "died"})

    def _close(self) -> None:
        if self.process is not None:
            for pipe in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is self.process.stdout and self._reader is not None:
                        self._reader.join(_MARGIN_S)
                    pipe.close()  # type: ignore[union-attr]


def _report(message: Mapping[str, Any]) -> MirrorReport:
    if message["event"] == "died" or not message["is_current"]:
        return _NO_ANSWER
    late = tuple(PathBehind(one["path"], one["reason"]) for one in message["behind"])
    return MirrorReport(message["behind_count"], late)


if __name__ == "__main__":
    from hopsml.storage.mirror_loop import main

    main(sys.argv[1:])
