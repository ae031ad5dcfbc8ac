"""What a container may use, by its control group: where there is one with a limit, that counts, not the host's memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT, PROC = Path("/sys/fs/cgroup"), Path("/proc")
_NO_LIMIT = 1 << 60  # version 1 says "none" by a number near 2**63


@dataclass(frozen=True)
class MemoryFiles:
    """Where the kernel says how much memory a control group uses, in bytes; and its limit, which is one."""

    usage: Path
    limit_bytes: int

    def usage_bytes(self) -> int | None:
        """How much is in use now; None where it cannot be read any more."""
        try:
            return int(self.usage.read_text())
        except (OSError, ValueError):
            return None


def memory_of(pid: int, root: Path = ROOT, proc: Path = PROC) -> MemoryFiles | None:
    """The nearest control group of a process, or above it, whose memory has a limit; None where none has."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for usage, limit in _candidates(lines, root):
        try:
            text = limit.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _NO_LIMIT and usage.is_file():
            return MemoryFiles(usage, int(text))
    return None


def _candidates(lines: list[str], root: Path) -> Iterator[tuple[Path, Path]]:
    """Files of usage and of limit, the process's own group first; seen from within a container its group is the root."""
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
