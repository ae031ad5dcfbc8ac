"""Maggy's ``Trial``: argument and result of users' optimizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hopsml.cluster.shared.plain import as_json
from hopsml.errors import ArgumentError
from hopsml.search.space.space import trial_id

_ABLATION = ("ablated_feature", "ablated_layer")  # parameters that determine the id of an ablation trial


@dataclass
class Trial:
    """Configuration of a trial and its outcome, as in Maggy.

    ``status``: PENDING, SCHEDULED, RUNNING, FINALIZED or ERROR. ``duration`` in milliseconds, None before the end.
    """

    params: dict[str, Any]
    trial_type: str = "optimization"
    info_dict: dict[str, Any] = field(default_factory=dict)
    status: str = "PENDING"
    early_stop: bool = False
    final_metric: float | None = None
    metric_history: list[float] = field(default_factory=list)
    step_history: list[int] = field(default_factory=list)
    metric_dict: dict[int, float] = field(default_factory=dict)
    duration: float | None = None

    PENDING, SCHEDULED, RUNNING = "PENDING", "SCHEDULED", "RUNNING"
    FINALIZED, ERROR = "FINALIZED", "ERROR"

    @property
    def trial_id(self) -> str:
        """First 16 hex digits of the MD5 of the parameters as JSON with sorted keys."""
        if self.trial_type == "ablation":
            return trial_id({name: self.params.get(name) for name in _ABLATION})
        return trial_id(self.params)

    def get_early_stop(self) -> bool:
        """Return True if the trial was stopped early, or is marked to be stopped."""
        return self.early_stop

    def set_early_stop(self) -> None:
        """Mark the trial to be stopped early."""
        self.early_stop = True

    def append_metric(self, metric_data: Mapping[str, Any]) -> int | None:
        """Record ``{"step": ..., "value": ...}``; returns the step if it is a new one with a value, else None."""
        step, value = metric_data["step"], metric_data["value"]
        if value is None or step in self.metric_dict:
            return None
        self.metric_dict[step] = value
        self.metric_history.append(value)
        self.step_history.append(step)
        return int(step)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dict with Maggy's names."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {"__class__": "Trial", "trial_id": self.trial_id, **values}

    def to_json(self) -> str:
        """Return all fields as JSON with Maggy's names."""
        return json.dumps(as_json(self.to_dict()))

    @classmethod
    def from_json(cls, json_str: str) -> Trial:
        """Return the trial that ``to_json`` has written. Raises ArgumentError (a ValueError) for anything else."""
        found = json.loads(json_str)
        if (
            not isinstance(found, dict)
            or found.get("__class__") != "Trial"
            or not isinstance(found.get("params"), dict)
        ):
            raise ArgumentError(f"{json_str:.80} is not a Trial; Trial.to_json() writes one")
        known = {one.name for one in fields(cls)}
        trial = cls(**{name: value for name, value in found.items() if name in known and value is not None})
        trial.metric_dict = dict(zip(trial.step_history, trial.metric_history, strict=False))  # JSON's keys are text
        return trial

    @classmethod
    def _generate_id(cls, params: Mapping[str, Any]) -> str:
        if not isinstance(params, dict):
            raise ArgumentError("Hyperparameters need to be a dictionary.")
        if not all(isinstance(name, str) for name in params):
            raise ArgumentError("All hyperparameter names have to be strings.")
        return trial_id(params)
