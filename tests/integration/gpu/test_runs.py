"""Tests of local runs whose workers have a GPU: assignment, training, sampling and a loss."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.cluster.shared import gpus
from hopsml.experiment import collective, plan
from hopsml.experiment.options import DistributedOptions, TorchOptions
from hopsml.experiment.run import Run
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import WAIT_S, wait_until

HOST = gpus.host_gpus()
pytestmark = [pytest.mark.torch, pytest.mark.skipif(not HOST, reason="no GPU on this host")]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """The profile "local" as it is: a worker for each GPU."""
    folder = tmp_path / "project"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOPSML_PROJECT_URL", f"file://{folder}")
        for name in ("HOPSML_CONF_DIR", "HOPSML_PROFILE", "TF_CONFIG", "CUDA_VISIBLE_DEVICES"):
            environment.delenv(name, raising=False)
        yield folder
        experiment.shutdown()


def submit(function: Callable[..., Any], **given: Any) -> Run:
    options = TorchOptions(function, progress=False, **given)
    return plan.start(collective.build(options, "torch", "torch"))


def on_the_gpu() -> dict[str, Any]:
    """Train briefly; return the worker's devices and variables, and torch's view of them."""
    import os
    import time

    import torch
    import torch.distributed as dist

    import hopsml

    device = hopsml.torch.device()
    model = hopsml.torch.prepare(torch.nn.Linear(256, 256).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(4096, 256, device=device)
    until, steps = time.monotonic() + 12, 0
    while time.monotonic() < until:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        steps += 1
        if steps % 1000 == 0:
            hopsml.report(step=steps)
    reduced = hopsml.all_reduce(torch.ones(3, device=device), "sum")
    return {
        "json": {
            "device": str(device), "weights": str(next(model.parameters()).device), "name": torch.cuda.get_device_name(),
            "backend": dist.get_backend() if dist.is_initialized() else "", "visible": os.environ["CUDA_VISIBLE_DEVICES"],
            "count": hopsml.devices.get_num_gpus(), "threads": torch.get_num_threads(),
            "cores": len(os.sched_getaffinity(0)), "reduced": [str(reduced.device), *reduced.tolist()], "steps": steps,
        }
    }  # fmt: skip


def test_worker_trains_on_its_gpu_and_gpu_metrics_are_sampled(project: Path) -> None:
    run = submit(on_the_gpu, num_workers=1)
    result = run.result(END_S)
    found = result.metrics["json"]
    assert found["device"] == found["weights"] == "cuda:0" and found["visible"] == str(HOST[0].index)
    assert found["count"] == 1 and found["backend"] in ("", "nccl") and found["reduced"][1:] == [1.0, 1.0, 1.0]
    assert found["reduced"][0] == "cuda:0" and found["steps"] > 100
    assert found["threads"] == found["cores"]
    written = "".join(path.read_text() for path in project.rglob("*") if path.is_file() and path.suffix == ".jsonl")
    for name in ("utilization_percentage", "memory_usage_megabytes", "power_usage_watts"):
        assert f"gpu_0_{name}" in written, sorted(str(path) for path in project.rglob("*") if path.is_file())


def test_jax_computes_on_the_gpu(project: Path) -> None:
    def train() -> str:
        import jax
        import jax.numpy as jnp

        x = jnp.ones((512, 512))
        return f"{jax.devices()[0].platform} {float((x @ x)[0, 0])}"

    if importlib.util.find_spec("jax") is None:
        pytest.skip("JAX is not installed")
    options = DistributedOptions(train, num_workers=1, progress=False)
    assert plan.start(collective.build(options, "jax", "jax")).result(END_S).value == "gpu 512.0"


def test_more_workers_than_gpus_are_refused(project: Path) -> None:
    with pytest.raises(Exception, match=f"{len(HOST) + 1}"):
        submit(on_the_gpu, num_workers=len(HOST) + 1, start_timeout=10.0).result(END_S)


def train_slowly() -> str:
    """Make six seconds of steps on the GPU; the reports contain the pid."""
    import os
    import time

    import torch

    import hopsml

    x = torch.ones(3, device=hopsml.torch.device())
    for step in range(1, 601):
        hopsml.report(step=step, process=os.getpid())
        x = x * 1.0
        time.sleep(0.01)
    return f"{x.device} {float(x.sum())}"


def test_successor_of_a_killed_worker_has_its_gpu(project: Path) -> None:
    run = submit(train_slowly, num_workers=1, min_workers=1)
    wait_until(lambda: bool(run.state.members) and (run.state.members[0].step or 0) > 20, "steps", WAIT_S)
    os.kill(int(run.state.members[0].metrics["process"]), signal.SIGKILL)
    assert run.result(END_S).value == "cuda:0 3.0"
