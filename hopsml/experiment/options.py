"""Option classes of the verbs: one dataclass for each verb, whose fields are the verb's arguments.

``verbs.Verb`` derives a verb's signature and the list of arguments in its documentation from its class, so each
argument is declared and described once. Arguments of several verbs are inherited.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, TypeVar

from hopsml.cluster.shared.spec import FIRST_EVALUATION, Compression, GradientReduction

_Options = TypeVar("_Options")


def name_of_function(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of a callable object's class; for runs without another name."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


@dataclass(kw_only=True)
class StartOptions:
    """Arguments of every verb that starts processes on executors.

    Args:
        start_timeout: seconds within which every worker must have called the function.
        keep_warm: seconds for which idle agents are retained after a run; a call within that time starts at once.
        preload: modules to import before the workers are forked; by default those that the function imports.
        honour_environment: keep variables that hopsml sets, such as TF_CONFIG, where you have set them; by default the
            verb raises an error for them.
        profile: name of a file in conf/; used if there is no Spark application yet.
        progress: show progress: a display in a notebook, lines on standard error anywhere else.
        environment: environment variables of the workers.
        share: other users who may read the run's files: "private" (none; overrides HOPSML_SHARE), "group", "all", or
            permission bits of a folder such as "770".
    """

    start_timeout: float = 120.0
    keep_warm: float = 10.0
    preload: Sequence[str] | None = None
    honour_environment: bool = False
    profile: str | None = None
    progress: bool = True
    environment: Mapping[str, str] | None = None
    share: str | None = None

    def __post_init__(self) -> None:
        """Name the run after its function if the caller gave no name."""
        defaults = {one.name: one.default for one in fields(self)}
        if defaults.get("name") == "" and getattr(self, "name", None) == "":
            vars(self)["name"] = name_of_function(vars(self)["train_fn"])


@dataclass(kw_only=True)
class TrainingOptions(StartOptions):
    """Arguments of every verb that starts trainings other than searches.

    Args:
        versioned_resources: paths of files and folders, which are copied into the folder ``resources`` of the run
            directory.
        resume: URL or id of a run of the same model, from whose last complete checkpoint to continue.
        register_as: if MLflow is used, a name in its model registry: the model that a successful run exports becomes a
            version of it.
        preflight: how to treat a slot with too few open files, a full disk, a faulty GPU, another version, or no
            connection to its neighbour: "warn" reports it in a note, "enforce" waits for the checks and trains without
            the slot, "strict" waits and ends the run with all faults before it trains (a slot that joins an elastic
            group later is excluded), "off" ignores it.
    """

    versioned_resources: Sequence[str] | None = None
    resume: str | None = None
    register_as: str | None = None
    preflight: str = "warn"


@dataclass(kw_only=True)
class GroupTrainingOptions(TrainingOptions):
    """Arguments of every verb that trains on a group of workers.

    Args:
        args: keyword arguments of the function.
        data: Spark DataFrames by the names of further arguments of the function, each of which is passed as a
            ``hopsml.data.Dataset``: Spark computes the rows on the same executors and sends them to the workers'
            machines; each row goes to one worker per epoch.
        num_workers: number of workers of a fixed group; by default one for each GPU, else one for each slot of the
            executors, with ``data`` one less. The run ends when the first worker fails.
        min_workers, max_workers: instead of ``num_workers``, the limits of an elastic group: it starts once
            ``min_workers`` are available, admits joining workers at the next commit, and survives the loss of workers,
            executors and hosts; see ``hopsml.elastic``.
        first_workers: number of workers that an elastic group requests until it is resized (``run.resize``,
            ``hopsml.elastic.resize``, a ``BatchSizeSchedule``), from ``min_workers`` to ``max_workers``; by default
            ``max_workers``. A resumed run begins with it again.
        ring_order: order of the workers in the ring over which hopsml's collective reduces between hosts, and in
            TensorFlow's ring: host names, or ranks in the order that the workers have without it (racks, hosts, GPUs).
            The first is the chief, rank 0. A fixed group needs each host, or each rank, once; in an elastic group
            hosts and ranks that are not named follow, and the chief stays first when workers join in place.
        reset_limit: number of generations of an elastic group that may end by failures; unlimited by default, provided
            that commits are made between them.
        min_workers_timeout: seconds for which an elastic group with fewer than ``min_workers`` waits for further
            workers.
        heartbeat_timeout: seconds without a heartbeat after which a member of an elastic group counts as failed.
        progress_timeout: of an elastic group, seconds without a step of any worker after which the group counts as
            hung, by default ten times the usual step time, at least 30; of a fixed group, seconds for which all workers
            may be idle (no processor time used, no bytes read or written) before the run ends, unlimited by default: a
            note reports it after 120. Time in which a worker waits for storage does not count.
        host_failure_limit, host_cooldown: number of failures of elastic members on a host after which the host is
            excluded, and seconds of the first exclusion, which doubles each time; has no effect if all members are on
            one host.
        checkpoint_every_s: seconds between two checkpoints on shared storage, made from commits of an elastic State.
    """

    args: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    num_workers: int | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    first_workers: int | None = None
    ring_order: Sequence[int | str] | None = None
    reset_limit: int | None = None
    min_workers_timeout: float = 600.0
    heartbeat_timeout: float = 5.0
    progress_timeout: float | None = None
    host_failure_limit: int = 3
    host_cooldown: float = 60.0
    checkpoint_every_s: float = 60.0


@dataclass
class RunOptions(GroupTrainingOptions):
    """Arguments of ``collective_all_reduce`` and ``submit``.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        name, description: run name (by default that of the function) and free text, shown where runs are listed.
        local_logdir: let ``tensorboard.logdir()`` return a local folder of the worker, which is copied to the run
            directory at its end.
        evaluator: make the last of at least three workers an evaluator outside the group: its TF_CONFIG has the task
            type "evaluator", its work is defined by the function, and ``hopsml.tensorflow.strategy()`` returns the
            default strategy there.
        evaluator_gpu: reserve a GPU for the evaluator where workers have one; by default it needs only cores of the
            cluster.
        metric_key: key of the run's metric among the function's outputs.
        implementation: library whose collectives ``hopsml.tensorflow.strategy()`` uses when called without arguments:
            "tensorflow" or "hopsml", which merges all gradients; "auto": hopsml on CPUs, TensorFlow on GPUs and where
            merge_scope or scoped_allocator is given.
        merge_scope: number of gradients in one of TensorFlow's collective operations: 1 = no merging, n, "all"; 32 by
            default.
        scoped_allocator: merge by TensorFlow's scoped allocator, as by default on CPUs.
        tuned: use, for those of the three that are not given, the values that ``hopsml runs tune-communication`` found for
            this function and number of workers; the URL or path of a record: the values recorded there.
        encryption: encrypt and authenticate what workers on different hosts send each other. It selects hopsml's own
            collective, also on GPUs, as no other one encrypts; HOPSML_ENCRYPTION=1 requests it in all runs.
        compression, topk, powersgd_rank, double_buffering, accumulate, reduction: treatment of gradients by hopsml's
            own collective, which each of them selects; see ``hopsml.tensorflow.strategy``, where it is called without
            arguments.
    """

    train_fn: Callable[..., Any]
    name: str = ""
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
    """Arguments of ``jax``, and base class of those of ``torch`` and ``distributed``.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        name, description: run name (by default that of the function) and free text, shown where runs are listed.
        local_logdir: let ``tensorboard.logdir()`` return a local folder of the worker, which is copied to the run
            directory at its end.
        metric_key: key of the run's metric among the function's outputs.
    """

    train_fn: Callable[..., Any]
    name: str = ""
    local_logdir: bool = False
    description: str | None = None
    metric_key: str | None = None


@dataclass
class DistributedOptions(FrameworkOptions):
    """Arguments of ``distributed``: those of ``jax``, and encryption.

    Args:
        encryption: encrypt and authenticate what ``hopsml.all_reduce`` and similar functions send between hosts;
            HOPSML_ENCRYPTION=1 requests it in all runs.
    """

    _: KW_ONLY
    encryption: bool = False


@dataclass
class TorchOptions(FrameworkOptions):
    """Arguments of ``torch``: those of ``jax``, backend, encryption and the treatment of gradients.

    Args:
        backend: backend of torch's process group: "hopsml" (its own collective: unauthenticated peers cannot connect,
            and a lost worker delays the others by a fraction of a second), "gloo", "nccl"; "auto": nccl where every
            worker has a GPU, else hopsml.
        encryption: encrypt and authenticate what workers on different hosts send each other; it selects the backend
            "hopsml". HOPSML_ENCRYPTION=1 requests it in all runs.
        compression: how the gradients of models of ``hopsml.torch.prepare`` are sent, with any backend: "fp16" or
            "bf16" (float32 in two bytes), "topk" (the largest entries) or "powersgd" (two thin matrices); a worker adds
            what it has not sent to its next gradients.
        topk: share of the entries that ``compression="topk"`` sends, by default 0.01.
        powersgd_rank: rank of the matrices of ``compression="powersgd"``, by default 2.
        double_buffering: each step applies the gradients of the previous one, which are sent meanwhile; the first
            applies nothing. Call ``hopsml.torch.finish_updates(optimizer)`` after the loop.
        accumulate: number of backward passes whose gradients are reduced and applied together, as their mean; the
            gradients are None after the others. Call ``finish_updates`` as above.
        reduction: "sum" for the mean of all workers' gradients, or "adasum", which combines them by the adaptive sum.
    """

    _: KW_ONLY
    backend: str = "auto"
    encryption: bool = False
    compression: Compression | None = None
    topk: float | None = None
    powersgd_rank: int | None = None
    double_buffering: bool = False
    accumulate: int = 1
    reduction: GradientReduction = "sum"


@dataclass
class ParameterServerOptions(TrainingOptions):
    """Arguments of ``parameter_server``, with the roles of the group.

    Args:
        train_fn: the training function, which the chief calls; everything that it needs is imported inside, or
            captured.
        name, description: run name (by default that of the function) and free text, shown where runs are listed.
        local_logdir: let ``tensorboard.logdir()`` return a local folder of the worker, which is copied to the run
            directory at its end.
        evaluator: add a slot that calls the function as well: only its TF_CONFIG has the task type "evaluator", and its
            work is defined by the function.
        evaluator_gpu: reserve a GPU for the evaluator where workers have one; by default it needs only cores of the
            cluster.
        metric_key: key of the run's metric among the function's outputs.
        args: keyword arguments of the function.
        num_workers: number of computing workers; by default all slots that remain.
        num_ps: number of parameter servers, which hold variables; by default the value of NUM_TF_PS, else 1.
    """

    train_fn: Callable[..., Any]
    name: str = ""
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
    """Arguments of ``mirrored``, which trains on one executor.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        name, description: run name (by default that of the function) and free text, shown where runs are listed.
        local_logdir: let ``tensorboard.logdir()`` return a local folder of the worker, which is copied to the run
            directory at its end.
        evaluator: of the predecessor; raises an error, as there is one worker.
        metric_key: key of the run's metric among the function's outputs.
        args: keyword arguments of the function.
        logical_devices: on an executor without GPU, number of logical CPU devices between which the model is mirrored.
    """

    train_fn: Callable[..., Any]
    name: str = ""
    local_logdir: bool = False
    description: str | None = None
    evaluator: bool = False
    metric_key: str | None = None
    _: KW_ONLY
    args: Mapping[str, Any] | None = None
    logical_devices: int | None = None


@dataclass
class EvaluationOptions(StartOptions):
    """Arguments of ``evaluate`` and ``submit_evaluation``.

    Args:
        train_fn: the evaluating function, called with the folder of a checkpoint.
        run: run whose checkpoints are evaluated: its URL, path, id, handle or result.
        name: name of the evaluation: results, curves and best checkpoint are stored by name, so that several functions,
            or one function on several data sets, can evaluate the same run.
        description: free text, shown where evaluations are listed.
        args: further keyword arguments of the function.
        order: "oldest" or "newest": which checkpoint to evaluate first if several wait.
        metric: key by which checkpoints are compared; for a function that returns a number, "metric".
        direction: "max" or "min".
        patience: number of consecutive checkpoints no better than the best after which the training is requested to
            end; None: never.
        preflight: "warn", "enforce", "strict" or "off", as in trainings: how to treat a slot that fails the checks.
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
    """Arguments of ``launch``, which runs each combination on one worker.

    Args:
        train_fn: the function; everything that it needs is imported inside, or captured.
        args_dict: a list of values for each parameter of the function.
        name, description: run name (by default that of the function) and free text, shown where runs are listed.
        local_logdir: let ``tensorboard.logdir()`` return a local folder of the worker, which is copied to the run
            directory at its end.
        metric_key: key of the run's metric among the function's outputs.
    """

    train_fn: Callable[..., Any]
    args_dict: Mapping[str, Sequence[Any]] | None = None
    name: str = ""
    local_logdir: bool = False
    description: str | None = None
    metric_key: str | None = None


