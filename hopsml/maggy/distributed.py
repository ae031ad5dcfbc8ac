"""Distributed training of ``TfDistributedConfig``: the function on all executors, inside one strategy's scope."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from hopsml import hdfs
from hopsml.cluster.shared import checks
from hopsml.cluster.shared.plain import as_json
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.experiment import collective
from hopsml.experiment import plan as plans
from hopsml.experiment.options import RunOptions, TrialOptions, convert_options
from hopsml.maggy.config import TfDistributedConfig
from hopsml.storage import urls
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import inputs
from hopsml.training.messages import report, send

_SETS = ("train_set", "test_set")


def train(options: TrialOptions, function: Callable[..., Any], config: TfDistributedConfig) -> dict[str, Any]:
    """Run a distributed training, and return the mean of the workers' results, and ``num_workers``.

    Args:
        options: further arguments of ``lagom``.
        function: the training function.
        config: the configuration.

    Raises:
        ArgumentError: An option is for searches only.
        PathNotFound: (a FileNotFoundError) The data does not exist.
    """
    _check_paths(config)
    given = {
        name: getattr(config, name)
        for name in ("model", "dataset", *_SETS, "process_data", "mixed_precision", "hparams")
    }
    plan = collective.build(_run_options(options, config, {"function": function, "given": given}))
    run = plans.start(replace(plan, notes=(*plan.notes, *config.without_effect())))
    values: dict[int, Any] = {}
    run.on_message(values.__setitem__)
    result = run.result()
    run.await_messages()
    found = _mean([values[rank] for rank in sorted(values)] or [result.value], len(result.workers))
    _write_files(RunDir(result.run_dir), config, found)
    return found


def _write_files(directory: RunDir, config: TfDistributedConfig, found: Mapping[str, Any]) -> None:
    """Write ``maggy.json`` and ``result.json``, as a search does."""
    about = {
        "name": config.name,
        "description": config.description,
        "app_id": directory.read_run().get("application"),
        "experiment_type": "distributed",
        "executors": found["num_workers"],
    }
    directory.write_json(urls.join(directory.url, "maggy.json"), as_json(about))
    directory.write_json(urls.join(directory.url, "result.json"), as_json(found))


def _run_options(options: TrialOptions, config: TfDistributedConfig, args: dict[str, Any]) -> RunOptions:
    """Return the arguments of ``collective_all_reduce`` that correspond to those of ``lagom``."""
    of_searches = {one.name: one.default for one in fields(TrialOptions)}
    for name in ("deadline", "budget", "retries", "isolation", "patience", "echo"):
        if getattr(options, name) != of_searches[name]:
            raise ArgumentError(
                f"lagom(): {name} is for searches; a TfDistributedConfig has no use for it: leave it out"
            )
    environment = dict(options.environment or {})
    if options.seed is not None:
        environment[inputs.SEED_VARIABLE] = str(checks.whole_number("seed", options.seed, at_least=0))
    return convert_options(
        options,
        RunOptions,
        train_fn=call_in_strategy_scope,
        args=args,
        name=config.name,
        description=config.description,
        num_workers=options.max_executors,
        environment=environment,
    )


def _check_paths(config: TfDistributedConfig) -> None:
    """Raise PathNotFound, before anything is started, for data that is neither on this machine nor in the project."""
    parts = config.dataset if isinstance(config.dataset, (list, tuple)) else [config.dataset]
    for path in [*parts, config.train_set, config.test_set]:
        if isinstance(path, str) and not os.path.exists(path) and not hdfs.exists(path):
            raise PathNotFound(f"the data {path!r} is neither a path of this machine nor one of the project", path)


# ---------------------------------------------------------------------------------------------------- in each worker


class Reporter:
    """Maggy's ``reporter`` for a distributed training; its values become the run's metrics."""

    def __init__(self) -> None:
        self._next = 0

    def broadcast(self, metric: Any, step: int | None = None) -> None:
        """Report a value of the metric at ``step``; without it steps are counted."""
        step = self._next if step is None else int(step)
        self._next = step + 1
        report(step, metric=metric)

    def log(self, message: Any, jupyter: bool = False) -> None:
        """Print a line to the worker's log; ``jupyter`` has no effect."""
        print(message, flush=True)


def call_in_strategy_scope(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call the function in a worker, in the scope of the group's strategy, with the model that is created there."""
    from hopsml.training.tensorflow.distribution.strategy import enable_mixed_precision, strategy

    group = strategy()  # before any of the user's code, as it joins the group
    if given["mixed_precision"]:
        enable_mixed_precision()
    known = inspect.signature(function).parameters
    with group.scope():
        offers = {
            "model": given["model"],
            **data_of_worker(given),
            "hparams": dict(given["hparams"] or {}),
            "reporter": Reporter(),
        }
        value = function(**{name: offer for name, offer in offers.items() if name in known})
    send(value)  # each worker's result is sent to the driver
    return value


def data_of_worker(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``dataset``, ``train_set`` and ``test_set`` for the function, by whichever names they were given."""
    process, dataset = given["process_data"], given["dataset"]
    if dataset is not None:
        dataset = process(dataset) if process is not None else dataset
        both = dataset if isinstance(dataset, (list, tuple)) and len(dataset) == len(_SETS) else (None, None)
        return {"dataset": dataset, **dict(zip(_SETS, both, strict=True))}
    sets = [given[name] for name in _SETS]
    if process is not None and not any(map(_is_data, sets)):
        sets = list(process(*sets))
        if len(sets) != len(_SETS):
            raise ArgumentError(f"process_data gave {len(sets)} values; it must give two, for train_set and test_set")
    own = {name: _own(name, part, given["hparams"] or {}) for name, part in zip(_SETS, sets, strict=True)}
    return {"dataset": list(own.values()), **own}


def _is_data(part: Any) -> bool:
    """Return True for data that is ready: an array, a ``tf.data.Dataset``, or a tuple or list that contains one."""
    if isinstance(part, (list, tuple)):
        return any(map(_is_data, part))
    return hasattr(part, "shape") or hasattr(part, "element_spec")


def _own(name: str, part: Any, hparams: Mapping[str, Any]) -> Any:
    """Return this worker's rows of the data if the batch size is given; else the data, which ``fit`` divides."""
    size = hparams.get(f"{name.removesuffix('_set')}_batch_size")
    if part is None or size is None or hasattr(part, "element_spec"):  # a tf.data.Dataset has batches of its own
        return part
    from hopsml.training.tensorflow.fit.input_data import own_rows

    context = current()
    rank, world_size = (context.rank, context.world_size) if context is not None else (0, 1)
    return own_rows(name, part, size, rank, world_size)


def _mean(values: Sequence[Any], workers: int) -> dict[str, Any]:
    """Return the mean of the workers' results; of a list the first element, the loss of ``model.evaluate``."""
    fields = [_fields(value) for value in values]
    names = (
        [name for name in fields[0] if all(isinstance(one.get(name), (int, float)) for one in fields)] if fields else []
    )
    means = {name: sum(float(one[name]) for one in fields) / len(fields) for name in names}
    return {**means, "num_workers": workers}


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    fields = dict(value) if isinstance(value, Mapping) else {"metric": value}
    return {name: item.item() if hasattr(item, "item") else item for name, item in fields.items()}
