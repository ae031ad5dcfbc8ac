"""``collective_all_reduce``: one group of workers, synchronous data-parallel training; and ``submit``, its handle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from hopsml.cluster.layout import Roles
from hopsml.errors import ArgumentError
from hopsml.experiment import arguments, plan
from hopsml.experiment.result import Result
from hopsml.experiment.run import Run

# Behind the function, as of the predecessor's 2.0; before it was that of the options.
_ORDER = ("name", "local_logdir", "description", "evaluator", "metric_key")


@dataclass
class Options:
    """The keyword arguments of ``collective_all_reduce`` and ``submit``, with the predecessor's among them."""

    name: str = "no-name"
    local_logdir: bool = False
    versioned_resources: list[str] | None = None
    description: str | None = None
    evaluator: bool = False
    metric_key: str | None = None
    args: Mapping[str, Any] | None = None
    num_workers: int | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    merge_scope: int | str = 32
    scoped_allocator: bool = True
    resume: str | None = None
    start_timeout: float = 120.0
    keep_warm: float = 10.0
    preload: tuple[str, ...] | list[str] | None = None
    honour_environment: bool = False
    profile: str | None = None
    progress: bool = True
    environment: Mapping[str, str] | None = None
    reset_limit: int | None = None
    min_workers_timeout: float = 600.0
    heartbeat_timeout: float = 5.0
    progress_timeout: float | None = None
    host_failure_limit: int = 3
    host_cooldown: float = 60.0
    checkpoint_every: float = 60.0
    register_as: str | None = None
    preflight: str = "warn"
    share: str | None = None


def collective_all_reduce(*positional: Any, **named: Any) -> Result:
    """Train synchronously on ``num_workers`` executors; blocks until the end and returns a ``Result``.

    ``collective_all_reduce(train_fn, name="no-name", local_logdir=False, ...)``; every worker calls
    ``train_fn(**args)`` in a fresh process with ``TF_CONFIG`` set, unchanged on 1 or on 100 executors.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        name, description: for people who look for the run later.
        evaluator: the last of at least three workers stands beside the group: its TF_CONFIG says "evaluator", and what it
            does is the function's to say; ``hopsml.tensorflow.strategy()`` gives it the default strategy.
        local_logdir: ``tensorboard.logdir()`` is a folder of the worker, brought to the run directory at its end.
        args: keyword arguments of the function.
        num_workers: how many; by default one for each GPU, else for each slot of the executors. The run ends with the
            first worker that is lost.
        min_workers, max_workers: instead of it, a group that may change: it starts with ``min_workers``, takes newcomers
            in at the next commit, survives the loss of workers, executors and hosts; see ``hopsml.elastic``.
        merge_scope: gradients in one collective: 1 = no merging, 32, "all".
        scoped_allocator: whether merging is done by TensorFlow's scoped allocator.
        resume: URL or id of a run of the same model, to continue from its last complete checkpoint.
        start_timeout: seconds until every worker must have begun the function.
        keep_warm: seconds for which idle agents are kept for the next run.
        preload: modules that the workers find imported; found out from the function by default.
        honour_environment: keep a TF_CONFIG or CUDA_VISIBLE_DEVICES that is set already, instead of refusing it.
        profile: name of a file in conf/; used when there is no Spark application yet.
        progress: show what goes on: a display in a notebook, lines on standard error anywhere else.
        reset_limit: how many generations of an elastic group failures may end; any number by default, while commits are
            made in between.
        min_workers_timeout: seconds for which an elastic group that has shrunk below ``min_workers`` waits for others.
        heartbeat_timeout: seconds of silence after which a member of an elastic group counts as lost.
        progress_timeout: seconds without a step of anybody after which an elastic group counts as hanging; by default ten
            times the usual step, at least 30.
        host_failure_limit, host_cooldown: a host on which so many members of an elastic group have failed is set aside for
            so many seconds, and for twice as long each time again; where all are on one host there is nowhere else to go.
        checkpoint_every: seconds between two checkpoints on shared storage that are made of an elastic State's commits.
        environment: variables for the workers.
        preflight: what becomes of a slot with too few open files, a full disk, a bad GPU, another version, no way to its
            neighbour: "warn" names it in a note, "enforce" waits for the figures and trains without it, "off" looks away.
        share: who besides you may read the run's files: "private" (nobody, as HOPSML_SHARE says otherwise), "group", "all",
            or a folder's permission such as "770".
        register_as: where MLflow is used, a name in its model registry: what a successful run exports becomes a version.

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once, before anything is started.
        RunError: the run failed; the message names the rank, its host, its traceback and its log.
        StorageError: the run directory cannot be written; names the path.
    """
    return submit(*positional, **named).result()


def submit(*positional: Any, **named: Any) -> Run:
    """As ``collective_all_reduce``, but returns at once with a handle: ``result(timeout)``, ``cancel()``, ..."""
    return plan.start(build(positional, named, "collective_all_reduce"))


def build(positional: tuple[Any, ...], named: dict[str, Any], verb: str) -> plan.Plan:
    """Check a call completely and say what it would do; nothing is started."""
    function, options = parse(positional, named, verb)
    size, minimum = arguments.group_size(options.num_workers, options.min_workers, options.max_workers)
    if minimum is not None and options.evaluator:
        raise ArgumentError("evaluator=True with min_workers: a group that may change has no evaluator; leave one out")
    if options.evaluator and size is not None:
        arguments.check_evaluator(size)
    return plan.Plan(
        verb=verb,
        function=function,
        arguments=arguments.keyword_arguments(function, options.args, verb),
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


def _without_effect(options: Options, size: int | None, minimum: int | None) -> tuple[str, ...]:
    """What was given and changes nothing in a group like this one."""
    defaults = {option.name: option.default for option in fields(Options)}
    notes = list(arguments.without_effect({"versioned_resources": options.versioned_resources}))
    if minimum is None:
        reason = "the group has a fixed size, and ends with its first loss; give min_workers= for one that may change"
        names = [name for name in _OF_CHANGING_GROUPS if getattr(options, name) != defaults[name]]
        notes += [f"{name}={getattr(options, name)!r} has no effect: {reason}" for name in names]
    if size == 1:
        names = [name for name in ("merge_scope", "scoped_allocator") if getattr(options, name) != defaults[name]]
        notes += [f"{name}={getattr(options, name)!r} has no effect: one worker merges nothing" for name in names]
    return tuple(notes)


def _elastic(options: Options, minimum: int | None) -> plan.Elastic | None:
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


def parse(positional: tuple[Any, ...], named: dict[str, Any], verb: str) -> tuple[Callable[..., Any], Options]:
    """The function and the options of a call in the new or the old spelling."""
    named = dict(named)
    function, rest = arguments.training_function(positional, named, verb)
    known = tuple(option.name for option in fields(Options))
    arguments.take_by_position(verb, rest, named, (_ORDER, known))
    arguments.refuse_unknown(verb, {name: named[name] for name in named if name not in known}, known, function)
    return function, Options(**named)
