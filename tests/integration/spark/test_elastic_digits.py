"""Test that a TensorFlow training survives the loss of Spark executors with the weights of an undisturbed one."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsml import experiment
from hopsml.elastic import Sampler
from hopsml.experiment.run import Run
from tests.helpers.clock import END_S
from tests.helpers.cluster.finding import agent_of
from tests.helpers.cluster.workloads import wait_until
from tests.integration.spark import elastic_digits

# Of tests/chaos: test_fit.py without Spark, test_spark.py without TensorFlow.
pytestmark = [pytest.mark.spark, pytest.mark.variant]

WAIT_S = 120.0


EPOCHS = 6


@functools.cache
def undisturbed() -> list[Any]:
    """The weights of the same training by numpy alone: one process, the same samples in the same order."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int64)
    rng = np.random.default_rng(1)
    w0, b0, w1, b1 = (rng.normal(0, 0.1, shape).astype(np.float32) for shape in ((64, 32), (32,), (32, 10), (10,)))
    data = Sampler(len(x), global_batch_size=128, seed=1, epochs=EPOCHS)
    while not data.is_exhausted:
        ids = data.next_batch()
        hidden = np.maximum(x[ids] @ w0 + b0, 0)
        logits = hidden @ w1 + b1
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = shares / shares.sum(axis=1, keepdims=True)
        error[np.arange(len(ids)), y[ids]] -= 1
        error /= len(ids)
        back = (error @ w1.T) * (hidden > 0)
        steps = (x[ids].T @ back, back.sum(0), hidden.T @ error, error.sum(0))
        w0, b0, w1, b1 = (
            (weight - 0.5 * step).astype(np.float32) for weight, step in zip((w0, b0, w1, b1), steps, strict=True)
        )
    return [w0, b0, w1, b1]


def submit(folder: str, least: int, most: int, step_s: float = 0.03, over: str = "tensorflow") -> Run:
    args = {"folder": folder, "step_s": step_s, "over": over}
    return experiment.submit(elastic_digits.train, args=args, min_workers=least, max_workers=most, progress=False)


def await_step(folder: Path, step: int) -> None:
    wait_until(lambda: (folder / "step-0").exists() and int((folder / "step-0").read_text()) >= step, "steps", WAIT_S)


def check(run: Run, generation: int) -> None:
    value = run.result(END_S).value
    assert value["generation"] >= generation
    for ours, theirs in zip(value["weights"], undisturbed(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_worker_does_not_change_the_final_weights(store: Path, tmp_path: Path, rank: int) -> None:
    run = submit(str(tmp_path), 2, 2)
    await_step(tmp_path, 12)
    os.kill(int((tmp_path / f"pid-{rank}-0").read_text()), signal.SIGKILL)
    check(run, 1)


def test_group_continues_after_a_killed_executor_and_grows_again(store: Path, tmp_path: Path) -> None:
    run = submit(str(tmp_path), 1, 2, step_s=0.15)
    await_step(tmp_path, 12)
    executor = next(parent for parent in agent_of(run, 1).parents() if parent.name() == "java")
    executor.kill()
    wait_until(lambda: run.status()["generation"] >= 2 and len(run.status()["members"]) == 2, "growth", WAIT_S)
    check(run, 2)
