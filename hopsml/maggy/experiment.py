"""``maggy.experiment.lagom``: a hyper-parameter search, an ablation study or a distributed training, by Maggy's arguments.

Returns Maggy's dict and leaves Maggy's files: ``maggy.json``, ``result.json``, ``maggy.log`` in the run directory, and a
folder for each trial that is called by its id.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hopsml.cluster.plain import as_json
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.experiment import arguments, collective
from hopsml.experiment.searches import call as calls
from hopsml.experiment.searches.progress import line
from hopsml.experiment.searches.start import begin
from hopsml.maggy import ablation
from hopsml.maggy.config import (
    AblationConfig,
    HyperparameterOptConfig,
    TfDistributedConfig,
    TorchDistributedConfig,
)
from hopsml.maggy.optimizer.base import searcher_of
from hopsml.search.space import Searchspace
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir, to_json
from hopsml.tracking import seeds

# Of Maggy 0.x, in their order behind the function.
_FIRST = {
    "name": "no-name", "experiment_type": "optimization", "searchspace": None, "optimizer": None, "direction": "max",
    "num_trials": 1, "ablation_study": None, "ablator": None, "optimization_key": "metric", "hb_interval": 1,
    "es_policy": "median", "es_interval": 1, "es_min": 10, "description": "",
}  # fmt: skip
MESSAGES_S = 10.0  # for the last workers' values to be handed over
_CONFIGS = (HyperparameterOptConfig, AblationConfig, TfDistributedConfig, TorchDistributedConfig)
_OURS = (
    "max_executors", "retries", "isolation", "seed", "deadline", "budget", "patience", "start_timeout", "keep_warm",
    "preload", "profile", "progress", "environment", "echo", "honour_environment",
)  # fmt: skip


def lagom(*positional: Any, **named: Any) -> dict[str, Any]:
    """Run a Maggy experiment and return its result.

    ``lagom(train_fn, config)`` with a config of ``hopsml.maggy.config``, or ``lagom(train_fn, name="no-name",
    experiment_type="optimization", searchspace=None, optimizer=None, direction="max", num_trials=1, ablation_study=None,
    ablator=None, optimization_key="metric", hb_interval=1, es_policy="median", es_interval=1, es_min=10,
    description="")``. Besides, keyword arguments of ``experiment.search``: max_executors, retries, seed, deadline, ...

    Returns a dict: ``best_id, best_val, best_config`` (and ``best_hp``), ``worst_*``, ``avg``, ``metric_list``,
    ``num_trials``, ``early_stopped``, of an ablation study ``effects``: what was left out, the metric without it and the
    difference; of a distributed training the mean of the workers' metrics.
    """
    named = dict(named)
    function, rest = arguments.training_function(positional, named, "lagom")
    ours = {name: named.pop(name) for name in _OURS if name in named}
    config = named.pop("config", None)
    if rest and isinstance(rest[0], _CONFIGS):
        config, rest = rest[0], rest[1:]
    if config is not None:
        if rest or named:
            raise ArgumentTypeError(f"lagom(): a config says everything; leave out {', '.join(named) or 'the rest'}")
        return _by_config(function, config, ours)
    for name, value in zip(_FIRST, rest, strict=False):
        if name in named:
            arguments.refuse_twice("lagom", name)
        named[name] = value
    if len(rest) > len(_FIRST):
        arguments.refuse_surplus("lagom", len(rest), len(_FIRST))
    arguments.refuse_unknown(
        "lagom", {key: named[key] for key in named if key not in _FIRST}, (*_FIRST, "config", *_OURS)
    )
    return _by_arguments(function, {**_FIRST, **named}, ours)


def _by_arguments(function: Callable[..., Any], given: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    kind = given["experiment_type"]
    if kind not in ("optimization", "ablation"):
        raise ArgumentError(f"experiment_type={kind!r} is not known; there are 'optimization' and 'ablation'")
    shared = {name: given[name] for name in ("name", "direction", "description", "optimization_key")}
    if kind == "ablation":
        config = AblationConfig(given["ablation_study"], given["ablator"] or "loco", **shared)
        return _ablation(function, config, ours)
    stopping = {name: given[name] for name in ("es_policy", "es_interval", "es_min")}
    space = given["searchspace"] if given["searchspace"] is not None else Searchspace()
    return _search(
        function, HyperparameterOptConfig(given["num_trials"], given["optimizer"], space, **shared, **stopping), ours
    )


def _by_config(function: Callable[..., Any], config: Any, ours: dict[str, Any]) -> dict[str, Any]:
    if isinstance(config, HyperparameterOptConfig):
        return _search(function, config, ours)
    if isinstance(config, AblationConfig):
        return _ablation(function, config, ours)
    if isinstance(config, TfDistributedConfig):
        return _distributed(function, config, ours)
    if isinstance(config, TorchDistributedConfig):
        raise ArgumentError(
            "TorchDistributedConfig: PyTorch is not supported yet; TfDistributedConfig trains by TensorFlow"
        )
    raise ArgumentTypeError(
        f"config={config!r:.80} is a {type(config).__name__}; it must be one of hopsml.maggy.config"
    )


# ---------------------------------------------------------------------------------------------------- searches


def _search(function: Callable[..., Any], config: HyperparameterOptConfig, ours: dict[str, Any]) -> dict[str, Any]:
    seed = seeds.choose(ours.get("environment") or {}, os.environ) if ours.get("seed") is None else ours["seed"]
    direction = calls.direction_of(config.direction)
    searcher = searcher_of(config.optimizer, config.searchspace, config.num_trials, direction, seed)
    own_count = searcher.total is not None or _has_budget(config.optimizer)
    options = calls.Options(
        **{**ours, "seed": seed},
        searcher=searcher,
        stopper=_policy(config.es_policy),
        stopper_args={"min_trials": config.es_min} if _policy(config.es_policy) else None,
        num_trials=None if own_count else config.num_trials,
        direction=direction,
        metric=_key(config.optimization_key),
        name=config.name,
        description=config.description,
        args=offered(function, config),
    )
    return run("lagom", function, config.searchspace, options, seed)


def _has_budget(optimizer: Any) -> bool:
    """Whether promoted configurations are tried again, as trials beyond ``num_trials``."""
    return (isinstance(optimizer, str) and optimizer.lower() == "asha") or getattr(optimizer, "name", "") == "asha"


def _policy(policy: Any) -> str | None:
    if isinstance(policy, str) and policy.lower() in ("median", "none"):
        return "median" if policy.lower() == "median" else None
    raise ArgumentError(f"es_policy={policy!r} is not known; there are 'median' and 'none'")


def _key(key: str) -> str:
    return "metric" if key == "Metric" else arguments.text("optimization_key", key)


def offered(function: Callable[..., Any], config: Any) -> dict[str, Any]:
    """What a config has for parameters of the function."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    names = ("model", "dataset", "train_set", "test_set", "module", "process_data")
    return {name: getattr(config, name) for name in names if name in known and hasattr(config, name)}


