"""Driver's side of MLflow tracking: events of a run go into a queue, and a thread passes them to the sender process.

Nothing here waits for MLflow, and MLflow is not imported. If the queue is full or the sender dies, the run continues,
and the missing data is sent from the run directory later.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from hopsml.storage import python_child
from hopsml.storage.run_dir import RunDir
from hopsml.tracking.mlflow import entries
from hopsml.tracking.mlflow.order import Order

CALL_TIMEOUT_S = 5.0  # timeout of one of the sender's calls to MLflow
EXIT_S = 10.0  # longest wait of a program's end for the sender; none if the server is known to be unreachable
LINGER_S = 10.0  # lifetime without a run, so that the next one finds a process that has imported MLflow
JOIN_S = 2.0
MOST_WAITING = 20_000  # messages in the queue
Note = Callable[[str], None]


class TrackedRun:
    """Run that is being sent to MLflow; every method returns at once and may be called from any thread."""

    def __init__(self, sender: SenderProcess, directory: RunDir) -> None:
        self._sender, self._url = sender, directory.url
        self.lost = False  # True if metrics were dropped: they are read from the run directory at the end

    def send_rows(self, rows: list[entries.Row]) -> None:
        """Pass metrics on to the sender.

        If the queue is full they are dropped, and read from the run directory later.
        """
        listed = [[row.key, row.value, row.time_ms, row.step] for row in rows]
        if listed and not self._sender.queue_message({"do": "rows", "run": self._url, "rows": listed}):
            self.lost = True

    def report_directory_complete(self) -> None:
        """Report that the run directory is complete.

        The sender then sends the rest and closes the run in MLflow.
        """
        self._sender.queue_message({"do": "end", "run": self._url, "lost": self.lost}, must=True)


class SenderLink:
    """Connection of a driver to its sender process, of which there is at most one that accepts new runs.

    The process ends when it has had no run for ``LINGER_S``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sender: SenderProcess | None = None

    def track_run(self, order: Order, directory: RunDir, record: Mapping[str, Any], note: Note) -> TrackedRun:
        """Start to send a run to MLflow.

        Args:
            order: where the run must be sent.
            directory: the run directory.
            record: content of ``run.json``.
            note: called from another thread with messages for the user.
        """
        begin = {"do": "begin", "run": directory.url, "order": asdict(order), "record": dict(record)}
        with self._lock:
            if self._sender is None or not self._sender.accept_run(directory.url, note, begin):
                self._sender = SenderProcess()
                self._sender.accept_run(directory.url, note, begin)
            return TrackedRun(self._sender, directory)

    def close(self, within_s: float = EXIT_S) -> None:
        """Let the sender finish within ``within_s`` seconds, then end it; unsent data remains in the run directory."""
        with self._lock:
            sender, self._sender = self._sender, None
        if sender is not None:
            sender.close(within_s)


class SenderProcess:
    """Sender process with its queue, a thread that writes to it and one that reads its messages."""

    def __init__(self) -> None:
        self._queue: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._notes: dict[str, Note] = {}  # callbacks of the runs that the sender has not finished
        self._closed = False  # accepts no more runs
        self._process: subprocess.Popen[bytes] | None = None
        self._started = threading.Event()
        self._reader = threading.Thread(target=self._read, name="hopsml-mlflow-notes", daemon=True)
        self._writer = threading.Thread(target=self._write, name="hopsml-mlflow", daemon=True)
        self._writer.start()

    def accept_run(self, url: str, note: Note, begin: dict[str, Any]) -> bool:
        """Accept a run, whose messages go to ``note``; False if this process accepts no more runs."""
        with self._changed:
            if self._closed:
                return False
            self._notes[url] = note
            self._queue.append(begin)
            self._changed.notify_all()
            return True

    def queue_message(self, message: dict[str, Any], must: bool = False) -> bool:
        """Add a message to the queue; returns False if the queue is full, unless it ``must`` be queued."""
        with self._changed:
            if len(self._queue) >= MOST_WAITING and not must:
                return False
            self._queue.append(message)
            self._changed.notify_all()
        return True

    def close(self, within_s: float) -> None:
        """Let the sender finish within ``within_s`` seconds, then kill it."""
        deadline = time.monotonic() + within_s
        with self._changed:
            self._closed = True
            self._queue.append({"do": "close", "within_s": within_s})
            self._changed.notify_all()
        self._started.wait(within_s)
        process = self._process
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()
        for thread in (self._writer, self._reader):
            if thread.ident is not None:
                thread.join(JOIN_S)

    # ------------------------------------------------------------------------------------------ threads

    def _write(self) -> None:
        try:
            process = self._process = start_process()
            self._reader.start()
        except OSError as error:
            self._died(f"the process that sends to MLflow cannot be started ({error})")
            return
        finally:
            self._started.set()
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it died, which the reader reports
            while (message := self._next()) is not None:
                process.stdin.write(json.dumps(message, default=str).encode() + b"\n")
                process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _next(self) -> dict[str, Any] | None:
        """Return the next message; None once this sender is closed and everything is passed on."""
        with self._changed:
            while not self._queue:
                if self._closed:
                    return None
                woken = self._changed.wait(None if self._notes else LINGER_S)
                if not woken and not self._queue and not self._notes:
                    self._closed = True
            return self._queue.popleft()

    def _read(self) -> None:
        process = self._process
        assert process is not None and process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "note":
                    self._pass_note(event["run"], event["text"])
                elif event["event"] == "ended":
                    with self._changed:
                        self._notes.pop(event["run"], None)
                        self._changed.notify_all()
        process.wait()
        if not self._closed:
            self._died("the process that sends to MLflow has died")

    def _died(self, why: str) -> None:
        with self._changed:
            self._closed, notes = True, dict(self._notes)
            self._queue.clear()
            self._changed.notify_all()
        for note in notes.values():
            note(f"{why}; 'hopsml runs sync' sends the missing data to MLflow")

    def _pass_note(self, url: str, text: str) -> None:
        with self._changed:
            note = self._notes.get(url)
        if note is not None:
            note(text)


def start_process() -> subprocess.Popen[bytes]:
    """Start the sender process; it ends when its input ends, or this process does."""
    return python_child.start(
        "hopsml.tracking.mlflow.sender",
        str(CALL_TIMEOUT_S),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in a terminal must reach the driver alone
    )


LINK = SenderLink()
