"""Function ``lagom``: a hyper-parameter search, an ablation study or a distributed training, by Maggy's arguments.

It returns Maggy's dict and writes Maggy's files: ``maggy.json``, ``result.json``, ``maggy.log`` in the run directory,
and a folder for each trial, named by its id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from typing import Any

from hopsml.cluster.shared import checks
from hopsml.cluster.shared.plain import as_json
from hopsml.core import refused_names
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.experiment.options import SearchOptions, TrialOptions, convert_options
from hopsml.experiment.progress import search_line
from hopsml.experiment.searches import call as calls
from hopsml.experiment.searches.start import start_search
from hopsml.experiment.verbs import Verb
from hopsml.maggy import ablation, distributed
from hopsml.maggy import config as configs
from hopsml.maggy.optimizer import searcher_of
from hopsml.search.algorithms.budgets import BUDGET
from hopsml.search.space.space import Searchspace, parameters_of, trial_id
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir, to_json
from hopsml.tracking import inputs

__path__: list[str] = []  # so that an import of a missing name reports what to use instead

_OF_A_CONFIG = (
    "name", "experiment_type", "searchspace", "optimizer", "direction", "num_trials", "ablation_study", "ablator",
    "optimization_key", "hb_interval", "es_policy", "es_interval", "es_min", "description",
)  # fmt: skip


@dataclass
class LagomOptions(TrialOptions):
    """Arguments of ``lagom``, by Maggy's names.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        config: an object of ``hopsml.maggy.config``, instead of the following arguments up to ``es_min``.
        name, description: name of the experiment and free text, shown where experiments are listed.
        experiment_type: "optimization" or "ablation".
        searchspace, optimizer, num_trials: of a search: its space, its searcher, the number of trials.
        direction: "max" or "min".
        ablation_study, ablator: of an ablation: the components to leave out one at a time, and the method ("loco").
        optimization_key: key of the value to optimize in the dict that the function returns.
        hb_interval: of Maggy; has no effect.
        es_policy, es_interval, es_min: early stopping: "median" or "none", number of steps between two decisions, and
            number of trials that must have ended before.
    """

    train_fn: Callable[..., Any]
    config: configs.LagomConfig | None = None
    _: KW_ONLY
    name: str = "no-name"
    experiment_type: str = "optimization"
    searchspace: Searchspace | None = None
    optimizer: Any = None
    direction: str = "max"
    num_trials: int = 1
    ablation_study: Any = None
    ablator: Any = None
    optimization_key: str = "metric"
    hb_interval: float = 1
    es_policy: str = "median"
    es_interval: int = 1
    es_min: int = 10
    description: str = ""


_verb = Verb(LagomOptions, "lagom", orders=(_OF_A_CONFIG, ("config",)))


@_verb
def lagom(options: LagomOptions) -> dict[str, Any]:
    """Run a Maggy experiment and return its result.

    ``lagom(train_fn, config)``, or ``lagom(train_fn, name=..., searchspace=..., ...)`` as of Maggy 0.x.

    Returns a dict: ``best_id, best_val, best_config`` (and ``best_hp``), ``worst_*``, ``avg``, ``metric_list``,
    ``num_trials``, ``early_stopped``; for an ablation study also ``effects``: what was left out, the metric without it
    and the difference; for a distributed training the mean of the workers' metrics.

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once; otherwise as ``search``.
    """
    if options.config is None:
        return _by_config(options, config_of(options))
    defaults = {one.name: one.default for one in fields(LagomOptions)}
    if besides := [name for name in _OF_A_CONFIG if getattr(options, name) != defaults[name]]:
        raise ArgumentTypeError(f"lagom(): a config contains all options; omit {', '.join(besides)}")
    return _by_config(options, options.config)


def config_of(options: LagomOptions) -> configs.AblationConfig | configs.HyperparameterOptConfig:
    """Return the config object for Maggy 0.x's keyword arguments. Raises ArgumentError for an unknown type."""
    kind = options.experiment_type
    if kind not in ("optimization", "ablation"):
        raise ArgumentError(f"experiment_type={kind!r} is not known; there are 'optimization' and 'ablation'")
    names = ("name", "direction", "description", "optimization_key", "hb_interval")
    shared = {name: getattr(options, name) for name in names}
    if kind == "ablation":
        return configs.AblationConfig(options.ablation_study, options.ablator or "loco", **shared)
    space = options.searchspace if options.searchspace is not None else Searchspace()
    stopping = {name: getattr(options, name) for name in ("es_policy", "es_interval", "es_min")}
    return configs.HyperparameterOptConfig(options.num_trials, options.optimizer, space, **shared, **stopping)


def _by_config(options: LagomOptions, config: Any) -> dict[str, Any]:
    if isinstance(config, configs.HyperparameterOptConfig):
        return _search(options, config)
    if isinstance(config, configs.AblationConfig):
        return _ablation(options, config)
    if isinstance(config, configs.BaseConfig):
        once = configs.HyperparameterOptConfig(1, None, Searchspace(), name=config.name, description=config.description)
        once.hb_interval = config.hb_interval
        return _search(options, once)
    if isinstance(config, configs.TfDistributedConfig):
        return distributed.train(options, options.train_fn, config)
    if isinstance(config, configs.TorchDistributedConfig):
        raise ArgumentError(
            "TorchDistributedConfig: lagom trains with TensorFlow alone; hopsml.experiment.torch(train, num_workers=...) "
            "trains with PyTorch, by a function that calls hopsml.torch.prepare(model)"
        )
    raise ArgumentTypeError(
        f"config={config!r:.80} is a {type(config).__name__}; it must be one of hopsml.maggy.config"
    )


# ---------------------------------------------------------------------------------------------------- searches


