"""Functions by which training scripts query the cluster, under the predecessor's names."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from hopsml.cluster.worker import context
from hopsml.core import refused_names, settings
from hopsml.errors import ArgumentError, ArgumentTypeError

__all__ = [
    "grid_params",
    "num_executors",
    "num_param_servers",
]

__path__: list[str] = []  # so that an import of a missing name reports what to use instead
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([0-9]+)\s*,.*\]")


def num_executors(spark: object = None) -> int:
    """Return the number of executors that the application may use.

    In a worker it is the world size, on the driver Spark's limit: ``spark.dynamicAllocation.maxExecutors``, else
    ``spark.executor.instances``, else the number of present executors; it is 1 without Spark. ``spark`` is accepted for
    old code and not used.
    """
    worker = context.current()
    if worker is not None:
        return worker.world_size
    pyspark = sys.modules.get("pyspark")  # Spark can be active only if pyspark is imported
    active = pyspark.SparkContext._active_spark_context if pyspark is not None else None
    if active is None:
        return 1
    limit = executor_limit(dict(active.getConf().getAll()), str(active.master))
    if limit is not None:
        return limit
    with_driver: int = active._jsc.sc().getExecutorMemoryStatus().size()
    return max(1, with_driver - 1)


def executor_limit(conf: Mapping[str, str], master: str) -> int | None:
    """Return the number of executors that Spark's settings allow; None if they leave it to the cluster."""
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        limit = conf.get("spark.dynamicAllocation.maxExecutors")
    else:
        local_cluster = _LOCAL_CLUSTER.fullmatch(master)
        limit = conf.get("spark.executor.instances") or (local_cluster.group(1) if local_cluster else None)
    return None if limit is None else int(limit)


def num_param_servers(spark: object = None) -> int:
    """Return the value of NUM_TF_PS, 0 without it; ``spark`` is accepted for old code and not used.

    Raises:
        ArgumentError: the variable is not a number of parameter servers.
    """
    return settings.num_parameter_servers() or 0


def grid_params(*arguments: Any) -> dict[str, list[Any]]:
    """Return every combination of the given values, as equally long lists that ``experiment.launch`` accepts.

    {'a': [1, 2], 'b': [3]} becomes {'a': [1, 2], 'b': [3, 3]}.

    Args:
        *arguments: a dict of lists; old code passes its SparkSession before it, which is not used.

    Raises:
        ArgumentTypeError: something else was given.
        ArgumentError: a list is empty.
    """
    if not 1 <= len(arguments) <= 2 or not isinstance(arguments[-1], Mapping):
        given = ", ".join(type(argument).__name__ for argument in arguments) or "nothing"
        raise ArgumentTypeError(f"grid_params takes one dict of lists, not {given}")
    values = {name: _listed(name, choices) for name, choices in arguments[-1].items()}
    rows = itertools.product(*values.values())
    return dict(zip(values, map(list, zip(*rows, strict=True)), strict=True))


def _listed(name: str, choices: object) -> list[Any]:
    """Return the values of one argument. Raises an error if they are no list, or an empty one."""
    if isinstance(choices, str | bytes | Mapping) or not isinstance(choices, Iterable):
        raise ArgumentTypeError(f"grid_params: {name!r} is {choices!r}; it must be a list of values")
    listed = list(choices)
    if not listed:
        raise ArgumentError(f"grid_params: {name!r} has no values; at least one is needed")
    return listed


def __getattr__(name: str) -> object:
    raise refused_names.missing_attribute_error(__name__, name, ("grid_params", "num_executors", "num_param_servers"))


def __dir__() -> list[str]:
    return list(__all__)
