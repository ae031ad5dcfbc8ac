"""What all configs have in common."""

from __future__ import annotations


class LagomConfig:
    """Base of what ``lagom(train_fn, config)`` takes."""

    name: str
    description: str
    hb_interval: float

    def without_effect(self) -> list[str]:
        """What was given and changes nothing, one sentence each: it is said when the experiment begins."""
        if self.hb_interval == 1:
            return []
        return [f"hb_interval={self.hb_interval!r} has no effect: what a trial reports arrives at once"]