def _search(given: LagomOptions, config: configs.HyperparameterOptConfig) -> dict[str, Any]:
    seed = _seed(given)
    direction = calls.direction_of(config.direction)
    searcher = searcher_of(config.optimizer, config.searchspace, config.num_trials, direction, seed)
    options = convert_options(
        given,
        SearchOptions,
        space=config.searchspace,
        searcher=searcher,
        stopper=_policy(config.es_policy),
        stopper_args=stopper_arguments(config),
        num_trials=None if searcher.total is not None else config.num_trials,
        direction=direction,
        metric=_key(config.optimization_key),
        seed=seed,
        name=config.name,
        description=config.description,
        args=accepted_config_fields(given.train_fn, config),
    )
    return run_search("lagom", options, seed, config.without_effect())


def _seed(given: LagomOptions) -> int:
    return inputs.choose_seed(given.environment or {}, os.environ) if given.seed is None else given.seed


def stopper_arguments(config: configs.HyperparameterOptConfig) -> dict[str, Any] | None:
    """Return keyword arguments for the stopper that ``es_policy`` names; None if it names none."""
    if _policy(config.es_policy) is None:
        return None
    return {"min_trials": config.es_min, "interval": config.es_interval}


def _policy(policy: Any) -> str | None:
    if isinstance(policy, str) and policy.lower() in ("median", "none"):
        return "median" if policy.lower() == "median" else None
    raise ArgumentError(f"es_policy={policy!r} is not known; there are 'median' and 'none'")


def _key(key: str) -> str:
    return "metric" if key == "Metric" else checks.text("optimization_key", key)


def accepted_config_fields(function: Callable[..., Any], config: Any) -> dict[str, Any]:
    """Return the fields of ``config`` that ``function`` has parameters for, by name, such as model and dataset."""
    known = parameters_of(function) or {}
    names = ("model", "dataset", "train_set", "test_set", "module", "process_data")
    return {name: getattr(config, name) for name in names if name in known and hasattr(config, name)}


def run_search(verb: str, options: SearchOptions, seed: int, without_effect: Sequence[str] = ()) -> dict[str, Any]:
    """Run a search that writes Maggy's files, and return Maggy's result; ``without_effect``: notes for its start."""
    call = calls.checked_call(verb, options, seed, may_be_empty=True)
    with_budgets = call.searcher.counts
    call.folder, call.with_summary, call.finish = "", True, partial(_files, with_budgets=with_budgets)
    call.notes = (*call.notes, *without_effect)
    search = start_search(call)
    lines = list(without_effect)
    search.observe(lambda what, facts: lines.append(facts["text"]) if what in ("note", "phase") else None)
    result = search.result()
    lines.append(search_line(search.state.snapshot()))
    _write(urls.join(result.run_dir, "maggy.log"), ("\n".join(part for part in lines if part) + "\n").encode())
    found = maggy_result(result.rows, call.direction, with_budgets)
    return {**found, "effects": ablation.effect_table(result.rows)} if verb == "ablation" else found


def maggy_result(rows: Sequence[Mapping[str, Any]], direction: str, with_budgets: bool = False) -> dict[str, Any]:
    """Return Maggy's result dict; ``with_budgets``: several rows of one configuration are one trial."""
    valued = [row for row in rows if row["value"] is not None]
    values = [row["value"] for row in valued]
    found: dict[str, Any] = {
        "avg": sum(values) / len(values) if values else None,
        "metric_list": values,
        "num_trials": _trials(rows, with_budgets),
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


def _trials(rows: Sequence[Mapping[str, Any]], with_budgets: bool) -> int:
    if not with_budgets:
        return len(rows)
    return len({trial_id({name: value for name, value in row["config"].items() if name != BUDGET}) for row in rows})


def _value(row: Mapping[str, Any]) -> float:
    return float(row["value"])


def _files(directory: RunDir, rows: list[dict[str, Any]], with_budgets: bool = False) -> None:
    """Write ``maggy.json`` and ``result.json``, before the search counts as complete."""
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
        "num_trials": _trials(rows, with_budgets),
    }
    _write(urls.join(directory.url, "maggy.json"), to_json(as_json(about)))
    result = maggy_result(rows, str(asked.get("direction")), with_budgets)
    if record.get("verb") == "ablation":
        result["effects"] = ablation.effect_table(rows)
    _write(urls.join(directory.url, "result.json"), to_json(as_json(result)))


def _write(url: str, content: bytes) -> None:
    filesystem.for_url(url).write_bytes(url, content)


# ---------------------------------------------------------------------------------------------------- ablation


def _ablation(given: LagomOptions, config: configs.AblationConfig) -> dict[str, Any]:
    if not isinstance(config.ablation_study, ablation.AblationStudy):
        raise ArgumentTypeError(f"ablation_study={config.ablation_study!r:.80}: it must be an AblationStudy")
    if str(config.ablator).lower() != "loco":
        raise ArgumentError(f"ablator={config.ablator!r} is not known; there is 'loco', which leaves one component out")
    study = config.ablation_study
    seed = _seed(given)
    args = {
        "function": given.train_fn,
        "generators": study.generators(config),
        "given": accepted_config_fields(given.train_fn, config),
    }
    options = convert_options(
        given,
        SearchOptions,
        train_fn=ablation.run_ablation_trial,
        space=study.space(),
        searcher=ablation.ListedSearcher(study.configurations()),
        num_trials=None,
        direction=calls.direction_of(config.direction),
        metric=_key(config.optimization_key),
        seed=seed,
        name=config.name,
        description=config.description,
        args=args,
    )
    return run_search("ablation", options, seed, config.without_effect())


def __getattr__(name: str) -> object:
    raise refused_names.missing_attribute_error(__name__, name, ("lagom",))
