"""Features of PyTorch, as small trainings on the same global batches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import hopsml
from hopsml import experiment
from tools.features.table import Feature, Values

if TYPE_CHECKING:
    import torch

IMPLEMENTATIONS = ("hopsml", "gloo")
STEPS, ROWS, COLUMNS = 6, 12, 6  # of a training; of a global batch; of a row


def launch(play: Callable[..., Any], args: dict[str, Any], workers: int, implementation: str) -> Any:
    """Run ``play`` on ``workers`` workers, and return the chief's value."""
    options: dict[str, Any] = {"backend": implementation} if workers > 1 else {}
    return experiment.torch(
        play, args=args, num_workers=workers, progress=False, name="features of PyTorch", **options
    ).value


def begin() -> None:
    """Do nothing: torch needs no preparation before the first case."""


# ---------------------------------------------------------------------------------------- parts of trainings


def _share(batch: Any) -> Any:
    """Return this worker's rows; shares are equal, so the mean of the workers' means is that of the global batch."""
    return batch[hopsml.distributed.rank() :: hopsml.distributed.world_size()]


def _batches(steps: int = STEPS) -> Iterator[torch.Tensor]:
    import torch

    draw = torch.Generator().manual_seed(3)
    for _ in range(steps):
        yield torch.randn(ROWS, COLUMNS, generator=draw)


