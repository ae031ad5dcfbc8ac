"""``LagomConfig``: the base of all configs."""

from __future__ import annotations


class LagomConfig:
    """Base of what ``lagom(train_fn, config)`` takes."""

    name: str
    description: str
    hb_interval: float

    def without_effect(self) -> list[str]:
        """A sentence for each field that was given and is ignored, shown when the experiment begins."""
        if self.hb_interval == 1:
            return []
        return [f"hb_interval={self.hb_interval!r} has no effect: what a trial reports arrives at once"]
