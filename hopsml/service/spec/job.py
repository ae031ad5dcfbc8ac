"""Model of a job, the validated content of a job file, and the resources of a cluster that it uses.

They include a driver for each task, as each task is an application. The search block of a job is many trainings of one
task's function, as ``hopsml.experiment.search`` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from hopsml.core import suggestions
from hopsml.core.newer_python import Self
from hopsml.errors import ArgumentError
from hopsml.search.space.space import Searchspace, check_filled
from hopsml.service.spec import fields, limits, shared
from hopsml.service.spec.fields import Duration, Label, Name, Names, SpecPart
from hopsml.service.spec.schedule import Overlap, Schedule, Zone
from hopsml.service.spec.shared import JobDataset
from hopsml.service.spec.task import Task
from hopsml.training import datasets

SearcherName = Literal[
    "random", "grid", "differential_evolution", "tpe", "gp", "cmaes", "bohb", "asha", "hyperband", "none"
]  # fmt: skip
StopperName = Literal["none", "median", "asha", "hyperband", "pbt", "pb2"]


class Search(SpecPart):
    """Arguments of ``hopsml.experiment.search`` by the same names; ``task`` is the task whose function is tried."""

    space: dict[str, JsonValue] = Field(
        min_length=1,
        max_length=limits.PARAMETERS,
        description="Hyper-parameters by name: [low, high], [low, high, log], or [TYPE, region] and [TYPE, region, when] "
        "with the types of Searchspace: DOUBLE, INTEGER, LOGUNIFORM, LOGINTEGER, DISCRETE, CATEGORICAL.",
        examples=[{"lr": [0.0001, 0.1, "log"], "act": ["CATEGORICAL", ["relu", "gelu"]]}],
    )
    searcher: SearcherName = Field(
        default="tpe", description="Algorithm that proposes configurations.", examples=["random"]
    )
    searcher_args: dict[str, JsonValue] = Field(
        default={}, description="Arguments of the searcher, by name.", examples=[{"points": 5}]
    )
    stopper: StopperName = Field(
        default="none", description="Algorithm that ends trials early by their reports.", examples=["asha"]
    )
    stopper_args: dict[str, JsonValue] = Field(
        default={}, description="Arguments of the stopper, by name.", examples=[{"reduction_factor": 3}]
    )
    num_trials: int = Field(default=64, ge=1, le=limits.TRIALS, description="Number of configurations.", examples=[20])
    metric: str | None = Field(
        default=None,
        min_length=1,
        description="Key of the metric in results and reports; not needed for a single number.",
        examples=["accuracy"],
    )
    direction: Literal["max", "min"] = Field(
        default="max", description="Direction of better metrics.", examples=["max"]
    )
    deadline_s: Duration | None = Field(
        default=None,
        alias="deadline",
        description="Time after its start at which the search ends with its results so far.",
        examples=["8h"],
    )
    seed: int | None = Field(
        default=None, ge=0, lt=1 << 32, description="Seed of the searcher and the trials.", examples=[7]
    )
    task: Name | None = Field(
        default=None,
        description="Task whose function is tried; not needed if only one task has a function.",
        examples=["train"],
    )
    workers_per_trial: int = Field(
        default=1,
        ge=1,
        le=limits.WORKERS,
        description="Workers of each trial; the task's number of workers is that of all concurrent trials.",
        examples=[2],
    )
    framework: Literal["tensorflow", "torch", "jax", "distributed"] | None = Field(
        default=None,
        description="Framework of the group that the workers of a trial form; by default that of the task.",
        examples=["torch"],
    )

    @model_validator(mode="after")
    def _space_can_be_searched(self) -> Self:
        """Raise ValueError if the search space is invalid or has too many nested values."""
        for name, given in self.space.items():
            nested = sum(isinstance(value, list | dict) for part in _parts(given) for value in part)
            if nested > limits.NESTED_VALUES:
                raise ValueError(
                    f"space: {name:.64} has {nested} lists or tables as values, and a parameter at most "
                    f"{limits.NESTED_VALUES}: give them names, and look these up in the function"
                )
        try:
            check_filled(searchspace(self.space))
        except ArgumentError as error:
            raise ValueError(f"space: {error}") from None
        return self


def _parts(given: JsonValue) -> list[list[JsonValue]]:
    """Return the lists of values in a parameter's definition: its region, and those of its conditions."""
    words = given if isinstance(given, list) else []
    regions = [*words, *(values for word in words if isinstance(word, dict) for values in word.values())]
    return [region for region in regions if isinstance(region, list)]


