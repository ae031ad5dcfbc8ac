"""Tests of ``hopsml.torch.prepare``: late parameters, several models, sparse gradients, copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import RunError, WorkerFailed
from tests.helpers.clock import END_S
from tests.helpers.local_application import warm_application
from tests.integration.experiment.test_torch import submit

pytestmark = pytest.mark.torch


project = warm_application(lambda: submit(lambda: None, num_workers=2).result(END_S))


def of_each_rank(cases: dict[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """Return each case's value on each rank, or its error as text."""
    import hopsml

    found = {}
    for name, case in cases.items():
        try:
            mine = case()
        except Exception as error:  # noqa: BLE001 the test compares its text
            mine = f"{type(error).__name__}: {error}"
        found[name] = hopsml.distributed.exchange(mine)
    return {"json": found}


def trained_later() -> dict[str, list[Any]]:
    """Parameters that come alive after ``prepare``: the sum of all weights after two steps, or the error."""
    import torch

    import hopsml

    rank = hopsml.distributed.rank()

    def net(frozen: bool = True) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
        model[0].requires_grad_(not frozen)
        return hopsml.torch.prepare(model)

    def layers(model: Any) -> Any:
        return getattr(model, "module", model)

    def step(model: Any, by_hand: bool = False) -> float:
        weights = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3, dtype=weights[0].dtype) * (1 + rank)).sum().backward()
            if by_hand:
                with torch.no_grad():
                    for one in weights:
                        one.sub_(0.1 * one.grad)
            else:
                optimizer.step()
        return round(sum(float(one.double().sum()) for one in model.parameters()), 6)

    def thawed() -> float:
        model = net()
        step(model)
        layers(model)[0].requires_grad_(True)
        return step(model)

    def thawed_alone() -> float:
        model = net()
        layers(model).requires_grad_(False)
        layers(model)[0].requires_grad_(True)
        return step(model)

    def new_head() -> float:
        model = net()
        layers(model)[1] = torch.nn.Linear(3, 2)
        return step(model, by_hand=True)

    def new_branch() -> float:
        model = net()
        layers(model)[0].register_parameter("scale", torch.nn.Parameter(torch.ones(())))
        layers(model)[0].register_forward_hook(lambda module, inputs, output: output * module.scale)
        return step(model)

    def assigned() -> float:
        model = net(frozen=False)
        model.load_state_dict({name: one.clone() for name, one in model.state_dict().items()}, assign=True)
        return step(model, by_hand=True)

    def retied() -> float:
        model = net(frozen=False)
        layers(model)[1].weight = torch.nn.Parameter(torch.ones(1, 3))
        return step(model)

    def set_directly() -> float:
        model = net()
        for one in layers(model):
            one._parameters.update({name: torch.nn.Parameter(old.clone()) for name, old in one._parameters.items()})
        return step(model)

    def grown_in_place() -> float:
        model = net(frozen=False)
        layers(model)[1].weight.data = torch.ones(2, 3)
        layers(model)[1].bias.data = torch.ones(2)
        return step(model)

    def converted() -> float:
        model = net(frozen=False)
        layers(model).double()
        return step(model)

    def prepared_again() -> float:
        model = net()
        layers(model)[0].requires_grad_(True)
        layers(model)[1] = torch.nn.Linear(3, 2)
        return step(hopsml.torch.prepare(model))

    def of_another_model() -> float:
        net()
        other = torch.nn.Linear(3, 1)  # not prepared: each worker trains its own copy
        return 0.0 * step(other)

    def lazy() -> Any:
        return hopsml.torch.prepare(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LazyLinear(2)))

    cases = [thawed, thawed_alone, new_head, new_branch, assigned, retied, set_directly, grown_in_place, converted]
    return of_each_rank({one.__name__: one for one in [*cases, prepared_again, of_another_model, lazy]})


