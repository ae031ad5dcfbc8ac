"""Tests of ``experiment.torch`` with real workers: process group, gradients, resizing and failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hopsml
from hopsml import experiment
from hopsml.errors import ArgumentError, WorkerFailed
from hopsml.experiment import whole_script
from hopsml.experiment.run import Run
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import WAIT_S, wait_until
from tests.helpers.local_application import warm_application

pytestmark = pytest.mark.torch


project = warm_application(lambda: submit(lambda: None, num_workers=2).result(END_S))


def submit(function: Callable[..., Any], **given: Any) -> Run:
    return experiment.torch.submit(function, progress=False, keep_warm=60.0, **given)


def test_reported_nan_and_reported_tensor_of_two_elements_are_noted(project: Path) -> None:
    def train() -> float:
        import torch

        import hopsml

        for step in range(3):
            hopsml.report(step, loss=torch.tensor(float("nan")), acc=torch.tensor([0.5, 0.6]))
        return float("nan")

    run = submit(train, num_workers=1)
    result = run.result(END_S)
    assert [note for note in run.state.notes if "loss" in note or "acc" in note] == [
        "rank 0: loss is NaN at step 0: the training may have diverged, or its data contain NaN",
        "rank 0: acc is no number: tensor([0.5000, 0.6000]) is stored as text; report one number, such as its mean",
    ]
    assert result.notes == ["metric is NaN: the training may have diverged, or its data contain NaN"]


@pytest.mark.variant
def test_returned_torch_model_is_noted(project: Path) -> None:
    def train() -> Any:
        import torch

        return torch.nn.Linear(2, 1)

    run = submit(train, num_workers=1)
    assert type(run.result(END_S).value).__name__ == "Linear"
    (note,) = [note for note in run.state.notes if "returned a model" in note]
    assert "(torch: Linear)" in note and "hopsml.model.export" in note


def group_operations() -> dict[str, Any]:
    """Return the result of each operation of a process group of two, from tensors that name their rank."""
    import os

    import torch
    import torch.distributed as dist

    import hopsml

    rank = dist.get_rank()

    def of(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((2, 3), value, dtype=dtype)

    found: dict[str, Any] = {"ranks": [rank, dist.get_world_size(), hopsml.distributed.rank(), int(os.environ["RANK"])]}
    for name, operation in (("sum", dist.ReduceOp.SUM), ("max", dist.ReduceOp.MAX), ("min", dist.ReduceOp.MIN)):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool):
            x = of(rank, dtype)
            dist.all_reduce(x, operation)
            found.setdefault(name, {})[str(dtype)] = [float(x.min()), float(x.max())]
    strided = of(rank + 1.0).t()
    dist.all_reduce(strided)
    for dtype in (torch.float32, torch.complex64, torch.bool):
        x = of(rank, dtype)
        dist.broadcast(x, 1)
        assert bool((x == of(1, dtype)).all())
    gathered = [torch.empty(2, 3) for _ in range(2)]
    dist.all_gather(gathered, of(rank))
    scattered = torch.zeros(2, 3)
    dist.scatter(scattered, [of(10), of(11)] if rank == 0 else None, src=0)
    parts = torch.zeros(3)
    dist.reduce_scatter_tensor(parts, torch.arange(6.0))
    work = dist.all_reduce(y := of(rank), async_op=True)
    work.wait()
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    dist.barrier()
    refused = []
    for call in (lambda: dist.send(of(1), 1 - rank), lambda: dist.all_reduce(of(1), dist.ReduceOp.PRODUCT)):
        try:
            call()
        except Exception as error:  # noqa: BLE001 which type it is torch decides
            refused.append(str(error))
    mine = {
        "strided": strided.tolist()[0], "gathered": [one[0, 0].item() for one in gathered],
        "scattered": scattered[0, 0].item(),
        "parts": parts.tolist(), "asynchronous": y[0, 0].item(), "objects": objects, "refused": refused,
    }  # fmt: skip
    return {"json": [found, *hopsml.distributed.exchange(mine)]}


def test_process_group_equals_gloo_for_every_type(project: Path) -> None:
    found, first, second = submit(group_operations, num_workers=2).result(END_S).metrics["json"]
    assert found["ranks"] == [0, 2, 0, 0]
    types = [f"torch.{name}" for name in ("float32", "float64", "bfloat16", "int64", "int8", "bool")]
    for name, expected in (("sum", 1.0), ("max", 1.0), ("min", 0.0)):
        assert found[name] == {one: [expected, expected] for one in types}
    for rank, mine in enumerate((first, second)):
        assert mine["strided"] == [3.0, 3.0] and mine["gathered"] == [0.0, 1.0] and mine["scattered"] == 10.0 + rank
        assert mine["parts"] == ([0.0, 2.0, 4.0] if rank == 0 else [6.0, 8.0, 10.0]) and mine["asynchronous"] == 1.0
        assert mine["objects"] == [{"rank": 0}, {"rank": 1}]
        send, product = mine["refused"]
        assert "backend='gloo'" in send and "SUM, AVG, MIN and MAX" in product


@pytest.mark.variant
def test_encrypted_torch_run_uses_hopsml(project: Path) -> None:
    def reduced() -> float:
        import torch
        import torch.distributed as dist

        x = torch.ones(3)
        dist.all_reduce(x)
        return float(x[0])

    result = submit(reduced, num_workers=2, encryption=True).result(END_S)
    assert result.value == 2.0 and result.in_force["by"] == "hopsml" and result.in_force["why"] == "it encrypts"


def prepared_models() -> dict[str, Any]:
    """The same steps by ``prepare``, by DDP, by FSDP; and by one process with the whole batch."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    import hopsml

    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = torch.randn(32, 8, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 4

    def net(seed: int) -> Any:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
        return model

    def train(model: Any, own: slice) -> float:
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        for _ in range(5):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[own]), y[own]).backward()
            optimizer.step()
        with torch.no_grad():
            return float(torch.nn.functional.cross_entropy(model(x), y))

    share = slice(rank, None, size)
    prepared = hopsml.torch.prepare(net(rank))  # rank 0's values count
    names = list(prepared.state_dict())
    losses = {"alone": train(net(0), slice(None)), "prepared": train(prepared, share)}
    unused = prepared.unused.grad is None
    losses["ddp"] = train(torch.nn.parallel.DistributedDataParallel(net(rank), find_unused_parameters=True), share)
    sharded = net(0)
    sharded.unused = None
    fully_shard(sharded)
    losses["fsdp"] = train(sharded, share)

    one = hopsml.torch.prepare(torch.nn.Linear(2, 1, bias=False))
    with hopsml.torch.no_sync(one):
        one(torch.ones(1, 2) * (rank + 1)).sum().backward()
    local = one.weight.grad.tolist()
    one(torch.ones(1, 2) * (rank + 1)).sum().backward()
    norm = hopsml.torch.prepare(torch.nn.BatchNorm1d(2, momentum=1.0))
    norm(torch.tensor([[0.0, 1.0], [2.0, 3.0]]) + 10 * rank).sum().backward()
    masked = torch.nn.Linear(1, 1)
    masked.register_buffer("mask", torch.tensor([torch.finfo(torch.float32).min]))
    masked.register_buffer("third", torch.tensor([1 / 3], dtype=torch.float64))
    hopsml.torch.prepare(masked)(torch.ones(1, 1)).sum().backward()
    mine = {
        "losses": losses, "kept": local,
        "then": one.weight.grad.tolist(), "mean": norm.running_mean.tolist(), "names": names,
        "unused": unused, "same": [masked.mask.item() == torch.finfo(torch.float32).min, masked.third.item() == 1 / 3],
    }  # fmt: skip
    return {"json": hopsml.distributed.exchange(mine), "backend": dist.get_backend()}


