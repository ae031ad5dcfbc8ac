"""Maggy's ``Trial``: what own optimizers give and are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hopsml.search.trial import trial_id


@dataclass
class Trial:
    """A configuration and what came of it. ``status``: PENDING, RUNNING, FINALIZED or ERROR."""

    params: dict[str, Any]
    trial_type: str = "optimization"
    info_dict: dict[str, Any] = field(default_factory=dict)
    status: str = "PENDING"
    early_stop: bool = False
    final_metric: float | None = None
    metric_history: list[float] = field(default_factory=list)
    step_history: list[int] = field(default_factory=list)

    PENDING, RUNNING, FINALIZED, ERROR = "PENDING", "RUNNING", "FINALIZED", "ERROR"

    @property
    def trial_id(self) -> str:
        """The first 16 hex digits of the MD5 of the parameters as JSON with sorted keys."""
        return trial_id(self.params)

    def get_early_stop(self) -> bool:
        """Whether it was stopped."""
        return self.early_stop

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return {
            "id": self.trial_id,
            "params": dict(self.params),
            "status": self.status,
            "final_metric": self.final_metric,
        }

    @classmethod
    def _generate_id(cls, params: Mapping[str, Any]) -> str:
        return trial_id(params)
