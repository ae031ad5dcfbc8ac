"""Job that reports which collectives a strategy selects, given this process's devices and libraries."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from pathlib import Path
from typing import Any

from hopsml.cluster.worker.context import CollectiveSeat, current
from hopsml.training.tensorflow.distribution import collective_ops
from hopsml.training.tensorflow.distribution.strategy import choose_collectives


def by_devices() -> dict[str, Any]:
    """Report the selection of one process as one of two."""
    import tensorflow as tf

    alone = current()
    assert alone is not None
    seat = CollectiveSeat(("127.0.0.1:1", "127.0.0.1:2"), b"0123456789abcdef")
    context = dataclasses.replace(alone, world_size=2, collective=seat)
    found: dict[str, Any] = {"version": tf.__version__, "CPUs": choose_collectives(context, "auto", [])}
    devices = tf.config.get_visible_devices
    tf.config.get_visible_devices = lambda kind: ["GPU:0"]
    found["GPUs"] = choose_collectives(context, "auto", [])
    tf.config.get_visible_devices = devices
    collective_ops.LIBRARIES = Path("nowhere")
    collective_ops._loaded.cache_clear()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        found["no library"] = choose_collectives(context, "auto", [])
    found["printed"] = printed.getvalue().splitlines()
    return found
