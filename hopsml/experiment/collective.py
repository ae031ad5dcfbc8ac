"""Verbs that train on one group of workers: TensorFlow, PyTorch, JAX, or any function.

``collective_all_reduce`` and ``submit`` are synchronous data-parallel training; ``torch``, ``jax`` and ``distributed``
have the same agents, groups, records and elasticity. ``parameter_server``: a chief calls the function, workers compute,
parameter servers hold the variables. ``mirrored``: one worker has all GPUs of its executor. Each has an attribute
``submit``, which returns a handle.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable
from contextvars import ContextVar, copy_context
from dataclasses import fields
from typing import Any, NoReturn

from hopsml.cluster.shared import checks
from hopsml.cluster.shared.spec import (
    AS_MANY_AS_THERE_ARE,
    AnyGroup,
    Communication,
    ElasticGroup,
    FixedGroup,
    Framework,
    Roles,
    RunSpec,
    ServerGroup,
    argument_names,
    section_from_options,
)
from hopsml.core import settings
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError
from hopsml.experiment import frame_feed, plan, verbs
from hopsml.experiment.options import (
    DistributedOptions,
    FrameworkOptions,
    MirroredOptions,
    ParameterServerOptions,
    RunOptions,
    TorchOptions,
)
from hopsml.experiment.result import Result
from hopsml.experiment.run import Run
from hopsml.experiment.verbs import Verb
from hopsml.training.tensorflow.mirrored import BODY as MIRRORED_BODY
from hopsml.training.tensorflow.parameter_servers import BODY as SERVERS_BODY

# Names of positional arguments after the function, in the predecessor's 2.0 and in its older releases.
ORDERS = (
    ("name", "local_logdir", "description", "evaluator", "metric_key"),
    ("name", "local_logdir", "versioned_resources", "description", "evaluator", "metric_key"),
)


AnyGroupOptions = RunOptions | FrameworkOptions  # of the verbs that train on a group
_verb = Verb(RunOptions, "collective_all_reduce", orders=ORDERS)
SubmitHook = Callable[[RunOptions], NoReturn]  # gets the options of a training call, and ends it by an exception
_submit_hook: ContextVar[SubmitHook | None] = ContextVar("submit_hook", default=None)  # of a script in ``run_script``


def _start(options: RunOptions) -> Run:
    """Start a run of TensorFlow, unless a script whose training calls are collected calls this."""
    if (hook := _submit_hook.get()) is not None:
        hook(options)
    return plan.start(build(options))


@_verb.with_submit(_start)
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


def run_script(path: str, submit_hook: SubmitHook) -> None:
    """Run a script as ``__main__``; its training calls are passed to ``submit_hook`` and start nothing.

    Args:
        path: Path of the script.
        submit_hook: Called with the options of ``collective_all_reduce`` or ``submit``; the script gets its exception.
    """
    copy_context().run(_run_hooked, path, submit_hook)


def _run_hooked(path: str, submit_hook: SubmitHook) -> None:
    _submit_hook.set(submit_hook)
    runpy.run_path(path, run_name="__main__")


def build(
    options: AnyGroupOptions, verb: str = "collective_all_reduce", framework: Framework = "tensorflow"
) -> plan.Plan:
    """Check a call completely and return the plan of its run; nothing is started."""
    rows = frame_feed.datasets(options.data, verb)
    return plan.Plan(
        spec=section_from_options(
            RunSpec,
            options,
            verb=verb,
            frames=tuple(rows),
            sidecar=frame_feed.SIDECAR if rows else "",
            framework=framework,
            group=_group(options),
            environment=verbs.worker_environment(options.environment, options.share),
        ),
        function=options.train_fn,
        arguments=verbs.keyword_arguments(options.train_fn, frame_feed.with_rows(options.args, rows, verb), verb),
        frames=dict(options.data or {}),
        resources=tuple(options.versioned_resources or ()),
        profile=options.profile,
        progress=bool(options.progress),
        notes=_without_effect(options),
    )


def _group(options: AnyGroupOptions) -> AnyGroup:
    """Return the group that the call requests: fixed or elastic."""
    most, fewest = verbs.group_size(options.num_workers, options.min_workers, options.max_workers)
    size = AS_MANY_AS_THERE_ARE if most is None else most
    evaluator = isinstance(options, RunOptions) and options.evaluator
    if fewest is not None and evaluator:
        raise ArgumentError(
            "evaluator=True and min_workers exclude each other, since an elastic group has no evaluator; omit evaluator, "
            "and evaluate the run's checkpoints beside it: experiment.submit_evaluation(function, run)"
        )
    if evaluator and most is not None:
        verbs.check_evaluator(most)
    first = verbs.first_workers(options.first_workers, fewest, most)
    elastic = section_from_options(
        ElasticGroup, options, size=size, min_size=fewest or 1, first_target=first, drain_s=SETTINGS.drain_s
    )
    if fewest is not None:
        return elastic  # built above in any case, which checks its numbers
    if evaluator:  # it waits for checkpoints, and may be idle until then
        return section_from_options(FixedGroup, options, size=size, exited_s=None, returned_s=None)
    return section_from_options(FixedGroup, options, size=size)


def _without_effect(options: AnyGroupOptions) -> tuple[str, ...]:
    """Return a sentence for each argument that was given and is ignored by a group of this kind."""
    defaults = {option.name: option.default for option in fields(options)}
    notes = list[str]()

    def unused(candidates: Iterable[str], reason: str) -> list[str]:
        given = {name: getattr(options, name) for name in candidates if name in defaults}
        return [f"{name}={value!r} has no effect: {reason}" for name, value in given.items() if value != defaults[name]]

    most, fewest = verbs.group_size(options.num_workers, options.min_workers, options.max_workers)
    if fewest is None:
        reason = (
            "the group has a fixed size, and ends with its first lost worker; pass min_workers= for an elastic group"
        )
        of_elastic = [name for name in argument_names(ElasticGroup) if name not in argument_names(FixedGroup)]
        notes += unused(["first_workers", *of_elastic], reason)
    if most == 1:
        notes += unused(["ring_order", *argument_names(Communication)], "one worker exchanges nothing")
    return tuple(notes)


def _plan_of(options: ParameterServerOptions | MirroredOptions, verb: str, **spec: Any) -> plan.Plan:
    """Return the plan of a run without ``data``; ``spec``: further fields of its specification."""
    environment = verbs.worker_environment(options.environment, options.share)
    return plan.Plan(
        spec=section_from_options(RunSpec, options, verb=verb, environment=environment, **spec),
        function=options.train_fn,
        arguments=verbs.keyword_arguments(options.train_fn, options.args, verb),
        profile=options.profile,
        progress=bool(options.progress),
        resources=tuple(options.versioned_resources or ()),
    )


def _start_with_servers(options: ParameterServerOptions) -> Run:
    """Start a run with parameter servers."""
    return plan.start(build_with_servers(options))


_verb_with_servers = Verb(ParameterServerOptions, "parameter_server", orders=ORDERS)


@_verb_with_servers.with_submit(_start_with_servers)
def parameter_server(options: ParameterServerOptions) -> Result:
    """Train asynchronously with parameter servers; blocks until the end and returns a ``Result``.

    The chief alone calls ``train_fn(**args)``; workers and parameter servers run TensorFlow's server, which hopsml
    starts. A server that fails is restarted at its address: a worker's step is repeated, and
    ``hopsml.tensorflow.ServerLoop`` restores a parameter server's variables from the newest checkpoint. It takes ``1 +
    num_workers + num_ps`` slots.

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once, before anything is started.
        RunError: the run failed; the message names the rank, its host, its traceback and its log.
        StorageError: the run directory cannot be written; names the path.
    """
    return _start_with_servers(options).result()


def build_with_servers(options: ParameterServerOptions) -> plan.Plan:
    """Check a call completely and return the plan of its run; nothing is started."""
    given = settings.num_parameter_servers() if options.num_ps is None else options.num_ps
    servers = checks.whole_number("num_ps", 1 if given is None else given)
    roles = Roles(servers, bool(options.evaluator), checks.switch("evaluator_gpu", options.evaluator_gpu))
    size = AS_MANY_AS_THERE_ARE
    if options.num_workers is not None:
        workers = checks.whole_number("num_workers", options.num_workers)
        size = 1 + workers + roles.parameter_servers + int(roles.evaluator)
    return _plan_of(
        options,
        "parameter_server",
        group=ServerGroup(size=size, start_timeout_s=checks.seconds("start_timeout", options.start_timeout)),
        roles=roles,
        body=SERVERS_BODY,
    )


def _start_mirrored(options: MirroredOptions) -> Run:
    """Start a run on all GPUs of one executor."""
    return plan.start(build_mirrored(options))


_verb_mirrored = Verb(MirroredOptions, "mirrored", orders=ORDERS)


@_verb_mirrored.with_submit(_start_mirrored)
def mirrored(options: MirroredOptions) -> Result:
    """Train on all GPUs of one executor, in one process; blocks until the end and returns a ``Result``.

    The worker gets the GPU of its slot and all others that its executor sees and no other process holds; a note names
    the GPUs that are held, or reports that there are fewer than two. ``hopsml.tensorflow.strategy()`` is a
    ``MirroredStrategy`` over them. There is no TF_CONFIG. ``collective_all_reduce`` trains on several executors; a
    note reports it if the function builds a ``MultiWorkerMirroredStrategy``.

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once, before anything is started.
        RunError: the run failed; the message names the rank, its host, its traceback and its log.
        StorageError: the run directory cannot be written; names the path.
    """
    return _start_mirrored(options).result()


def build_mirrored(options: MirroredOptions) -> plan.Plan:
    """Check a call completely and return the plan of its run; nothing is started."""
    if options.evaluator:
        raise ArgumentError(
            "mirrored(evaluator=True): mirrored() uses one executor, but an evaluator needs another one; omit "
            "evaluator, or use experiment.collective_all_reduce(train, num_workers=3, evaluator=True)"
        )
    return _plan_of(
        options,
        "mirrored",
        group=FixedGroup(size=1, start_timeout_s=checks.seconds("start_timeout", options.start_timeout)),
        all_gpus=True,
        body=MIRRORED_BODY,
    )


def _start_torch(options: TorchOptions) -> Run:
    """Start a run of PyTorch."""
    return plan.start(build(options, "torch", "torch"))


@Verb(TorchOptions, "torch").with_submit(_start_torch)
def torch(options: TorchOptions) -> Result:
    """Train with PyTorch on ``num_workers`` executors; blocks until the end and returns a ``Result``.

    Every worker calls ``train_fn(**args)`` in a fresh process whose default process group has been formed, with torch
    imported before the fork. ``hopsml.torch.prepare(model)`` averages gradients, or the function uses DDP or FSDP as it
    is. RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set as by torchrun, and a call of
    ``torch.distributed.init_process_group`` returns the existing group.

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once, before anything is started.
        RunError: the run failed; the message names the rank, its host, its traceback and its log.
        StorageError: the run directory cannot be written; names the path.
    """
    return _start_torch(options).result()


def _start_jax(options: FrameworkOptions) -> Run:
    """Start a run of JAX."""
    return plan.start(build(options, "jax", "jax"))


@Verb(FrameworkOptions, "jax").with_submit(_start_jax)
def jax(options: FrameworkOptions) -> Result:
    """Train with JAX on ``num_workers`` executors; blocks until the end and returns a ``Result``.

    Every worker calls ``train_fn(**args)`` in a fresh process in which ``jax.distributed`` is initialized:
    ``jax.devices()`` are those of all workers.

    Raises:
        ArgumentError, ArgumentTypeError, RunError, StorageError: as ``torch``.
    """
    return _start_jax(options).result()


def _start_distributed(options: DistributedOptions) -> Run:
    """Start a run of any framework."""
    return plan.start(build(options, "distributed", "none"))


@Verb(DistributedOptions, "distributed").with_submit(_start_distributed)
def distributed(options: DistributedOptions) -> Result:
    """Call a function of any framework on ``num_workers`` executors; blocks until the end and returns a ``Result``.

    Every worker calls ``train_fn(**args)`` in a fresh process. ``hopsml.distributed`` has its rank, the addresses of
    all workers and a reserved port; ``hopsml.all_reduce`` and similar functions exchange arrays,
    ``hopsml.distributed.exchange`` other values.

    Raises:
        ArgumentError, ArgumentTypeError, RunError, StorageError: as ``torch``.
    """
    return _start_distributed(options).result()
