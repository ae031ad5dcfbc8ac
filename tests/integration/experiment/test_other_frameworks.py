"""Tests of ``experiment.jax`` and ``experiment.distributed`` with real workers, and of XGBoost's collective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopsml
from hopsml import experiment
from hopsml.errors import ArgumentError, WorkerFailed
from tests.helpers.local_application import warm_application

pytestmark = pytest.mark.torch


project = warm_application(
    lambda: experiment.distributed(lambda: None, num_workers=2, preload=["jax"], keep_warm=60.0, progress=False)
)


def sharded(leave: bool = False) -> dict[str, Any]:
    """A training by sharding: each worker has its part of the batch, and jit reduces."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import hopsml

    mesh = Mesh(np.array(jax.devices()), ("workers",))
    x = np.random.default_rng(0).random((16, 3)).astype(np.float32)
    target = x @ np.array([1.0, -2.0, 0.5], np.float32)
    rank, size = jax.process_index(), jax.process_count()
    assert (rank, size) == (hopsml.distributed.rank(), hopsml.distributed.world_size())
    sharding = NamedSharding(mesh, PartitionSpec("workers"))
    own = slice(rank * 8, rank * 8 + 8)
    xs = jax.make_array_from_process_local_data(sharding, x[own])
    ys = jax.make_array_from_process_local_data(sharding, target[own])

    @jax.jit
    def step(w: Any, x: Any, y: Any) -> Any:
        return w - 0.3 * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)

    w = jnp.zeros(3)
    for _ in range(200):
        w = step(w, xs, ys)
    return {"json": [len(jax.devices()), *hopsml.distributed.exchange(np.asarray(w).tolist())]}


def test_jax_trains_on_the_devices_of_all_workers(project: Path) -> None:
    devices, first, second = experiment.jax(sharded, num_workers=2, keep_warm=60.0, progress=False).metrics["json"]
    assert devices == 2 and first == second == pytest.approx([1.0, -2.0, 0.5], abs=0.05)


def initialize_jax(**wanted: int) -> dict[str, Any]:
    """Start JAX as a program for several hosts does."""
    import jax

    jax.distributed.initialize("localhost:1234", **wanted)
    return {"json": [jax.distributed.is_initialized(), jax.process_count()]}


@pytest.mark.parametrize("size", [1, 2])
def test_manually_initialized_jax_uses_the_group_of_the_run(project: Path, size: int) -> None:
    result = experiment.jax(
        initialize_jax, args={"num_processes": size}, num_workers=size, keep_warm=60.0, progress=False
    )
    assert result.metrics["json"] == [True, size]


def test_manually_initialized_jax_with_another_size_is_refused(project: Path) -> None:
    with pytest.raises(
        WorkerFailed, match=r"num_processes=3, process_id=None\): this is process \d of the 2 of this run"
    ):
        experiment.jax(initialize_jax, args={"num_processes": 3}, num_workers=2, keep_warm=60.0, progress=False)


def fails_on_one() -> None:
    import hopsml

    if hopsml.distributed.rank() == 1:
        raise KeyError("no such layer")
    hopsml.barrier()


def test_failed_jax_worker_is_named_as_the_cause(project: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"rank 1 .*failed first: KeyError: 'no such layer'"):
        experiment.jax(fails_on_one, num_workers=2, keep_warm=60.0, progress=False)


def starts_another() -> None:
    from hopsml import experiment

    experiment.distributed(fails_on_one, num_workers=1, progress=False)


def test_verb_called_in_a_worker_is_refused(project: Path) -> None:
    with pytest.raises(
        WorkerFailed, match=r"EnvironmentConflict: this is rank 0 of run \S+ already, .*call the verb in a driver"
    ):
        experiment.distributed(starts_another, num_workers=1, keep_warm=60.0, progress=False)


