"""Tests of the conversion between torch state dictionaries and a commit's arrays."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopsml.errors import ArgumentError
from hopsml.training.torch.state_tensors import join_tensors, load_state, split_tensors, state_of

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_imported")]


def test_torch_state_round_trips_exactly_without_shared_memory() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    odd: dict[Any, Any] = {
        "empty": torch.zeros(0, 3), "number": torch.tensor(7), "flags": torch.tensor([True, False]),
        5: [torch.ones(2).t()],
        "strided": torch.arange(6).reshape(2, 3).t(), "complex": torch.tensor([1 + 2j]),
    }  # fmt: skip
    for state in (model.state_dict(), optimizer.state_dict(), odd):
        rest, arrays = split_tensors("x", state)
        assert arrays and all(array.dtype == "uint8" for array in arrays.values())
        back = join_tensors(pickle.loads(pickle.dumps(rest)), arrays)
        torch.testing.assert_close(back, dict(state), rtol=0, atol=0)
        tensors = [one for one in back.values() if isinstance(one, torch.Tensor)]
        if tensors:
            arrays[next(iter(arrays))][:] = 0
            torch.testing.assert_close(back, dict(state), rtol=0, atol=0)
    model.load_state_dict(join_tensors(*split_tensors("x", model.state_dict())))
    optimizer.load_state_dict(join_tensors(*split_tensors("x", optimizer.state_dict())))


def test_gradients_are_averaged_after_a_failed_backward_pass() -> None:
    """A worker that continues after a failed batch must not silently diverge from the others."""
    import torch

    from hopsml.cluster.shared.spec import GradientSettings
    from hopsml.training.torch.gradients import GradientAverager

    class Group:
        def __init__(self) -> None:
            self.calls, self.problem = 0, None

        def all_reduce(self, array: Any, reduction: str, wire: str, out: Any = None, name: str = "") -> None:
            self.calls += 1
            if self.problem is not None:
                raise self.problem

    def broken(gradient: Any) -> None:
        raise RuntimeError("a bad batch")

    group = Group()
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    average = GradientAverager(module, group)  # type: ignore[arg-type]
    once = module[0].register_forward_hook(lambda layer, inputs, output: output.register_hook(broken) and None)
    with pytest.raises(RuntimeError, match="a bad batch") as held:  # with all frames of the pass
        module(torch.ones(2, 3)).sum().backward()
    once.remove()
    assert group.calls == 0
    for passes in (1, 2):
        module(torch.ones(2, 3)).sum().backward()
        assert group.calls == passes
    group.problem = RuntimeError("a member is lost")
    with pytest.raises(RuntimeError, match="a member is lost") as also_held:
        module(torch.ones(2, 3)).sum().backward()
    group.problem = None
    module(torch.ones(2, 3)).sum().backward()
    assert group.calls == 4
    module.append(torch.nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match=r"2\.weight, 2\.bias") as held_as_well:
        module(torch.ones(2, 3)).sum().backward()
    del module[2]
    module(torch.ones(2, 3)).sum().backward()
    assert group.calls == 5 and held and also_held and held_as_well
    average.remove_hooks()
    several = GradientAverager(module, group, settings=GradientSettings(accumulate=2))  # type: ignore[arg-type]
    module(torch.ones(2, 3)).sum().backward()
    once = module[0].register_forward_hook(lambda layer, inputs, output: output.register_hook(broken) and None)
    with pytest.raises(RuntimeError, match="a bad batch"):
        module(torch.ones(2, 3)).sum().backward()
    once.remove()
    for calls in (5, 6, 6, 7):  # the count of passes has begun again
        module.zero_grad()
        module(torch.ones(2, 3)).sum().backward()
        assert group.calls == calls
    several.remove_hooks()


@pytest.mark.variant
def test_torch_state_names_are_independent_of_wrappers() -> None:
    # In a subprocess: torch.compile imports triton, which crashes in a process that has imported TensorFlow.
    code = f"import {__name__} as tests; tests.check_names_of_wrapped_modules()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check_names_of_wrapped_modules() -> None:
    """Raise AssertionError unless states have the names of bare modules: one worker alone has no DistributedDataParallel."""
    import torch
    import torch.distributed as dist

    def plain() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))

    def wrapped(module: torch.nn.Module) -> torch.nn.Module:
        return torch.nn.parallel.DistributedDataParallel(module)

    def within() -> torch.nn.Module:
        return torch.nn.ModuleDict({"module": wrapped(plain()), "other": torch.compile(plain())})

    def bare() -> torch.nn.Module:
        return torch.nn.ModuleDict({"module": plain(), "other": plain()})

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        pairs = [(plain(), wrapped(plain())), (plain(), wrapped(torch.compile(plain()))), (bare(), within())]
        for one, two in [*pairs, *((two, one) for one, two in pairs)]:
            state = state_of(one)
            assert (
                not any(name.startswith(("module.module.", "module.0", "_orig_mod.")) for name in state)
                or "other.0.bias" in state
            )
            load_state(two, state)
            for own, other in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
                assert torch.equal(own, other)
        older = {f"module.{name}": one for name, one in plain().state_dict().items()}  # as of an earlier release
        load_state(plain(), older)
        load_state(wrapped(plain()), older)
    finally:
        dist.destroy_process_group()
