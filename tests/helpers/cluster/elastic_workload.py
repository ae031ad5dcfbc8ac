"""Training without a framework: files synchronise the workers, and a sum replaces the weights."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

N_SAMPLES, BATCH, EPOCHS = 203, 16, 3  # neither divides the other
PATIENT_FROM = 20  # of 39 steps


def train(
    folder: str,
    commit: int | None = 2,
    step_s: float = 0.01,
    raise_at: int = 0,
    ballast_mb: int = 0,
    slow_rank: int = -1,
    by_run: bool = False,
    patience_s: float = 0.0,
    over: str = "files",
) -> dict[str, Any]:
    """Train; no worker finishes a step before all have contributed; ``over`` files, or "hopsml"'s collective.

    Each worker writes ``pid-<rank>-<generation>`` with its pid in every generation: see ``announce_place``.
    ``ballast_mb``: makes commits large.
    ``slow_rank`` takes ten times as long for a step. ``by_run``: each run writes into a separate folder below ``folder``.
    Steps take no time once a file ``hurry`` exists in ``folder``. From ``PATIENT_FROM`` on, each may take
    ``patience_s`` until a file ``disturbed`` exists: on a slow machine too, the disturbance precedes the end.
    A worker allocates as many MB of memory as a file ``balloon-<pid>`` states.
    """
    import numpy as np

    import hopsml
    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    place = Path(folder, context.run_id) if by_run else Path(folder)
    place.mkdir(exist_ok=True)
    announce_place(place)
    state = hopsml.elastic.State(seen=[], weight=0.0, worlds=[], ballast=bytes(ballast_mb << 20))
    data = hopsml.elastic.Sampler(N_SAMPLES, BATCH, seed=3, epochs=EPOCHS)
    air: list[bytearray] = []
    for batch in state.resume(data):
        if raise_at and state.batches == raise_at and context.rank == 1:
            raise ValueError("a bug in the user's code")
        exchange = _exchange_by_files if over == "files" else _exchange_by_collective
        ids = np.concatenate(exchange(place, context, state.batches, batch))
        context = current()
        assert context is not None
        if (balloon := Path(folder, f"balloon-{os.getpid()}")).exists():
            air.append(bytearray(b"x") * (int(balloon.read_text()) << 20))
        if not Path(folder, "hurry").exists():
            time.sleep(step_s * (10 if context.rank == slow_rank else 1))
        if patience_s and state.batches >= PATIENT_FROM:
            wait_for(Path(folder, "disturbed"), patience_s)
        state.weight = 0.99 * state.weight + float(np.sum(np.sin(np.sort(ids))))
        state.seen = [*state.seen, sorted(int(one) for one in ids)]
        state.worlds = [*state.worlds, context.world_size]
        if not context.joins:
            announce(place / f"step-{context.rank}", str(state.batches))
        state.commit(every=commit)
    return {
        "weight": state.weight,
        "seen": state.seen,
        "worlds": state.worlds,
        "generation": context.generation,
        "world_size": context.world_size,
    }


def wait_for(path: Path, at_most_s: float) -> None:
    """Wait until this file exists, or the time has passed."""
    deadline = time.monotonic() + at_most_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def announce(path: Path, text: str) -> None:
    """Write a file atomically."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.rename(path)


def announce_place(place: Path, before: Any = None) -> Any:
    """Write this process's rank and group size in its generation, if they have changed, and return its context.

    Each change of a group in place starts a new generation.
    """
    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    if before is None or before.generation != context.generation:
        announce(place / f"world-{context.generation}", str(context.world_size))
        announce(place / f"pid-{context.rank}-{context.generation}", str(os.getpid()))
    return context


def _exchange_by_collective(place: Path, context: Any, step: int, batch: Any) -> list[Any]:
    import numpy as np

    import hopsml

    counts = hopsml.all_reduce(np.bincount(batch, minlength=N_SAMPLES), "sum", name=f"step {step}")
    context = announce_place(place, context)  # the call has reached its end
    if not context.joins:  # the batch by which a newcomer prepares is discarded
        announce(place / f"{context.generation}-{step}-{context.rank}.npy", "")
    return [np.repeat(np.arange(N_SAMPLES), counts)]


def _exchange_by_files(place: Path, context: Any, step: int, batch: Any) -> list[Any]:
    import numpy as np

    mine = place / f".{context.generation}-{step}-{context.rank}.npy.{os.getpid()}"
    with open(mine, "wb") as file:
        np.save(file, batch)
    mine.rename(place / f"{context.generation}-{step}-{context.rank}.npy")
    shares = []
    for rank in range(context.world_size):
        path = place / f"{context.generation}-{step}-{rank}.npy"
        while not path.exists():
            time.sleep(0.002)
        shares.append(np.load(path))
    return shares


def check_history(value: dict[str, Any]) -> None:
    """Check that no sample was skipped or repeated within an epoch, along the history of the result."""
    steps = value["seen"]
    per_epoch = -(-N_SAMPLES // BATCH)
    assert len(steps) == EPOCHS * per_epoch
    for epoch in range(EPOCHS):
        ids = [one for step in steps[epoch * per_epoch : (epoch + 1) * per_epoch] for one in step]
        assert sorted(ids) == list(range(N_SAMPLES)), f"epoch {epoch}"


def expected_weight() -> float:
    """Return the weight of an undisturbed training."""
    import numpy as np

    from hopsml.elastic import Sampler

    data, weight = Sampler(N_SAMPLES, BATCH, seed=3, epochs=EPOCHS), 0.0
    while not data.is_exhausted:
        weight = 0.99 * weight + float(np.sum(np.sin(np.sort(data.next_batch()))))
    return weight
