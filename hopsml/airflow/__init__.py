"""Airflow integration of hopsml: operators, sensors and triggers.

    from hopsml.airflow import HopsMLOperator, HopsMLRunSensor

The classes are imported on first use, because Airflow is installed only in its own environment. ``jobs``,
``local_jobs`` and ``yarn_jobs`` do not import Airflow.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from hopsml import Refusals
from hopsml.core import extras

__all__ = [
    "HopsMLJobTrigger",
    "HopsMLOperator",
    "HopsMLRunSensor",
    "HopsMLRunTrigger",
    "HopsworksJobSuccessSensor",
    "HopsworksLaunchOperator",
]

_WHERE = {
    "HopsMLOperator": "operators",
    "HopsMLRunSensor": "sensors",
    "HopsMLJobTrigger": "triggers",
    "HopsMLRunTrigger": "triggers",
    "HopsworksLaunchOperator": "hopsworks",
    "HopsworksJobSuccessSensor": "hopsworks",
}

if TYPE_CHECKING:
    from hopsml.airflow.hopsworks import HopsworksJobSuccessSensor, HopsworksLaunchOperator
    from hopsml.airflow.operators import HopsMLOperator
    from hopsml.airflow.sensors import HopsMLRunSensor
    from hopsml.airflow.triggers import HopsMLJobTrigger, HopsMLRunTrigger


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'hopsml.airflow' has no attribute '{name}'; it has: {', '.join(__all__)}")
    try:
        return getattr(importlib.import_module(f"hopsml.airflow.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "airflow":
            raise
        raise AttributeError(_refusal(name)) from error


def _refusal(name: str) -> str:
    """Return why ``name`` cannot be imported in this Python; an empty string if it is not one of ``_WHERE``."""
    if name not in _WHERE:
        return ""
    return (
        f"hopsml.airflow.{name} needs Airflow 3.3, which is not installed in this Python ({sys.executable}); use the "
        f"environment of Airflow, and run there: {extras.install_command('airflow')}"
    )


Refusals.add(__name__, _refusal)
