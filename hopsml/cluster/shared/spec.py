"""What a run is, in one object: made and checked once on the driver, recorded in ``run.json``, read by every worker.

A new option is a field here, with its check, and a field of the verb's class in ``experiment/options.py``, with its
documentation; it has the same name there, without the unit. Nothing else hands it on: ``specified`` finds it in the
verb's arguments, ``run.json`` and ``experiment.rerun`` hold the whole object, agents get it with the formation, and the
training function's process has it as ``context.spec``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from hopsml.cluster.shared import checks
from hopsml.errors import ArgumentError

DEFAULT_TOPK = 0.01
DEFAULT_POWERSGD_RANK = 2
ONLY_HOPSMLS = (
    "only hopsml's own collective compresses, double-buffers, accumulates or combines by Adasum; choose "
    "implementation='hopsml', or leave these settings out"
)
ONLY_HOPSMLS_ENCRYPTS = (
    "only hopsml's own collective encrypts; let it do it, or train without encryption (neither encryption=True nor "
    "HOPSML_ENCRYPTION=1)"
)
AS_MANY_AS_THERE_ARE = -1  # workers: one for each GPU, else for each slot of the executors
PreflightMode = Literal["off", "warn", "enforce"]  # what becomes of slots that are not good enough
Framework = Literal["tensorflow", "torch", "jax", "none"]
Implementation = Literal["auto", "tensorflow", "hopsml"]  # whose collectives reduce gradients
Compression = Literal["fp16", "bf16", "topk", "powersgd"]  # how gradients are made smaller before they travel
GradientReduction = Literal["sum", "adasum"]
TorchBackend = Literal["auto", "hopsml", "gloo", "nccl"]
Seconds = Annotated[float, checks.seconds]
Switch = Annotated[bool, checks.switch]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a specification's parts. A field's annotation holds the check of the argument from which it is made."""


class WorkerGroup(Section, frozen=True, tag_field="kind"):
    """How many workers, and what holds them together; times in seconds.

    What a kind of group is like is asked of it, not of its class: the class variables say it.
    """

    collective: ClassVar[bool] = True  # its members wait for each other, and rank 0 speaks for all of them
    changes: ClassVar[bool] = False  # agents come to the run and leave it while it goes on
    regroups: ClassVar[bool] = False  # it goes on as another generation, from a commit that agents hold
    relaunches: ClassVar[bool] = False  # a member that is lost is started again: on its agent, at its address

    size: int = AS_MANY_AS_THERE_ARE  # at most
    start_timeout_s: Seconds = 120.0  # from the call until every worker has begun the user's function
    grace_s: float = 2.0  # between SIGTERM and SIGKILL
    flush_s: float = 120.0  # for bringing the last files of a finished run to shared storage
    failed_flush_s: float = 4.0  # the same after a failure: its report must not wait long

    @property
    def minimum(self) -> int:
        """The smallest number of workers with which the group trains."""
        return self.size

    @property
    def silence_s(self) -> float | None:
        """How long a member may be silent before it counts as lost; None: for as long as any agent may."""
        return None

    @property
    def written_every_s(self) -> float:
        """How often a commit that agents hold becomes a checkpoint on shared storage, unless that is asked for."""
        return math.inf

    def within(self, limit: int) -> int:
        """How many are asked for on a cluster of at most ``limit`` slots; more than that cannot begin."""
        return self.size


class FixedGroup(WorkerGroup, frozen=True, tag="fixed"):
    """A group of fixed size; it ends when it loses a worker."""

    settle_s: float = 3.0  # how long an error that only follows from a failure waits for that failure's message
    raised_settle_s: float = 1.0  # the same for an error of the user's code, which may follow from a member's death
    stopped_s: float = 60.0  # how long the system may hold a worker (SIGSTOP) before it counts as lost
    exited_s: float | None = 30.0  # how long others may wait for a member that has left by sys.exit(0), doing nothing
    returned_s: float | None = 120.0  # and for one whose function has returned; None: as long as they like
    stalled_s: float = 120.0  # seconds for which all workers may be idle before a note reports it
    progress_timeout_s: Annotated[float | None, checks.or_none(checks.seconds)] = (
        None  # and before it ends; None: never
    )


