"""Profiles of a running worker by py-spy, which samples the process from outside."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hopsml.cluster.agent.local_tree import LocalTree
from hopsml.cluster.shared.protocol import TakeProfile
from hopsml.core import extras, processes
from hopsml.errors import StorageError
from hopsml.storage import python_child
from hopsml.storage.filesystem import for_url

RATE_HZ = 100
END_S = 30.0  # seconds for py-spy to start, and to write its result
STORE_S = 20.0  # seconds until the profile must be on shared storage
MOST_BYTES = 64 << 20  # largest size of a profile
_REFUSED = ("permission denied", "operation not permitted", "os error 1)", "os error 13)")


class Profiler:
    """Profiler of one worker that takes one profile at a time."""

    def __init__(self, tree: LocalTree, folder: Path) -> None:
        """Create the profiler; nothing is started yet.

        Args:
            tree: local tree of the run directory, in which profiles are stored.
            folder: scratch folder for incomplete profiles.
        """
        self._tree, self._folder = tree, folder
        self._task: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start_profile(self, pid: int, wish: TakeProfile, said: Callable[[str], None]) -> None:
        """Start profiling a worker.

        Args:
            pid: the worker's process.
            wish: the request.
            said: called with the error text, or "" once the profile is stored.
        """
        if self._task is not None and not self._task.done():
            said("another profile of the worker is being taken; repeat the request when it has ended")
        elif problem := _hindrance(pid):
            said(problem)
        else:
            self._task = asyncio.create_task(self._take(pid, wish, said))

    def kill(self) -> None:
        """Kill py-spy, as the worker has exited."""
        if self._process is not None:
            self._process.kill()

    async def _take(self, pid: int, wish: TakeProfile, said: Callable[[str], None]) -> None:
        """Take a profile and report the outcome."""
        try:
            said(await self._profile(pid, wish))
        except (OSError, StorageError) as error:
            said(f"the profile could not be taken: {error}")

    async def _profile(self, pid: int, wish: TakeProfile) -> str:
        """Run py-spy and store its result; return the error text, or ""."""
        program = _program()
        if program is None:
            return f"py-spy is not installed on {os.uname().nodename}: {extras.install_command('profiling')}"
        result = self._folder / f"profile-{wish.wish}"
        idle = ["--idle"] if wish.idle else []
        order = ["record", "--pid", str(pid), "--duration", str(wish.seconds), "--rate", str(RATE_HZ), *idle]
        # The process ends with this thread, which lives as long as the agent.
        self._process = python_child.start(
            "hopsml.core.processes", str(os.getpid()), program, *order, "--subprocesses", "--format", wish.form,
            "--output", str(result), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            said = await asyncio.to_thread(_finish, self._process, wish.seconds + END_S)
            if said is None:
                return f"py-spy did not end within {wish.seconds + END_S:g} s, and was killed"
            if self._process.returncode or not result.exists():
                return explain_failure(said, self._process.returncode, processes.has_ended(pid), _scope())
            return await self._keep(result, wish.path)
        finally:
            result.unlink(missing_ok=True)

    async def _keep(self, result: Path, path: str) -> str:
        """Store the profile in the run directory; return the error text, or ""."""
        if result.stat().st_size > MOST_BYTES:
            return (
                f"the profile has {result.stat().st_size >> 20} MiB, more than the {MOST_BYTES >> 20} MiB that "
                "can be stored; profile fewer seconds"
            )
        target = f"{self._tree.base_text.rstrip('/')}/{path}"
        await asyncio.to_thread(for_url(target).upload, result, target)
        if not await self._tree.wait_until_stored(target, STORE_S):
            return (
                f"the profile is only on the disk of this host; it is copied to {path} when the store is "
                "available again"
            )
        return ""


def _hindrance(pid: int) -> str:
    """Return the reason why a worker cannot be profiled now, or ""."""
    if not pid or processes.has_ended(pid):
        return "the worker has not started, or has ended"
    if processes.is_stopped(pid):
        return f"process {pid} of the worker is stopped (SIGSTOP), so it cannot be profiled; resume it with SIGCONT"
    return ""


def explain_failure(said: str, status: int, has_ended: bool, scope: str) -> str:
    """Return why py-spy has failed, and a remedy.

    Args:
        said: py-spy's standard error.
        status: its exit status.
        has_ended: True if the worker has exited.
        scope: value of ``kernel.yama.ptrace_scope``; "" without Yama.
    """
    if any(word in said.lower() for word in _REFUSED):
        setting = f"kernel.yama.ptrace_scope is {scope} there" if scope else "in a container CAP_SYS_PTRACE is required"
        return (
            f"the system does not allow py-spy to read another process ({setting}); ask an administrator to set "
            "kernel.yama.ptrace_scope to 0 or 1, or to give the container SYS_PTRACE"
        )
    if has_ended:
        return "the worker ended before it could be profiled"
    if "no stack counts found" in said.lower():
        return "no thread of the worker used a processor during the profile; add --idle to include waiting threads"
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "without a word")
    return f"py-spy has ended with status {status}: {last.strip()[:300]}"


def _finish(process: subprocess.Popen[bytes], seconds: float) -> str | None:
    """Return the process's standard error once it has ended; kill it and return None if it does not end in time."""
    with process:
        try:
            return process.communicate(timeout=seconds)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill()
            return None


def _program() -> str | None:
    """Return the path of py-spy: next to this interpreter, else on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _scope() -> str:
    """Return the value of ``kernel.yama.ptrace_scope``; "" without Yama."""
    try:
        return Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        return ""