@dataclass(kw_only=True)
class TrialOptions(StartOptions):
    """Arguments of every verb that starts trials.

    Args:
        deadline: seconds, or text such as "20 min", after which the search ends with the results so far.
        budget: executor-minutes, or text such as "2 h", that all trials together may use.
        retries: number of times that a failed trial is tried again on another executor.
        isolation: "reuse" runs trials one after another in a process; "process" starts a process for each trial.
        patience: seconds, or text, for which a trial may continue after a request to stop, before it is killed.
        seed: seed of searcher and trials; drawn at random if None.
        max_executors: largest number of executors to use.
        echo: write what trials print to the trial slots' (lanes') logs as well.
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
    """Arguments of every search, whichever searcher suggests its trials.

    Args:
        stopper: median, asha, hyperband, pbt, pb2, or a ``Stopper``: ends trials early whose reported values are worse
            than others'.
        stopper_args: arguments of the stopper, by name.
        warm_start: finished searches (results, handles, URLs, ids) or dicts of ``config`` and ``value``, to learn from.
        args: arguments of the function that are the same in every trial.
        data: Spark DataFrames by the names of further arguments of the function, each of which is passed as a
            ``hopsml.data.Dataset``: Spark sends the rows to the executors once, and every trial, of one worker, reads
            all of them.
        promoted_workers: ``{step: workers}``: number of workers to which a trial that continues past the step may grow.
    """

    stopper: Any = None
    stopper_args: Mapping[str, Any] | None = None
    warm_start: Any = None
    args: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    promoted_workers: Mapping[int, int] | None = None


@dataclass
class SearchOptions(AnySearchOptions):
    """Arguments of ``search`` and ``submit_search``.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        space: a ``hopsml.Searchspace``, or a dict of ``name: (type, region)``.
        searcher: grid, random, tpe, gp, cmaes, differential_evolution, bohb; or a ``Searcher``.
        searcher_args: arguments of the searcher, by name.
        num_trials: number of trials; None: as many as the searcher suggests, or as fit into ``deadline`` or ``budget``.
            With a searcher that repeats configurations with a greater parameter ``budget`` (asha, hyperband), the
            number of configurations.
        direction: "max" or "min".
        metric: key of the metric in returned and reported values; None if they are single numbers.
        workers_per_trial: 1: each trial runs on a single executor. A larger number, ``(fewest, most)``, or a function
            of the configuration that returns either: each trial is a distributed training, an elastic one for a pair.
        framework: framework whose group the workers of such a trial form: "tensorflow", "torch" (a process group, as in
            ``experiment.torch``), "jax", or "distributed": ranks and addresses alone.
        name, description: name of the search (by default that of the function) and free text, shown where searches
            are listed.
        local_logdir: let ``tensorboard.logdir()`` return a local folder of the worker, which is copied to the run
            directory at its end.
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
    name: str = ""
    description: str | None = None
    local_logdir: bool = False


