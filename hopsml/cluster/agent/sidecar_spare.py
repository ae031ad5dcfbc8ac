"""A process for the next run's sidecar: it has its imports behind it, half a second of a core, when a run wants one."""

from __future__ import annotations

import contextlib
import subprocess

from hopsml.storage import python_child


class SidecarSpare:
    """At most one process that waits for its seat; an agent whose run had a sidecar keeps one for the next such run."""

    def __init__(self) -> None:
        self._target = ""
        self._process: subprocess.Popen[bytes] | None = None

    def take(self, target: str) -> subprocess.Popen[bytes]:
        """A process for this function, the one that waits or another. Raises OSError where none can be started.

        Call it, and ``prepare``, from the thread that lives as long as the agent: its end is the process's signal.
        """
        process, self._process = self._process, None
        if process is not None and self._target == target and process.poll() is None:
            return process
        _end(process)
        return _started(target)

    def prepare(self, target: str) -> None:
        """Have one that waits; where none can be started, the run that wants it will say so."""
        self.close()
        with contextlib.suppress(OSError):
            self._target, self._process = target, _started(target)

    def close(self) -> None:
        """End the one that waits."""
        process, self._process = self._process, None
        _end(process)


def _started(target: str) -> subprocess.Popen[bytes]:
    module, _, _ = target.partition(":")
    return python_child.start("hopsml.cluster.worker.sidecar", module, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
