"""Seed of a run, one number for all that is random in it.

Every run has a seed: the value of ``environment={"HOPSML_SEED": ...}`` or of the driver's ``HOPSML_SEED``, else a
random one. It is recorded in ``run.json``, and every worker gets it as ``HOPSML_SEED``, so a rerun draws the same
numbers. hopsml itself seeds no framework: the function decides which generators it seeds, and whether ranks differ.

``PYTHONHASHSEED`` cannot be set per run: Python reads it when an interpreter starts, and workers are forked from one
that runs already. The interpreter's value is recorded (``worker.json``); Spark sets 0 for its executors, and a rerun on
local workers starts theirs with the recorded value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hopsml.errors import ArgumentError

VARIABLE = "HOPSML_SEED"
LARGEST = 2**32 - 1  # limit of numpy's and Keras's generators


def choose(given: Mapping[str, str], environment: Mapping[str, str]) -> int:
    """Return the seed of a new run: from the call's variables, else from the driver's environment, else random.

    Args:
        given: variables that the call gives to its workers.
        environment: the driver's environment.

    Raises:
        ArgumentError: a text that is not a seed.
    """
    import secrets

    text = given.get(VARIABLE) or environment.get(VARIABLE)
    return parse(text) if text else secrets.randbelow(LARGEST + 1)


def parse(text: str) -> int:
    """Return the seed in a text; raises ArgumentError unless it is an integer from 0 to ``LARGEST``."""
    if not text.isascii() or not text.isdecimal() or int(text) > LARGEST:
        raise ArgumentError(f"{VARIABLE}={text!r}: a seed is a whole number from 0 to {LARGEST}; unset it to draw one")
    return int(text)


def seed() -> int:
    """Return the run's seed, the same on every rank.

    0 in a process that is not a worker and has no ``HOPSML_SEED``.
    """
    return parse(os.environ.get(VARIABLE) or "0")