def run(
    verb: str, function: Callable[..., Any], space: Searchspace, options: calls.Options, seed: int
) -> dict[str, Any]:
    """One search with Maggy's files and Maggy's result."""
    call = calls.checked(verb, function, space, options, seed, may_be_empty=True)
    call.folder, call.with_summary, call.finish = "", True, _files
    search = begin(call)
    lines: list[str] = []
    search.observe(lambda what, facts: lines.append(facts["text"]) if what in ("note", "phase") else None)
    result = search.result()
    lines.append(line(search.board.snapshot()))
    _write(urls.join(result.run_dir, "maggy.log"), ("\n".join(part for part in lines if part) + "\n").encode())
    found = summed_up(result.rows, call.direction)
    return {**found, "effects": ablation.effects(result.rows)} if verb == "ablation" else found


def summed_up(rows: Sequence[Mapping[str, Any]], direction: str) -> dict[str, Any]:
    """Maggy's result dict."""
    valued = [row for row in rows if row["value"] is not None]
    values = [row["value"] for row in valued]
    found: dict[str, Any] = {
        "avg": sum(values) / len(values) if values else None,
        "metric_list": values,
        "num_trials": len(rows),
        "early_stopped": sum(row["state"] == "stopped" for row in rows),
    }
    if valued:
        low, high = min(valued, key=_value), max(valued, key=_value)
        for word, row in (
            ("best", high if direction == "max" else low),
            ("worst", low if direction == "max" else high),
        ):
            config = dict(row["config"])
            found |= {
                f"{word}_id": row["trial_id"],
                f"{word}_val": row["value"],
                f"{word}_config": config,
                f"{word}_hp": config,
            }
    return found


