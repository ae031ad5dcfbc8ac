"""``collective_all_reduce``: one group of workers, synchronous data-parallel training; and ``submit``, its handle."""

from __future__ import annotations

from dataclasses import fields

from hopsml.cluster.layout import Roles
from hopsml.errors import ArgumentError
from hopsml.experiment import arguments, plan
from hopsml.experiment.options import RunOptions
from hopsml.experiment.result import Result
from hopsml.experiment.run import Run
from hopsml.experiment.verbs import Verb

# Behind the function, as of the predecessor's 2.0 and of what was before.
ORDERS = (
    ("name", "local_logdir", "description", "evaluator", "metric_key"),
    ("name", "local_logdir", "versioned_resources", "description", "evaluator", "metric_key"),
)


_verb = Verb(RunOptions, "collective_all_reduce", orders=ORDERS)


@_verb
def collective_all_reduce(options: RunOptions) -> Result:
    """Train synchronously on ``num_workers`` executors; blocks until the end and returns a ``Result``.

    Every worker calls ``train_fn(**args)`` in a fresh process with ``TF_CONFIG`` set, unchanged on 1 or on 100 executors.

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once, before anything is started.
        RunError: the run failed; the message names the rank, its host, its traceback and its log.
        StorageError: the run directory cannot be written; names the path.
    """
    return plan.start(build(options)).result()


@_verb
def submit(options: RunOptions) -> Run:
    """As ``collective_all_reduce``, but returns at once with a handle: ``result(timeout)``, ``cancel()``, ...

    Raises:
        ArgumentError, ArgumentTypeError, StorageError: as ``collective_all_reduce``.
    """
    return plan.start(build(options))


def build(options: RunOptions, verb: str = "collective_all_reduce") -> plan.Plan:
    """Check a call completely and say what it would do; nothing is started."""
    size, minimum = arguments.group_size(options.num_workers, options.min_workers, options.max_workers)
    if minimum is not None and options.evaluator:
        raise ArgumentError("evaluator=True with min_workers: a group that may change has no evaluator; leave one out")
    if options.evaluator and size is not None:
        arguments.check_evaluator(size)
    return plan.Plan(
        verb=verb,
        function=options.train_fn,
        arguments=arguments.keyword_arguments(options.train_fn, options.args, verb),
        name=arguments.text("name", options.name),
        description=options.description or "",
        size=size,
        elastic=_elastic(options, minimum),
        roles=Roles(evaluator=options.evaluator),
        with_tf_config=True,
        merge_scope=arguments.merge_scope(options.merge_scope),
        scoped_allocator=bool(options.scoped_allocator),
        resume=options.resume,
        start_timeout_s=arguments.seconds("start_timeout", options.start_timeout),
        keep_warm_s=arguments.seconds("keep_warm", options.keep_warm, above=-1.0),
        preload=None if options.preload is None else arguments.modules("preload", options.preload),
        honour_environment=bool(options.honour_environment),
        profile=options.profile,
        progress=bool(options.progress),
        environment=arguments.environment(options.environment, options.share),
        local_logdir=bool(options.local_logdir),
        metric_key=options.metric_key,
        checkpoint_every_s=arguments.seconds("checkpoint_every", options.checkpoint_every),
        register_as=arguments.model_name("register_as", options.register_as),
        preflight=arguments.preflight(options.preflight),
        notes=_without_effect(options, size, minimum),
    )


_OF_CHANGING_GROUPS = (
    "reset_limit", "min_workers_timeout", "heartbeat_timeout", "progress_timeout", "host_failure_limit", "host_cooldown",
    "checkpoint_every",
)  # fmt: skip


def _without_effect(options: RunOptions, size: int | None, minimum: int | None) -> tuple[str, ...]:
    """What was given and changes nothing in a group like this one."""
    defaults = {option.name: option.default for option in fields(RunOptions)}
    notes = list(arguments.without_effect({"versioned_resources": options.versioned_resources}))
    if minimum is None:
        reason = "the group has a fixed size, and ends with its first loss; give min_workers= for one that may change"
        names = [name for name in _OF_CHANGING_GROUPS if getattr(options, name) != defaults[name]]
        notes += [f"{name}={getattr(options, name)!r} has no effect: {reason}" for name in names]
    if size == 1:
        names = [name for name in ("merge_scope", "scoped_allocator") if getattr(options, name) != defaults[name]]
        notes += [f"{name}={getattr(options, name)!r} has no effect: one worker merges nothing" for name in names]
    return tuple(notes)


def _elastic(options: RunOptions, minimum: int | None) -> plan.Elastic | None:
    """What concerns a group that may change; the numbers are checked in any case."""
    limit, pace = options.reset_limit, options.progress_timeout
    checked = plan.Elastic(
        min_size=minimum or 1,
        reset_limit=None if limit is None else arguments.whole_number("reset_limit", limit, at_least=0),
        min_workers_timeout_s=arguments.seconds("min_workers_timeout", options.min_workers_timeout),
        heartbeat_timeout_s=arguments.seconds("heartbeat_timeout", options.heartbeat_timeout),
        progress_timeout_s=None if pace is None else arguments.seconds("progress_timeout", pace),
        host_failure_limit=arguments.whole_number("host_failure_limit", options.host_failure_limit),
        host_cooldown_s=arguments.seconds("host_cooldown", options.host_cooldown),
    )
    return checked if minimum is not None else None