def searchspace(space: Mapping[str, Any]) -> Searchspace:
    """Return the Searchspace of a search block's ``space``. Raises ArgumentError (BoundsError) as Searchspace does."""
    return Searchspace(**{name: _typed(given) for name, given in space.items()})


def _typed(given: Any) -> Any:
    """Add the type to ``[low, high]`` and ``[low, high, log]``: an integer type for two integers."""
    if not isinstance(given, list) or not 2 <= len(given) <= 3 or given[2:] not in ([], ["log"]):
        return given
    low, high = given[:2]
    if not _is_number(low) or not _is_number(high):
        return given
    whole, logarithmic = isinstance(low, int) and isinstance(high, int), len(given) == 3
    kind = ("LOGINTEGER" if whole else "LOGUNIFORM") if logarithmic else ("INTEGER" if whole else "DOUBLE")
    return kind, [low, high]


def _is_number(value: object) -> bool:
    """Return True for numbers other than Booleans."""
    return isinstance(value, int | float) and not isinstance(value, bool)


QUEUE, PRIORITY = "default", 50


class JobSpec(SpecPart):
    """A job: tasks whose workers start together, with the fields that the scheduler needs."""

    name: Name = Field(description="Name of the job; need not be unique.", examples=["digits"])
    description: str = Field(default="", max_length=4096, description="Shown with the job.", examples=["nightly"])
    labels: dict[Label, Label] = Field(
        default={},
        max_length=limits.LABELS,
        description="Shown with the job, and set on its Kubernetes objects.",
        examples=[{"team": "vision"}],
    )
    queue: Name = Field(default=QUEUE, description="Queue of the job.", examples=["research"])
    priority: int = Field(
        default=PRIORITY, ge=1, le=100, description="Priority within the queue; higher is more urgent.", examples=[80]
    )
    time_limit_s: Duration | None = Field(
        default=None,
        alias="time_limit",
        description="Time after its start at which the job is ended: a whole number with s, m, h or d.",
        examples=["2h"],
    )
    dataset: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9+.-]*://.+",
        description="URL of its input data; workers get it as HOPSML_DATASET.",
        examples=["hdfs:///data/digits"],
    )
    datasets: dict[Name, JobDataset] = Field(
        default={},
        max_length=limits.DATASETS,
        description="Input data by name: a URL, or a path of this machine; workers get HOPSML_DATASET_<NAME>.",
        examples=[{"digits": "hdfs:///data/digits", "labels": {"url": "https://host/labels.csv", "fetch": "copy"}}],
    )
    code: str = Field(
        default=".",
        min_length=1,
        description="The code: a folder or a zip, relative to the job file's folder, or a git URL with #REVISION.",
        examples=["src"],
    )
    workspace: bool | str = Field(
        default=False,
        description="Folder that all tasks and tries share, HOPSML_WORKSPACE: true for one in the project, or a URL.",
        examples=[True],
    )
    retries: int = Field(
        default=0, ge=0, le=limits.RETRIES, description="Number of further tries after a failure.", examples=[1]
    )
    tasks: dict[Name, Task] = Field(
        min_length=1,
        max_length=limits.TASKS,
        description="Tasks with their workers, by name. They start together or not at all.",
        examples=[{"train": {"count": 8, "function": "train.py:main"}}],
    )
    search: Search | None = Field(
        default=None,
        description="Search over a space of hyper-parameters.",
        examples=[{"space": {"lr": [0.001, 0.1, "log"]}}],
    )
    schedule: Schedule | None = Field(
        default=None, description="Times at which the job is started: cron's five fields.", examples=["0 3 * * *"]
    )
    schedule_zone: Zone = Field(default="UTC", description="Time zone of the schedule.", examples=["Europe/Berlin"])
    overlap: Overlap = Field(
        default="skip",
        description="If the previous job still runs: skip leaves this time out, queue waits for its end, cancel ends it.",
        examples=["queue"],
    )
    secrets: Names = Field(
        default=(),
        max_length=limits.SECRETS,
        description="Names of secrets that the job may read; never values.",
        examples=[["s3-key"]],
    )
    profile: Name | None = Field(
        default=None,
        description="Profile of the cluster: a file of conf/; --profile takes precedence.",
        examples=["yarn"],
    )

    @field_validator("code", "dataset")
    @classmethod
    def _has_no_password(cls, url: str | None) -> str | None:
        """Raise ValueError for a URL with a password."""
        shared.check_no_password(url or "")
        return url

    @field_validator("workspace")
    @classmethod
    def _is_shared(cls, named: bool | str) -> bool | str:
        """Raise ValueError for the URL of a store that jobs cannot write to."""
        if isinstance(named, str):
            shared.check_workspace(named)
        return named

    @model_validator(mode="after")
    def _code_of_earlier_files(self) -> Self:
        """Use a path as ``workspace`` without ``code`` as the code's path, as earlier job files named it."""
        if not isinstance(self.workspace, str) or not shared.is_path(self.workspace):
            return self
        if "code" not in self.model_fields_set:
            self.__dict__.update(
                code=self.workspace, workspace=False
            )  # a validator in front would not be strict any more
            self.model_fields_set.add("code")
            self.model_fields_set.discard("workspace")
        elif not self.workspace.startswith("/"):
            raise ValueError(
                f"workspace: {self.workspace!r}: it must be true, a URL or an absolute path; code names the code's folder"
            )
        return self

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """Validate rules between fields: number of workers, search, secrets, schedule, and ends of tasks."""
        workers = sum(task.most for task in self.tasks.values())
        if workers > limits.WORKERS:
            raise ValueError(
                f"tasks ask for {workers} workers in all; a job has at most {limits.WORKERS}; request fewer"
            )
        if self.search is not None:
            self._check_trials(self.search, self.tasks[self.searched()])
        self._check_secrets()
        self._check_data_variables()
        self._check_ends()
        if self.schedule is None and (alone := sorted(self.model_fields_set & {"schedule_zone", "overlap"})):
            raise ValueError(f"{alone[0]} is of a schedule, and the job has none: give it one, or leave this out")
        return self

    def _check_secrets(self) -> None:
        """Raise ValueError for a reserved secret name, or one whose variable a task sets, too."""
        for name in self.secrets:
            fields.check_secret_name(name)
            variable = fields.secret_variable(name)
            if given := [task for task, one in self.tasks.items() if variable in one.env]:
                raise ValueError(
                    f"secret {name} is {variable}, which stands under env of task {given[0]!r}, too: rename one"
                )

    @staticmethod
    def _check_trials(search: Search, task: Task) -> None:
        """Raise ValueError if a trial needs more workers than the searched task has."""
        if search.workers_per_trial > task.fewest:
            raise ValueError(
                f"search.workers_per_trial is {search.workers_per_trial}, and the task may have only {task.fewest} workers: "
                "give it a count, or min, of that many"
            )

    def _check_data_variables(self) -> None:
        """Raise ValueError if a task sets the variable of a data set or of the code."""
        ours = {datasets.variable(name) for name in self.datasets} | {datasets.WORKSPACE} if self.datasets else set()
        ours |= {datasets.WORKSPACE} if self.workspace else set()
        for name, task in self.tasks.items():
            if taken := sorted(ours & set(task.env)):
                raise ValueError(f"{taken[0]} is set by hopsml: remove it from env of task {name!r}")

    def _check_ends(self) -> None:
        """Raise ValueError if a task ends with one that is not there, or that does not end by itself."""
        for name, task in self.tasks.items():
            if task.ends_with is None:
                continue
            others = [other for other, one in self.tasks.items() if one.ends_with is None]
            if task.ends_with not in others:
                known = suggestions.suggestion_text(task.ends_with, others, f"there are: {', '.join(others) or 'none'}")
                raise ValueError(
                    f"task {name!r} ends with {task.ends_with!r}, which is no task that ends by itself; {known}"
                )

    def searched(self) -> str:
        """Return the name of the task whose function the search evaluates.

        Raises ValueError if it is ambiguous or there is none.
        """
        if self.search is None:
            raise ValueError(f"job {self.name} has no search block: look at job.search first")
        functions = [name for name, task in self.tasks.items() if task.function is not None]
        if self.search.task is None and len(functions) == 1:
            return functions[0]
        if self.search.task in functions:
            return self.search.task
        there = ", ".join(functions) or "none"
        raise ValueError(
            f"the search tries the function of one task, and search.task is {self.search.task or 'left out'}: name one "
            f"that has a function; there are: {there}"
        )


