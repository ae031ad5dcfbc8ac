"""Tests of Keras's callbacks in real runs: saved files outlive the worker, and training continues from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsml import experiment
from hopsml.errors import WorkerFailed
from tests.helpers import keras_content, small_disk
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import local_path, submit

pytestmark = [pytest.mark.tensorflow, pytest.mark.chaos]


def train(folder: str, disk: str = "") -> dict[str, Any]:
    """Two workers, four epochs; the first run's chief is killed as the third epoch begins. ``disk``: one that is full."""
    import os
    import signal
    from pathlib import Path

    import keras
    import numpy as np

    import hopsml
    from hopsml.cluster.worker.context import current
    from hopsml.training.checkpoint_writer import checkpoint_sender

    context = current()
    assert context is not None and context.checkpoints is not None
    place, handover = Path(folder), checkpoint_sender(context.checkpoints)
    data = np.random.default_rng(0).random((16, 8), np.float32)
    strategy = hopsml.tensorflow.strategy()
    with strategy.scope():
        layers = [keras.Input((8,)), keras.layers.BatchNormalization(), *(keras.layers.Dense(100) for _ in range(6))]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(), "mse")
    seen: dict[str, Any] = {"epochs": [], "first": []}

    def schedule(epoch: int, rate: float) -> float:
        if epoch == 2 and not disk and context.is_chief:
            os.kill(os.getpid(), signal.SIGKILL)
        if not seen["epochs"]:
            seen["first"] = [value.tolist() for value in model.layers[0].get_weights()]
        seen["epochs"].append(epoch)
        return rate

    def fit(*callbacks: Any, epochs: int = 1) -> None:
        model.fit(data, data[:, :1], batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks))

    def weights(path: Path | str) -> Any:
        return keras.callbacks.ModelCheckpoint(path, save_weights_only=True)

    fit(
        keras.callbacks.BackupAndRestore(place / "backup", delete_checkpoint=bool(disk)),
        keras.callbacks.ModelCheckpoint(place / "{epoch}.keras"),
        keras.callbacks.ModelCheckpoint(place / "best.weights.h5", "loss", save_best_only=True, save_weights_only=True),
        weights("own.weights.h5"),
        keras.callbacks.LearningRateScheduler(schedule),
        epochs=4,
    )
    seen["given"] = handover._number
    model.save(str(context.work_dir / "now.keras"))  # by Keras
    model.save_weights(str(context.work_dir / "now.weights.h5"))
    if context.is_chief:
        theirs = {path.name: keras_content.of(path) for path in context.work_dir.glob("now.*")}
        seen["4.keras"] = keras_content.of(place / "4.keras") == theirs["now.keras"]
        seen["own.weights.h5"] = keras_content.of(Path("own.weights.h5")) == theirs["now.weights.h5"]
    loaded = keras.models.load_model(place / "4.keras")
    now = model.get_weights()
    seen["same"] = all((one == other).all() for one, other in zip(loaded.get_weights(), now, strict=True))
    seen["left"] = sorted(path.name for path in place.iterdir())

    # What a program may look for at once is there at once.
    class Derived(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
        pass

    mine = str(context.work_dir / "mine.weights.h5")
    at_once = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.update(at_once=os.path.exists(mine)))
    fit(weights(mine), at_once)
    fit(Derived(mine, save_weights_only=True))
    fit(keras.callbacks.ModelCheckpoint(str(context.work_dir / "whole.h5")))
    seen["given by none of these"] = handover._number - seen["given"]

    def fail_later(epoch: int, rate: float) -> float:
        if epoch:
            raise ValueError(f"epoch {epoch}")
        return rate

    caught = mine.replace("mine", "caught")
    try:
        fit(weights(caught), keras.callbacks.LearningRateScheduler(fail_later), epochs=2)
    except ValueError:
        if context.is_chief:
            model.load_weights(caught)
    try:
        fit(weights(f"{disk}/full.weights.h5"))
    except OSError as error:
        seen["full"] = str(error)
    return seen


@pytest.mark.variant
def test_files_saved_by_keras_callbacks_survive_a_killed_chief_and_are_resumed(store: Path, tmp_path: Path) -> None:
    place = tmp_path / "saved"
    run = submit(train, 2, args={"folder": str(place)})
    with pytest.raises(WorkerFailed, match="SIGKILL"):
        run.result(END_S)
    assert sorted(path.name for path in place.iterdir()) == ["1.keras", "2.keras", "backup", "best.weights.h5"]
    assert json.loads((place / "backup" / "training_metadata.json").read_text()) == {"epoch": 2, "batch": 0}
    backup = keras_content.of(place / "backup" / "latest.weights.h5")
    model_file = keras_content.of(place / "2.keras")
    assert len(backup) > 40 and backup.items() <= model_file.items(), "both after the second epoch"
    assert keras_content.of(local_path(run.run_dir) / "artifacts" / "own.weights.h5") == backup
    with small_disk.mounted(tmp_path / "disk", 100) as disk:
        again = experiment.collective_all_reduce(
            train, args={"folder": str(place), "disk": str(disk)}, num_workers=2, progress=False
        ).value
    full = again.pop("full", again)
    assert f"{disk}/full.weights.h5" in full and "could not be written" in full
    statistics = [backup[f"layers/batch_normalization/vars/{number}"] for number in range(4)]
    assert again.pop("first") == [np.frombuffer(content, np.float32).tolist() for _, _, _, content in statistics]
    assert again.pop("given") in (7, 8), "three callbacks save each epoch, one where the loss is the best"
    assert again == {
        "epochs": [2, 3], "4.keras": True, "own.weights.h5": True, "same": True, "at_once": True,
        "left": ["1.keras", "2.keras", "3.keras", "4.keras", "best.weights.h5"], "given by none of these": 0,
    }  # fmt: skip
