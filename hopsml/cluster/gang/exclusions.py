"""Exclusion of hosts that fail often, for a time that doubles with each further failure; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.storage.backoff import pause_s


@dataclass
class Exclusions:
    """Failure counts by host: ``limit`` of them exclude a host for ``cooldown_s`` seconds, the next for twice that."""

    limit: int
    cooldown_s: float
    failures: dict[str, int] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)

    def failed(self, host: str, now: float) -> float | None:
        """Count a failure of the host and return for how many seconds it is excluded now; None if it is not."""
        count = self.failures[host] = self.failures.get(host, 0) + 1
        if count < self.limit:
            return None
        length = pause_s(count - self.limit + 1, self.cooldown_s)
        self.until[host] = now + length
        return length

    def excluded(self, host: str, now: float) -> bool:
        """Return True if the host is excluded at the time ``now``."""
        return now < self.until.get(host, now)
