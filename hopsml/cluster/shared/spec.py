"""Specification of a run in one object: checked on the driver, stored in ``run.json``, read by every worker.

A new option is a field here, with its check, and a field of the verb's class in ``experiment/options.py``, with its
documentation; it has the same name there, without the unit. No other code passes it on: ``section_from_options`` finds it in
the verb's arguments, ``run.json`` and ``experiment.rerun`` contain the whole object, agents receive it with the formation,
and the training function's process has it as ``context.spec``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from hopsml.cluster.shared import checks
from hopsml.errors import ArgumentError

DEFAULT_MERGE_SCOPE = 32  # gradients in one of TensorFlow's collectives
OPTIONS_WITH_UNITS = ("checkpoint_every_s",)  # a training loop counts steps: ``checkpoint_every_steps``
DEFAULT_TOPK = 0.01
DEFAULT_POWERSGD_RANK = 2
ONLY_HOPSMLS = (
    "only hopsml's own collective sends parts of gradients (topk, powersgd), combines them (Adasum), or delays them "
    "(double_buffering, accumulate): TensorFlow's sum whole gradients, and its strategies update no variable within a "
    "condition; use implementation='hopsml', or omit these settings"
)
ONLY_HOPSMLS_ENCRYPTS = (
    "only hopsml's own collective encrypts; use it, or train without encryption (neither encryption=True nor "
    "HOPSML_ENCRYPTION=1)"
)
AS_MANY_AS_THERE_ARE = -1  # number of workers: one per GPU, or per slot of the executors
PreflightMode = Literal["off", "warn", "enforce", "strict"]  # treatment of slots that fail the preflight
Framework = Literal["tensorflow", "torch", "jax", "none"]
Implementation = Literal["auto", "tensorflow", "hopsml"]  # library whose collectives reduce gradients
Compression = Literal["fp16", "bf16", "topk", "powersgd"]  # how gradients are made smaller for the transfer
GradientReduction = Literal["sum", "adasum"]
TorchBackend = Literal["auto", "hopsml", "gloo", "nccl"]
Seconds = Annotated[float, checks.seconds]
Switch = Annotated[bool, checks.switch]


def _restore(kind: type[Section], fields: dict[str, Any]) -> Section:
    """Return a pickled section."""
    return kind(**fields)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a specification's parts.

    A field's annotation holds the check of the argument from which it is made. Pickles have the fields by name. Those of
    records that are older than that have them in their order, so a new field stands behind all others of its class.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), {name: getattr(self, name) for name in self.__struct_fields__})


class WorkerGroup(Section, frozen=True, tag_field="kind"):
    """Group of workers of a run: its size, its kind and its time limits, in seconds.

    Code distinguishes kinds of groups by the class variables, not by the class.
    """

    collective: ClassVar[bool] = True  # its members wait for each other, and rank 0 represents all of them
    changes: ClassVar[bool] = False  # agents join and leave the run while it continues
    # after a change it continues as another generation, from a commit that agents hold
    regroups: ClassVar[bool] = False
    relaunches: ClassVar[bool] = False  # a failed member is started again, on its agent, at its address

    size: int = AS_MANY_AS_THERE_ARE  # maximum
    start_timeout_s: Seconds = 120.0  # seconds from the call until every worker has started the user's function
    grace_s: float = 2.0  # seconds between SIGTERM and SIGKILL
    flush_s: float = 120.0  # seconds for storing the last files of a finished run
    # seconds of these for which storing is retried if the store refuses them or is unavailable
    retry_s: float = 120.0
    failed_flush_s: float = 4.0  # the same after a failure, whose report must not be delayed

    @property
    def minimum(self) -> int:
        """Smallest number of workers with which the group trains."""
        return self.size

    @property
    def silence_timeout_s(self) -> float | None:
        """Seconds without a message after which a member counts as failed; None: the lease of an agent applies."""
        return None

    @property
    def checkpoint_interval_s(self) -> float:
        """Seconds between two checkpoints on shared storage that are made of commits without a request."""
        return math.inf

    def size_within(self, limit: int) -> int:
        """Return the number of workers to request on a cluster of at most ``limit`` slots."""
        return self.size


class FixedGroup(WorkerGroup, frozen=True, tag="fixed"):
    """Group of fixed size that ends when it loses a worker."""

    # seconds for which an error that only follows from a failure waits for the report of that failure
    settle_s: float = 3.0
    raised_settle_s: float = 1.0  # the same for an error of the user's code, which may follow from a member's death
    stopped_s: float = 60.0  # seconds for which a worker may be stopped (SIGSTOP) before it counts as failed
    exited_s: float | None = 30.0  # seconds for which others may wait idly for a member that has left by sys.exit(0)
    returned_s: float | None = 120.0  # and for one whose function has returned; None: without limit
    stalled_s: float = 120.0  # seconds for which all workers may be idle before a note reports it
    progress_timeout_s: Annotated[float | None, checks.or_none(checks.seconds)] = (
        None  # seconds for which all workers may be idle before the group ends; None: no limit
    )


class ElasticGroup(FixedGroup, frozen=True, tag="elastic"):
    """Group that starts with ``min_size`` workers, grows to ``size``, and survives the loss of workers."""

    changes: ClassVar[bool] = True
    regroups: ClassVar[bool] = True

    min_size: int = 1
    first_target: int | None = None  # target size until it is resized (``first_workers``); None: ``size``
    stopped_s: float = 5.0  # lower, as a stopped worker can be replaced
    heartbeat_timeout_s: Seconds = 5.0
    # shortest wait of the group's start with min_size workers for more; longer if these needed longer to connect
    join_s: float = 1.0
    drain_s: float = 30.0  # seconds that a node has after its warning, if the cluster does not report them
    min_workers_timeout_s: Seconds = 600.0  # seconds for which a group that has shrunk below min_size waits
    # seconds for which a paused member waits for the others' commits; one that all hold need not be sent
    agree_s: float = 0.3
    reset_limit: Annotated[int | None, checks.or_none(partial(checks.whole_number, at_least=0))] = None
    commits: bool = True  # True if training continues from commits; an evaluator continues from files
    fruitless_limit: int = 3  # consecutive failures without a new commit
    # None: derived from the usual duration of a step
    progress_timeout_s: Annotated[float | None, checks.or_none(checks.seconds)] = None
    host_failure_limit: Annotated[int, checks.whole_number] = 3  # failures after which a host is excluded
    host_cooldown_s: Seconds = 60.0  # duration of the first exclusion; it doubles
    checkpoint_every_s: Seconds = 60.0  # interval in which the chief's agent stores its newest commit

    @property
    def minimum(self) -> int:
        """Smallest number of workers with which the group trains."""
        return min(self.min_size, self.size)

    @property
    def first_size(self) -> int:
        """Target size until the group is resized, at most ``size``, which may have been limited to the cluster's."""
        return min(self.first_target or self.size, self.size)

    @property
    def silence_timeout_s(self) -> float | None:
        """Seconds without a heartbeat after which a worker counts as failed and the group continues without it."""
        return self.heartbeat_timeout_s

    @property
    def checkpoint_interval_s(self) -> float:
        """Seconds between two checkpoints that are made of commits."""
        return self.checkpoint_every_s

    def size_within(self, limit: int) -> int:
        """Return ``size``, limited to the cluster's: tasks that can never run would block the queue for other jobs."""
        return max(min(self.size, limit), self.min_size)