@dataclass(kw_only=True)
class PredecessorOptions(AnySearchOptions):
    """Arguments of every search function of the predecessor.

    Args:
        versioned_resources: paths of files and folders, which are copied into the folder ``resources`` of the run
            directory.
        cleanup_generations: of the predecessor; has no effect.
    """

    versioned_resources: Sequence[str] | None = None
    cleanup_generations: bool = False


@dataclass
class GridOptions(PredecessorOptions):
    """Arguments of ``grid_search``, in the predecessor's names.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        grid_dict: a list of values for each parameter.
        direction: "MAX" or "MIN".
        name, description: name of the search (by default that of the function) and free text, shown where searches
            are listed.
        local_logdir: let ``tensorboard.logdir()`` return a local folder of the worker, which is copied to the run
            directory at its end.
        optimization_key: key of the value to optimize in the dict that the function returns.
    """

    train_fn: Callable[..., Any]
    grid_dict: Mapping[str, Sequence[Any]] | None = None
    direction: str = "MAX"
    name: str = ""
    local_logdir: bool = False
    description: str | None = None
    optimization_key: str = "metric"


@dataclass
class RandomOptions(PredecessorOptions):
    """Arguments of ``random_search``, in the predecessor's names.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        boundary_dict: the two bounds of each parameter.
        direction: "MAX" or "MIN".
        samples: number of combinations to try.
        name, description: name of the search (by default that of the function) and free text, shown where searches
            are listed.
        local_logdir: let ``tensorboard.logdir()`` return a local folder of the worker, which is copied to the run
            directory at its end.
        optimization_key: key of the value to optimize in the dict that the function returns.
    """

    train_fn: Callable[..., Any]
    boundary_dict: Mapping[str, Sequence[Any]] | None = None
    direction: str = "MAX"
    samples: int = 10
    name: str = ""
    local_logdir: bool = False
    description: str | None = None
    optimization_key: str = "metric"


