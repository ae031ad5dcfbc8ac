"""Trainings over hopsml's collective whose workers continue in place when members are lost.

Each worker writes ``pid-<rank>`` with its pid when it starts, and for each step a line ``step world generation traces`` into
``steps-<pid>``. A joining worker waits with its preparation while a file ``hold`` exists, and with its first epoch of
``fit`` while a file ``hold-first`` exists; during the second wait its pid is in the file ``held``.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.cluster.elastic_workload import announce

N_SAMPLES, BATCH, EPOCHS = 203, 16, 6
STEPS = EPOCHS * -(-N_SAMPLES // BATCH)


@dataclass(frozen=True)
class Step:
    """A step of one process: the run's number of it, group size, generation, and functions traced by then."""

    number: int
    world: int
    generation: int
    traces: int


def steps_of(folder: Path, pid: int) -> list[Step]:
    """Return the steps of this process so far."""
    path = folder / f"steps-{pid}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [Step(*map(int, line.split())) for line in lines if len(line.split()) == 4]


def pids(folder: Path) -> list[int]:
    """Return the pids of all workers that made a step."""
    return [int(path.name.removeprefix("steps-")) for path in folder.glob("steps-*") if path.stat().st_size]


class _Log:
    def __init__(self, folder: str, step_s: float) -> None:
        from hopsml.cluster.worker.context import current

        context = current()
        assert context is not None
        self._folder, self._step_s = Path(folder), step_s
        self._file = open(self._folder / f"steps-{os.getpid()}", "a", buffering=1)  # noqa: SIM115 until the process ends
        announce(self._folder / f"pid-{context.rank}-{context.generation}", str(os.getpid()))
        self._joined_late = context.joins
        while context.joins and (self._folder / "hold").exists():
            time.sleep(0.01)

    def begins(self) -> None:
        """Count an epoch."""
        if self._joined_late and (self._folder / "hold-first").exists():
            announce(self._folder / "held", str(os.getpid()))
            while (self._folder / "hold-first").exists():
                time.sleep(0.01)

    def made(self, step: int, traces: int = 0) -> None:
        """Record a step, and delay it until a file ``hurry`` exists."""
        from hopsml.cluster.worker.context import current

        context = current()
        assert context is not None
        if context.joins:  # the batch by which a newcomer prepares is discarded
            return
        self._file.write(f"{step} {context.world_size} {context.generation} {traces}\n")
        if not (self._folder / "hurry").exists():
            time.sleep(self._step_s)


def arrays(
    folder: str, step_s: float = 0.02, commit: int | None = 5, raise_at: int = 0, counts_rows: bool = False
) -> dict[str, Any]:
    """Train in a loop over arrays. Rank 1 raises at step ``raise_at``.

    ``counts_rows``: a worker cannot prepare it alone.
    """
    import numpy as np

    import hopsml
    from hopsml.cluster.worker.context import current

    log, context = _Log(folder, step_s), current()
    if counts_rows and context is not None:
        rows = len(hopsml.all_gather(1.0))
        assert rows == context.world_size, f"one row of each of {context.world_size} is to be there, not {rows}"
    state = hopsml.elastic.State(weight=0.0, seen=[])
    data = hopsml.elastic.Sampler(N_SAMPLES, BATCH, seed=3, epochs=EPOCHS)
    for batch in state.resume(data):
        context = current()
        assert context is not None
        if raise_at and state.batches == raise_at and context.rank == 1:
            raise ValueError("a bug in the user's code")
        mine = np.zeros(N_SAMPLES)
        mine[batch] = 1.0
        counts = hopsml.all_reduce(mine, "sum", name="counts")
        state.weight = 0.99 * state.weight + float(counts @ np.sin(np.arange(N_SAMPLES)))
        state.seen = [*state.seen, [int(one) for one in np.repeat(np.arange(N_SAMPLES), counts.astype(int))]]
        log.made(state.batches)
        state.commit(every=commit)
    return {"weights": hopsml.all_gather(state.weight).tolist(), "seen": state.seen}


