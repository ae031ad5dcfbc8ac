"""Keys of a job's description, and which of the predecessor's have no effect here; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KNOWN = ("appPath", "args", "appName", "profile")
_REASONS = {
    "distributionStrategy": "the script says which verb trains, for instance experiment.collective_all_reduce",
    "experimentType": "the script says which verb trains",
    "amMemory": "give spark.driver.memory",
    "amVCores": "give spark.driver.cores",
}


def without_effect(description: Mapping[str, Any], job_name: str) -> list[str]:
    """A sentence for each key of a job's description that is ignored here."""
    strange = [
        key
        for key in description
        if key not in _KNOWN and (not key.startswith("spark.") or key.startswith("spark.tensorflow."))
    ]
    return [
        f"job {job_name!r}: {key}={description[key]!r:.80} has no effect: "
        + _REASONS.get(key, "it is not one of hopsml's keys")
        for key in strange
    ]