def boosted() -> dict[str, Any]:
    """XGBoost over its own collective, whose tracker rank 0 has."""
    import hashlib

    import xgboost
    from sklearn.datasets import load_digits
    from xgboost.tracker import RabitTracker

    import hopsml

    rank, size = hopsml.distributed.rank(), hopsml.distributed.world_size()
    x, y = load_digits(return_X_y=True)
    tracker = RabitTracker(host_ip=hopsml.distributed.host(), n_workers=size, sortby="task") if rank == 0 else None
    if tracker is not None:
        tracker.start()
    arguments = hopsml.distributed.exchange(tracker.worker_args() if tracker is not None else {})[0]
    with xgboost.collective.CommunicatorContext(**arguments, dmlc_task_id=f"[xgb]:{rank}"):
        data = xgboost.DMatrix(x[rank::size], y[rank::size])
        options = {"objective": "multi:softmax", "num_class": 10, "nthread": 1, "max_depth": 3}
        model = xgboost.train(options, data, 5)
    if tracker is not None:
        tracker.wait_for()
    accuracy = float((model.predict(xgboost.DMatrix(x)) == y).mean())
    models = hopsml.distributed.exchange(hashlib.sha256(model.save_raw()).hexdigest())
    return {"json": [accuracy, models, hopsml.distributed.addresses(), hopsml.distributed.port()]}


@pytest.mark.variant
def test_xgboost_workers_connect_through_distributed_functions(project: Path) -> None:
    run = experiment.distributed(boosted, num_workers=2, keep_warm=60.0, progress=False)
    accuracy, models, addresses, port = run.metrics["json"]
    assert accuracy > 0.9 and models[0] == models[1]
    assert len(set(addresses)) == 2 and addresses[0].endswith(f":{port}") and port > 0


def look_up_addresses() -> dict[str, object]:
    import hopsml

    where = hopsml.distributed
    try:
        where.address("worker", 1)
    except ValueError as error:
        refused = str(error)
    named = [where.address("chief"), where.address("worker")]
    return {"json": [where.exchange([where.role(), named]), sorted(where.addresses()), refused]}


def nameless() -> str:
    import hopsml

    try:
        return hopsml.distributed.address("chief")
    except ValueError as error:
        return str(error)


def test_tasks_find_the_addresses_of_others_by_role(project: Path) -> None:
    run = experiment.collective_all_reduce(look_up_addresses, num_workers=2, keep_warm=60.0, progress=False)
    found, addresses, refused = run.metrics["json"]
    assert sorted(role for role, _ in found) == ["chief", "worker"] and found[0][0] == "chief"
    assert all(sorted(named) == addresses for _, named in found) and len(set(addresses)) == 2
    assert all(named == found[0][1] for _, named in found), "all are told the same"
    assert "address('worker', 1): there is no such task; the tasks are 1 chief, 1 worker" in refused
    other = experiment.distributed(nameless, num_workers=2, keep_warm=60.0, progress=False)
    assert "tasks have roles only if hopsml sets TF_CONFIG" in str(other.value)
    assert hopsml.distributed.role() == "chief", "outside of a run"


def exchanges_a_lock() -> None:
    import threading

    import hopsml

    hopsml.distributed.exchange(threading.Lock())


def test_value_that_cannot_be_exchanged_is_named(project: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"exchange.*: a lock cannot be pickled"):
        experiment.distributed(exchanges_a_lock, num_workers=2, keep_warm=60.0, progress=False)
    with pytest.raises(ArgumentError, match="cannot be pickled"):
        hopsml.distributed.exchange(lambda: None)


def test_distributed_functions_outside_of_a_run_describe_one_worker() -> None:
    where = hopsml.distributed
    assert (where.rank(), where.world_size(), where.local_rank(), where.port()) == (0, 1, 0, 0)
    assert where.exchange({"a": 1}) == [{"a": 1}] and where.addresses() == ["127.0.0.1:0"]


def train_with_tensorflow_and_torch() -> dict[str, Any]:
    """Load data with TensorFlow and train with torch, in one script."""
    import sys

    import tensorflow as tf
    import torch

    weights = torch.nn.Parameter(torch.tensor(tf.ones(3).numpy()))
    torch.optim.SGD([weights], lr=0.5).zero_grad()
    return {"json": [name for name in ("tensorflow", "torch") if name in sys.modules]}


@pytest.mark.variant
def test_tensorflow_and_torch_work_in_one_function(project: Path) -> None:
    result = experiment.distributed(train_with_tensorflow_and_torch, num_workers=1, progress=False)
    assert result.metrics["json"] == ["tensorflow", "torch"]
