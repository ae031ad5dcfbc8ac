"""Verbs ``collective_all_reduce`` and ``submit``: synchronous data-parallel training of one group of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import NoReturn

from hopsml.cluster.shared.spec import (
    AS_MANY_AS_THERE_ARE,
    AnyGroup,
    Communication,
    ElasticGroup,
    FixedGroup,
    Framework,
    RunSpec,
    names,
    specified,
)
from hopsml.core import settings
from hopsml.errors import ArgumentError
from hopsml.experiment import arguments, frame_feed, plan
from hopsml.experiment.options import FrameworkOptions, RunOptions
from hopsml.experiment.result import Result
from hopsml.experiment.run import Run
from hopsml.experiment.verbs import Verb

# Names of positional arguments after the function, in the predecessor's 2.0 and in its older releases.
ORDERS = (
    ("name", "local_logdir", "description", "evaluator", "metric_key"),
    ("name", "local_logdir", "versioned_resources", "description", "evaluator", "metric_key"),
)


AnyGroupOptions = RunOptions | FrameworkOptions  # of the verbs that train on a group
_verb = Verb(RunOptions, "collective_all_reduce", orders=ORDERS)
instead: Callable[[RunOptions], NoReturn] | None = (
    None  # set by commands that inspect a script's training call instead of running it
)


@_verb
def collective_all_reduce(options: RunOptions) -> Result:
    """Train synchronously on ``num_workers`` executors; blocks until the end and returns a ``Result``.

    Every worker calls ``train_fn(**args)`` in a fresh process with ``TF_CONFIG`` set, unchanged on 1 or on 100
    executors.

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once, before anything is started.
        RunError: the run failed; the message names the rank, its host, its traceback and its log.
        StorageError: the run directory cannot be written; names the path.
    """
    return _start(options).result()


@_verb
def submit(options: RunOptions) -> Run:
    """Start ``collective_all_reduce`` and return at once with a handle: ``result(timeout)``, ``cancel()`` and others.

    Raises:
        ArgumentError, ArgumentTypeError, StorageError: as ``collective_all_reduce``.
    """
    return _start(options)


def _start(options: RunOptions) -> Run:
    if instead is not None:
        instead(options)
    return plan.start(build(options))


def build(
    options: AnyGroupOptions, verb: str = "collective_all_reduce", framework: Framework = "tensorflow"
) -> plan.Plan:
    """Check a call completely and return the plan of its run; nothing is started."""
    rows = frame_feed.datasets(options.data, verb)
    return plan.Plan(
        spec=specified(
            RunSpec,
            options,
            verb=verb,
            frames=tuple(rows),
            sidecar=frame_feed.SIDECAR if rows else "",
            framework=framework,
            group=_group(options),
            environment=arguments.environment(options.environment, options.share),
        ),
        function=options.train_fn,
        arguments=arguments.keyword_arguments(options.train_fn, frame_feed.with_rows(options.args, rows, verb), verb),
        frames=dict(options.data or {}),
        profile=options.profile,
        progress=bool(options.progress),
        notes=_without_effect(options),
    )


def _group(options: AnyGroupOptions) -> AnyGroup:
    """Return the group that the call requests: fixed or elastic."""
    most, fewest = arguments.group_size(options.num_workers, options.min_workers, options.max_workers)
    size = AS_MANY_AS_THERE_ARE if most is None else most
    evaluator = isinstance(options, RunOptions) and options.evaluator
    if fewest is not None and evaluator:
        raise ArgumentError("evaluator=True with min_workers: a group that may change has no evaluator; leave one out")
    if evaluator and most is not None:
        arguments.check_evaluator(most)
    elastic = specified(ElasticGroup, options, size=size, min_size=fewest or 1, drain_s=settings.drain_s())
    if fewest is not None:
        return elastic  # built above in any case, which checks its numbers
    if evaluator:  # it waits for checkpoints, and may be idle until then
        return specified(FixedGroup, options, size=size, exited_s=None, returned_s=None)
    return specified(FixedGroup, options, size=size)


def _without_effect(options: AnyGroupOptions) -> tuple[str, ...]:
    """Return a sentence for each argument that was given and is ignored by a group of this kind."""
    defaults = {option.name: option.default for option in fields(options)}
    notes = list(arguments.without_effect({"versioned_resources": options.versioned_resources}))

    def unused(candidates: Iterable[str], reason: str) -> list[str]:
        given = {name: getattr(options, name) for name in candidates if name in defaults}
        return [f"{name}={value!r} has no effect: {reason}" for name, value in given.items() if value != defaults[name]]

    most, fewest = arguments.group_size(options.num_workers, options.min_workers, options.max_workers)
    if fewest is None:
        reason = "the group has a fixed size, and ends with its first loss; give min_workers= for one that may change"
        notes += unused([name for name in names(ElasticGroup) if name not in names(FixedGroup)], reason)
    if most == 1:
        notes += unused(names(Communication), "one worker exchanges nothing")
    return tuple(notes)
