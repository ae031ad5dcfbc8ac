"""Worker part of the trace of a launch: the span from the start of its process to its first report."""

from __future__ import annotations

import dataclasses
import functools
import time

from hopsml.cluster.worker.context import WorkerContext, set_current
from hopsml.core import tracing

HOOK = "hopsml.training.trace_worker:attach"  # hook of runs whose driver traces them


def attach(context: WorkerContext) -> None:
    """Record a span of this worker that ends with its first report or progress message."""
    begin_s, parent = time.time(), tracing.given()

    @functools.cache
    def first() -> None:
        facts: dict[str, str | int] = {"rank": context.rank, "generation": context.generation, "run": context.run_id}
        tracing.record("worker's first step", tracing.child(parent), parent, begin_s, time.time(), "", **facts)

    def send(message: dict[str, object]) -> None:
        if message.get("kind") == "report":
            first()
        context.send(message)

    def progress(done: int, total: int, unit: str) -> None:
        first()
        context.progress(done, total, unit)

    set_current(dataclasses.replace(context, send=send, progress=progress))