def _value(row: Mapping[str, Any]) -> float:
    return float(row["value"])


def _files(directory: RunDir, rows: list[dict[str, Any]]) -> None:
    """``maggy.json`` and ``result.json``, before the search counts as complete."""
    record = directory.read_run()
    asked = record.get("search") or {}
    about = {
        "name": record.get("name"),
        "description": record.get("description"),
        "app_id": record.get("application"),
        "experiment_type": "ablation" if record.get("verb") == "ablation" else "optimization",
        "optimization_key": asked.get("metric"),
        "direction": asked.get("direction"),
        "searchspace": asked.get("space"),
        "controller": asked.get("searcher"),
        "num_trials": len(rows),
    }
    _write(urls.join(directory.url, "maggy.json"), to_json(as_json(about)))
    result = summed_up(rows, str(asked.get("direction")))
    if record.get("verb") == "ablation":
        result["effects"] = ablation.effects(rows)
    _write(urls.join(directory.url, "result.json"), to_json(as_json(result)))


def _write(url: str, content: bytes) -> None:
    filesystem.for_url(url).write_bytes(url, content)


# ---------------------------------------------------------------------------------------------------- ablation, distributed


def _ablation(function: Callable[..., Any], config: AblationConfig, ours: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(config.ablation_study, ablation.AblationStudy):
        raise ArgumentTypeError(f"ablation_study={config.ablation_study!r:.80}: it must be an AblationStudy")
    if str(config.ablator).lower() != "loco":
        raise ArgumentError(f"ablator={config.ablator!r} is not known; there is 'loco', which leaves one component out")
    study = config.ablation_study
    seed = seeds.choose(ours.get("environment") or {}, os.environ) if ours.get("seed") is None else ours["seed"]
    options = calls.Options(
        **{**ours, "seed": seed},
        searcher=ablation.Listed(study.configurations()),
        num_trials=None,
        direction=calls.direction_of(config.direction),
        metric=_key(config.optimization_key),
        name=config.name,
        description=config.description,
        args={"function": function, "generators": study.generators(config), "given": offered(function, config)},
    )
    return run("ablation", ablation.carry_out, study.space(), options, seed)


def _distributed(function: Callable[..., Any], config: TfDistributedConfig, ours: dict[str, Any]) -> dict[str, Any]:
    """On all executors at once; the mean of what their functions return."""
    fixed = offered(function, config)
    if "hparams" in inspect.signature(function).parameters:
        fixed["hparams"] = config.hparams
    taken = {name: value for name, value in ours.items() if name in collective.Options.__dataclass_fields__}
    run = collective.submit(_sent, args={"function": function, "fixed": fixed}, name=config.name, **taken)
    values: dict[int, Any] = {}
    came = threading.Condition()

    def note(rank: int, value: Any) -> None:
        with came:
            values[rank] = value
            came.notify_all()

    run.on_message(note)
    result = run.result()
    with came:  # messages are handed over by a thread of their own
        came.wait_for(lambda: len(values) >= len(result.workers), MESSAGES_S)
    found = [values[rank] for rank in sorted(values)] or [result.value]
    return _mean(found, len(result.workers))


def _sent(function: Callable[..., Any], fixed: dict[str, Any]) -> Any:
    """In every worker: the function, whose value the driver gets from each."""
    import hopsml

    value = function(**fixed)
    hopsml.send(value)
    return value


def _mean(values: Sequence[Any], workers: int) -> dict[str, Any]:
    fields = [value if isinstance(value, Mapping) else {"metric": value} for value in values]
    names = (
        [name for name in fields[0] if all(isinstance(one.get(name), (int, float)) for one in fields)] if fields else []
    )
    means = {name: sum(float(one[name]) for one in fields) / len(fields) for name in names}
    return {**means, "num_workers": workers}
