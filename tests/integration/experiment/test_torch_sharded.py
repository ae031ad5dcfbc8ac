"""Tests of a ``fully_shard`` model in a ``State``, trained by 2, 3 and 1 workers, and after a loss."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.integration.experiment.test_torch import logged_steps, submit

pytestmark = pytest.mark.torch


def sharded(folder: str) -> dict[str, Any]:
    """Trains a divided model; writes down each step, and the weights, whole, at the end."""
    import os
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    import hopsml

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()
    if dist.is_initialized():
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        assert isinstance(model[0].weight, DTensor)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    state = hopsml.elastic.State(model=model, optimizer=optimizer, schedule=schedule, worlds=[])
    x = torch.randn(96, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.arange(96) % 3
    log = Path(folder, f"steps-{os.getpid()}")
    for batch in state.resume(hopsml.elastic.Sampler(96, global_batch_size=12, seed=1, epochs=40)):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        schedule.step()
        state.worlds = [*state.worlds, hopsml.distributed.world_size()]
        with log.open("a") as file:
            file.write(f"{hopsml.distributed.rank()} {hopsml.distributed.world_size()} {state.batches}\n")
        state.commit(every=5)
        if not Path(folder, "hurry").exists():
            time.sleep(0.02)
    weights = [getattr(one, "full_tensor", lambda one=one: one)().detach() for one in model.parameters()]
    return {"json": [torch.cat([one.reshape(-1) for one in weights]).tolist(), state.worlds]}


def test_sharded_weights_equal_undisturbed_training_through_group_changes(store: Path, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "hurry").touch()
    expected, _ = submit(sharded, num_workers=1, args={"folder": str(tmp_path / "alone")}).result(END_S).metrics["json"]
    run = submit(sharded, min_workers=1, max_workers=3, args={"folder": str(tmp_path)})
    run.resize(2)

    def of(world: int) -> dict[int, int]:
        """Processes by rank, once all of a group of this size have made so many steps that one was a commit's."""
        made = {
            own[-1][0]: pid for pid, own in logged_steps(tmp_path).items() if sum(one[1] == world for one in own) > 10
        }
        return made if made.keys() == set(range(world)) else {}

    wait_until(lambda: of(2), "steps of two")
    run.resize(3)
    victim = wait_until(lambda: of(3), "steps of three")[2]
    os.kill(victim, signal.SIGKILL)
    run.resize(1)
    wait_until(lambda: of(1), "steps of one")
    (tmp_path / "hurry").touch()
    weights, worlds = run.result(END_S).metrics["json"]
    assert {1, 2, 3} <= set(worlds) and len(worlds) == 320, "each step was made once along what the weights come from"
    assert weights == pytest.approx(expected, rel=1e-9, abs=1e-9)


def saves_parts(folder: str, steps: int, saved: bool) -> dict[str, Any]:
    """Trains on from torch's own sharded checkpoint, where there is one, and makes the next: each worker its parts."""
    from pathlib import Path

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.arange(12) % 3
    if saved:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.load({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    own = slice(dist.get_rank(), None, dist.get_world_size())
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[own]), y[own]).backward()
        optimizer.step()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)
    dist.barrier()
    parts = len(list(Path(folder).glob("*.distcp")))
    return {"json": [torch.cat([one.full_tensor().reshape(-1) for one in model.parameters()]).tolist(), parts]}


@pytest.mark.variant  # of torch's own; what hopsml keeps of such a model is above
def test_torch_sharded_checkpoints_load_with_another_number_of_workers(store: Path, tmp_path: Path) -> None:
    def train(workers: int, name: str, steps: int, saved: bool) -> tuple[list[float], int]:
        args = {"folder": str(tmp_path / name), "steps": steps, "saved": saved}
        weights, parts = submit(saves_parts, num_workers=workers, args=args).result(END_S).metrics["json"]
        return weights, parts

    expected, _ = train(1, "alone", 30, saved=False)
    assert train(2, "parts", 10, saved=False)[1] == 2
    assert train(3, "parts", 10, saved=True)[1] == 3
    weights, _ = train(1, "parts", 10, saved=True)
    assert weights == pytest.approx(expected, rel=1e-9, abs=1e-9)