class ElasticGroup(FixedGroup, frozen=True, tag="elastic"):
    """A group that starts with ``min_size`` workers, grows to ``size``, and survives the loss of workers."""

    changes: ClassVar[bool] = True
    regroups: ClassVar[bool] = True

    min_size: int = 1
    first_target: int | None = None  # so many until it is resized; None: ``size``
    stopped_s: float = 5.0  # such a worker can be replaced
    heartbeat_timeout_s: Seconds = 5.0
    join_s: float = 1.0  # with min_size there, how long a beginning group waits for more
    drain_s: float = 30.0  # that a node has after its warning, where the cluster does not say
    min_workers_timeout_s: Seconds = 600.0  # how long a group that has shrunk below min_size waits
    agree_s: float = 0.3  # how long a parked member waits for the others' commits; one that all hold need not be sent
    reset_limit: Annotated[int | None, checks.or_none(partial(checks.whole_number, at_least=0))] = None
    commits: bool = True  # whether a training is to go on from commits; an evaluator goes on from what lies in files
    fruitless_limit: int = 3  # failures in a row without a new commit
    progress_timeout_s: Annotated[float | None, checks.or_none(checks.seconds)] = None  # None: by the usual step
    host_failure_limit: Annotated[int, checks.whole_number] = 3  # failures that exclude a host
    host_cooldown_s: Seconds = 60.0  # of the first exclusion; it doubles
    checkpoint_every_s: Seconds = 60.0  # how often the chief's agent puts its newest commit on shared storage

    @property
    def minimum(self) -> int:
        """The smallest number of workers with which the group trains."""
        return min(self.min_size, self.size)

    @property
    def silence_s(self) -> float | None:
        """Seconds without a heartbeat after which a worker counts as lost and the group goes on without it."""
        return self.heartbeat_timeout_s

    @property
    def written_every_s(self) -> float:
        """Seconds between two checkpoints that are made of commits."""
        return self.checkpoint_every_s

    def within(self, limit: int) -> int:
        """``size``, or what the cluster can give at most: tasks that can never run would block the queue for other jobs."""
        return max(min(self.size, limit), self.min_size)


class IndependentGroup(WorkerGroup, frozen=True, tag="independent"):
    """Workers that do not communicate and are replaced one by one, such as the lanes of a search."""

    collective: ClassVar[bool] = False
    changes: ClassVar[bool] = True

    host_cooldown_s: Seconds = 60.0

    @property
    def silence_s(self) -> float | None:
        """Seconds without a heartbeat after which a lane counts as lost, and its trial is begun again elsewhere."""
        return 10.0

    def within(self, limit: int) -> int:
        """``size``, or what the cluster can give at most: with fewer lanes the search takes longer."""
        return max(1, min(self.size, limit)) if self.size else 0


class ServerGroup(WorkerGroup, frozen=True, tag="servers"):
    """One member, the chief, calls the function; the others compute, or hold variables, for it, at addresses of their own.

    Who of the others is lost is started again as the same task at the same address. ``size``: all roles together.
    """

    relaunches: ClassVar[bool] = True

    settle_s: float = 3.0  # how long an error of the chief's that only follows from a loss waits for word of that loss
    stopped_s: float = 5.0  # how long the system may hold a member (SIGSTOP) before it counts as lost
    chief_stopped_s: float = 60.0  # and the chief, which cannot be replaced
    fruitless_limit: int = 3  # deaths in a row, each within steady_s of its start, after which a member is given up
    steady_s: float = 30.0
    evaluator_s: Seconds = 60.0  # after the chief's end, for an evaluator to come to its own


AnyGroup = FixedGroup | ElasticGroup | IndependentGroup | ServerGroup


class Roles(Section, frozen=True, kw_only=False):
    """How many workers have another role than to train in the collective."""

    parameter_servers: int = 0
    evaluator: Switch = False
    evaluator_gpu: Switch = False  # whether the evaluator's slot has a GPU, as a worker's

    def __post_init__(self) -> None:
        if self.evaluator_gpu and not self.evaluator:
            raise ArgumentError(
                "evaluator_gpu=True without evaluator=True: there is no evaluator; give both, or leave it out"
            )

    @property
    def without_gpu(self) -> int:
        """How many of the workers need no GPU."""
        return self.parameter_servers + int(self.evaluator and not self.evaluator_gpu)


