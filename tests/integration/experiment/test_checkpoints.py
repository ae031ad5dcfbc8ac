"""Tests of checkpoints of real runs: stored whatever happens to the worker, and continued exactly by another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import ResultsNotStored, StorageUnavailable, WorkerFailed
from hopsml.experiment import takeover
from hopsml.experiment.run import Run
from hopsml.storage.run_dir import RunDir
from tests.helpers import small_disk
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import local_path, read_json, submit
from tests.helpers.cluster.finding import agent_of
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.chaos


def save(directory: str, steps: int, how: str, marks: str) -> list[int]:
    """Without a framework: 8 MB a step; then the end that is asked for, at once."""
    import os
    import signal
    import time
    from pathlib import Path

    import numpy as np

    from hopsml.cluster.worker.context import current
    from hopsml.training.checkpoint_files import CheckpointDescription
    from hopsml.training.checkpoint_writer import checkpoint_sender, pack

    context = current()
    assert context is not None and context.checkpoints is not None
    handover, place = checkpoint_sender(context.checkpoints), Path(directory or context.checkpoint_dir)
    for step in range(1, steps + 1):
        # Each in a folder of its own: on a slow disk a newer one of the same folder would replace one that waits.
        description = CheckpointDescription(
            str(place / str(step) / f"step-{step:09d}"), f'{{"step": {step}}}'.encode(), step, 3, True, 0o077
        )
        snapshot = pack({"state": np.full(2_000_000, step, np.float32)}, description, "numpy:savez")
        held = handover.send_snapshot(snapshot, description.target)
        if step == 1 and how == "agent is killed":
            handover.wait_stored(held, description.target, None)
    if how == "worker is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    Path(marks, "saved").touch()
    while how != "returns":
        time.sleep(0.01)
    return list(range(1, steps + 1))


def found(directory: Path) -> list[int]:
    """The complete checkpoints, each of which holds what was saved."""
    import numpy as np

    from hopsml.storage import checkpoints

    steps = [step for series in sorted(directory.iterdir()) for step in checkpoints.steps(str(series)) if step]
    for step in steps:
        folder = directory / str(step) / f"step-{step:09d}"
        checkpoints.verify_checksums(folder)
        with np.load(folder / "variables.npz", allow_pickle=True) as content:
            assert set(content["arr_0"].item()["state"]) == {step}
    return steps


def start(how: str, marks: Path, directory: str = "") -> tuple[Run, Path]:
    run = submit(save, 1, args={"directory": directory, "steps": 3, "how": how, "marks": str(marks)})
    return run, local_path(run.run_dir) / "checkpoints"


def test_checkpoints_arrive_although_the_worker_is_killed_after_saving(store: Path, tmp_path: Path) -> None:
    run, directory = start("worker is killed", tmp_path)
    with pytest.raises(WorkerFailed, match="SIGKILL"):
        run.result(END_S)
    assert found(directory) == [1, 2, 3]


def test_run_ends_only_when_its_checkpoints_are_stored(store: Path, tmp_path: Path) -> None:
    run, directory = start("returns", tmp_path)
    assert run.result(END_S).value == [1, 2, 3]
    assert found(directory) == [1, 2, 3]
    assert read_json(run, "status.json")["not_on_shared_storage"] == {}


def test_killed_agent_does_not_lose_a_checkpoint_reported_as_stored(store: Path, tmp_path: Path) -> None:
    run, directory = start("agent is killed", tmp_path)
    wait_until((tmp_path / "saved").exists, "three checkpoints")
    agent_of(run, 0).kill()
    with pytest.raises(WorkerFailed):
        run.result(END_S)
    assert found(directory)[0] == 1


def test_run_reports_the_checkpoint_that_a_full_disk_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_RETRY_S", "1")
    with small_disk.mounted(tmp_path / "disk", 20_000) as disk:  # room for two
        run, _ = start("returns", tmp_path, str(disk / "checkpoints"))
        with pytest.raises(ResultsNotStored, match="1 checkpoint is missing: ") as raised:
            run.result(END_S)
        assert raised.value.result.value == [1, 2, 3], "the training goes on"
        assert found(disk / "checkpoints") == [1, 2]
    (behind,) = read_json(run, "status.json")["not_on_shared_storage"]["0"]
    assert f"{disk}/checkpoints/3/step-000000003: " in behind and "No space left on device" in behind
    (note,) = [note for note in run.state.notes if "could not be written" in note]
    assert "step-000000003 could not be written, and training continues" in note


def train(kept: str) -> dict[str, Any]:
    """Two workers, with a normalisation whose statistics belong to all of them; the first run ends with its second step."""
    import json
    import os
    import pickle
    import signal
    import time
    from pathlib import Path

    import keras
    import numpy as np
    import tensorflow as tf

    import hopsml
    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    strategy = hopsml.tensorflow.strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(3)])
        model.compile(keras.optimizers.Adam(), "mse")
    counter, words, half = tf.Variable(0, dtype=tf.int64), tf.Variable(""), tf.Variable(tf.cast(1.5, tf.bfloat16))
    checkpointer = hopsml.tensorflow.Checkpointer(model=model, counter=counter, words=words, half=half)
    step = checkpointer.restore_latest()
    path = Path(kept, f"rank-{context.rank}")
    if step == 0:
        data = np.random.default_rng(context.rank).random((8, 4), np.float32)
        model.fit(data, data[:, :3], batch_size=4, epochs=1, verbose=0)
        counter.assign(41)
        words.assign("\0ä\0")
        checkpointer.save(1)
        counter.assign_add(1)
        checkpointer.save(2, best=0.5)
        variables = [np.asarray(variable) for variable in (*model.weights, *model.optimizer.variables, counter)]
        path.with_suffix(".part").write_bytes(pickle.dumps(variables))
        path.with_suffix(".part").replace(path)
        counter.assign_add(1)  # stored commits do not change any more
        if context.is_chief:
            while not Path(kept, "rank-1").exists():  # which ends with the chief
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return {}
    now = [np.asarray(variable) for variable in (*model.weights, *model.optimizer.variables, counter)]
    same = [(one == other).all() for one, other in zip(now, pickle.loads(path.read_bytes()), strict=True)]
    assert context.resume_checkpoint is not None
    prefix = str(context.resume_checkpoint / "variables")
    reader = tf.train.load_checkpoint(prefix)
    folder = checkpointer.save(3, durable=True)
    own = str(context.work_dir / "own")
    checkpointer._checkpoint.write(own)  # on all ranks: the statistics are read from each
    if not context.is_chief:
        return {}
    ours, theirs = tf.train.load_checkpoint(str(folder / "variables")), tf.train.load_checkpoint(own)
    return {
        "step": step,
        "notes": checkpointer.notes,
        "same": all(same) and len(same) > 10,
        "words": words.numpy().decode(),
        "read": int(reader.get_tensor("counter/.ATTRIBUTES/VARIABLE_VALUE")),
        "other than TensorFlow's": [
            name
            for name in reader.get_variable_to_shape_map() | theirs.get_variable_to_shape_map()
            if not np.array_equal(ours.get_tensor(name), theirs.get_tensor(name))
        ],
        "handed over": context.checkpoints.slots.stored_request if context.checkpoints else 0,
        "description": json.loads((folder / "checkpoint.json").read_text())["step"],
    }


@pytest.mark.tensorflow
def test_resumed_run_continues_exactly_from_the_killed_chiefs_checkpoint(store: Path, tmp_path: Path) -> None:
    run = submit(train, 2, args={"kept": str(tmp_path)})
    with pytest.raises(WorkerFailed):
        run.result(END_S)
    again = experiment.resume(run.run_dir, progress=False)
    assert again.value == {
        "step": 2, "notes": {"best": 0.5}, "same": True, "words": "\0ä\0", "read": 42, "other than TensorFlow's": [],
        "handed over": 1, "description": 3,
    }  # fmt: skip


def test_run_can_be_resumed_after_a_failed_start_of_its_successor(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> int:
        raise ValueError("not yet")

    def away(url: str) -> tuple[str, int]:
        raise StorageUnavailable(url, "it is away")

    run = submit(step, 1)
    with pytest.raises(WorkerFailed):
        run.result(END_S)
    with monkeypatch.context() as patched:
        patched.setattr(takeover, "checkpoint_of", away)
        with pytest.raises(StorageUnavailable):
            experiment.resume(run.run_dir, progress=False)
    (failed,) = (RunDir(f"file://{path}") for path in store.glob("Experiments/*") if str(path) not in run.run_dir)
    status = failed.read_status()
    assert status is not None and status["state"] == "FAILED" and "could not be started" in status["error"]
    with pytest.raises(WorkerFailed, match="not yet"):  # once more
        experiment.resume(run.run_dir, progress=False)
