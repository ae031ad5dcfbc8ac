"""Plays the cases of a framework in the worker that this is, so that all ranks go on together whatever a case raises."""

from __future__ import annotations

import importlib
import time
import traceback
from typing import Any

import hopsml
from hopsml.errors import CollectiveMismatch
from tools.features.table import Feature


def play(module: str, names: list[str]) -> dict[str, Any]:
    """Run these cases one after another, and return the outcomes of all ranks: for each case the fields of an
    ``Outcome`` by rank.

    Args:
        module: the framework's, by its dotted name.
        names: of the cases, in the order in which they are to be played.
    """
    framework = importlib.import_module(module)
    framework.begin()
    features: dict[str, Feature] = {feature.name: feature for feature in framework.FEATURES}
    return {"outcomes": {name: _of_all_ranks(_outcome(features[name])) for name in names}}


def _outcome(feature: Feature) -> dict[str, Any]:
    """The fields of an ``Outcome``: the class itself may be another one in a worker, which has got it by value."""
    print(f"{time.strftime('%X')} {feature.name}", flush=True)
    try:
        return {"values": feature.run()}
    except Exception as error:  # noqa: BLE001 a case raises anything
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _of_all_ranks(own: dict[str, Any]) -> list[dict[str, Any]]:
    """A rank that failed alone comes here while others still wait in the case: their operation fails with it."""
    try:
        return hopsml.distributed.exchange(own)
    except CollectiveMismatch as error:
        return hopsml.distributed.exchange(own if "error" in own else {"error": f"{type(error).__name__}: {error}"})