def test_models_on_two_workers_train_as_one_process_with_the_whole_batch(project: Path) -> None:
    run = submit(prepared_models, num_workers=2)
    metrics = run.result(END_S).metrics
    assert metrics["backend"] == "hopsml"
    first, second = metrics["json"]
    assert first["losses"].keys() == second["losses"].keys() == {"alone", "prepared", "ddp", "fsdp"}
    for mine in (first, second):
        for how, loss in mine["losses"].items():
            assert loss == pytest.approx(first["losses"]["alone"], abs=1e-5), how
        assert mine["then"] == [[3.0, 3.0]], "the mean of both passes of both"
        assert mine["mean"] == [6.0, 7.0] and mine["unused"], (
            "statistics of both; a gradient that nobody has stays None"
        )
        assert "0.weight" in mine["names"]
        assert mine["same"] == [True, True], "what is equal on all workers stays as it is"
    assert (first["kept"], second["kept"]) == ([[1.0, 1.0]], [[2.0, 2.0]])


def of_ddp() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import hopsml

    model = hopsml.torch.prepare(torch.nn.Linear(2, 1, bias=False))
    model(torch.ones(1, 2) * (dist.get_rank() + 1)).sum().backward()
    return {"json": [dist.get_backend(), model.module.weight.grad.tolist()[0]]}


