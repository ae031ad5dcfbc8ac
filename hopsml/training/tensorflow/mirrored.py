"""Training on all GPUs of one executor in one process: the devices of such a run, and its strategy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hopsml.cluster.worker import collective_stats
from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError
from hopsml.training.tensorflow.import_hook import after_import


def is_mirrored_run(context: WorkerContext | None) -> bool:
    """Return True if the context belongs to a worker of a ``mirrored`` run."""
    return context is not None and context.spec.body == BODY


def run(function: Callable[..., Any], arguments: dict[str, Any], context: WorkerContext) -> Any:
    """Call the function after arranging what happens when TensorFlow is imported.

    The CPU is divided into devices if the run requests logical devices and has no GPUs. A strategy for several workers
    is reported by a note of the run: the predecessor's ``mirrored`` started a worker on each executor.
    """
    after_import("tensorflow", lambda module: _report_several_workers(module, context))
    count = context.spec.logical_devices
    if count is not None and not context.gpu_indices:
        after_import("tensorflow", lambda module: _divide_cpu(module, count))
    return function(**arguments)


BODY = f"{__name__}:{run.__name__}"


_ALONE = (
    "MultiWorkerMirroredStrategy has one worker in a run of experiment.mirrored, which trains on one executor; use "
    "experiment.collective_all_reduce(train), which trains on all of them"
)


def _report_several_workers(tf: Any, context: WorkerContext) -> None:
    """Publish a note of the run when the function builds a strategy for several workers."""
    kind = tf.distribute.MultiWorkerMirroredStrategy
    build = kind.__init__

    @functools.wraps(build)
    def build_and_report(self: Any, *args: Any, **kwds: Any) -> None:
        context.note(_ALONE)
        build(self, *args, **kwds)

    kind.__init__ = build_and_report


def _divide_cpu(tf: Any, count: int) -> None:
    """Divide the CPU into ``count`` logical devices: possible only before TensorFlow has been used."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)


def strategy(given: list[str]) -> Any:
    """Return a MirroredStrategy over the worker's GPUs, or over its logical CPU devices if it has none.

    Args:
        given: names of arguments that are settings of collectives between workers; any raises ArgumentError.

    Raises:
        ArgumentError: ``given`` is not empty, or TensorFlow was used before the CPU was divided.
    """
    import tensorflow as tf

    if given:
        raise ArgumentError(
            f"strategy({', '.join(f'{name}=...' for name in given)}) in a run of experiment.mirrored: these are settings of "
            "collectives between workers, and there is one; leave them out, or use experiment.collective_all_reduce"
        )
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    devices = [device.name for device in tf.config.list_logical_devices(kind)]
    context = current()
    asked = context.spec.logical_devices if context is not None else None
    if kind == "CPU" and asked is not None and len(devices) != asked:
        raise ArgumentError(
            f"logical_devices={asked}, but TensorFlow has {len(devices)} CPU device(s): TensorFlow was initialized "
            "before the logical devices could be created; do not call TensorFlow in modules that are imported with "
            "the function"
        )
    collective_stats.record_group("MirroredStrategy", len(devices))
    return tf.distribute.MirroredStrategy(devices)
