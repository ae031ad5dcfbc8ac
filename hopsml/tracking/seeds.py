"""One number a run for all that is random in it.

Every run has a seed: what ``environment={"HOPSML_SEED": ...}`` or the driver's ``HOPSML_SEED`` says, else a fresh one. It is
recorded in ``run.json`` and every worker finds it as ``HOPSML_SEED``, so a rerun draws the same numbers. hopsml seeds no
framework by itself: which generators a function uses, and whether ranks shall differ, is the function's to say.

``PYTHONHASHSEED`` is not the run's to give: Python reads it when an interpreter starts, and workers are forked from one that
runs already. What the interpreter has is recorded (``worker.json``); Spark gives its executors 0, and a rerun on local
workers starts theirs with what was recorded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hopsml.errors import ArgumentError

VARIABLE = "HOPSML_SEED"
LARGEST = 2**32 - 1  # what numpy's and Keras's generators take


def choose(given: Mapping[str, str], environment: Mapping[str, str]) -> int:
    """The seed of a new run, from what the call gives to its workers, else the driver's environment, else drawn.

    Raises ArgumentError for a text that is no seed.
    """
    import secrets

    text = given.get(VARIABLE) or environment.get(VARIABLE)
    return parse(text) if text else secrets.randbelow(LARGEST + 1)


def parse(text: str) -> int:
    """A seed from its text; ArgumentError unless it is a whole number from 0 to ``LARGEST``."""
    if not text.isascii() or not text.isdecimal() or int(text) > LARGEST:
        raise ArgumentError(f"{VARIABLE}={text!r}: a seed is a whole number from 0 to {LARGEST}; unset it to draw one")
    return int(text)


def seed() -> int:
    """The run's seed, the same on every rank; 0 in a process that is no worker and has no ``HOPSML_SEED``."""
    return parse(os.environ.get(VARIABLE) or "0")