class GradientSettings(Section, frozen=True):
    """What hopsml's own collective does with gradients, and with nothing else that is reduced."""

    compression: Annotated[Compression | None, checks.or_none(checks.compression)] = None
    topk: Annotated[float | None, checks.or_none(checks.share)] = None  # of the entries; of compression="topk"
    powersgd_rank: Annotated[int | None, checks.or_none(checks.whole_number)] = None  # of compression="powersgd"
    double_buffering: Switch = False  # a step applies what the step before it gave
    accumulate: Annotated[int, checks.whole_number] = 1  # steps whose gradients are reduced and applied together
    reduction: Annotated[GradientReduction, checks.reduction] = "sum"

    def __post_init__(self) -> None:
        for name, kind in (("topk", "topk"), ("powersgd_rank", "powersgd")):
            value = getattr(self, name)
            if value is not None and self.compression != kind:
                raise ArgumentError(
                    f"{name}={value!r} with compression={self.compression!r}: it is a setting of compression={kind!r}; "
                    f"choose that, or leave {name} out"
                )
        if self.reduction == "adasum" and self.compression in ("topk", "powersgd"):
            raise ArgumentError(
                f"reduction='adasum' with compression={self.compression!r}: Adasum compares whole gradients, and of these "
                "only a part travels; take compression='fp16', 'bf16' or none"
            )

    @property
    def given(self) -> list[str]:
        """Names of the settings that were given."""
        none = GradientSettings()
        return [name for name in self.__struct_fields__ if getattr(self, name) != getattr(none, name)]

    @property
    def described(self) -> str:
        """In a few words, for people; "" for nothing."""
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
    """How gradients are exchanged between workers."""

    implementation: Annotated[Implementation, checks.implementation] = "auto"  # of strategy() without arguments
    # Of TensorFlow's collectives; None: nobody has said it, and a strategy over them has its own default.
    merge_scope: Annotated[int | str | None, checks.or_none(checks.merge_scope)] = None  # 1 = no merging, "all"
    scoped_allocator: Annotated[bool | None, checks.or_none(checks.switch)] = None  # whether it does the merging
    backend: Annotated[TorchBackend, checks.backend] = "auto"  # of torch's process group
    encryption: Switch = (
        False  # of what hopsml's collective sends between machines; settled: the cluster may ask for it
    )
    tuned: Annotated[bool | str, checks.tuned] = False  # the rest as tuning found it: the project's record, or a file
    gradients: GradientSettings = GradientSettings()

    def __post_init__(self) -> None:
        if self.implementation == "hopsml" and self.of_tensorflow:
            raise ArgumentError(
                f"implementation='hopsml' with {' and '.join(self.of_tensorflow)}: a setting of TensorFlow's "
                "collectives, and hopsml's merges everything; leave it out, or choose implementation='tensorflow'"
            )
        if self.gradients.given and (self.of_tensorflow or self.implementation == "tensorflow"):
            other = " and ".join(self.of_tensorflow) or "implementation='tensorflow'"
            raise ArgumentError(f"{' and '.join(self.gradients.given)} with {other}: {ONLY_HOPSMLS}")
        unencrypted = self._unencrypted
        if self.encryption and unencrypted:
            raise ArgumentError(f"encryption=True with {unencrypted}: {ONLY_HOPSMLS_ENCRYPTS}")
        if self.gradients.given and self.tuned:
            raise ArgumentError(
                f"tuned={self.tuned!r} with {' and '.join(self.gradients.given)}: tuning chooses among ways to reduce "
                "gradients as they are; leave one of the two out"
            )

    @property
    def _unencrypted(self) -> str:
        """Which of the settings ask for collectives that do not encrypt."""
        asked = list(self.of_tensorflow)
        if self.implementation == "tensorflow":
            asked.append("implementation='tensorflow'")
        if self.backend in ("gloo", "nccl"):
            asked.append(f"backend={self.backend!r}")
        return " and ".join(asked)

    @property
    def of_tensorflow(self) -> list[str]:
        """Names of the settings that were given and are of TensorFlow's collectives alone."""
        return [name for name in ("merge_scope", "scoped_allocator") if getattr(self, name) is not None]


