"""Tests of a run whose function calls ``fit`` several times, and that is resumed by another run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.errors import WorkerFailed
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit

pytestmark = pytest.mark.tensorflow


def test_resumed_run_skips_the_fits_that_had_finished(store: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"

    def train() -> dict[str, list[list[int]]]:
        import keras
        import numpy as np

        import hopsml

        started_epochs: list[list[int]] = []

        def count(epoch: int, logs: object) -> None:
            started_epochs[-1].append(epoch)
            if len(started_epochs) == 2 and epoch == 1 and not broken.exists():
                broken.touch()
                raise ConnectionError("the second fit breaks off")

        for number in (1, 2, 3):
            started_epochs.append([])
            if number < 3:  # the third trains the second model once more
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            ours = [*hopsml.tensorflow.callbacks(), keras.callbacks.LambdaCallback(on_epoch_begin=count)]
            model.fit(np.ones((8, 4)), np.ones((8, 1)), epochs=2, verbose=0, callbacks=ours)
        return {"begun": started_epochs}

    run = submit(train, 1)
    with pytest.raises(WorkerFailed, match="the second fit breaks off"):
        run.result(END_S)
    again = experiment.resume(run.run_dir, progress=False)
    assert again.value == {"begun": [[], [1], [0, 1]]}