def _net(*layers: Any) -> Any:
    import torch

    torch.manual_seed(7)
    if layers:
        return torch.nn.Sequential(*[layer() for layer in layers])
    return torch.nn.Sequential(torch.nn.Linear(COLUMNS, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def _loss(model: Any, rows: Any) -> Any:
    return (model(rows).mean(tuple(range(1, rows.dim()))) - rows.flatten(1).sum(1)).square().mean()


def _bare(model: Any) -> Any:
    return getattr(model, "module", model)


def _values(*models: Any) -> Values:
    import torch

    found = [one.detach() for model in models for one in _bare(model).parameters()]
    return {"weights": [(torch.view_as_real(one) if one.is_complex() else one).double().tolist() for one in found]}


Before = Callable[[Any], None]


def _trained(
    optimizer: Callable[..., Any],
    build: Callable[[], Any] = _net,
    before_step: Before = lambda model: None,
    scheduler: Callable[[Any], Any] | None = None,
    context: Callable[[], Any] = contextlib.nullcontext,
    loss: Callable[[Any, Any], Any] = _loss,
) -> Values:
    """Train on the global batches; ``before_step`` is called with the model after its gradients are computed."""
    model = hopsml.torch.prepare(build())
    made = optimizer(model.parameters())
    schedule = scheduler(made) if scheduler is not None else None
    for batch in _batches():
        made.zero_grad()
        with context():
            value = loss(model, _share(batch))
        value.backward()
        before_step(model)
        made.step()
        if schedule is not None:
            schedule.step()
    return {**_values(model), "rates": [group["lr"] for group in made.param_groups]}


def _by(name: str, **options: Any) -> Callable[[Any], Any]:
    """Return a constructor of a torch optimizer with these options."""

    def make(parameters: Any) -> Any:
        import torch

        return getattr(torch.optim, name)(parameters, **options)

    return make


_sgd = _by("SGD", lr=0.05, momentum=0.9)


def _schedule(name: str, **options: Any) -> Callable[[Any], Any]:
    def make(optimizer: Any) -> Any:
        import torch

        return getattr(torch.optim.lr_scheduler, name)(optimizer, **options)

    return make


def _layer(name: str, *given: Any, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import torch

        return getattr(torch.nn, name)(*given, **options)

    return make


def _of(*layers: Callable[[], Any]) -> Callable[[], Any]:
    return functools.partial(_net, *layers)


# ---------------------------------------------------------------------------------------- cases of more than a line


def _lbfgs() -> Values:
    import torch

    model = hopsml.torch.prepare(_net())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for batch in _batches(2):
        optimizer.step(functools.partial(_closure, model, optimizer, _share(batch)))
    return _values(model)


def _closure(model: Any, optimizer: Any, rows: Any) -> float:
    """Return the mean loss of all workers, which must all do the same line search."""
    optimizer.zero_grad()
    loss = _loss(model, rows)
    loss.backward()
    return float(hopsml.all_reduce(loss.detach().numpy()))


def _clip(name: str, *given: Any) -> Before:
    def clip(model: Any) -> None:
        import torch

        getattr(torch.nn.utils, name)(model.parameters(), *given)

    return clip


def _accumulated(synchronised: bool, clip: Before = lambda model: None) -> Values:
    model = hopsml.torch.prepare(_net())
    optimizer = _sgd(model.parameters())
    for batch in _batches():
        optimizer.zero_grad()
        first, second = _share(batch[: ROWS // 2]), _share(batch[ROWS // 2 :])
        with contextlib.nullcontext() if synchronised else hopsml.torch.no_sync(model):
            (_loss(model, first) / 2).backward()
        (_loss(model, second) / 2).backward()
        clip(model)
        optimizer.step()
    return _values(model)


def _embedded(optimizer: Callable[[Any], Any], bag: bool = False) -> Values:
    import torch

    torch.manual_seed(7)
    kind = torch.nn.EmbeddingBag if bag else torch.nn.Embedding
    model = hopsml.torch.prepare(kind(20, 3, sparse=True))
    made = optimizer(model.parameters())
    draw = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        rows = _share(torch.randint(0, 20, (ROWS, 2), generator=draw))
        made.zero_grad()
        model(rows).square().mean().backward()
        made.step()
    return {**_values(model), "layout": str(_bare(model).weight.grad.layout)}


def _averaged(of_exponents: bool) -> Values:
    import torch
    from torch.optim import swa_utils

    model = hopsml.torch.prepare(_net())
    optimizer = _sgd(model.parameters())
    mean = swa_utils.get_ema_multi_avg_fn(0.9) if of_exponents else None
    average = swa_utils.AveragedModel(_bare(model), multi_avg_fn=mean)
    for batch in _batches():
        optimizer.zero_grad()
        _loss(model, _share(batch)).backward()
        optimizer.step()
        average.update_parameters(_bare(model))
    with torch.no_grad():
        return {**_values(average.module), "loss": _loss(average, next(_batches())).item()}


def _plateau() -> Values:
    import torch

    model = hopsml.torch.prepare(_net())
    optimizer = _sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    for batch in _batches():
        optimizer.zero_grad()
        loss = _loss(model, _share(batch))
        loss.backward()
        optimizer.step()
        schedule.step(float(hopsml.all_reduce(loss.detach().numpy())))  # decided alike on all workers
    return {**_values(model), "rate": optimizer.param_groups[0]["lr"]}


def _scaled() -> Values:
    import torch

    model, scaler = hopsml.torch.prepare(_net()), torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = _sgd(model.parameters())
    for batch in _batches():
        optimizer.zero_grad()
        scaler.scale(_loss(model, _share(batch))).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return {**_values(model), "scale": scaler.get_scale()}


def _autocast() -> Any:
    import torch

    return torch.autocast("cpu", torch.bfloat16)


def _tied() -> Any:
    import torch

    model = _net(_layer("Linear", COLUMNS, COLUMNS), _layer("Tanh"), _layer("Linear", COLUMNS, COLUMNS))
    model[2].weight = model[0].weight
    assert isinstance(model, torch.nn.Module)
    return model


def _frozen() -> Any:
    model = _net()
    model[0].requires_grad_(False)
    return model


def _thawed() -> Values:
    model = hopsml.torch.prepare(_frozen())
    for layers in (1, 2):
        _bare(model)[0].requires_grad_(layers == 2)
        optimizer = _sgd([one for one in model.parameters() if one.requires_grad])
        for batch in _batches():
            optimizer.zero_grad()
            _loss(model, _share(batch)).backward()
            optimizer.step()
    return _values(model)


def _checkpointed(reentrant: bool) -> Callable[[Any, Any], Any]:
    def loss(model: Any, rows: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        return _loss(
            lambda x: checkpoint(_bare(model) if reentrant else model, x, use_reentrant=reentrant),
            rows.requires_grad_(),
        )

    return loss


def _compiled() -> Any:
    import torch

    return torch.compile(_net(), backend="aot_eager")


def _sequence() -> Any:
    import torch

    class Recurrent(torch.nn.Module):  # type: ignore[misc] # torch is loaded where it is used
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = torch.nn.LSTM(1, 4, batch_first=True), torch.nn.Linear(4, 1)

        def forward(self, rows: Any) -> Any:
            return self.head(self.lstm(rows[:, :, None])[0][:, -1])

    torch.manual_seed(7)
    return Recurrent()


def _attention() -> Any:
    import torch

    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (2, 3)),
        torch.nn.TransformerEncoderLayer(3, 1, 8, dropout=0.0, batch_first=True),
        torch.nn.Flatten(),
        torch.nn.Linear(6, 1),
    )


def _normal(kind: str) -> Any:
    import torch

    layers = {
        "weight": torch.nn.utils.parametrizations.weight_norm,
        "spectral": torch.nn.utils.parametrizations.spectral_norm,
    }
    model = _net()
    layers[kind](model[0])
    return model


def _synchronised() -> Any:
    from hopsml.training.torch import normalisations

    model = _net(_layer("Linear", COLUMNS, 8), _layer("BatchNorm1d", 8), _layer("Linear", 8, 1))
    normalisations.synchronize(model)
    return model


def _complex() -> Any:
    import torch

    class Complex(torch.nn.Module):  # type: ignore[misc] # torch is loaded where it is used
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(COLUMNS, 2, dtype=torch.complex64))

        def forward(self, rows: Any) -> Any:
            return (rows.to(torch.complex64) @ self.weight).abs()

    torch.manual_seed(7)
    return Complex()


def _several_optimizers() -> Values:
    model = hopsml.torch.prepare(_net())
    bare = _bare(model)
    optimizers = [_by("Adam", lr=0.05)(bare[0].parameters()), _sgd(bare[2].parameters())]
    for number, batch in enumerate(_batches()):
        model.zero_grad()
        _loss(model, _share(batch)).backward()
        optimizers[number % 2].step()
    return _values(model)


def _groups(parameters: Any) -> Any:
    own = list(parameters)
    groups = [{"params": own[:1], "lr": 0.1, "weight_decay": 0.1}, {"params": own[1:]}]
    return _by("AdamW", lr=0.02)(groups)


def _adversaries() -> Values:
    import torch

    torch.manual_seed(7)
    generator = hopsml.torch.prepare(torch.nn.Linear(COLUMNS, COLUMNS))
    critic = hopsml.torch.prepare(
        torch.nn.Sequential(torch.nn.Linear(COLUMNS, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    )
    optimizers = [_by("Adam", lr=0.02)(one.parameters()) for one in (generator, critic)]
    for batch in _batches():
        rows = _share(batch)
        optimizers[1].zero_grad()
        (critic(generator(rows).detach()).mean() - critic(rows).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-critic(generator(rows)).mean()).backward()
        optimizers[0].step()
    return _values(generator, critic)


def _encoder_and_decoder() -> Values:
    import torch

    torch.manual_seed(7)
    two = [hopsml.torch.prepare(torch.nn.Linear(COLUMNS, COLUMNS)) for _ in range(2)]
    optimizer = _sgd([one for model in two for one in model.parameters()])
    for batch in _batches():
        rows = _share(batch)
        optimizer.zero_grad()
        (two[1](two[0](rows).tanh()) - rows).square().mean().backward()
        optimizer.step()
    return _values(*two)


def _penalised(model: Any, rows: Any) -> Any:
    import torch

    rows = rows.requires_grad_()
    out = model(rows)
    (gradient,) = torch.autograd.grad(out.sum(), rows, create_graph=True)
    return out.square().mean() + gradient.square().sum(1).mean()


def _branches(model: Any, rows: Any) -> Any:
    """Use the second branch for one worker's rows only: the others have no gradient of it."""
    import torch

    first, second = _bare(model)
    losses = [(second if value > 0 else first)(row).sum() ** 2 for row, value in zip(rows, rows[:, 0], strict=True)]
    return torch.stack(losses).mean()


def _two_branches() -> Any:
    import torch

    torch.manual_seed(7)
    return torch.nn.ModuleList([torch.nn.Linear(COLUMNS, 2) for _ in range(2)])


def _hooked() -> Any:
    model = _net()
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    return model


def _loaded(workers: int) -> Values:
    import torch

    data = torch.utils.data.TensorDataset(torch.cat(list(_batches())))
    size = hopsml.distributed.world_size()
    own = torch.utils.data.DistributedSampler(data, size, hopsml.distributed.rank(), shuffle=True, seed=2)
    loader = torch.utils.data.DataLoader(data, ROWS // size, sampler=own, num_workers=workers)
    model = hopsml.torch.prepare(_net())
    optimizer = _sgd(model.parameters())
    for epoch in range(2):
        own.set_epoch(epoch)
        for (rows,) in loader:
            optimizer.zero_grad()
            _loss(model, rows).backward()
            optimizer.step()
    return _values(model)


def _sampled() -> Values:
    import torch

    x = torch.cat(list(_batches()))
    model = hopsml.torch.prepare(_net())
    optimizer = _by("Adam", lr=0.02)(model.parameters())
    state = hopsml.elastic.State(model=model, optimizer=optimizer)
    for batch in state.resume(hopsml.elastic.Sampler(len(x), ROWS, seed=1, epochs=2)):
        optimizer.zero_grad()
        _loss(model, x[batch]).backward()
        optimizer.step()
        state.commit()
    return {**_values(model), "batches": state.batches}


def _continued() -> Values:
    """Train, and load the state dictionaries into a new model and a new optimizer half way."""
    import io

    import torch

    model = hopsml.torch.prepare(_net())
    optimizer = _by("Adam", lr=0.02)(model.parameters())
    for number, batch in enumerate(_batches()):
        if number == STEPS // 2:
            held = io.BytesIO()
            torch.save([_bare(model).state_dict(), optimizer.state_dict()], held)
            held.seek(0)
            states, bare = torch.load(held), _net()
            bare.load_state_dict(states[0])
            model = hopsml.torch.prepare(bare)
            optimizer = _by("Adam", lr=0.02)(model.parameters())
            optimizer.load_state_dict(states[1])
        optimizer.zero_grad()
        _loss(model, _share(batch)).backward()
        optimizer.step()
    return _values(model)


def _changed(change: Callable[[Any], None]) -> Values:
    """Train a module that changes after ``prepare``, and is not prepared again."""
    model = hopsml.torch.prepare(_net())
    change(_bare(model))
    optimizer = _sgd(model.parameters())
    for batch in _batches():
        optimizer.zero_grad()
        _loss(model, _share(batch)).backward()
        optimizer.step()
    return _values(model)


def _new_head(model: Any) -> None:
    model[2] = _layer("Linear", 8, 1)()


def _assigned(model: Any) -> None:
    model.load_state_dict({name: one.clone() for name, one in model.state_dict().items()}, assign=True)


def _prepared_again() -> Values:
    model = hopsml.torch.prepare(_net())
    bare = _bare(model)
    _new_head(bare)
    model = hopsml.torch.prepare(bare)
    optimizer = _sgd(model.parameters())
    for batch in _batches():
        optimizer.zero_grad()
        _loss(model, _share(batch)).backward()
        optimizer.step()
    return _values(model)


def _layerwise(name: str) -> Callable[[Any], Any]:
    def make(parameters: Any) -> Any:
        from hopsml.training.torch import layerwise_optimizers

        kind = getattr(layerwise_optimizers, name)
        return kind(parameters, 0.02, 0.9) if name == "LARS" else kind(parameters, 0.02)

    return make


def _matrices() -> Any:
    return _net(_layer("Linear", COLUMNS, 8, bias=False), _layer("Tanh"), _layer("Linear", 8, 2, bias=False))


_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05},
    "Adam": {"lr": 0.02},
    "AdamW": {"lr": 0.02, "amsgrad": True},
    "Adamax": {"lr": 0.02},
    "NAdam": {"lr": 0.02},
    "RAdam": {"lr": 0.02},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "Adagrad": {"lr": 0.05},
    "Adadelta": {"lr": 1.0},
    "Rprop": {"lr": 0.01},
    "ASGD": {"lr": 0.05},
    "Adafactor": {"lr": 0.05},
}
_SCHEDULES: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 2},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": STEPS + 1},
    "CosineAnnealingWarmRestarts": {"T_0": 2},
    "ExponentialLR": {"gamma": 0.8},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1},
}

_case = functools.partial
FEATURES = [
    *(Feature(name, "optimizers", _case(_trained, _by(name, **given))) for name, given in _OPTIMIZERS.items()),
    Feature(
        "SGD with Nesterov momentum and weight decay",
        "optimizers",
        _case(_trained, _by("SGD", lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.1)),
    ),
    Feature("SGD that maximizes", "optimizers", _case(_trained, _by("SGD", lr=0.001, maximize=True))),
    Feature("Adam, fused", "optimizers", _case(_trained, _by("Adam", lr=0.02, fused=True))),
    Feature("Adam, one parameter at a time", "optimizers", _case(_trained, _by("Adam", lr=0.02, foreach=False))),
    Feature("Muon", "optimizers", _case(_trained, _by("Muon", lr=0.02), _matrices)),
    Feature("LBFGS with a closure", "optimizers", _lbfgs, relative=1e-3, absolute=1e-3),
    Feature("LARS of hopsml", "optimizers", _case(_trained, _layerwise("LARS"))),
    Feature("LAMB of hopsml", "optimizers", _case(_trained, _layerwise("LAMB"))),
    Feature("groups of parameters with separate rates", "optimizers", _case(_trained, _groups)),
    Feature("an optimizer for each part of a model", "optimizers", _several_optimizers),
    Feature("SGD, three workers", "optimizers", _case(_trained, _sgd), workers=3),
    Feature("clip_grad_norm_", "clipping", _case(_trained, _sgd, before_step=_clip("clip_grad_norm_", 0.3))),
    Feature(
        "clip_grad_norm_ of the greatest entry",
        "clipping",
        _case(_trained, _sgd, before_step=_clip("clip_grad_norm_", 0.1, float("inf"))),
    ),
    Feature("clip_grad_value_", "clipping", _case(_trained, _sgd, before_step=_clip("clip_grad_value_", 0.05))),
    Feature(
        "clip_grad_norm_ with Adam, three workers",
        "clipping",
        _case(_trained, _by("Adam", lr=0.02), before_step=_clip("clip_grad_norm_", 0.3)),
        workers=3,
    ),
    Feature("accumulation with no_sync", "accumulation", _case(_accumulated, False)),
    Feature("accumulation, each pass averaged", "accumulation", _case(_accumulated, True)),
    Feature(
        "accumulation with no_sync and clip_grad_norm_",
        "accumulation",
        _case(_accumulated, False, _clip("clip_grad_norm_", 0.3)),
    ),
    Feature("Embedding(sparse=True) with SGD", "sparse gradients", _case(_embedded, _by("SGD", lr=0.5))),
    Feature("Embedding(sparse=True) with SparseAdam", "sparse gradients", _case(_embedded, _by("SparseAdam", lr=0.05))),
    Feature("Embedding(sparse=True) with Adagrad", "sparse gradients", _case(_embedded, _by("Adagrad", lr=0.05))),
    Feature(
        "EmbeddingBag(sparse=True) with SparseAdam",
        "sparse gradients",
        _case(_embedded, _by("SparseAdam", lr=0.05), bag=True),
    ),
    *(
        Feature(name, "schedules", _case(_trained, _sgd, scheduler=_schedule(name, **given)))
        for name, given in _SCHEDULES.items()
    ),
    Feature("ReduceLROnPlateau of the loss of all workers", "schedules", _plateau),
    Feature("AveragedModel with an exponential mean", "averages of weights", _case(_averaged, True)),
    Feature("AveragedModel with an equal mean (SWA)", "averages of weights", _case(_averaged, False)),
    Feature("autocast to bfloat16", "precision", _case(_trained, _sgd, context=_autocast), relative=0.1, absolute=0.05),
    Feature("GradScaler with unscale_ and clipping", "precision", _scaled),
    Feature(
        "parameters of float64",
        "precision",
        _case(_trained, _sgd, lambda: _net().double(), loss=lambda model, rows: _loss(model, rows.double())),
    ),
    Feature("complex parameters", "precision", _case(_trained, _sgd, _complex), implementations=("hopsml",)),
    Feature("tied weights", "models", _case(_trained, _sgd, _tied)),
    Feature(
        "frozen layers",
        "models",
        _case(_trained, lambda parameters: _sgd([one for one in parameters if one.requires_grad]), _frozen),
    ),
    Feature("layers that are unfrozen later", "models", _thawed, implementations=("hopsml",)),
    Feature(
        "layers that are unfrozen later, over gloo",
        "models",
        _thawed,
        expected="refused",
        reason="prepare\\(model\\) again",
        implementations=("gloo",),
    ),
    Feature("activation checkpointing", "models", _case(_trained, _sgd, loss=_checkpointed(False))),
    Feature(
        "activation checkpointing, reentrant",
        "models",
        _case(_trained, _sgd, loss=_checkpointed(True)),
        implementations=("hopsml",),
    ),
    Feature("torch.compile before prepare", "models", _case(_trained, _sgd, _compiled)),
    Feature("LSTM", "models", _case(_trained, _sgd, _sequence)),
    Feature("transformer", "models", _case(_trained, _sgd, _attention)),
    Feature(
        "LayerNorm",
        "models",
        _case(_trained, _sgd, _of(_layer("Linear", COLUMNS, 8), _layer("LayerNorm", 8), _layer("Linear", 8, 1))),
    ),
    Feature(
        "GroupNorm and a convolution",
        "models",
        _case(
            _trained,
            _sgd,
            _of(
                _layer("Unflatten", 1, (1, COLUMNS)),
                _layer("Conv1d", 1, 4, 3),
                _layer("GroupNorm", 2, 4),
                _layer("Flatten"),
                _layer("Linear", 16, 1),
            ),
        ),
    ),
    Feature("synchronised batch normalisation", "models", _case(_trained, _sgd, _synchronised)),
    Feature(
        "batch normalisation",
        "models",
        _case(_trained, _sgd, _of(_layer("Linear", COLUMNS, 8), _layer("BatchNorm1d", 8), _layer("Linear", 8, 1))),
        expected="by design",
        reason="each worker normalises by its own share of the batch, as DistributedDataParallel does",
    ),
    Feature(
        "dropout",
        "models",
        _case(_trained, _sgd, _of(_layer("Linear", COLUMNS, 8), _layer("Dropout"), _layer("Linear", 8, 1))),
        expected="by design",
        reason="each worker draws for its own rows",
    ),
    Feature("weight normalisation", "models", _case(_trained, _sgd, functools.partial(_normal, "weight"))),
    Feature("spectral normalisation", "models", _case(_trained, _sgd, functools.partial(_normal, "spectral"))),
    Feature("a hook of a parameter's gradient", "models", _case(_trained, _sgd, _hooked)),
    Feature("gradient penalty (a gradient of a gradient)", "models", _case(_trained, _sgd, loss=_penalised)),
    Feature(
        "a branch that some workers do not use",
        "models",
        _case(_trained, _by("SGD", lr=0.05), _two_branches, loss=_branches),
        implementations=("hopsml",),
    ),
    Feature("two models in one backward pass", "models", _encoder_and_decoder),
    Feature("generator and critic", "models", _adversaries, implementations=("hopsml",)),
    Feature("DataLoader with DistributedSampler", "data sources and states", _case(_loaded, 0)),
    Feature("DataLoader with processes", "data sources and states", _case(_loaded, 1)),
    Feature("Sampler and State of hopsml", "data sources and states", _sampled),
    Feature("state dictionaries into a new model", "data sources and states", _continued),
    Feature(
        "a new head, prepared again",
        "changes after prepare",
        _prepared_again,
        expected="by design",
        reason="each process initializes the head randomly; prepare sends rank 0's to all",
    ),
    Feature(
        "a new head, not prepared again",
        "changes after prepare",
        _case(_changed, _new_head),
        expected="refused",
        reason="2.weight, 2.bias.*prepare\\(model\\) again",
    ),
    Feature(
        "load_state_dict(assign=True) after prepare",
        "changes after prepare",
        _case(_changed, _assigned),
        expected="refused",
        reason="0.weight, 0.bias, 2.weight, 2.bias.*prepare\\(model\\) again",
    ),
]
