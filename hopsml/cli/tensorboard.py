"""``hopsml tensorboard RUN``: TensorBoard over a run's events, wherever they lie."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REFRESH_S = 5.0


def tensorboard(run: str, port: int = 6006, host: str = "127.0.0.1") -> None:
    """Serve TensorBoard for a run until Ctrl-C; RUN is its URL, its path or its id.

    Events on remote storage are copied to a temporary folder and refreshed every few seconds while it runs.
    """
    from hopsml import settings
    from hopsml.storage import urls
    from hopsml.storage.runs import find

    events = find(run, settings.project_url()).events
    scheme, _, path = urls.split(events)
    with tempfile.TemporaryDirectory(prefix="hopsml-tensorboard-") as folder:
        copy = Path(folder, "events")
        is_local = scheme in ("", "file")
        local = path if is_local else str(copy)
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", local, "--host", host, "--port", str(port)]
        if not is_local:
            fetch(events, copy)
        process = subprocess.Popen(command, env={**os.environ, "TMPDIR": folder})  # where it leaves notes of its own
        try:
            while process.poll() is None:
                time.sleep(REFRESH_S)
                if not is_local:
                    fetch(events, copy)
        except KeyboardInterrupt:
            pass
        finally:
            process.terminate()
            process.wait()


def fetch(events: str, folder: Path) -> int:
    """Copy the event files that have grown; returns how many."""
    from hopsml.storage import filesystem, urls

    copied = 0
    for file in filesystem.walk(events):
        target = folder / urls.relative(file.url, events)
        if file.is_dir or urls.is_temporary(file.url) or (target.exists() and target.stat().st_size == file.length):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        filesystem.for_url(file.url).download(file.url, target)
        copied += 1
    return copied