DRIVER_MIB = 1024  # Spark's default, spark.driver.memory
_OVERHEAD, _LEAST_OVERHEAD_MIB = 0.1, 384  # overhead that Spark adds to a driver's memory: spark.driver.memoryOverhead


@dataclass(frozen=True)
class Size:
    """Resources that are used at the same time; ``slots`` is the number of workers."""

    slots: int = 0
    cores: int = 0
    gpus: int = 0
    memory_mib: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.slots + other.slots,
            self.cores + other.cores,
            self.gpus + other.gpus,
            self.memory_mib + other.memory_mib,
        )


def size_of_workers(task: Task, count: int) -> Size:
    """Return the resources of a number of a task's workers."""
    one = task.resources
    return Size(count, count * one.cores, count * one.gpus, count * one.memory_mib)


def size_of_driver(memory_mib: int = DRIVER_MIB) -> Size:
    """Return the resources of a task's driver with Spark's overhead; it uses a container but no slot."""
    return Size(0, 1, 0, memory_mib + max(_LEAST_OVERHEAD_MIB, int(memory_mib * _OVERHEAD)))


def least_size(job: JobSpec, driver_mib: int = DRIVER_MIB) -> Size:
    """Return the resources that a job needs to start."""
    return sum((size_of_workers(task, task.fewest) + size_of_driver(driver_mib) for task in job.tasks.values()), Size())


