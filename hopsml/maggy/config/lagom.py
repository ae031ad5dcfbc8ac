"""Class ``LagomConfig``: base class of all configurations of ``lagom``."""

from __future__ import annotations


class LagomConfig:
    """Base class of the configurations that ``lagom(train_fn, config)`` accepts."""

    name: str
    description: str
    hb_interval: float

    def without_effect(self) -> list[str]:
        """Return a sentence for each field that was given and is ignored, shown when the experiment begins."""
        if self.hb_interval == 1:
            return []
        return [f"hb_interval={self.hb_interval!r} has no effect: what a trial reports arrives at once"]