class IndependentGroup(WorkerGroup, frozen=True, tag="independent"):
    """Workers that do not communicate and are replaced one by one, such as the trial slots (lanes) of a search."""

    collective: ClassVar[bool] = False
    changes: ClassVar[bool] = True

    host_cooldown_s: Seconds = 60.0

    @property
    def silence_timeout_s(self) -> float | None:
        """Seconds without a heartbeat after which a trial slot (lane) counts as failed.

        Its trial is restarted elsewhere.
        """
        return 10.0

    def size_within(self, limit: int) -> int:
        """Return ``size``, limited to the cluster's: with fewer trial slots (lanes) the search takes longer."""
        return max(1, min(self.size, limit)) if self.size else 0


class ServerGroup(WorkerGroup, frozen=True, tag="servers"):
    """Group whose chief calls the function, while the others compute or hold variables for it, at fixed addresses.

    A failed member other than the chief is started again as the same task at the same address. ``size`` counts all
    roles.
    """

    relaunches: ClassVar[bool] = True

    # seconds for which an error of the chief that only follows from a failure waits for that failure's report
    settle_s: float = 3.0
    stopped_s: float = 5.0  # seconds for which a member may be stopped (SIGSTOP) before it counts as failed
    chief_stopped_s: float = 60.0  # the same for the chief, which cannot be replaced
    # consecutive failures, each within steady_s of the start, after which a member is given up
    fruitless_limit: int = 3
    steady_s: float = 30.0
    evaluator_s: Seconds = 60.0  # seconds after the chief's end for an evaluator to finish