AVERAGED = ("thawed", "thawed_alone", "converted", "prepared_again", "of_another_model")
NAMED = {
    "new_head": "1.weight, 1.bias", "new_branch": "0.scale", "assigned": "0.weight, 0.bias, 1.weight, 1.bias",
    "retied": "1.weight", "set_directly": "1.weight, 1.bias", "grown_in_place": "1.weight, 1.bias",
}  # fmt: skip


def test_parameters_trained_after_prepare_are_averaged_or_named(project: Path) -> None:
    found = submit(trained_later, num_workers=2).result(END_S).metrics["json"]
    assert all("1.weight, 1.bias have no shape yet" in text for text in found.pop("lazy"))
    assert found.keys() == {*AVERAGED, *NAMED}
    for case in AVERAGED:
        first, second = found[case]
        assert isinstance(first, float) and first == second, (case, first, second)
    for case, names in NAMED.items():
        for text in found[case]:
            assert str(text).startswith("ArgumentError: ") and names in text and "prepare(model) again" in text, (
                case,
                text,
            )


@pytest.mark.variant
def test_parameters_trained_after_prepare_over_gloo_are_averaged_or_named(project: Path) -> None:
    found = submit(trained_later, num_workers=2, backend="gloo").result(END_S).metrics["json"]
    assert all("1.weight, 1.bias have no shape yet" in text for text in found.pop("lazy"))
    assert found.keys() == {*AVERAGED, *NAMED}
    for case, (first, second) in found.items():
        assert first == second, case
        if isinstance(first, str) and case != "grown_in_place":  # of which DistributedDataParallel speaks itself
            assert "prepare(model) again" in first, (case, first)
    for case in ("thawed", "thawed_alone", "new_head", "assigned", "retied", "converted"):
        assert isinstance(found[case][0], str), case
    for case in ("prepared_again", "of_another_model"):
        assert isinstance(found[case][0], float), case


def of_gradients_not_averaged() -> dict[str, list[Any]]:
    """Parameters that are changed by a worker's own gradients: the error, or else what is printed."""
    import contextlib
    import io

    import torch

    import hopsml

    rank = hopsml.distributed.rank()

    def net() -> Any:
        torch.manual_seed(0)
        return hopsml.torch.prepare(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)))

    def loss(model: Any) -> torch.Tensor:
        return model(torch.ones(2, 3) * (1 + rank)).sum()

    def stepping_in_hooks(by_hand: bool) -> None:
        model = net()
        for one in model.parameters():
            optimizer = torch.optim.SGD([one], 0.1)

            def step(parameter: torch.Tensor, optimizer: Any = optimizer) -> None:
                if by_hand:
                    with torch.no_grad():
                        parameter.sub_(0.1 * parameter.grad)
                else:
                    optimizer.step()

            one.register_post_accumulate_grad_hook(step)
        loss(model).backward()

    def beside_the_model() -> None:
        model, scale = net(), torch.nn.Parameter(torch.ones(7))
        optimizer = torch.optim.SGD([*model.parameters(), scale], 0.1)
        for _ in range(2):
            (loss(model) * scale.sum()).backward()
            optimizer.step()

    def kept_back() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with hopsml.torch.no_sync(model):
            loss(model).backward()
        optimizer.step()

    def averaged() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with hopsml.torch.no_sync(model):
            loss(model).backward()
        loss(model).backward()
        optimizer.step()
        optimizer.step()

    def of_max_norm() -> None:
        hopsml.torch.prepare(torch.nn.Sequential(torch.nn.Embedding(5, 2, max_norm=1.0)))

    def printed(case: Callable[[], None]) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            case()
        return shown.getvalue()

    return of_each_rank({
        "an optimizer": lambda: stepping_in_hooks(False), "by hand": lambda: stepping_in_hooks(True),
        **{one.__name__: lambda one=one: printed(one) for one in (beside_the_model, kept_back, averaged, of_max_norm)},
    })  # fmt: skip


