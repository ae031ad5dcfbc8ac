"""Tests of failures in a real group of MultiWorkerMirroredStrategy on Spark executors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsml.errors import WorkerFailed
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.cluster import workloads
from tests.helpers.cluster.backend_contract import GONE_S, check_run_dir, submit
from tests.helpers.cluster.workloads import living, traces, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]


def all_reduce_until_stopped(folder: str, steps: int) -> float:
    """Add one per worker by all-reduce at each step; with ``steps`` 0 until the run is stopped."""
    import tensorflow as tf

    import hopsml

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function
    def step() -> tf.Tensor:
        def one() -> tf.Tensor:
            return total.assign_add(tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0)))

        return strategy.reduce("MEAN", strategy.run(one), axis=None)

    workloads.leave_trace(folder)
    number = 0
    while number < steps or not steps:
        value = step()
        number += 1
        hopsml.report(step=number)
    return float(value)


@pytest.mark.parametrize("rank", [1, 0])
@pytest.mark.variant
def test_worker_killed_during_a_collective_is_named_as_the_cause(store: Path, tmp_path: Path, rank: int) -> None:
    run = submit(all_reduce_until_stopped, args={"folder": str(tmp_path), "steps": 0}, keep_warm=60)
    found = traces(tmp_path, timeout_s=120)  # TensorFlow is imported first
    wait_until(lambda: all((member["step"] or 0) > 2 for member in run.status()["members"]), "steps")
    started = clock.awake()
    os.kill(found[rank].worker, 9)
    with pytest.raises(WorkerFailed) as caught:
        run.result(END_S)
    assert clock.awake() - started < GONE_S
    assert caught.value.rank == rank and "SIGKILL" in caught.value.cause
    assert not living([pid for trace in found for pid in (trace.worker, trace.child)])
    check_run_dir(run, "FAILED")
    if rank == 0:
        return  # once is enough
    (tmp_path / "again").mkdir()
    again = submit(all_reduce_until_stopped, args={"folder": str(tmp_path / "again"), "steps": 3}, keep_warm=60)
    assert again.result(END_S).value == 6.0  # on the same agents, after the failure
