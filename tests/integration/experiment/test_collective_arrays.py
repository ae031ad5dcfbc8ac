"""Tests of ``hopsml.all_reduce`` and related functions in workers without a framework."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsml
from hopsml.cluster.shared.spec import FixedGroup, RunSpec
from hopsml.cluster.worker import context as contexts
from hopsml.cluster.worker.context import CollectiveSeat, WorkerContext
from hopsml.errors import ArgumentError, CollectiveTimeout, RunError
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit
from tests.helpers.cluster.workloads import WAIT_S

pytestmark = pytest.mark.local


def test_collective_functions_of_one_worker_return_their_input() -> None:
    """The same function runs on a laptop, outside of a run."""
    x = np.arange(3.0)
    reduced = hopsml.all_reduce(x, "sum")
    reduced[0] = 7
    assert x[0] == 0 and reduced.tolist() == [7, 1, 2]
    assert hopsml.all_gather(x).tolist() == [[0, 1, 2]]
    assert hopsml.broadcast(4).tolist() == 4
    hopsml.barrier()
    with pytest.raises(ArgumentError, match=r"reduction='product'.*sum, mean, min, max"):
        hopsml.all_reduce(x, "product")  # type: ignore[arg-type]
    for root in (1, 0.0, "0", None):
        with pytest.raises(ArgumentError, match=rf"root={root!r}: the run has 1 worker\(s\)"):
            hopsml.broadcast(x, root=root)  # type: ignore[arg-type]
    assert hopsml.broadcast(x, root=np.int64(0)).tolist() == [0, 1, 2]


def test_workers_combine_arrays(store: Path) -> None:
    def train() -> list[Any]:
        import os

        import numpy as np

        import hopsml

        rank = int(os.environ["RANK"])
        x = np.array([[rank, 10.0 * rank]], dtype="float32")
        hopsml.barrier()
        found = [hopsml.all_reduce(x, reduction) for reduction in ("mean", "sum", "min", "max")]
        assert all(one.dtype == np.float32 and one.shape == (1, 2) for one in found)
        gathered = hopsml.all_gather(np.arange(2) + rank)
        return [one.tolist()[0] for one in found] + [gathered.tolist(), hopsml.broadcast(rank, root=2).tolist()]

    result = submit(train, 3).result(END_S)
    assert result.value == [[1, 10], [3, 30], [0, 0], [2, 20], [[0, 1], [1, 2], [2, 3]], 2]
    assert result.in_force["by"] == "hopsml" and result.in_force["size"] == 3


def test_member_absent_from_its_first_operation_is_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that loads its data for longer than the others wait for its first operation."""
    ports = [socket.create_server(("127.0.0.1", 0), reuse_port=True) for _ in range(2)]
    folders = {name: tmp_path for name in ("work_dir", "events_dir", "checkpoint_dir", "export_dir")}
    context = WorkerContext(
        run_id="app_1", generation=0, rank=0, world_size=2, local_rank=0, role="chief", run_url=str(tmp_path), **folders,
        spec=RunSpec(group=FixedGroup(start_timeout_s=0.1)),
        collective=CollectiveSeat(tuple(f"127.0.0.1:{port.getsockname()[1]}" for port in ports), b"sixteen bytes..."),
    )  # fmt: skip
    monkeypatch.setattr(contexts, "_current", context)
    with pytest.raises(
        CollectiveTimeout, match=r"missing: rank 1; .* start_timeout=0.1 s .*longer one, or call hopsml.barrier"
    ):
        hopsml.barrier()
    for port in ports:
        port.close()


def test_mismatched_collective_operations_name_the_ranks(store: Path) -> None:
    def train() -> None:
        import os

        import numpy as np

        import hopsml

        rank = int(os.environ["RANK"])
        hopsml.all_reduce(np.zeros(3 + rank), name=f"gradient-{rank}")

    with pytest.raises(RunError, match=r"CollectiveMismatch.*rank 1.*gradient-1"):
        submit(train, 2).result(END_S)


def test_killed_worker_is_named_as_the_cause_and_not_its_peer(store: Path) -> None:
    def train() -> None:
        import os
        import signal

        import hopsml

        hopsml.barrier()
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        hopsml.barrier()

    with pytest.raises(RunError, match="rank 1 of 2"):
        submit(train, 2).result(END_S)


def test_worker_that_returns_before_its_first_operation_is_named_at_once(store: Path) -> None:
    """No wait of start_timeout: a group with a member that has returned can never form."""

    def train() -> None:
        import os

        import hopsml

        if os.environ["RANK"] == "0":
            hopsml.all_reduce(1.0)

    started = time.monotonic()
    with pytest.raises(RunError, match=r"rank 1 of 2 .*: returned before its first collective .*rank 0 waits for it"):
        submit(train, 2, start_timeout=2 * WAIT_S).result(END_S)
    assert time.monotonic() - started < WAIT_S


def test_evaluator_is_excluded_from_collectives(store: Path) -> None:
    def train() -> str:
        import os

        import hopsml

        if '"evaluator"' in os.environ["TF_CONFIG"].partition("task")[2]:
            try:
                hopsml.barrier()
            except hopsml.errors.ArgumentError as error:
                hopsml.send(str(error))
            return ""
        hopsml.barrier()
        return "trained"

    run = submit(train, 3, evaluator=True)
    received: list[Any] = []
    run.on_message(lambda rank, value: received.append(value))
    assert run.result(END_S).value == "trained"
    assert received == [
        "this worker is the evaluator, which does not train and takes part in no collective "
        "operation; call it on training workers only"
    ]


def test_encryption_variable_of_the_cluster_applies_to_every_run(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between hosts: these workers share one, and its memory."""

    def train() -> list[Any]:
        from hopsml.cluster.worker.context import current

        context = current()
        assert context is not None
        return [context.spec.communication.encryption, float(hopsml.all_reduce(context.rank, "sum"))]

    monkeypatch.setenv("HOPSML_ENCRYPTION", "1")
    assert submit(train, 3).result(END_S).value == [True, 3.0]


@pytest.mark.variant
def test_tensorflow_strategy_in_an_encrypted_run_is_refused(store: Path) -> None:
    """A strategy that the training function builds itself is refused, too. Without encryption there is no message."""

    def train() -> None:
        import tensorflow as tf

        tf.distribute.MultiWorkerMirroredStrategy()

    with pytest.raises(RunError, match=r"between 2 workers, in a run with encryption: only hopsml's own collective"):
        submit(train, 2, encryption=True).result(END_S)


@pytest.mark.variant
def test_default_strategy_in_an_encrypted_run_uses_hopsml(store: Path) -> None:
    def train() -> int:
        strategy = hopsml.tensorflow.strategy()
        return int(strategy.num_replicas_in_sync)

    result = submit(train, 2, encryption=True).result(END_S)
    assert result.value == 2 and result.in_force["by"] == "hopsml" and result.in_force["why"] == "it encrypts"