AnyGroup = FixedGroup | ElasticGroup | IndependentGroup | ServerGroup


class Roles(Section, frozen=True, kw_only=False):
    """Number of workers that have another role than training in the collective."""

    parameter_servers: int = 0
    evaluator: Switch = False
    evaluator_gpu: Switch = False  # True if the evaluator's slot has a GPU, as a worker's

    def __post_init__(self) -> None:
        if self.evaluator_gpu and not self.evaluator:
            raise ArgumentError("evaluator_gpu=True needs evaluator=True; pass both, or omit evaluator_gpu")

    @property
    def without_gpu(self) -> int:
        """Number of workers that need no GPU."""
        return self.parameter_servers + int(self.evaluator and not self.evaluator_gpu)


class GradientSettings(Section, frozen=True):
    """Options that apply to gradients, not to other reduced values; TensorFlow's collectives support some of them."""

    compression: Annotated[Compression | None, checks.or_none(checks.compression)] = None
    topk: Annotated[float | None, checks.or_none(checks.share)] = None  # share of the entries, for compression="topk"
    powersgd_rank: Annotated[int | None, checks.or_none(checks.whole_number)] = None  # for compression="powersgd"
    double_buffering: Switch = False  # a step applies the result of the previous step's reduction
    # number of steps whose gradients are reduced and applied together
    accumulate: Annotated[int, checks.whole_number] = 1
    reduction: Annotated[GradientReduction, checks.reduction] = "sum"

    def __post_init__(self) -> None:
        for name, kind in (("topk", "topk"), ("powersgd_rank", "powersgd")):
            value = getattr(self, name)
            if value is not None and self.compression != kind:
                raise ArgumentError(
                    f"{name}={value!r} with compression={self.compression!r}: this is a setting of "
                    f"compression={kind!r}; use that compression, or omit {name}"
                )
        if self.reduction == "adasum" and self.compression in ("topk", "powersgd"):
            raise ArgumentError(
                f"reduction='adasum' with compression={self.compression!r}: Adasum compares whole gradients, but "
                "this compression sends only a part of them; use compression='fp16', 'bf16' or none"
            )

    @property
    def changed_names(self) -> list[str]:
        """Names of the settings that differ from their defaults."""
        none = GradientSettings()
        return [name for name in self.__struct_fields__ if getattr(self, name) != getattr(none, name)]

    @property
    def only_hopsmls(self) -> list[str]:
        """Names of the given settings that TensorFlow's collectives do not support."""
        narrow = ["compression"] if self.compression in ("fp16", "bf16") else []
        return [name for name in self.changed_names if name not in narrow]

    @property
    def description(self) -> str:
        """Description of the settings in a few words; "" if there are none."""
        compression = {
            "topk": f"topk of {self.topk or DEFAULT_TOPK:g}",
            "powersgd": f"powersgd of rank {self.powersgd_rank or DEFAULT_POWERSGD_RANK}",
        }
        words = [
            compression.get(self.compression or "", self.compression),
            self.double_buffering and "double buffering",
            self.accumulate > 1 and f"{self.accumulate} steps together",
            self.reduction != "sum" and self.reduction,
        ]
        return ", ".join(word for word in words if word)