def test_prepared_model_over_gloo_is_a_ddp_model(project: Path) -> None:
    assert submit(of_ddp, num_workers=2, backend="gloo").result(END_S).metrics["json"] == ["gloo", [1.5, 1.5]]


def torchrun_program() -> dict[str, Any]:
    """Train as a program written for torchrun does: settings from variables, process group created by the program."""
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group(backend="gloo", init_method="env://")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert (rank, size) == (dist.get_rank(), dist.get_world_size())
    x = torch.tensor([float(rank + 1)])
    dist.all_reduce(x)
    dist.destroy_process_group()
    return {"sum": x.item()}


def test_torchrun_function_runs_unchanged(project: Path) -> None:
    assert submit(torchrun_program, num_workers=2).result(END_S).metrics["sum"] == 3.0


PROGRAM = """import argparse, os, sys
import torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
steps = parser.parse_args().steps
assert __name__ == "__main__" and sys.argv[0].endswith("train.py"), sys.argv
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
data = torch.utils.data.TensorDataset(torch.ones(16, 4))
share = torch.utils.data.DistributedSampler(data)
for _ in range(steps):
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4, sampler=share, num_workers=1):
        model(x).sum().backward()
print("rank", dist.get_rank(), "of", os.environ["WORLD_SIZE"], "made", steps, "epochs of", len(share))
dist.destroy_process_group()
"""


def test_torchrun_program_runs_on_every_worker_as_main_module(project: Path) -> None:
    given = {"name": "train.py", "source": PROGRAM, "arguments": ["--steps", "2"]}
    result = submit(whole_script._as_main_module, num_workers=2, args=given).result(END_S)
    logs = Path(result.run_dir.removeprefix("file://"), "logs")
    for rank in range(2):
        assert f"rank {rank} of 2 made 2 epochs of 8" in (logs / f"g0-rank{rank}.log").read_text()
    assert "operations of torch.distributed" in result.summary()


def test_program_that_exits_at_once_leaves_no_file(project: Path, tmp_path: Path) -> None:
    path_file = tmp_path / "told"
    source = f"import os, pathlib\npathlib.Path({str(path_file)!r}).write_text(__file__)\nos._exit(7)\n"
    given = {"name": "train.py", "source": source, "arguments": []}
    with pytest.raises(WorkerFailed, match="status 7"):
        submit(whole_script._as_main_module, num_workers=1, args=given).result(END_S)
    wait_until(lambda: not Path(path_file.read_text()).exists(), "the removal of what the worker had")


@pytest.mark.variant
def test_generated_driver_passes_its_arguments_to_the_program(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "train.py").write_text(f"import helpers\n{PROGRAM}")
    (tmp_path / "beside" / "helpers.py").write_text("")
    (tmp_path / "made").mkdir()
    path = whole_script.write_driver("torch", tmp_path / "beside" / "train.py", tmp_path / "made")
    variables = {**os.environ, "HOPSML_PROJECT_URL": f"file://{tmp_path}/project", "HOPSML_PROFILE": "local"}
    command = [sys.executable, str(path), "--steps", "1"]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0 and "made 1 epochs" in done.stderr and "FINISHED" in done.stdout, done.stderr