def test_parameters_updated_with_local_gradients_are_named(project: Path) -> None:
    found = submit(of_gradients_not_averaged, num_workers=2).result(END_S).metrics["json"]
    for case in ("an optimizer", "by hand"):
        for text in found[case]:
            assert text.startswith("ArgumentError: ") and "step after backward() has returned" in text, (case, text)
    for text in found["beside_the_model"]:
        assert text.count("hopsml: SGD: it trains 1 parameter(s) of shape (7,), which no prepared model has") == 1, text
    for text in found["kept_back"]:
        assert "hopsml: SGD: it steps after a backward pass within no_sync()" in text, text
    assert found["averaged"] == ["", ""]
    for text in found["of_max_norm"]:
        assert "embeddings with max_norm" in text and ": 0." in text, text


def of_several_models() -> dict[str, list[Any]]:
    """Two models in one backward pass, also where a worker's batch leaves parameters out, and with other operations."""
    import torch
    import torch.distributed as dist

    import hopsml

    rank = hopsml.distributed.rank()

    class Summed(torch.autograd.Function):
        """The sum of all workers' values, in both directions: an operation of hopsml's amid the backward pass."""

        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(hopsml.all_reduce(x.detach().numpy(), "sum", name="forward"))

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(hopsml.all_reduce(gradient.numpy(), "sum", name="backward"))

    def net() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(400, 800), torch.nn.Linear(800, 400))
        model.extra = torch.nn.Parameter(torch.ones(400))
        return hopsml.torch.prepare(model)

    def run(order: int, between: Any = None) -> float:
        torch.manual_seed(0)
        two = [net(), net()][::order]
        x = torch.randn(8, 400)
        for step in range(20):
            middle = two[0][1](two[0][0](x))
            if between is not None:
                middle = between(middle)
            end = two[1][1](two[1][0](middle))
            if (step + rank) % 2:
                end = end * two[1].extra
            end.pow(2).mean().backward()
        return float(
            sum(one.grad.double().abs().sum() for model in two for one in model.parameters() if one.grad is not None)
        )

    def with_asynchronous() -> float:
        torch.manual_seed(0)
        model, x = net(), torch.ones(2_000_000)
        for _ in range(5):
            work = dist.all_reduce(x, async_op=True)
            model[1](model[0](torch.ones(2, 400))).sum().backward()
            work.wait()
        return float(x[0])

    return of_each_rank({
        "as prepared": lambda: run(1), "the other way round": lambda: run(-1),
        "an operation between": lambda: run(1, Summed.apply), "asynchronous": with_asynchronous,
    })  # fmt: skip


@pytest.mark.variant
def test_several_prepared_models_share_one_backward_pass(project: Path) -> None:
    found = submit(of_several_models, num_workers=2).result(END_S).metrics["json"]
    for case, (first, second) in found.items():
        assert isinstance(first, float) and first == second, (case, first, second)
    assert found["asynchronous"] == [32.0, 32.0]