class Communication(Section, frozen=True):
    """Settings of the exchange of gradients between workers."""

    implementation: Annotated[Implementation, checks.implementation] = "auto"  # for strategy() without arguments
    # For TensorFlow's collectives; None: not set, and a strategy over them has its own default.
    merge_scope: Annotated[int | str | None, checks.or_none(checks.merge_scope)] = None  # 1 = no merging, "all"
    scoped_allocator: Annotated[bool | None, checks.or_none(checks.switch)] = None  # True if it does the merging
    backend: Annotated[TorchBackend, checks.backend] = "auto"  # for torch's process group
    encryption: Switch = (
        False  # for data that hopsml's collective sends between machines; settled: the cluster may require it
    )
    # the other settings as tuning found them: the project's record, or a file
    tuned: Annotated[bool | str, checks.tuning_record] = False
    gradients: GradientSettings = GradientSettings()

    def __post_init__(self) -> None:
        if self.implementation == "hopsml" and self.tensorflow_only:
            raise ArgumentError(
                f"implementation='hopsml' with {' and '.join(self.tensorflow_only)}: this is a setting of TensorFlow's "
                "collectives, and hopsml's own always merges all gradients; omit it, or use "
                "implementation='tensorflow'"
            )
        if self.gradients.only_hopsmls and (self.tensorflow_only or self.implementation == "tensorflow"):
            other = " and ".join(self.tensorflow_only) or "implementation='tensorflow'"
            raise ArgumentError(f"{' and '.join(self.gradients.only_hopsmls)} with {other}: {ONLY_HOPSMLS}")
        unencrypted = self._unencrypted
        if self.encryption and unencrypted:
            raise ArgumentError(f"encryption=True with {unencrypted}: {ONLY_HOPSMLS_ENCRYPTS}")
        if self.gradients.changed_names and self.tuned:
            raise ArgumentError(
                f"tuned={self.tuned!r} with {' and '.join(self.gradients.changed_names)}: tuning selects how unchanged "
                "gradients are reduced; omit one of the two"
            )

    @property
    def _unencrypted(self) -> str:
        """Settings that request collectives without encryption, as text; "" if there are none."""
        asked = list(self.tensorflow_only)
        if self.implementation == "tensorflow":
            asked.append("implementation='tensorflow'")
        if self.backend in ("gloo", "nccl"):
            asked.append(f"backend={self.backend!r}")
        return " and ".join(asked)

    @property
    def tensorflow_only(self) -> list[str]:
        """Names of the settings that were given and apply only to TensorFlow's collectives."""
        return [name for name in ("merge_scope", "scoped_allocator") if getattr(self, name) is not None]


FIRST_EVALUATION = "eval"  # name of a run's evaluation unless another is given; its records have no separate folder


class Evaluation(Section, frozen=True):
    """Evaluation settings: the run whose checkpoints an evaluator evaluates, their order, and the metric."""

    run: str  # settled: URL of its run directory
    order: Annotated[Literal["oldest", "newest"], checks.order] = "oldest"  # which of several checkpoints is next
    metric: Annotated[str, checks.text] = "metric"
    direction: Annotated[Literal["max", "min"], checks.direction] = "max"
    # number of checkpoints without a better one after which the evaluator ends
    patience: Annotated[int | None, checks.or_none(checks.whole_number)] = None
    name: Annotated[str, checks.evaluation_name] = FIRST_EVALUATION  # each name has a separate record