def largest_size(job: JobSpec, driver_mib: int = DRIVER_MIB) -> Size:
    """Return the most resources that a job can use."""
    return sum((size_of_workers(task, task.most) + size_of_driver(driver_mib) for task in job.tasks.values()), Size())


def summary(job: JobSpec, driver_mib: int = DRIVER_MIB) -> str:
    """Return a line of text with tasks, slots, cores, GPUs and memory; ranges for elastic tasks."""
    low, high = least_size(job, driver_mib), largest_size(job, driver_mib)
    tasks = ", ".join(f"{name} {_range(task.fewest, task.most)}" for name, task in list(job.tasks.items())[:10])
    tasks += ", ..." if len(job.tasks) > 10 else ""
    drivers = "its driver" if len(job.tasks) == 1 else f"{len(job.tasks)} drivers"
    return (
        f"{job.name}: {_count(len(job.tasks), 'task')} ({tasks}), {_range(low.slots, high.slots)} "
        f"{'slot' if high.slots == 1 else 'slots'}, {_range(low.gpus, high.gpus)} {'GPU' if high.gpus == 1 else 'GPUs'}, "
        f"{_range(low.cores, high.cores)} cores and {_memory(low, high)} with {drivers}"
    )


def _range(low: int, high: int) -> str:
    """Return a number, or a range of numbers, as text."""
    return str(low) if low == high else f"{low} to {high}"


def _count(number: int, thing: str) -> str:
    """Return a number with a noun, in singular or plural."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _memory(low: Size, high: Size) -> str:
    """Return a range of memory sizes in GiB as text."""
    first, last = f"{low.memory_mib / 1024:.1f}", f"{high.memory_mib / 1024:.1f}"
    return f"{first} GiB" if first == last else f"{first} to {last} GiB"
