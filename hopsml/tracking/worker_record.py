"""The worker's part of a run's record: ``worker.json``, written by the chief before the user's function runs."""

from __future__ import annotations

import json
import logging
import socket

from hopsml.tracking import inputs, machine
from hopsml.tracking.inputs import WorkerFacts

logger = logging.getLogger(__name__)


def attach(context: WorkerFacts) -> None:
    """The hook that every worker calls: where inputs are noted, and on what the chief runs. Never fails a run."""
    inputs.attach(context)
    if context.rank != 0:
        return
    facts = {
        "host": socket.gethostname(),
        "python": machine.python(),
        "hardware": machine.hardware(),
        "environment": machine.environment(),
    }
    try:
        (context.events_dir.parent / "worker.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        logger.warning("what the worker runs on is not recorded: %s", error)
