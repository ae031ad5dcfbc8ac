"""Tests of unread messages, and of groups that change at the request of a worker."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

import pytest

import hopsml
from hopsml import experiment
from hopsml.cluster.agent import worker_process
from hopsml.errors import WorkerFailed
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import WAIT_S
from tests.integration.cluster.test_messages import submit

pytestmark = pytest.mark.chaos


def test_worker_that_reads_no_messages_is_ended(store: Path) -> None:
    """64 MiB may be unread; the agent continues and reports the end."""

    def read_no_messages() -> None:
        hopsml.send("ready")
        time.sleep(600)

    run = submit(read_no_messages, workers=1)
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    run.on_message(lambda rank, value: ready.put(value))
    ready.get(timeout=WAIT_S)
    for _ in range(1 + worker_process.MOST_WAITING // (31 << 20)):
        run.send(bytes(31 << 20), rank=0)
    with pytest.raises(WorkerFailed, match="MiB of messages"):
        run.result(END_S)


def test_worker_resizes_its_group(store: Path) -> None:
    def train() -> int:
        state = hopsml.elastic.State(step=0)
        data = hopsml.elastic.Sampler(1_000_000, 1, epochs=1)
        from hopsml.cluster.worker.context import current

        context = current()
        assert context is not None
        hopsml.elastic.resize(2)
        for _ in state.resume(data):
            state.commit()
            if context.world_size == 2:
                return 2
            time.sleep(0.002)
        return context.world_size

    run = experiment.submit(train, min_workers=1, max_workers=2, progress=False)
    run.resize(1)
    assert run.result(END_S).value == 2
