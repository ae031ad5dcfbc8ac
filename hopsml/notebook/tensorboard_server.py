"""TensorBoard process for a run's events on any store, with a local copy of remote events that is refreshed.

As a program (``python -m hopsml.notebook.tensorboard_server EVENTS``) it serves on a free port of loopback, prints the
port to its standard output, and ends when its standard input is closed, so also if its parent is killed.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hopsml.core import extras
from hopsml.errors import HopsmlError, StorageError
from hopsml.storage.backoff import Outage
from hopsml.storage.run_dir import RunDir

log = logging.getLogger("hopsml.tensorboard")

REFRESH_S = 5.0
_PIECE_BYTES = 4 << 20
START_TIMEOUT_S = 120.0  # TensorBoard imports TensorFlow if that is installed
_POLL_S = 0.05
# Ends with this process, even after kill -9; the same interpreter and import path, so that hopsml is found.
_START = (
    "import sys; from hopsml.core.processes import die_with_parent; die_with_parent(int(sys.argv.pop(1))); "
    "from tensorboard.main import run_main; run_main()"
)


class EventCopy:
    """Local copy of a run's event files. Raises StorageError if they cannot be read at first."""

    def __init__(self, events: str, folder: Path) -> None:
        self.folder, self._events, self._outage = folder, events, Outage(REFRESH_S)
        copy_grown_files(events, folder)

    def refresh(self) -> None:
        """Copy files that have grown; after a failure, try again with increasing intervals and log one warning."""
        if not self._outage.may_try(time.monotonic()):
            return
        try:
            copy_grown_files(self._events, self.folder)
        except StorageError as error:
            if self._outage.record_failure(time.monotonic()):
                log.warning("the shown events cannot be updated; retrying: %s", error)
        else:
            if self._outage.record_success():
                log.warning("the shown events are updated again")


class TensorBoardServer:
    """TensorBoard process and its folder, with its info files, its log and the copy of remote events."""

    def __init__(self, events: str, host: str, port: int, folder: Path, quiet: bool) -> None:
        from hopsml.cluster.forking.fork_server import own_sys_path
        from hopsml.storage import urls

        scheme, _, path = urls.split(events)
        self._folder, self._log = folder, folder / "log"
        self._copy = None if scheme in ("", "file") else EventCopy(events, folder / "events")
        logdir = path if self._copy is None else str(self._copy.folder)
        command = [sys.executable, "-P", "-c", _START, str(os.getpid()), "--logdir", logdir, "--host", host]
        environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(own_sys_path())}
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(port)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log if quiet else None,
                stderr=log if quiet else None,
            )

    def refresh(self) -> None:
        """Update the copy of the events, if they are remote."""
        if self._copy is not None:
            self._copy.refresh()

    def port(self, timeout_s: float = START_TIMEOUT_S) -> int:
        """Return the port once the server listens.

        Args:
            timeout_s: longest wait.

        Raises:
            HopsmlError: the process has ended, or does not listen within the timeout.
        """
        note = self._folder / ".tensorboard-info" / f"pid-{self.process.pid}.info"
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                return int(json.loads(note.read_text())["port"])
            except (FileNotFoundError, ValueError):  # absent, or incompletely written
                time.sleep(_POLL_S)
        said = self._log.read_text(errors="replace").strip()[-2000:]
        ended = self.process.poll()
        how = f"does not serve after {timeout_s:g} s" if ended is None else f"ended with exit status {ended}"
        raise HopsmlError(
            f"TensorBoard {how}; check that it is installed ({extras.install_command('notebook')}). Its output: "
            f"{said or 'nothing'}"
        )


@contextmanager
def run_tensorboard(
    events: str, *, host: str = "127.0.0.1", port: int = 0, quiet: bool = False
) -> Iterator[TensorBoardServer]:
    """Run TensorBoard for the event files below a URL while the context is active.

    Args:
        events: URL of a folder.
        host: address to listen on.
        port: port to listen on; 0: any free port.
        quiet: whether its output goes to a log file.
    """
    with tempfile.TemporaryDirectory(prefix="hopsml-tensorboard-") as folder:
        server = TensorBoardServer(events, host, port, Path(folder), quiet)
        try:
            yield server
        finally:
            server.process.terminate()
            server.process.wait()


def events_url(directory: RunDir) -> str:
    """Return the URL of a run's events: its folder of events, or the run directory if it contains further runs."""
    record = directory.read_run()
    return directory.url if "search" in record or "combinations" in record else directory.events


def serve_until_interrupt(server: TensorBoardServer, announcement: str) -> None:
    """Print the announcement, and refresh the events until the server ends or Ctrl-C is pressed."""
    try:
        print(announcement, flush=True)
        while server.process.poll() is None:
            time.sleep(REFRESH_S)
            server.refresh()
    except KeyboardInterrupt:
        pass


def copy_grown_files(events: str, folder: Path) -> int:
    """Copy the event files that have grown, and no others, and return their number.

    Args:
        events: URL of a run directory or of its folder of events.
        folder: local folder of the copies.
    """
    from hopsml.storage import filesystem, urls

    copied = 0
    for file in filesystem.walk(events):
        target = folder / urls.relative(file.url, events)
        if not events.endswith("/events") and "/events/" not in file.url:
            continue
        if file.is_dir or urls.is_temporary(file.url) or (target.exists() and target.stat().st_size == file.length):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if "tfevents" in target.name and target.exists() and target.stat().st_size < file.length:
            _append(file.url, target)  # in place: TensorBoard holds the file open
        else:
            filesystem.for_url(file.url).download(file.url, target)
        copied += 1
    return copied


def _append(url: str, target: Path) -> None:
    """Append what an event file has grown by since it was copied; its earlier content never changes."""
    from hopsml.storage import filesystem

    with target.open("ab") as copy:
        while piece := filesystem.for_url(url).read_range(url, copy.tell(), _PIECE_BYTES):
            copy.write(piece)


def main() -> None:
    """Print one JSON line with ``port`` or ``error``, and serve until standard input ends."""
    try:
        with run_tensorboard(sys.argv[1], quiet=True) as server:
            print(json.dumps({"port": server.port()}), flush=True)
            while server.process.poll() is None:
                if select.select([sys.stdin], [], [], REFRESH_S)[0] and not os.read(sys.stdin.fileno(), 4096):
                    return
                server.refresh()
    except HopsmlError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