def sparse_gradients() -> dict[str, list[Any]]:
    """Return layout and resulting weights of sparse gradients of two workers, and of one process with all rows."""
    import torch

    import hopsml

    rank = hopsml.distributed.rank()
    batches = [
        [[1, 2], [2, 7]],
        [[3], [3, 3, 9]],
        [[5, 5], []],
    ]  # by step, of each rank; the last one has none on rank 1

    def embedding(rows: list[int], model: Any) -> Any:
        return model(torch.tensor(rows, dtype=torch.int64)).pow(2).sum()

    def functional(rows: list[int], model: Any) -> Any:
        return (
            torch.nn.functional.embedding(torch.tensor(rows, dtype=torch.int64), model.weight, sparse=True).pow(2).sum()
        )

    def trained(loss: Any, sparse: bool, prepared: bool, beside: bool = False) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Embedding(12, 4, sparse=sparse)
        if beside:  # the same weight is that of a dense layer
            model.head = torch.nn.Linear(4, 12, bias=False)
            model.head.weight = model.weight
        if prepared:
            hopsml.torch.prepare(model)
        kind = torch.optim.SGD if beside else torch.optim.SparseAdam
        optimizer = kind(list(model.parameters()), lr=0.1)
        layouts = set()
        for of_ranks in batches:
            optimizer.zero_grad()
            losses = [loss(rows, model) for rows in (of_ranks[rank : rank + 1] if prepared else of_ranks)]
            if beside:
                losses = [one + model.head(torch.ones(4)).sum() for one in losses]
            value = sum(losses) / len(losses)
            value.backward()
            layouts.add(str(model.weight.grad.layout))
            optimizer.step()
        return [sorted(layouts), model.weight.detach().double().sum(1)]

    def compared(loss: Any, sparse: bool, beside: bool = False) -> Any:
        layouts, mine = trained(loss, sparse, prepared=True, beside=beside)
        _, alone = trained(loss, sparse, prepared=False, beside=beside)
        return [layouts, float((mine - alone).abs().max()), mine.tolist()]

    def unannounced() -> Any:
        """Compute sparse gradients by a function, without a module that declares them sparse."""
        model = torch.nn.ParameterDict({"weight": torch.nn.Parameter(torch.ones(12, 4)), "idle": torch.ones(2)})
        hopsml.torch.prepare(model)
        (functional([1, 3 + rank], model) if rank else functional([1], model)).backward()
        return [str(model.weight.grad.layout), model.weight.grad.to_dense().sum(1).tolist()]

    def bag() -> Any:
        model = hopsml.torch.prepare(torch.nn.EmbeddingBag(12, 4, mode="sum", sparse=True))
        model(torch.tensor([[1, 2], [rank, 5]])).sum().backward()
        return [str(model.weight.grad.layout), model.weight.grad.to_dense().sum(1).tolist()]

    return of_each_rank({
        "embedding": lambda: compared(embedding, sparse=True),
        "tied": lambda: compared(embedding, sparse=True, beside=True),
        "bag": bag, "unannounced": unannounced,
    })  # fmt: skip


def test_sparse_gradients_stay_sparse_and_train_as_one_process(project: Path) -> None:
    found = submit(sparse_gradients, num_workers=2).result(END_S).metrics["json"]
    for case, layout in (("embedding", "torch.sparse_coo"), ("tied", "torch.strided")):
        first, second = found[case]
        assert first[0] == [layout] and first[1] < 1e-6, (case, first)
        assert first[2] == second[2], case
    assert found["unannounced"] == 2 * [["torch.sparse_coo", [0.0, 8.0, 0.0, 0.0, 4.0, *7 * [0.0]]]]
    assert found["bag"] == 2 * [["torch.sparse_coo", [2.0, 6.0, 4.0, 0.0, 0.0, 4.0, *6 * [0.0]]]]


def of_copies(folder: str) -> dict[str, list[Any]]:
    """Copies of a prepared model, which are ordinary models of this worker alone."""
    import copy
    import io
    import pickle
    import subprocess
    import sys

    import torch

    import hopsml

    rank = hopsml.distributed.rank()

    def net() -> Any:
        torch.manual_seed(0)
        return hopsml.torch.prepare(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)))

    def gradient(model: Any) -> Any:
        model(torch.arange(6.0).view(2, 3) * (1 + rank)).square().sum().backward()
        return next(iter(model.parameters())).grad.sum().item()

    def copied(how: Any) -> Any:
        model = net()
        model(torch.ones(2, 3)).sum().backward()
        other = how(model)
        own, of_all = gradient(other), gradient(model)
        return [type(other).__name__, own != of_all, of_all]

    def saved(model: Any) -> Any:
        held = io.BytesIO()
        torch.save(model, held)
        held.seek(0)
        return torch.load(held, weights_only=False)

    def read_elsewhere() -> str:
        path = f"{folder}/model-{rank}.pt"
        torch.save(net(), path)
        code = (
            f"import sys, torch; m = torch.load({path!r}, weights_only=False); m(torch.ones(2, 3)).sum().backward(); "
            "print(type(m).__name__, any(name.startswith('hopsml') for name in sys.modules))"
        )
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    def averaged() -> Any:
        model = net()
        mean = torch.optim.swa_utils.AveragedModel(model)
        gradient(model)
        mean.update_parameters(model)
        return type(mean.module).__name__

    return of_each_rank({
        "deepcopy": lambda: copied(copy.deepcopy), "pickle": lambda: copied(lambda model: pickle.loads(pickle.dumps(model))),
        "torch.save": lambda: copied(saved), "elsewhere": read_elsewhere, "AveragedModel": averaged,
    })  # fmt: skip


