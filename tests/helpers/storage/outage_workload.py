"""Training function for outages of the store: its steps are printed, written as events and committed until a file exists."""

from __future__ import annotations

import time
from pathlib import Path

EVENTS = "events.out.tfevents.1"
BALLAST_BYTES = 4 << 20  # of each commit, so that storing it takes a while


def line_of(step: int) -> bytes:
    """Return what a step prints, and writes as an event."""
    return b"step %08d\n" % step


def train_until(local: str) -> dict[str, int]:
    """Train until ``stop`` exists in the local folder; return the first and the last step of this run."""
    import hopsml

    state = hopsml.elastic.State(step=0, ballast=bytes(BALLAST_BYTES))
    first, events = 0, Path(hopsml.tensorboard.logdir(), EVENTS)
    for _ in state.resume(hopsml.elastic.Sampler(1_000_000, 1)):
        state.step += 1
        first = first or state.step
        print(line_of(state.step).decode(), end="", flush=True)
        with events.open("ab") as file:
            file.write(line_of(state.step))
        hopsml.report(step=state.step)
        state.commit(every=1)
        if Path(local, "stop").exists():
            break
        time.sleep(0.1)
    return {"first": first, "last": state.step}
