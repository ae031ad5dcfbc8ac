"""Hosts that fail often are set aside for a while, and for twice as long each time again; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.storage.backoff import pause_s


@dataclass
class Exclusions:
    """Counts failures by host. ``limit`` of them exclude it for ``cooldown_s`` seconds, the next one for twice that."""

    limit: int
    cooldown_s: float
    failures: dict[str, int] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)

    def failed(self, host: str, now: float) -> float | None:
        """Count a failure of the host; returns for how many seconds it is excluded now, None if it is not."""
        count = self.failures[host] = self.failures.get(host, 0) + 1
        if count < self.limit:
            return None
        length = pause_s(count - self.limit + 1, self.cooldown_s)
        self.until[host] = now + length
        return length

    def excluded(self, host: str, now: float) -> bool:
        """Whether the host is excluded at the time ``now``."""
        return now < self.until.get(host, now)
