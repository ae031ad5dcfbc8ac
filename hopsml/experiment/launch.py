"""``launch``: one worker for each combination of arguments, each a run of its own."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import msgspec

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.experiment import collective, combinations, plan
from hopsml.experiment.options import LaunchOptions, RunOptions, taken_from
from hopsml.experiment.result import Result
from hopsml.experiment.verbs import Verb
from hopsml.tracking.mlflow.order import RunGroup

# Behind the function, by the predecessor's newer and older releases.
_ORDERS = (
    ("args_dict", "name", "local_logdir", "description", "metric_key"),
    ("args_dict", "name", "local_logdir", "versioned_resources", "description"),
)
_ONE_WORKER = "each combination runs on one worker; collective_all_reduce() trains on several"
_OF_GROUPS = {one.name for one in dataclasses.fields(RunOptions)} - {
    one.name for one in dataclasses.fields(LaunchOptions)
}
_ABSENT = {**dict.fromkeys(_OF_GROUPS, _ONE_WORKER), "args": "args_dict holds a list of values for each parameter"}


_verb = Verb(LaunchOptions, "launch", orders=_ORDERS, absent=_ABSENT)


@_verb
def launch(options: LaunchOptions) -> Result:
    """Run ``train_fn`` on one executor for each combination in ``args_dict``; blocks until all have ended.

    The lists of ``args_dict`` are zipped: ``{"a": [1, 2], "b": [5, 3]}`` runs (1, 5) and (2, 3). Without it the function
    runs once, without arguments.

    Returns ``(logdir, metrics)`` of the run; for several combinations ``(directory of them all, None)``, in which each has
    a folder such as ``a=1&b=5``, with the single results in ``.runs``.

    Raises:
        ArgumentError: (ValueError) for lists of unequal length; otherwise as ``collective_all_reduce``.
    """
    plans = build(options)
    if len(plans) == 1:
        return plan.start(plans[0]).result()
    return combinations.carry_out(plans, dict(options.args_dict or {}))


def build(options: LaunchOptions) -> list[plan.Plan]:
    """Check a call completely and return the plan of each combination's run; nothing is started."""
    plans = [_plan(options, combination) for combination in zipped(options.args_dict)]
    group = RunGroup(uuid.uuid4().hex, plans[0].spec.name, len(plans)) if len(plans) > 1 else None
    return [dataclasses.replace(single, siblings=group) for single in plans]


def _plan(options: LaunchOptions, combination: dict[str, Any]) -> plan.Plan:
    single = collective.build(taken_from(options, RunOptions, args=combination, num_workers=1), "launch")
    return dataclasses.replace(single, spec=msgspec.structs.replace(single.spec, framework="none"))


def zipped(table: Any) -> list[dict[str, Any]]:
    """The combinations of an ``args_dict``, the n-th values of all lists together; one empty combination for None."""
    if table is None:
        return [{}]
    if not isinstance(table, dict):
        raise ArgumentTypeError(f"args_dict={table!r:.80} is a {type(table).__name__}; it must be a dict of lists")
    for name, values in table.items():
        if not isinstance(values, (list, tuple)):
            raise ArgumentTypeError(
                f"args_dict['{name}']={values!r:.80} must be a list: one value for each combination"
            )
    lengths = {name: len(values) for name, values in table.items()}
    if len(set(lengths.values())) > 1:
        raise ArgumentError(
            f"the lists of args_dict have different lengths, {lengths}; they are zipped and must be equal"
        )
    count = next(iter(lengths.values()), 1)
    if count == 0:
        raise ArgumentError("the lists of args_dict are empty; each needs a value for each combination")
    return [{name: values[index] for name, values in table.items()} for index in range(count)]
