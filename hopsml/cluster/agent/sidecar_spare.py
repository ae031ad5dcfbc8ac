"""Pre-started process for the next run's sidecar, which has finished its imports (half a second of CPU time)."""

from __future__ import annotations

import contextlib
import subprocess

from hopsml.storage import python_child


class SidecarSpare:
    """Holder of at most one pre-started sidecar process, for the next run that needs one."""

    def __init__(self) -> None:
        self._target = ""
        self._process: subprocess.Popen[bytes] | None = None

    def process_for(self, target: str) -> subprocess.Popen[bytes]:
        """Return a process for this function, the pre-started one or a new one.

        Call it, and ``prepare``, from the thread that lives as long as the agent: the process is killed when that
        thread ends.

        Raises:
            OSError: if none can be started.
        """
        process, self._process = self._process, None
        if process is not None and self._target == target and process.poll() is None:
            return process
        _end(process)
        return _started(target)

    def prepare(self, target: str) -> None:
        """Start a spare process; an error is ignored here, and reported by the run that needs the process."""
        self.close()
        with contextlib.suppress(OSError):
            self._target, self._process = target, _started(target)

    def close(self) -> None:
        """End the spare process, if there is one."""
        process, self._process = self._process, None
        _end(process)


def _started(target: str) -> subprocess.Popen[bytes]:
    module, _, _ = target.partition(":")
    return python_child.start("hopsml.cluster.worker.sidecar", module, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """Kill a process and close its pipes."""
    if process is None:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
