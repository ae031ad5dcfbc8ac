"""State of a cluster that is stored in its folder: shape, ports and pids."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools.hadoop.kerberos import Security
from tools.hadoop.settings import Shape


@dataclass
class State:
    """Contents of the file ``state.json`` of a cluster."""

    jars: str
    shape: Shape
    ports: dict[str, dict[str, int]] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    security: Security | None = None  # None: without Kerberos

    @classmethod
    def read(cls, path: Path) -> State | None:
        """Return the state in the file; None if there is no file."""
        if not path.exists():
            return None
        read = json.loads(path.read_text())
        security = Security(**read["security"]) if read["security"] else None
        return cls(read["jars"], Shape(**read["shape"]), read["ports"], read["pids"], security)

    def write(self, path: Path) -> None:
        """Replace the file atomically, so that a reader sees the old state or the new one."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=1))
        fresh.replace(path)
