"""Whether agents will be on the driver's machine, and which variables their Python has there that ours lacks; pure."""

from __future__ import annotations

from collections.abc import Mapping

_EXECUTOR_ENV = "spark.executorEnv."


def agents_variables(master: str, settings: Mapping[str, str]) -> dict[str, str] | None:
    """None for agents that may be elsewhere. ``master``: Spark's, or "none" for agents that are our own subprocesses."""
    if master == "none":
        return {"PYTHONHASHSEED": "0"}
    if not master.startswith("local"):
        return None
    # What Spark sets for the Python of its executors unless it is told otherwise.
    usual = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": settings.get("spark.task.cpus", "1")}
    named = {
        name.removeprefix(_EXECUTOR_ENV): value for name, value in settings.items() if name.startswith(_EXECUTOR_ENV)
    }
    return {**usual, **named}