PAIR = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(1) * dist.get_rank()
dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)
print("rank", dist.get_rank(), "has", x.item(), "by", dist.get_backend())
"""


@pytest.mark.variant
def test_generated_driver_uses_its_backend(tmp_path: Path) -> None:
    (tmp_path / "pair.py").write_text(PAIR)
    (tmp_path / "made").mkdir()
    path = whole_script.write_driver("torch", tmp_path / "pair.py", tmp_path / "made", "gloo")
    variables = {**os.environ, "HOPSML_PROJECT_URL": f"file://{tmp_path}/project", "HOPSML_PROFILE": "local"}
    variables["HOPSML_LOCAL_SLOTS"] = "2"  # the others of a larger group would wait for rank 0, too
    done = subprocess.run([sys.executable, str(path)], env=variables, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.glob("project/Experiments/*/logs/g0-rank1.log")
    assert "rank 1 has 0.0 by gloo" in log.read_text()


def test_generated_driver_shows_an_error_without_hopsml_frames(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "made").mkdir()
    path = whole_script.write_driver("torch", tmp_path / "train.py", tmp_path / "made")
    variables = {
        **os.environ,
        "HOPSML_PROJECT_URL": f"file://{tmp_path}/project",
        "HOPSML_PROFILE": "local",
        "RANK": "0",
    }
    done = subprocess.run([sys.executable, str(path)], env=variables, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1 and done.stderr.startswith("hopsml.errors.EnvironmentConflict: RANK is already set")


def unequal() -> None:
    import torch

    import hopsml

    hopsml.torch.prepare(torch.nn.Linear(4 + hopsml.distributed.rank(), 2))


def form_group_twice() -> list[float]:
    """Return the sums over a process group that is created twice, as programs for torchrun do."""
    import torch
    import torch.distributed as dist

    sums = []
    for _ in range(2):
        dist.init_process_group("gloo")
        x = torch.ones(2)
        dist.all_reduce(x)
        sums.append(float(x[0]))
        dist.destroy_process_group()
    return [*sums, dist.is_initialized()]


def separate(averages: bool) -> float:
    """Train a model that was not prepared; average its gradients by hopsml.all_reduce, or not."""
    import torch

    import hopsml

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(1, 2)).sum().backward()
    if averages:
        for parameter in model.parameters():
            parameter.grad = torch.from_numpy(hopsml.all_reduce(parameter.grad))
    optimizer.step()
    return 1.0


def test_workers_that_average_no_gradients_are_reported_first(project: Path) -> None:
    for averages in (False, True):
        result = submit(separate, num_workers=2, args={"averages": averages}).result(END_S)
        first = result.summary().splitlines()[0]
        warns = first.startswith("WARNING") and "2 workers trained separately: no gradients were averaged" in first
        assert warns is not averages and ("hopsml.torch.prepare(model)" in first) is warns, first


@pytest.mark.parametrize("backend", ["hopsml", "gloo"])
def test_destroyed_process_group_can_be_created_again(project: Path, backend: str) -> None:
    assert submit(form_group_twice, num_workers=2, backend=backend).result(END_S).value == [2.0, 2.0, False]


def test_different_models_of_workers_are_named_by_rank_and_value(project: Path) -> None:
    with pytest.raises(
        WorkerFailed, match=r"rank 1 has weight torch.float32 \(2, 5\) where rank 0 has weight .*\(2, 4\)"
    ):
        submit(unequal, num_workers=2).result(END_S)


def test_flight_recorder_of_newer_torch_leaves_the_backend_out() -> None:
    """With torch 2.15 no group could be formed: the recorder requires a group of C++."""
    program = """
import torch.distributed as dist
from hopsml.training.torch import backend
dist.distributed_c10d._FR_SELF_RECORDING_BACKENDS = recorders = set()
dist.Backend.register_backend = lambda *_, **named: None
backend._registered = False
backend.register_backend()
assert recorders == {backend.NAME}, recorders
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0, done.stderr


def test_unavailable_or_unknown_backend_is_refused(project: Path) -> None:
    with pytest.raises(WorkerFailed, match="backend='nccl': this worker has no GPU") as failed:
        submit(torchrun_program, num_workers=2, backend="nccl").result(END_S)
    assert "  File " not in str(failed.value), "frames of hopsml before the function"
    with pytest.raises(ArgumentError, match="backend='mpi': it must be one of 'auto', 'hopsml', 'gloo', 'nccl'"):
        submit(torchrun_program, num_workers=2, backend="mpi")


def log_steps(folder: str, wrapped: bool) -> dict[str, Any]:
    """Train until the file that ends it exists, logging each step; with DDP the group cannot shrink in place."""
    import os
    import time
    from pathlib import Path

    import torch

    import hopsml

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model = torch.nn.parallel.DistributedDataParallel(model) if wrapped else hopsml.torch.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    state = hopsml.elastic.State(model=model, optimizer=optimizer)
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    log = Path(folder, f"steps-{os.getpid()}")
    for batch in state.resume(hopsml.elastic.Sampler(64, global_batch_size=8, seed=1, epochs=300)):
        optimizer.zero_grad()
        model(x[batch]).square().mean().backward()
        optimizer.step()
        with log.open("a") as file:
            file.write(f"{hopsml.distributed.rank()} {hopsml.distributed.world_size()} {state.batches}\n")
        state.commit(every=5)
        if not Path(folder, "hurry").exists():
            time.sleep(0.01)
    return {"json": hopsml.distributed.exchange(next(iter(model.state_dict().values())).tolist())}


