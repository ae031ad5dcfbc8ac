"""TensorBoard over a run's events, wherever they lie: a process, and for remote events a copy that is refreshed.

As a program (``python -m hopsml.notebook.tensorboard_server EVENTS``) it serves on a free port of loopback, says on its
standard output which, and ends when its standard input does: with whoever started it, however that ended.
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

from hopsml import extras
from hopsml.errors import HopsmlError, StorageError
from hopsml.storage.backoff import Outage
from hopsml.storage.run_dir import RunDir

log = logging.getLogger("hopsml.tensorboard")

REFRESH_S = 5.0
_PIECE_BYTES = 4 << 20
START_TIMEOUT_S = 120.0  # it imports TensorFlow where that is installed
_POLL_S = 0.05
# Dies with this process, also by kill -9; the same interpreter and import path, so that hopsml is found.
_START = (
    "import sys; from hopsml.cluster.shared.processes import die_with_parent; die_with_parent(int(sys.argv.pop(1))); "
    "from tensorboard.main import run_main; run_main()"
)


class Copy:
    """What a store holds of a run's events, on this machine. Raises StorageError where it cannot be read at first."""

    def __init__(self, events: str, folder: Path) -> None:
        self.folder, self._events, self._outage = folder, events, Outage(REFRESH_S)
        fetch(events, folder)

    def refresh(self) -> None:
        """Copy what has grown; a store that is away is asked again later, and that is said once."""
        if not self._outage.may_try(time.monotonic()):
            return
        try:
            fetch(self._events, self.folder)
        except StorageError as error:
            if self._outage.failed(time.monotonic()):
                log.warning("what is shown is not refreshed, which is tried again: %s", error)
        else:
            if self._outage.succeeded():
                log.warning("what is shown is refreshed again")


class Server:
    """A TensorBoard that was started; ``folder`` is for its notes, its log and the copy of remote events."""

    def __init__(self, events: str, host: str, port: int, folder: Path, quiet: bool) -> None:
        from hopsml.cluster.forking.fork_environment import own_sys_path
        from hopsml.storage import urls

        scheme, _, path = urls.split(events)
        self._folder, self._log = folder, folder / "log"
        self._copy = None if scheme in ("", "file") else Copy(events, folder / "events")
        logdir = path if self._copy is None else str(self._copy.folder)
        command = [sys.executable, "-c", _START, str(os.getpid()), "--logdir", logdir, "--host", host]
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
        """Copy what has grown, where the events are not on this machine."""
        if self._copy is not None:
            self._copy.refresh()

    def port(self, timeout_s: float = START_TIMEOUT_S) -> int:
        """Its port, once it serves. HopsmlError when it does not within the time."""
        note = self._folder / ".tensorboard-info" / f"pid-{self.process.pid}.info"
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                return int(json.loads(note.read_text())["port"])
            except (FileNotFoundError, ValueError):  # not there yet, or half written
                time.sleep(_POLL_S)
        said = self._log.read_text(errors="replace").strip()[-2000:]
        ended = self.process.poll()
        how = f"does not serve after {timeout_s:g} s" if ended is None else f"ended with exit status {ended}"
        raise HopsmlError(
            f"TensorBoard {how}; is it installed ({extras.install('notebook')})? It said: {said or 'nothing'}"
        )


@contextmanager
def running(events: str, *, host: str = "127.0.0.1", port: int = 0, quiet: bool = False) -> Iterator[Server]:
    """TensorBoard over the event files below a URL until the block is left; port 0 for any that is free."""
    with tempfile.TemporaryDirectory(prefix="hopsml-tensorboard-") as folder:
        server = Server(events, host, port, Path(folder), quiet)
        try:
            yield server
        finally:
            server.process.terminate()
            server.process.wait()


def events_of(directory: RunDir) -> str:
    """The URL below which the events of a run are: its folder for them, or all of it where it holds further runs."""
    record = directory.read_run()
    return directory.url if "search" in record or "combinations" in record else directory.events


def keep(server: Server, announcement: str) -> None:
    """Say so, and let it serve until it ends by itself or Ctrl-C comes, with the newest events."""
    try:
        print(announcement, flush=True)
        while server.process.poll() is None:
            time.sleep(REFRESH_S)
            server.refresh()
    except KeyboardInterrupt:
        pass


def fetch(events: str, folder: Path) -> int:
    """Copy the event files that have grown; returns how many. Of a whole run nothing else is copied."""
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
            _append(file.url, target)  # in place: TensorBoard keeps the file open that it has begun to read
        else:
            filesystem.for_url(file.url).download(file.url, target)
        copied += 1
    return copied


def _append(url: str, target: Path) -> None:
    """What an event file has grown by since it was copied: nothing in it ever changes."""
    from hopsml.storage import filesystem

    with target.open("ab") as copy:
        while piece := filesystem.for_url(url).read_range(url, copy.tell(), _PIECE_BYTES):
            copy.write(piece)


def main() -> None:
    """One JSON line with ``port`` or ``error``; then until the end of standard input."""
    try:
        with running(sys.argv[1], quiet=True) as server:
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
