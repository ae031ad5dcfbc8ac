"""Memory of control groups: the limit, which replaces the host's size if set, and the processes killed by the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT, PROC = Path("/sys/fs/cgroup"), Path("/proc")
_NO_LIMIT = 1 << 60  # version 1 expresses "no limit" by a number near 2**63


@dataclass(frozen=True)
class MemoryFiles:
    """Memory accounting of a control group: the file with its usage, and its limit in bytes."""

    usage: Path
    limit_bytes: int

    def usage_bytes(self) -> int | None:
        """Return the memory in use, in bytes; None if the file cannot be read any more."""
        try:
            return int(self.usage.read_text())
        except (OSError, ValueError):
            return None


class OomWatch:
    """Detector of an out-of-memory kill of one process by the kernel.

    The kernel counts its victims per control group, whichever limit was reached: the group's, a parent's or the machine's.
    """

    def __init__(self, pid: int, root: Path = ROOT, proc: Path = PROC) -> None:
        """Read the present counter for process ``pid``, which is still running."""
        self._file = next((file for file in _event_files(pid, root, proc) if _oom_kills(file) is not None), None)
        self._before = _oom_kills(self._file)
        self._memory = memory_of(pid, root, proc)

    def explain(self) -> str:
        """Return what is known about the sender of the SIGKILL that has ended the process, with the source."""
        now = _oom_kills(self._file)
        if now is None or self._before is None:
            return (
                "hopsml did not send it; no memory.events of a control group can be read, which would show if the kernel "
                "did, for lack of memory"
            )
        if now > self._before:
            limit = f"; the limit of its memory is {self._memory.limit_bytes >> 20} MB" if self._memory else ""
            rise = f"oom_kill in {self._file} went from {self._before} to {now}"
            return f"the kernel sent it for lack of memory: {rise}{limit}"
        return (
            f"hopsml did not send it, nor the kernel for lack of memory, as oom_kill in {self._file} is still {now}: look "
            "for a resource manager, another user or a script that ends processes on this host"
        )


def _oom_kills(file: Path | None) -> int | None:
    """Return the counter ``oom_kill`` of a memory.events file; None if it has none, or cannot be read."""
    try:
        lines = file.read_text().splitlines() if file is not None else []
    except OSError:
        return None
    return next((int(value) for name, _, value in (line.partition(" ") for line in lines) if name == "oom_kill"), None)


def _event_files(pid: int, root: Path, proc: Path) -> Iterator[Path]:
    """Yield the files that count out-of-memory kills, the process's own group first."""
    for usage, _ in _candidates(_groups(pid, proc), root):
        yield usage.with_name("memory.events" if usage.name == "memory.current" else "memory.oom_control")


def _groups(pid: int, proc: Path) -> list[str]:
    """Return the lines of the process's cgroup file; none if it cannot be read."""
    try:
        return (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return []


def memory_of(pid: int, root: Path = ROOT, proc: Path = PROC) -> MemoryFiles | None:
    """Return the process's control group, or the nearest above it, that has a memory limit; None if none has."""
    for usage, limit in _candidates(_groups(pid, proc), root):
        try:
            text = limit.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _NO_LIMIT and usage.is_file():
            return MemoryFiles(usage, int(text))
    return None


def _candidates(lines: list[str], root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the files of usage and limit, the process's own group first.

    Inside a container that group appears as the root.
    """
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers not in ("", "memory"):
            continue
        base = root if controllers == "" else root / "memory"
        names = (
            ("memory.current", "memory.max")
            if controllers == ""
            else ("memory.usage_in_bytes", "memory.limit_in_bytes")
        )
        inner = base / path.strip("/")
        for folder in (inner, *inner.parents):
            yield folder / names[0], folder / names[1]
            if folder == base:
                break