FIRST_EVALUATION = "eval"  # of a run, unless it is given another name: its facts have no folder of their own


class Evaluation(Section, frozen=True):
    """Which run's checkpoints an evaluator judges, and how."""

    run: str  # settled: URL of its directory
    order: Annotated[Literal["oldest", "newest"], checks.order] = "oldest"  # which checkpoint is next of several
    metric: Annotated[str, checks.text] = "metric"
    direction: Annotated[Literal["max", "min"], checks.direction] = "max"
    patience: Annotated[int | None, checks.or_none(checks.whole_number)] = None  # checkpoints without a better one
    name: Annotated[str, checks.evaluation_name] = FIRST_EVALUATION  # each has facts of its own


class RunSpec(Section, frozen=True):
    """Everything that was asked of a run but its function and arguments; ``options.RunOptions`` says what each means.

    What the driver settles when it starts the run is marked; until then it is as the user left it.
    """

    verb: str = "collective_all_reduce"
    name: Annotated[str, checks.text] = "no-name"
    description: Annotated[str, checks.described] = ""
    group: AnyGroup = FixedGroup()  # settled: its size
    roles: Roles = Roles()
    framework: Framework = "tensorflow"  # whose variables the workers get beside those that all of them read
    communication: Communication = Communication()
    evaluation: Evaluation | None = None  # of an evaluator
    resume: str | None = None  # id or URL of the run whose last checkpoint it begins with
    seed: int | None = None  # settled
    preload: Annotated[tuple[str, ...] | None, checks.or_none(checks.modules)] = None  # settled
    environment: dict[str, str] = {}  # settled: the user's, and what every worker of this run gets
    honour_environment: Switch = False
    local_logdir: Switch = False
    metric_key: str | None = None
    register_as: Annotated[str | None, checks.or_none(checks.model_name)] = None
    preflight: Annotated[PreflightMode, checks.preflight] = "warn"
    keep_warm_s: Annotated[float, partial(checks.seconds, above=-1.0)] = 10.0
    storage_timeout_s: float = 30.0  # settled, of the driver's settings: deadline of a call of shared storage
    hooks: tuple[str, ...] = ()  # settled: "module:function", called with the context before the user's function
    body: str = ""  # "module:function", called with the user's function, its arguments and the context instead of it
    frames: tuple[str, ...] = ()  # settled: names of the function's arguments whose rows the driver feeds to the agents
    sidecar: str = (
        ""  # "module:function", called in a process beside the workers of an agent for as long as the run is there
    )
    all_gpus: Switch = False  # a worker gets the other free GPUs of its executor, beside those of its slot
    # CPU devices that TensorFlow is to make of a worker's CPU where it has no GPU.
    logical_devices: Annotated[int | None, checks.or_none(checks.whole_number)] = None

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules that the fork server imports before workers are forked."""
        return self.preload or ()


_Section = TypeVar("_Section", bound=Section)


def specified(kind: type[_Section], options: Any, **settled: Any) -> _Section:
    """A section made from an object's attributes of the same names (without units), each checked.

    Args:
        kind: the section's class.
        options: what a verb was called with.
        settled: fields that are given as they are.

    Raises ArgumentError, ArgumentTypeError: for a value that breaks a field's rule.
    """
    values = dict(settled)
    for name, hint in get_type_hints(kind, include_extras=True).items():
        option = name.removesuffix("_s")
        if name in values or get_origin(hint) is ClassVar:
            continue
        if isinstance(hint, type) and issubclass(hint, Section):
            values[name] = specified(hint, options)
        elif hasattr(options, option):
            checked = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
            value = getattr(options, option)
            values[name] = checked[0](option, value) if checked else value
    return kind(**values)


def names(kind: type[Section]) -> list[str]:
    """Names of the verb's arguments from which a section's fields are made: those of the fields, without units."""
    return [name.removesuffix("_s") for name in kind.__struct_fields__]


def recorded(spec: RunSpec) -> dict[str, Any]:
    """The specification as JSON values, for ``run.json``; ``msgspec.convert(..., RunSpec)`` is the inverse."""
    found: dict[str, Any] = msgspec.to_builtins(spec)
    return found