class RunSpec(Section, frozen=True):
    """Complete specification of a run without its function and arguments; ``options.RunOptions`` documents the fields.

    Fields marked "settled" are completed by the driver when it starts the run; until then they are as the user set
    them.
    """

    verb: str = "collective_all_reduce"
    name: Annotated[str, checks.text] = "no-name"
    description: Annotated[str, checks.description] = ""
    group: AnyGroup = FixedGroup()  # settled: its size
    roles: Roles = Roles()
    # determines the variables that workers get in addition to those common to all frameworks
    framework: Framework = "tensorflow"
    communication: Communication = Communication()
    evaluation: Evaluation | None = None  # of an evaluator
    resume: str | None = None  # id or URL of the run from whose last checkpoint it starts
    seed: int | None = None  # settled
    preload: Annotated[tuple[str, ...] | None, checks.or_none(checks.modules)] = None  # settled
    environment: dict[str, str] = {}  # settled: the user's, and those that every worker of this run gets
    honour_environment: Switch = False
    local_logdir: Switch = False
    metric_key: str | None = None
    register_as: Annotated[str | None, checks.or_none(checks.model_name)] = None
    preflight: Annotated[PreflightMode, checks.preflight] = "warn"
    keep_warm_s: Annotated[float, partial(checks.seconds, above=-1.0)] = 10.0
    storage_timeout_s: float = 30.0  # settled, from the driver's settings: time limit of a call to shared storage
    hooks: tuple[str, ...] = ()  # settled: "module:function", called with the context before the user's function
    # "module:function", called instead of the user's function, with that function, its arguments and the context
    body: str = ""
    frames: tuple[str, ...] = ()  # settled: names of the function's arguments whose rows the driver sends to the agents
    sidecar: str = ""  # "module:function", called in a process on each agent that lasts as long as the run
    all_gpus: Switch = False  # a worker gets the other free GPUs of its executor in addition to those of its slot
    # CPU devices into which TensorFlow splits a worker's CPU if it has no GPU.
    logical_devices: Annotated[int | None, checks.or_none(checks.whole_number)] = None
    # ring order of those that train: hosts, or ranks in the order of places; empty: racks, hosts and their GPUs
    ring_order: Annotated[tuple[int | str, ...], checks.ring_order] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules that the fork server imports before workers are forked."""
        return self.preload or ()


_Section = TypeVar("_Section", bound=Section)


def section_from_options(kind: type[_Section], options: Any, **settled: Any) -> _Section:
    """Create a section from the equally named attributes (most of them without units) of an object, each checked.

    Args:
        kind: the section's class.
        options: arguments of a verb.
        settled: fields that are used as they are.

    Raises:
        ArgumentError: for a value that violates a field's rule.
        ArgumentTypeError: for a value of a wrong type.
    """
    values = dict(settled)
    for name, hint in get_type_hints(kind, include_extras=True).items():
        option = _option(name)
        if name in values or get_origin(hint) is ClassVar:
            continue
        if isinstance(hint, type) and issubclass(hint, Section):
            values[name] = section_from_options(hint, options)
        elif hasattr(options, option):
            checked = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
            value = getattr(options, option)
            values[name] = checked[0](option, value) if checked else value
    return kind(**values)


def argument_names(kind: type[Section]) -> list[str]:
    """Return the names of the verb's arguments from which a section is made."""
    return [_option(name) for name in kind.__struct_fields__]


def _option(field: str) -> str:
    """Return the verb's argument for a field: its name, without the unit except where two units are in use."""
    return field if field in OPTIONS_WITH_UNITS else field.removesuffix("_s")


def spec_record(spec: RunSpec) -> dict[str, Any]:
    """Return the specification as JSON values, for ``run.json``; ``msgspec.convert(..., RunSpec)`` is the inverse."""
    found: dict[str, Any] = msgspec.to_builtins(spec)
    return found
