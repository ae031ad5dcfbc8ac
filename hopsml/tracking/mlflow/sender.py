"""Process that sends all runs of one driver to MLflow: ``python -m hopsml.tracking.mlflow.sender``.

It is a separate process, because importing MLflow takes seconds and 180 MB, because its client retries for minutes by
settings of the whole process, and because a call to a server that does not respond can only be ended together with its
process.

Standard input, one JSON object per line:

    {"do": "begin", "run": URL, "order": {...}, "record": {...}}
    {"do": "rows", "run": URL, "rows": [[key, value, time_ms, step], ...]}
    {"do": "end", "run": URL, "lost": true}          the run directory is complete; lost: not all rows were passed on
    {"do": "close", "within_s": 5.0}                 also sent implicitly by the end of the input

Standard output:

    {"event": "note", "run": URL, "text": "..."}     message for the user
    {"event": "ended", "run": URL, "state": "sent"}  nothing more is done for this run
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hopsml.errors import HopsmlError, PathNotFound
from hopsml.storage import filesystem, trust
from hopsml.storage.backoff import Outage, pause_s
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import catalog
from hopsml.tracking.mlflow import order, publish, store
from hopsml.tracking.mlflow.entries import Row
from hopsml.tracking.mlflow.order import Order
from hopsml.tracking.mlflow.store import MlflowMissing, MlflowRefused, MlflowUnreachable, Store

EVERY_S = 1.0  # time during which rows are collected
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # between attempts while a server is unreachable
MOST_ROWS = 50_000  # waiting rows of one run; beyond that all are read from the run directory at its end
CLOSE_S = 10.0  # if no time was requested
Emit = Callable[[Mapping[str, Any]], None]
Open = Callable[[str], Store]


@dataclass
class PendingRun:
    """Run that is being sent: its state, and the rows that wait to be sent."""

    directory: RunDir
    order: Order
    record: dict[str, Any]
    uri: str
    rows: deque[Row] = field(default_factory=deque)
    lost: bool = False  # some rows were not sent: the run directory has them
    begun: bool = False
    ended: bool = False
    noted: bool = False  # True if the present outage was reported


class Sender:
    """State machine of the runs to be sent; ``send_pending`` sends them.

    Messages are received on one thread, steps are made on another.
    """

    def __init__(self, emit: Emit, open_store: Open = Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit, self._open, self._clock = emit, open_store, clock
        self.runs: dict[str, PendingRun] = {}
        self.close_at: float | None = None
        self.changed = threading.Condition()
        self._stores: dict[str, Store] = {}
        self._failures = 0  # number of failures in a row
        self._not_before = 0.0
        self._looked: set[str] = set()  # projects whose older runs were listed
        self._older: deque[tuple[str, PendingRun]] = deque()  # older runs with the run whose project they belong to
        self._older_outage = Outage(FIRST_PAUSE_S, LONGEST_PAUSE_S)  # older runs may have other servers

    # ------------------------------------------------------------------------------------------ messages

    def apply_message(self, message: Mapping[str, Any]) -> None:
        """Apply one of the messages that the module's docstring lists."""
        with self.changed:
            match message["do"]:
                case "begin":
                    wanted = order.parse(message["order"])
                    directory = RunDir(message["run"])
                    self.runs[directory.url] = PendingRun(directory, wanted, message["record"], wanted.tracking_uri)
                case "rows":
                    self._add(message["run"], [Row(*row) for row in message["rows"]])
                case "end":
                    run = self.runs.get(message["run"])
                    if run is not None:
                        run.ended, run.lost = True, run.lost or bool(message.get("lost"))
                case "close":
                    within = self._clock() + float(message["within_s"])
                    self.close_at = within if self.close_at is None else min(within, self.close_at)
            self.changed.notify_all()

    def _add(self, url: str, rows: list[Row]) -> None:
        run = self.runs.get(url)
        if run is None:
            return
        run.rows.extend(rows)
        if len(run.rows) > MOST_ROWS:
            run.rows.clear()
            run.lost = True

    # ------------------------------------------------------------------------------------------ sending

    @property
    def is_done(self) -> bool:
        """True if the process may end: it was requested to, and nothing can be sent any more."""
        if self.close_at is None:
            return False
        waiting = any(run.ended for run in self.runs.values())
        return not waiting or self._failures > 0 or self._clock() >= self.close_at

    def run(self) -> None:
        """Send what is pending every ``EVERY_S`` seconds, until the process must end."""
        while not self.is_done:
            self.send_pending()
            with self.changed:
                if self.close_at is None:
                    self.changed.wait(EVERY_S)

    def send_pending(self) -> None:
        """Send all pending data once; does nothing during the pause after a failure."""
        if self._clock() < self._not_before:
            return
        with self.changed:
            runs = list(self.runs.values())
        for run in runs:
            if self.close_at is not None and (self._clock() >= self.close_at or not run.ended):
                continue
            try:
                self._advance(run)
            except MlflowUnreachable as error:
                self._pause(run, f"MLflow does not answer; the missing data are sent later ({error})")
                return
            except (MlflowRefused, MlflowMissing) as error:
                self._give_up(run, error)
            except HopsmlError as error:  # of the shared storage with the run directory
                if isinstance(error, PathNotFound) and _is_gone(run.directory):  # other runs must not wait for it
                    self._note(run, "no more data of this run are sent to MLflow, since its directory was removed")
                    self._forget(run, order.REFUSED)
                    continue
                self._pause(
                    run,
                    "data for MLflow cannot be read from the run directory, or their state cannot be "
                    f"written to it ({error})",
                )
                return
        if runs:
            self._look_for_older(runs[0])
        self._send_older()

    def _advance(self, run: PendingRun) -> None:
        if not run.begun:
            order.write(run.directory, run.order)  # first, so that the run is on the list whatever happens next
            run.begun = True
        server = self._store(run.uri)
        if not run.order.run_id:
            opened = publish.open_run(server, run.order, run.directory, run.record)
            run.order = opened
            order.write(run.directory, opened)
            self._answers(run)
        rows = self._take(run)
        if rows:
            try:
                server.log(run.order.run_id, rows=rows)
                publish.log_evaluation(server, run.order, rows)
            except HopsmlError:
                run.lost = True
                raise
            self._answers(run)
        if run.ended:
            done, notes = publish.complete_run(server, run.order, run.directory, history=run.lost)
            order.write(run.directory, done)
            self._answers(run)
            for note in notes:
                self._note(run, note)
            self._forget(run, order.SENT)

    def _take(self, run: PendingRun) -> list[Row]:
        with self.changed:
            rows = list(run.rows)
            run.rows.clear()
        return rows

    def _store(self, uri: str) -> Store:
        if uri not in self._stores:
            self._stores[uri] = self._open(uri)
        return self._stores[uri]

    # ------------------------------------------------------------------------------------------ failures

    def _pause(self, run: PendingRun, why: str) -> None:
        self._failures += 1
        self._not_before = self._clock() + pause_s(self._failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        if not run.noted:
            run.noted = True
            self._note(run, why)

    def _answers(self, run: PendingRun) -> None:
        """Reset the outage state, since the server has accepted data of the run."""
        self._failures = 0
        if run.noted:
            run.noted = False
            self._note(run, "MLflow answers again; the missing data of this run are sent at the end of the run")

    def _give_up(self, run: PendingRun, error: HopsmlError) -> None:
        remedy = f"after the cause is repaired, run: hopsml runs sync {run.directory.run_id}"
        self._note(run, f"no more data of this run are sent to MLflow: {error}; {remedy}")
        try:
            order.write(run.directory, replace(run.order, state=order.REFUSED, note=str(error)))
        except HopsmlError as problem:
            self._note(run, f"this state could not be written to the run directory: {problem}")
        self._forget(run, order.REFUSED)

    def _look_for_older(self, run: PendingRun) -> None:
        """Find, once per project, its runs that an earlier sender could not send."""
        project = order.run_project_url(run.directory.url)
        if project in self._looked or not run.begun or not run.order.run_id:
            return
        self._looked.add(project)
        try:
            self._older.extend(
                (url, run) for url in order.list_unsent_runs(project) if url not in self.runs and _is_own(url)
            )
        except HopsmlError as error:
            self._note(run, f"it is unknown whether MLflow lacks older runs: {error}")

    def _send_older(self) -> None:
        """Send runs of earlier senders; one whose server is unreachable is retried later, after the others."""
        while self._older and self.close_at is None and self._older_outage.may_try(self._clock()):
            url, run = self._older[0]
            try:
                send_recorded(RunDir(url), self._store, run.uri)
            except MlflowUnreachable:
                self._older.rotate(-1)
                self._older_outage.record_failure(self._clock())
                continue
            except HopsmlError as error:
                self._note(run, f"{url}, which MLflow lacks, was not sent either: {error}")
            self._older_outage.record_success()
            self._older.popleft()

    def _note(self, run: PendingRun, text: str) -> None:
        self._emit({"event": "note", "run": run.directory.url, "text": text})

    def _forget(self, run: PendingRun, state: str) -> None:
        with self.changed:
            self.runs.pop(run.directory.url, None)
        self._emit({"event": "ended", "run": run.directory.url, "state": state})


def send_recorded(
    directory: RunDir, open_store: Open, current_uri: str, *, refused_too: bool = False
) -> tuple[str, list[str]]:
    """Send a run that has ended from its directory.

    The returned state is "running", "none" (the run is not listed, or was deleted), "sent" or "refused".

    Args:
        directory: the run directory.
        open_store: returns the client for a tracking URI.
        current_uri: the configured tracking URI; "" for none.
        refused_too: retry a run that the server has refused before.

    Returns:
        The state, and messages for the user.

    Raises:
        MlflowAway: the server cannot be reached.
        StorageError: the run directory cannot be read or written.
    """
    wanted = order.read(directory)
    if wanted is None:
        order.remove_from_unsent(directory)
        return "none", []
    if wanted.state == order.SENT:
        order.remove_from_unsent(directory)
        return order.SENT, []
    if wanted.state == order.REFUSED and not refused_too:
        return order.REFUSED, [wanted.note]
    if not order.is_recorded_by_this_user(directory):
        trust.confine_project(
            order.run_project_url(directory.url)
        )  # foreign records may be links to files of this user
    try:
        if catalog.read(directory, brief=True).state == catalog.RUNNING:
            return "running", []
    except PathNotFound:
        order.remove_from_unsent(directory)
        return "none", []
    usable = order.with_trusted_uri(directory, wanted, current_uri)
    try:
        done, notes = publish.complete_run(open_store(usable.tracking_uri), usable, directory, history=True)
    except MlflowRefused as error:
        order.write(directory, replace(wanted, state=order.REFUSED, note=str(error)))
        return order.REFUSED, [str(error)]
    order.write(directory, done)
    return order.SENT, notes


# ---------------------------------------------------------------------------------------------- the process


def main(arguments: list[str]) -> None:
    """Run the sender process.

    Args:
        arguments: timeout of one call in seconds; a file descriptor that becomes readable when the driver has exited
            (-1: none).
    """
    timeout_s, parent = float(arguments[0]), int(arguments[1])
    store.limit_request_time(timeout_s)
    try:
        os.nice(5)  # lower priority than the driver
    except OSError:
        pass
    output, lock = os.fdopen(os.dup(1), "w", encoding="utf-8"), threading.Lock()
    os.dup2(2, 1)  # output of libraries must not mix with the messages

    def emit(event: Mapping[str, Any]) -> None:
        with lock:
            try:
                print(json.dumps(event), file=output, flush=True)
            except OSError:
                pass  # the driver has exited; pending data is still sent

    sender = Sender(emit)
    threading.Thread(target=_listen, args=(sender, parent), daemon=True).start()
    sender.run()
    filesystem.close_all()
    output.flush()
    os._exit(0)  # a thread may hang in a call


def _listen(sender: Sender, parent: int) -> None:
    """Pass on the input until it ends, or the driver exits."""
    watched = [0, parent] if parent >= 0 else [0]
    rest = b""
    while True:
        readable, _, _ = select.select(watched, [], [])
        data = os.read(0, 1 << 16) if 0 in readable else b""
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            sender.apply_message(json.loads(line))
    sender.apply_message({"do": "close", "within_s": CLOSE_S})


def _is_own(url: str) -> bool:
    return order.is_recorded_by_this_user(RunDir(url))


def _is_gone(directory: RunDir) -> bool:
    try:
        return not filesystem.exists(directory.run_json)
    except HopsmlError:  # the shared storage does not respond
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