@pytest.mark.variant
def test_copies_of_a_prepared_model_are_ordinary_models(project: Path, tmp_path: Path) -> None:
    found = submit(of_copies, num_workers=2, args={"folder": str(tmp_path)}).result(END_S).metrics["json"]
    for case in ("deepcopy", "pickle", "torch.save"):
        (kind, differs, first), (_, _, second) = found[case]
        assert kind == "Sequential" and differs and first == second, (case, found[case])
    assert found["elsewhere"] == 2 * ["Sequential False"]
    assert found["AveragedModel"] == 2 * ["Sequential"]


def tried(lr: float) -> dict[str, float]:
    """A trial whose workers begin with different models."""
    import torch
    import torch.distributed as dist

    import hopsml

    torch.manual_seed(hopsml.distributed.rank())
    model = hopsml.torch.prepare(torch.nn.Linear(4, 1))
    weights = hopsml.distributed.exchange(next(iter(model.state_dict().values())).sum().item())
    formed = dist.get_world_size() if dist.is_initialized() else 0
    return {"metric": lr, "spread": max(weights) - min(weights), "formed": formed, "workers": len(weights)}


def search(function: Callable[..., Any], **given: Any) -> Any:
    space = {"lr": ("DISCRETE", [0.1])}
    return experiment.search(
        function, space, searcher="grid", num_trials=None, metric="metric", progress=False, retries=0, **given
    )


def test_distributed_trials_form_the_group_of_the_named_framework(project: Path) -> None:
    found = search(tried, workers_per_trial=2, framework="torch")
    assert (found.metrics["formed"], found.metrics["workers"], found.metrics["spread"]) == (2, 2, 0.0)
    elastic = search(tried, workers_per_trial=(1, 2), framework="torch", max_executors=2)
    assert elastic.metrics["formed"] == elastic.metrics["workers"] and elastic.metrics["spread"] == 0.0


def test_framework_has_no_effect_with_one_worker_per_trial_and_is_noted(project: Path) -> None:
    handle = experiment.submit_search(
        tried, {"lr": ("DISCRETE", [0.1])}, searcher="grid", num_trials=None, metric="metric", progress=False,
        framework="torch",
    )  # fmt: skip
    assert handle.result().metrics["workers"] == 1
    assert any("framework='torch' has no effect" in note for note in handle.state.notes)


@pytest.mark.variant
def test_jax_trials_use_the_devices_of_all_their_workers(project: Path) -> None:
    def devices(lr: float) -> dict[str, float]:
        import jax

        return {"metric": lr, "processes": jax.process_count(), "devices": len(jax.devices())}

    assert search(devices, workers_per_trial=2, framework="jax").metrics["processes"] == 2


def of_a_model() -> float:
    import torch

    import hopsml

    return hopsml.torch.prepare(torch.nn.Linear(4, 1)).weight.sum().item()


def test_prepare_without_a_process_group_names_the_verb_that_forms_one(project: Path) -> None:
    with pytest.raises(RunError, match=r"workers_per_trial=..., framework='torch'\) forms it in each trial"):
        search(tried, workers_per_trial=2)
    for verb in (experiment.distributed, experiment.collective_all_reduce):
        with pytest.raises(WorkerFailed, match=r"in a run of 2 workers .* start the run by experiment.torch\(train"):
            verb(of_a_model, num_workers=2, progress=False)
        assert isinstance(verb(of_a_model, num_workers=1, progress=False).value, float)
    with pytest.raises(WorkerFailed, match="in a run of 2 workers"):
        experiment.distributed(of_a_model, min_workers=1, max_workers=2, progress=False)
    assert isinstance(of_a_model(), float), "outside of a run nothing is changed"


