"""Model of a job: the validated content of a job file."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from hopsml.service.spec import limits, secret_rules
from hopsml.service.spec.model import SpecPart
from hopsml.service.spec.names import Label, Name, Names
from hopsml.service.spec.schedule import Overlap, Schedule, Zone
from hopsml.service.spec.search import Search
from hopsml.service.spec.task import Task
from hopsml.service.spec.units import Duration

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
    workspace: str = Field(
        default=".",
        min_length=1,
        description="The code: a folder or a zip, relative to the job file's folder, or a git URL.",
        examples=["."],
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

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """Validate rules between fields: number of workers, search, secrets and schedule."""
        workers = sum(task.most for task in self.tasks.values())
        if workers > limits.WORKERS:
            raise ValueError(
                f"tasks ask for {workers} workers in all; a job has at most {limits.WORKERS}: ask for fewer"
            )
        if self.search is not None:
            self.searched()
        self._check_secrets()
        if self.schedule is None and (alone := sorted(self.model_fields_set & {"schedule_zone", "overlap"})):
            raise ValueError(f"{alone[0]} is of a schedule, and the job has none: give it one, or leave this out")
        return self

    def _check_secrets(self) -> None:
        """Raise ValueError for a reserved secret name, or one whose variable a task sets, too."""
        for name in self.secrets:
            secret_rules.check_name(name)
            variable = secret_rules.variable(name)
            if given := [task for task, one in self.tasks.items() if variable in one.env]:
                raise ValueError(
                    f"secret {name} is {variable}, which stands under env of task {given[0]!r}, too: rename one"
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