def loop(folder: str, step_s: float = 0.02) -> dict[str, Any]:
    """Train in a custom loop of TensorFlow."""
    import numpy as np

    import hopsml

    strategy = hopsml.tensorflow.strategy()
    import tensorflow as tf

    log, traces = _Log(folder, step_s), []
    with strategy.scope():
        weights = tf.Variable(tf.zeros((N_SAMPLES,)))

    @tf.function
    def step(mine: Any) -> None:
        traces.append(1)

        def update(share: Any) -> None:
            summed = tf.distribute.get_replica_context().all_reduce("SUM", share)
            weights.assign(0.99 * weights + summed)

        strategy.run(update, args=(mine,))

    state = hopsml.elastic.State(weights=weights)
    data = hopsml.elastic.Sampler(N_SAMPLES, BATCH, seed=3, epochs=EPOCHS)
    for batch in state.resume(data):
        mine = np.zeros(N_SAMPLES, np.float32)
        mine[batch] = 1.0
        step(tf.constant(mine))
        log.made(state.batches, len(traces))
        state.commit(every=5)
    return {"weights": hopsml.all_gather(weights.numpy()).tolist()}


def fit(
    folder: str, step_s: float = 0.02, as_dataset: bool = False, shuffles: bool = True, calls: int = 1
) -> dict[str, Any]:
    """Train the mean of the workers' values by Keras's ``fit`` with a validation; weights are those of one worker.

    ``counts``: uses of each sample. ``shuffles``: a dataset is shuffled in each epoch. ``calls``: number of calls of
    ``fit``, with as many epochs in total.
    """
    import numpy as np

    import hopsml

    strategy = hopsml.tensorflow.strategy()
    import keras
    import tensorflow as tf

    log, traces = _Log(folder, step_s), []

    class Line(keras.Model):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.slope = self.add_weight(shape=(), initializer="zeros", name="slope")
            self.steps = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False, name="steps")
            self.counts = self.add_weight(shape=(N_SAMPLES,), initializer="zeros", trainable=False, name="counts")

        def call(self, x: Any, training: bool = False) -> Any:
            return self.slope * x

        def train_step(self, data: Any) -> Any:
            traces.append(1)
            logs = super().train_step(data)
            self.steps.assign_add(1)
            inputs = keras.utils.unpack_x_y_sample_weight(data)[0][:, 0]
            rows = tf.cast(tf.round((inputs + 1) / 2 * (N_SAMPLES - 1)), tf.int32)
            mine = tf.math.unsorted_segment_sum(tf.ones_like(rows, tf.float32), rows, N_SAMPLES)
            self.counts.assign_add(tf.distribute.get_replica_context().all_reduce("SUM", mine))
            return logs

    class Watch(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            log.begins()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            log.made(int(self.model.steps.numpy()), len(traces))

    with strategy.scope():
        model = Line()
        model.build((None, 1))
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    x = np.linspace(-1, 1, N_SAMPLES, dtype=np.float32)[:, None]
    given: dict[str, Any] = {"x": x, "y": 3 * x, "batch_size": BATCH, "validation_data": (x, 3 * x)}
    if as_dataset:
        pairs = tf.data.Dataset.from_tensor_slices((x, 3 * x))
        mixed = pairs.shuffle(N_SAMPLES, seed=5, reshuffle_each_iteration=shuffles)
        given = {"x": mixed.batch(BATCH), "validation_data": pairs.batch(BATCH)}
    losses: list[float] = []
    for _ in range(calls):
        callbacks = [Watch(), *hopsml.tensorflow.callbacks(checkpoint_every_steps=5)]
        history = model.fit(**given, epochs=EPOCHS // calls, verbose=0, callbacks=callbacks)
        losses += history.history.get("val_loss", [])
    return {
        "weights": hopsml.all_gather(np.array([model.slope.numpy(), model.steps.numpy()], np.float32)).tolist(),
        "counts": hopsml.all_gather(model.counts.numpy()).tolist(),
        "epochs": len(losses),
        "val_loss": losses[-1],
    }