def resized(plan: list[int]) -> dict[str, Any]:
    """Trains over gloo in groups of these sizes one after another, ten batches in each after the first."""
    import time

    import torch

    import hopsml

    torch.manual_seed(0)
    model = hopsml.torch.prepare(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x = torch.randn(400, 4, generator=torch.Generator().manual_seed(1))
    state = hopsml.elastic.State(model=model, optimizer=optimizer, sizes=[], since=0, types=[])
    for batch in state.resume(hopsml.elastic.Sampler(400, 4, seed=1, epochs=4)):
        optimizer.zero_grad()
        model(x[batch]).square().mean().backward()
        optimizer.step()
        size = hopsml.distributed.world_size()
        if not state.sizes or state.sizes[-1] != size:
            state.sizes, state.since = [*state.sizes, size], state.batches
            state.types = [*state.types, type(model).__name__]
        later = plan[len(state.sizes) :]
        if later and state.batches - state.since >= 10:
            hopsml.elastic.resize(later[0])
            time.sleep(0.03)  # until the others have started
        state.commit(every=2)
    loss = getattr(model, "module", model)(x).square().mean().item()
    return {"sizes": state.sizes, "types": state.types, "loss": loss, "batches": state.batches}


def test_gloo_training_goes_from_two_workers_to_one_and_back(project: Path) -> None:
    plan = [2, 1, 2]
    run = submit(resized, min_workers=1, max_workers=2, backend="gloo", args={"plan": plan})
    found = run.result(END_S).value
    assert found["sizes"] == plan
    assert found["types"] == ["DistributedDataParallel", "Linear", "DistributedDataParallel"]
    undisturbed = submit(resized, num_workers=2, backend="gloo", args={"plan": [2]}).result(END_S).value
    assert found["batches"] == undisturbed["batches"] == 400
    assert found["loss"] == pytest.approx(undisturbed["loss"], rel=1e-3)


@pytest.mark.variant
def test_gloo_training_that_begins_with_one_worker_grows(project: Path) -> None:
    given = {"min_workers": 1, "max_workers": 2, "first_workers": 1, "backend": "gloo"}
    assert submit(resized, args={"plan": [1, 2]}, **given).result(END_S).value["sizes"] == [1, 2]


def interrupted(end: int) -> dict[str, Any]:
    """Trains over gloo; ends after some batches unless it has been resumed."""
    import torch

    import hopsml

    torch.manual_seed(0)
    model = hopsml.torch.prepare(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x = torch.randn(360, 4, generator=torch.Generator().manual_seed(1))
    state = hopsml.elastic.State(model=model, optimizer=optimizer)
    begun = None
    for batch in state.resume(hopsml.elastic.Sampler(360, 12, seed=1)):
        begun = state.batches if begun is None else begun
        optimizer.zero_grad()
        (model(x[batch]).square().sum() * hopsml.distributed.world_size() / 12).backward()
        optimizer.step()
        state.commit(every=1)
        if state.batches == end:
            break
    weights = getattr(model, "module", model).weight.detach()[0].tolist()
    return {"json": weights, "begun": begun, "size": hopsml.distributed.world_size(), "batches": state.batches}


@pytest.mark.parametrize("size", [3, pytest.param(1, marks=pytest.mark.variant)])
def test_torch_run_over_gloo_is_resumed_with_another_number_of_workers(project: Path, size: int) -> None:
    given = {"backend": "gloo", "args": {"end": 10}}
    first = submit(interrupted, min_workers=2, max_workers=2, **given)
    assert first.result(END_S).metrics["batches"] == 10
    given["args"] = {"end": 30}
    resumed = submit(interrupted, min_workers=size, max_workers=size, resume=first.run_dir, **given).result(END_S)
    assert (resumed.metrics["size"], resumed.metrics["begun"], resumed.metrics["batches"]) == (size, 11, 30)
    undisturbed = submit(interrupted, num_workers=2, **given).result(END_S)
    assert resumed.metrics["json"] == pytest.approx(undisturbed.metrics["json"], rel=1e-4)
