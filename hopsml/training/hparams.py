"""A trial in TensorBoard's HParams view: configuration and metric as an event file of its own, by tensorboard's API."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopsml.search.metric import name_of


def wanted() -> bool:
    """Whether the function uses TensorFlow, which tensorboard's API would import; for another it is not worth that."""
    return "tensorflow" in sys.modules and importlib.util.find_spec("tensorboard") is not None


def write(events: Path, trial_id: str, config: Mapping[str, Any], metric: str, value: float | None, step: int) -> None:
    """Write the trial's event file for HParams; values of other types than HParams knows are written as text."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams import summary_v2 as hparams
    from tensorboard.plugins.scalar import summary_v2 as scalars
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(events), filename_suffix=".hparams")
    try:
        shown = {
            str(name): item if isinstance(item, (bool, int, float, str)) else str(item) for name, item in config.items()
        }
        writer.add_event(Event(wall_time=time.time(), summary=hparams.hparams_pb(shown, trial_id=trial_id)))
        if value is not None:
            summary = scalars.scalar_pb(name_of(metric), value)
            writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
    finally:
        writer.close()
