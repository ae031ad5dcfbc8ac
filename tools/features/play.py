"""Execution of a framework's cases in a worker, so that all ranks continue together if a case raises on any of them."""

from __future__ import annotations

import importlib
import time
import traceback
from typing import Any

import hopsml
from hopsml.errors import CollectiveMismatch
from tools.features.table import Feature


def play(module: str, names: list[str]) -> dict[str, Any]:
    """Run cases one after another, and return the outcomes of all ranks: for each case the fields of an ``Outcome`` by rank.

    Args:
        module: dotted name of the framework's module.
        names: names of the cases, in the order in which they are run.
    """
    framework = importlib.import_module(module)
    framework.begin()
    features: dict[str, Feature] = {feature.name: feature for feature in framework.FEATURES}
    return {"outcomes": {name: _of_all_ranks(_outcome(features[name])) for name in names}}


def _outcome(feature: Feature) -> dict[str, Any]:
    """Run a case; return the fields of an ``Outcome``, as a worker that received the class by value has another one."""
    print(f"{time.strftime('%X')} {feature.name}", flush=True)
    try:
        return {"values": feature.run()}
    except Exception as error:  # noqa: BLE001 a case raises anything
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _of_all_ranks(own: dict[str, Any]) -> list[dict[str, Any]]:
    """Gather the outcomes of all ranks; other ranks that still wait in the case of a failed rank fail with it."""
    try:
        return hopsml.distributed.exchange(own)
    except CollectiveMismatch as error:
        return hopsml.distributed.exchange(own if "error" in own else {"error": f"{type(error).__name__}: {error}"})