def logged_steps(folder: Path) -> dict[int, list[tuple[int, int, int]]]:
    """Return rank, group size and number of each logged step, by process."""
    return {
        int(path.name.removeprefix("steps-")): [
            (int(rank), int(size), int(step)) for rank, size, step in map(str.split, path.read_text().splitlines())
        ]
        for path in folder.glob("steps-*")
    }


@pytest.mark.parametrize("wrapped", [False, pytest.param(True, marks=pytest.mark.variant)])
def test_killed_worker_ends_no_other_process_unless_wrapped_in_ddp(
    project: Path, tmp_path: Path, wrapped: bool
) -> None:
    run = submit(log_steps, min_workers=1, max_workers=2, args={"folder": str(tmp_path), "wrapped": wrapped})
    wait_until(lambda: sum(len(made) >= 7 for made in logged_steps(tmp_path).values()) == 2, "seven steps of both")
    places = {made[0][0]: pid for pid, made in logged_steps(tmp_path).items()}
    os.kill(places[1], signal.SIGKILL)
    changed = (
        (lambda: len(logged_steps(tmp_path)) > 2)
        if wrapped
        else (lambda: logged_steps(tmp_path)[places[0]][-1][1] == 1)
    )
    wait_until(changed, "steps without it")
    if not wrapped:  # the new member starts in the existing processes
        wait_until(lambda: logged_steps(tmp_path)[places[0]][-1][1] == 2, "steps of two again")
    (tmp_path / "hurry").touch()
    weights = run.result(END_S).metrics["json"]
    assert all(one == weights[0] for one in weights)
    made = logged_steps(tmp_path)
    chiefs = [pid for pid, own in made.items() if own[0][0] == 0]
    done = [step for pid in chiefs for _, _, step in made[pid]]
    assert set(done) == set(range(1, 2401))
    if wrapped:
        assert len(chiefs) >= 2, "all began anew"
    else:
        assert len(done) == 2400, "no step was made twice"


@pytest.mark.variant
def test_torch_function_runs_after_a_tensorflow_function_in_the_same_agents(store: Path) -> None:
    """Found by a user: the agents' next fork server had TensorFlow first, and died of torch."""

    def tensorflow_only() -> float:
        import tensorflow as tf

        return float(tf.constant(1.5))

    def of_torch() -> float:
        import torch

        model = torch.nn.Linear(1, 1)
        torch.optim.SGD(model.parameters(), 0.1).zero_grad()
        return 2.5

    assert experiment.collective_all_reduce(tensorflow_only, num_workers=1).value == 1.5
    assert experiment.torch(of_torch, num_workers=1).value == 2.5


def train_until_stopped() -> int:
    """Store a checkpoint of each step, as weight, until the driver sends a value."""
    import torch

    model = hopsml.torch.prepare(torch.nn.Linear(1, 1, bias=False))
    state = hopsml.elastic.State(model=model, count=0)
    for _ in state.resume(hopsml.elastic.Sampler(100_000, 1)):
        state.count += 1
        with torch.no_grad():
            model.weight.fill_(state.count)
        state.commit(every=1)
        if hopsml.receive(timeout=0.05) is not None:
            break
    return int(state.count)


def weight(folder: Path) -> dict[str, float]:
    import torch

    model = torch.nn.Linear(1, 1, bias=False)
    count = hopsml.load_checkpoint(folder, model=model)["count"]
    return {"weight": float(model.weight), "count": count}


def test_torch_run_is_evaluated_beside_its_training(project: Path) -> None:
    run = submit(train_until_stopped, min_workers=1, max_workers=1, checkpoint_every_s=0.1)
    evaluation = experiment.submit_evaluation(weight, run, metric="weight", progress=False, keep_warm=60.0)
    best = Path(run.run_dir.removeprefix("file://"), "evaluations", "best.json")
    wait_until(best.exists, "the first evaluation")
    assert not run.done()
    run.send("stop")
    steps = run.result(END_S).value
    found = evaluation.result(END_S).metrics
    assert found["evaluated"] >= 1 and 1 <= found["weight"] == found["count"] <= steps