@dataclass
class EvolutionOptions(PredecessorOptions):
    """Arguments of ``differential_evolution``, in the predecessor's names.

    Args:
        train_fn: the training function; everything that it needs is imported inside, or captured.
        boundary_dict: the two bounds of each parameter.
        direction: "MAX" or "MIN".
        generations, population: number of generations, more than 1, and of combinations in each, more than 3.
        mutation, crossover: factor by which a member moves, and probability of a change in each parameter.
        name, description: name of the search (by default that of the function) and free text, shown where searches
            are listed.
        local_logdir: let ``tensorboard.logdir()`` return a local folder of the worker, which is copied to the run
            directory at its end.
        optimization_key: key of the value to optimize in the dict that the function returns.
    """

    train_fn: Callable[..., Any]
    boundary_dict: Mapping[str, Sequence[Any]] | None = None
    direction: str = "MAX"
    generations: int = 4
    population: int = 6
    mutation: float = 0.5
    crossover: float = 0.7
    name: str = ""
    local_logdir: bool = False
    description: str | None = None
    optimization_key: str = "metric"


def convert_options(source: StartOptions, kind: type[_Options], **more: Any) -> _Options:
    """Return an object of class ``kind`` with the fields that it shares with ``source``, and those of ``more``."""
    known = {one.name for one in fields(kind)} - set(more)  # type: ignore[arg-type]
    return kind(**{one.name: getattr(source, one.name) for one in fields(source) if one.name in known}, **more)
