"""Tests that the rows of every epoch are trained on once, even if a worker is killed within an epoch.

Trained rows are counted in the committed state, so that a repeated step counts once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopsml import experiment
from tests.helpers.clock import END_S

ROWS, EPOCHS = 103, 3


@pytest.fixture
def path(tmp_path: Path) -> str:
    ids = np.arange(ROWS)
    columns = {"id": ids, "x": list(np.stack([ids, ids * 2], 1).astype(np.float32))}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=17)
    return str(tmp_path / "rows.parquet")


@pytest.mark.local
def test_elastic_loop_counts_every_row_once_per_epoch_after_a_kill(path: str, store: Path) -> None:
    def train() -> list[int]:
        import os
        import signal

        import numpy as np

        import hopsml
        from hopsml.cluster.worker.context import current

        context = current()
        assert context is not None
        state = hopsml.elastic.State(counts=np.zeros(ROWS, np.int64))
        for batch in state.resume(hopsml.data.parquet(path).batch(16).shuffle(seed=1, window=20).repeat(EPOCHS)):
            mine = np.bincount(batch["id"], minlength=ROWS)
            state.counts = state.counts + hopsml.all_reduce(mine, "sum")
            state.commit(every=2)
            if context.generation == 0 and context.rank == 0 and state.batches == 11:
                os.kill(os.getpid(), signal.SIGKILL)
        return [int(state.counts.min()), int(state.counts.max()), context.generation]

    least, most, generation = experiment.submit(train, min_workers=1, max_workers=3, progress=False).result(END_S).value
    assert (least, most) == (EPOCHS, EPOCHS) and generation > 0


@pytest.mark.tensorflow
@pytest.mark.variant  # of a loop's, and of chaos/test_fit_mends
def test_elastic_fit_counts_every_row_once_per_epoch_after_a_kill(path: str, store: Path) -> None:
    def train() -> list[int]:
        import os
        import signal

        import keras
        import numpy as np
        import tensorflow as tf

        import hopsml
        from hopsml.cluster.worker.context import current

        context = current()
        assert context is not None
        strategy = hopsml.tensorflow.strategy(implementation="tensorflow")

        class Counting(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.dense = keras.layers.Dense(1)
                self.counts = self.add_weight(
                    shape=(ROWS,), initializer="zeros", trainable=False, aggregation="only_first_replica", name="counts"
                )

            def call(self, x: Any) -> Any:
                return self.dense(x)

            def train_step(self, data: Any) -> Any:
                x, ids = data
                mine = tf.reduce_sum(tf.one_hot(ids, ROWS), 0)
                self.counts.assign_add(tf.distribute.get_replica_context().all_reduce("sum", mine))
                return {"loss": tf.reduce_sum(self(x)) * 0.0}

        with strategy.scope():
            model = Counting()
            model.build((None, 2))
            model.compile("sgd")

        def killed(batch: int, logs: Any) -> None:
            if context.generation == 0 and context.rank == 1 and started_epochs == [0, 1] and batch == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        started_epochs: list[int] = []
        model.fit(
            hopsml.data.parquet(path).batch(16).shuffle(seed=1, window=20).tensorflow("x", "id"),
            epochs=EPOCHS,
            verbose=0,
            callbacks=[
                *hopsml.tensorflow.callbacks(),
                keras.callbacks.LambdaCallback(
                    on_epoch_begin=lambda epoch, logs: started_epochs.append(epoch), on_train_batch_end=killed
                ),
            ],
        )
        counts = np.asarray(model.counts)
        return [int(counts.min()), int(counts.max()), context.generation]

    least, most, generation = experiment.submit(train, min_workers=1, max_workers=2, progress=False).result(END_S).value
    assert (least, most) == (EPOCHS, EPOCHS) and generation > 0
