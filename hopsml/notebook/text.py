"""A view as plain text: for front ends that show no HTML, and for who reads a notebook's file."""

from __future__ import annotations

from hopsml.notebook.html import duration
from hopsml.notebook.view import RunView
from hopsml.tracking.listing import table


def render(view: RunView) -> str:
    """Some lines, without a line break at the end."""
    name = view.title if view.title == view.run_id else f"{view.title} ({view.run_id})"
    lines = [f"{name}: {view.state}, {duration(view.seconds)}"]
    if view.stages:
        lines.append(" -> ".join(f"{stage.name} {duration(stage.seconds)}" for stage in view.stages))
    if view.waits_for:
        lines.append(f"waiting for {view.waits_for}")
    for label, pairs in (("", view.progress + view.metrics), ("result: ", view.result)):
        if pairs:
            lines.append(label + "  ".join(f"{key} {value}" for key, value in pairs))
    if view.workers:
        rows = [(row.rank, row.host, row.executor, row.gpus, row.state, row.step) for row in view.workers]
        lines += table([("rank", "host", "executor", "GPUs", "state", "step"), *rows])
    lines += [view.workers_left] if view.workers_left else []
    lines += [f"note: {note}" for note in view.notes]
    lines += [view.cause] if view.cause else []
    if view.log:
        lines += [f"{view.log_title}:", *(f"  {line}" for line in view.log)]
    return "\n".join([*lines, f"run directory: {view.run_dir}"])
