"""The arguments of every verb: one class each, whose fields are what the verb is called with.

``verbs.Verb`` makes a verb's signature and the list of arguments in its documentation out of its class, so an argument
stands here and nowhere else. Those that several verbs have are inherited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, TypeVar

from hopsml.cluster.shared.spec import FIRST_EVALUATION, Compression, GradientReduction

_Options = TypeVar("_Options")


@dataclass(kw_only=True)
class StartOptions:
    """What every verb has that starts something on executors.

    Args:
        start_timeout: seconds until every worker must have begun the function.
        keep_warm: seconds for which the agents stay when nothing runs any more; the next call then starts at once.
        preload: modules that are imported before the workers are forked; by default what the function imports.
        honour_environment: variables that hopsml sets, such as TF_CONFIG, stay as they are where you have set them, instead
            of refusing it.
        profile: name of a file in conf/; used when there is no Spark application yet.
        progress: show what goes on: a display in a notebook, lines on standard error anywhere else.
        environment: variables for the workers.
        share: who besides you may read the run's files: "private" (nobody, as HOPSML_SHARE says otherwise), "group", "all",
            or a folder's permission such as "770".
    """

    start_timeout: float = 120.0
    keep_warm: float = 10.0
    preload: Sequence[str] | None = None
    honour_environment: bool = False
    profile: str | None = None
    progress: bool = True
    environment: Mapping[str, str] | None = None
    share: str | None = None


@dataclass(kw_only=True)
class TrainingOptions(StartOptions):
    """What every verb has that starts trainings, and no search.

    Args:
        versioned_resources: of the predecessor; has no effect.
        resume: URL or id of a run of the same model, to continue from its last complete checkpoint.
        register_as: where MLflow is used, a name in its model registry: what a successful run exports becomes a version.
        preflight: what becomes of a slot with too few open files, a full disk, a bad GPU, another version, no way to its
            neighbour: "warn" names it in a note, "enforce" waits for the figures and trains without it, "off" looks away.
    """

    versioned_resources: Sequence[str] | None = None
    resume: str | None = None
    register_as: str | None = None
    preflight: str = "warn"


@dataclass(kw_only=True)
class GroupTrainingOptions(TrainingOptions):
    """What every verb has that trains on a group of workers.

    Args:
        args: keyword arguments of the function.
        data: DataFrames of Spark's by the names of further arguments, which get a ``hopsml.data.Dataset`` each: Spark
            computes the rows beside the workers and brings them to their machines, each to one worker in an epoch.
        num_workers: how many; by default one for each GPU, else for each slot of the executors, with ``data`` but one. The
            run ends with the first worker that is lost.
        min_workers, max_workers: instead of it, a group that may change: it starts with ``min_workers``, takes newcomers
            in at the next commit, survives the loss of workers, executors and hosts; see ``hopsml.elastic``.
        reset_limit: how many generations of an elastic group failures may end; any number by default, while commits are
            made in between.
        min_workers_timeout: seconds for which an elastic group that has shrunk below ``min_workers`` waits for others.
        heartbeat_timeout: seconds of silence after which a member of an elastic group counts as lost.
        progress_timeout: seconds without a step of anybody after which an elastic group counts as hanging, by default ten
            times the usual step, at least 30; seconds for which all workers of a fixed group may do nothing (no processor
            used, nothing read or written) before the run ends, by default any number: a note reports it after 120.
        host_failure_limit, host_cooldown: a host on which so many members of an elastic group have failed is set aside for
            so many seconds, and for twice as long each time again; where all are on one host there is nowhere else to go.
        checkpoint_every: seconds between two checkpoints on shared storage that are made of an elastic State's commits.
    """

    args: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    num_workers: int | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    reset_limit: int | None = None
    min_workers_timeout: float = 600.0
    heartbeat_timeout: float = 5.0
    progress_timeout: float | None = None
    host_failure_limit: int = 3
    host_cooldown: float = 60.0
    checkpoint_every: float = 60.0


@dataclass
class RunOptions(GroupTrainingOptions):
    """The arguments of ``collective_all_reduce`` and ``submit``.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        name, description: for people who look for the run later.
        local_logdir: ``tensorboard.logdir()`` is a folder of the worker, brought to the run directory at its end.
        evaluator: the last of at least three workers stands beside the group: its TF_CONFIG says "evaluator", and what it
            does is the function's to say; ``hopsml.tensorflow.strategy()`` gives it the default strategy.
        evaluator_gpu: whether the evaluator gets a GPU, where workers have one; without it the cluster's cores are enough.
        metric_key: which of the function's outputs is the run's metric.
        implementation: whose collectives ``hopsml.tensorflow.strategy()`` takes where it is called without arguments:
            "tensorflow" or "hopsml", which merges everything; "auto": hopsml's on CPUs, TensorFlow's on GPUs and where
            merge_scope or scoped_allocator is given.
        merge_scope: gradients in one of TensorFlow's collectives: 1 = no merging, n, "all"; 32 by default.
        scoped_allocator: whether that merging is done by TensorFlow's scoped allocator, as by default on CPUs.
        tuned: take those of the three that are not given as ``hopsml tune-communication`` has found them for this function
            and number of workers; the URL or path of a record: as it says there.
        encryption: what workers on different hosts send each other is encrypted, and cannot be changed under way. It chooses
            hopsml's own collective, as no other encrypts, also on GPUs; HOPSML_ENCRYPTION=1 asks for it in all runs.
        compression, topk, powersgd_rank, double_buffering, accumulate, reduction: what hopsml's own collective, which they
            choose, does with gradients; see ``hopsml.tensorflow.strategy``, where it is called without arguments.
    """

    train_fn: Callable[..., Any]
    name: str = "no-name"
    local_logdir: bool = False
    description: str | None = None
    evaluator: bool = False
    metric_key: str | None = None
    _: KW_ONLY
    evaluator_gpu: bool = False
    implementation: str = "auto"
    merge_scope: int | str | None = None
    scoped_allocator: bool | None = None
    tuned: bool | str = False
    encryption: bool = False
    compression: Compression | None = None
    topk: float | None = None
    powersgd_rank: int | None = None
    double_buffering: bool = False
    accumulate: int = 1
    reduction: GradientReduction = "sum"


@dataclass
class FrameworkOptions(GroupTrainingOptions):
    """The arguments of ``jax``.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        name, description: for people who look for the run later.
        local_logdir: ``tensorboard.logdir()`` is a folder of the worker, brought to the run directory at its end.
        metric_key: which of the function's outputs is the run's metric.
    """

    train_fn: Callable[..., Any]
    name: str = "no-name"
    local_logdir: bool = False
    description: str | None = None
    metric_key: str | None = None


@dataclass
class DistributedOptions(FrameworkOptions):
    """The arguments of ``distributed``.

    Args:
        encryption: what ``hopsml.all_reduce`` and its like send between hosts is encrypted, and cannot be changed under way;
            HOPSML_ENCRYPTION=1 asks for it in all runs.
    """

    _: KW_ONLY
    encryption: bool = False


@dataclass
class TorchOptions(FrameworkOptions):
    """The arguments of ``torch``.

    Args:
        backend: of torch's process group: "hopsml" (its own collective: nobody else can connect, and a lost worker costs
            the others a fraction of a second), "gloo", "nccl"; "auto": nccl where every worker has a GPU, else hopsml.
        encryption: what workers on different hosts send each other by "hopsml", which it chooses, is encrypted, and
            cannot be changed under way; HOPSML_ENCRYPTION=1 asks for it in all runs.
    """

    _: KW_ONLY
    backend: str = "auto"
    encryption: bool = False


@dataclass
class ParameterServerOptions(TrainingOptions):
    """The arguments of ``parameter_server``.

    Args:
        train_fn: the training function, which the chief calls; everything that it needs is imported inside, or captured.
        name, description: for people who look for the run later.
        local_logdir: ``tensorboard.logdir()`` is a folder of the worker, brought to the run directory at its end.
        evaluator: a slot more, which calls the function as well: its TF_CONFIG, which has it alone, says "evaluator", and
            what it does is the function's to say.
        evaluator_gpu: whether the evaluator gets a GPU, where workers have one; without it the cluster's cores are enough.
        metric_key: which of the function's outputs is the run's metric.
        args: keyword arguments of the function.
        num_workers: how many compute; by default as many as there are slots left.
        num_ps: how many hold variables; by default the value of NUM_TF_PS, else 1.
    """

    train_fn: Callable[..., Any]
    name: str = "no-name"
    local_logdir: bool = False
    description: str | None = None
    evaluator: bool = False
    metric_key: str | None = None
    _: KW_ONLY
    evaluator_gpu: bool = False
    args: Mapping[str, Any] | None = None
    num_workers: int | None = None
    num_ps: int | None = None


@dataclass
class MirroredOptions(TrainingOptions):
    """The arguments of ``mirrored``.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        name, description: for people who look for the run later.
        local_logdir: ``tensorboard.logdir()`` is a folder of the worker, brought to the run directory at its end.
        evaluator: of the predecessor; refused, as there is one worker.
        metric_key: which of the function's outputs is the run's metric.
        args: keyword arguments of the function.
        logical_devices: where the executor has no GPU: between how many devices, made of its CPU, the model is mirrored.
    """

    train_fn: Callable[..., Any]
    name: str = "no-name"
    local_logdir: bool = False
    description: str | None = None
    evaluator: bool = False
    metric_key: str | None = None
    _: KW_ONLY
    args: Mapping[str, Any] | None = None
    logical_devices: int | None = None


@dataclass
class EvaluationOptions(StartOptions):
    """The arguments of ``evaluate`` and ``submit_evaluation``.

    Args:
        train_fn: the evaluating function, called with the folder of a checkpoint.
        run: whose checkpoints are judged: its URL, path, id, handle or result.
        name: of the evaluation: each name has facts, curves and a best checkpoint of its own, so that several functions,
            or one on several data sets, judge the same run.
        description: for people who look for the evaluation later.
        args: further keyword arguments of the function.
        order: "oldest" or "newest": which checkpoint is next where several wait.
        metric: the key by which checkpoints are compared; of a function that returns a number, "metric".
        direction: "max" or "min".
        patience: after so many checkpoints that were no better than the best the training is asked to end; None: never.
        preflight: as of a training.
    """

    train_fn: Callable[..., Any]
    run: Any
    _: KW_ONLY
    name: str = FIRST_EVALUATION
    description: str | None = None
    args: Mapping[str, Any] | None = None
    order: str = "oldest"
    metric: str = "metric"
    direction: str = "max"
    patience: int | None = None
    preflight: str = "warn"


@dataclass
class LaunchOptions(TrainingOptions):
    """The arguments of ``launch``.

    Args:
        train_fn: the function; everything that it needs is imported inside, or captured.
        args_dict: a list of values for each of its parameters.
        name, description: for people who look for the run later.
        local_logdir: ``tensorboard.logdir()`` is a folder of the worker, brought to the run directory at its end.
        metric_key: which of the function's outputs is the run's metric.
    """

    train_fn: Callable[..., Any]
    args_dict: Mapping[str, Sequence[Any]] | None = None
    name: str = "no-name"
    local_logdir: bool = False
    description: str | None = None
    metric_key: str | None = None


@dataclass(kw_only=True)
class TrialOptions(StartOptions):
    """What every verb has that starts trials.

    Args:
        deadline: seconds, or text such as "20 min", after which the search ends with what it has found.
        budget: executor-minutes, or text such as "2 h", that all trials together may hold.
        retries: how often a trial that failed is tried again elsewhere.
        isolation: "reuse" runs trials one after another in a process; "process" gives each one of its own.
        patience: seconds for which a trial that is told to stop may go on before it is killed.
        seed: of searcher and trials; drawn where there is none.
        max_executors: how many at most are used.
        echo: what trials print goes to the lanes' logs as well.
    """

    deadline: float | str | None = None
    budget: float | str | None = None
    retries: int = 1
    isolation: str = "reuse"
    patience: float | str = 30.0
    seed: int | None = None
    max_executors: int | None = None
    echo: bool = False


@dataclass(kw_only=True)
class AnySearchOptions(TrialOptions):
    """What every search has, whatever proposes its trials.

    Args:
        stopper: median, asha, hyperband, pbt, pb2; or a ``Stopper``: ends trials that report too little.
        stopper_args: arguments of the stopper, by name.
        warm_start: finished searches (results, handles, URLs, ids) or dicts of ``config`` and ``value``, to learn from.
        args: arguments of the function that are the same in every trial.
        data: DataFrames of Spark's by the names of further arguments, which get a ``hopsml.data.Dataset`` each: Spark brings
            the rows to the executors once, and every trial, of one worker, reads all of them.
        promoted_workers: ``{step: workers}``: a trial that goes on past the step may have so many.
    """

    stopper: Any = None
    stopper_args: Mapping[str, Any] | None = None
    warm_start: Any = None
    args: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    promoted_workers: Mapping[int, int] | None = None


@dataclass
class SearchOptions(AnySearchOptions):
    """The arguments of ``search`` and ``submit_search``.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        space: a ``hopsml.Searchspace``, or a dict of ``name: (type, region)``.
        searcher: grid, random, tpe, gp, cmaes, differential_evolution, bohb; or a ``Searcher``.
        searcher_args: arguments of the searcher, by name.
        num_trials: how many; None: as many as the searcher has, or as fit into ``deadline`` or ``budget``. Of a searcher
            that tries a configuration again for longer (asha, hyperband: with a greater parameter ``budget``) how many
            configurations.
        direction: "max" or "min".
        metric: key of what is returned and reported; None where that is a single number.
        workers_per_trial: 1: trials run on single executors. More, ``(fewest, most)`` or a function of the configuration
            that gives either: each trial is a distributed training of its own, an elastic one for a pair.
        framework: what the workers of such a trial form a group for: "tensorflow", "torch" (a process group, as of
            ``experiment.torch``), "jax", or "distributed": ranks and addresses alone.
        name, description: for people who look for the search later.
        local_logdir: ``tensorboard.logdir()`` is a folder of the worker, brought to the run directory at its end.
    """

    train_fn: Callable[..., Any]
    space: Any
    searcher: Any = "tpe"
    _: KW_ONLY
    searcher_args: Mapping[str, Any] | None = None
    num_trials: int | None = 64
    direction: str = "max"
    metric: str | None = None
    workers_per_trial: Any = 1
    framework: str = "tensorflow"
    name: str = "no-name"
    description: str | None = None
    local_logdir: bool = False


@dataclass(kw_only=True)
class PredecessorOptions(AnySearchOptions):
    """What each of the predecessor's searches has.

    Args:
        versioned_resources, cleanup_generations: of the predecessor; have no effect.
    """

    versioned_resources: Sequence[str] | None = None
    cleanup_generations: bool = False


@dataclass
class GridOptions(PredecessorOptions):
    """The arguments of ``grid_search``.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        grid_dict: a list of values for each parameter.
        direction: "MAX" or "MIN".
        name, description: for people who look for the search later.
        local_logdir: ``tensorboard.logdir()`` is a folder of the worker, brought to the run directory at its end.
        optimization_key: key of what the function returns that counts.
    """

    train_fn: Callable[..., Any]
    grid_dict: Mapping[str, Sequence[Any]] | None = None
    direction: str = "MAX"
    name: str = "no-name"
    local_logdir: bool = False
    description: str | None = None
    optimization_key: str = "metric"


@dataclass
class RandomOptions(PredecessorOptions):
    """The arguments of ``random_search``.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        boundary_dict: the two bounds of each parameter.
        direction: "MAX" or "MIN".
        samples: how many combinations are tried.
        name, description: for people who look for the search later.
        local_logdir: ``tensorboard.logdir()`` is a folder of the worker, brought to the run directory at its end.
        optimization_key: key of what the function returns that counts.
    """

    train_fn: Callable[..., Any]
    boundary_dict: Mapping[str, Sequence[Any]] | None = None
    direction: str = "MAX"
    samples: int = 10
    name: str = "no-name"
    local_logdir: bool = False
    description: str | None = None
    optimization_key: str = "metric"


@dataclass
class EvolutionOptions(PredecessorOptions):
    """The arguments of ``differential_evolution``.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        boundary_dict: the two bounds of each parameter.
        direction: "MAX" or "MIN".
        generations, population: how often so many combinations are tried; more than 1, more than 3.
        mutation, crossover: how far a member moves, and how probably in each parameter.
        name, description: for people who look for the search later.
        local_logdir: ``tensorboard.logdir()`` is a folder of the worker, brought to the run directory at its end.
        optimization_key: key of what the function returns that counts.
    """

    train_fn: Callable[..., Any]
    boundary_dict: Mapping[str, Sequence[Any]] | None = None
    direction: str = "MAX"
    generations: int = 4
    population: int = 6
    mutation: float = 0.5
    crossover: float = 0.7
    name: str = "no-name"
    local_logdir: bool = False
    description: str | None = None
    optimization_key: str = "metric"


def taken_from(source: StartOptions, kind: type[_Options], **more: Any) -> _Options:
    """An object of class ``kind`` with the fields that it shares with ``source``, and those of ``more``."""
    known = {one.name for one in fields(kind)} - set(more)  # type: ignore[arg-type]
    return kind(**{one.name: getattr(source, one.name) for one in fields(source) if one.name in known}, **more)
