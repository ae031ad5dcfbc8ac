"""What a cluster's folder remembers between processes: its shape, ports and pids."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools.hadoop.settings import Shape


@dataclass
class State:
    """What ``state.json`` holds."""

    jars: str
    shape: Shape
    ports: dict[str, dict[str, int]] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> State | None:
        """The state in the file; None when there is no file."""
        if not path.exists():
            return None
        read = json.loads(path.read_text())
        return cls(read["jars"], Shape(**read["shape"]), read["ports"], read["pids"])

    def write(self, path: Path) -> None:
        """Replace the file at once: a reader sees the old state or the new one."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=1))
        fresh.replace(path)
