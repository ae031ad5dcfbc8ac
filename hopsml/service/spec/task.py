"""Model of a task, which is one kind of worker of a job, with the resources of a worker and its Python environment."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from hopsml.core import redact
from hopsml.core.newer_python import Self
from hopsml.service.spec import limits
from hopsml.service.spec.fields import (
    FILE_LETTER,
    URL_PATTERN,
    Label,
    Memory,
    Name,
    Names,
    SpecPart,
    Variable,
    check_in_the_code,
)
from hopsml.training import discovery as discovered

_ONE_SOURCE: list[JsonValue] = [{"required": [source]} for source in ("packages", "archive", "image")]


class TaskEnvironment(SpecPart):
    """Python packages of a task, named in exactly one of three ways."""

    model_config = ConfigDict(json_schema_extra={"oneOf": _ONE_SOURCE})

    packages: str | None = Field(
        default=None,
        pattern=rf"^{FILE_LETTER}+$",
        description="A requirements file of the code; on YARN the submitting environment is shipped.",
        examples=["requirements.txt"],
    )
    archive: str | None = Field(
        default=None,
        pattern=URL_PATTERN,
        description="URL of a packed environment, a tar.gz, on a store that the service allows.",
        examples=["hdfs:///environments/torch.tar.gz"],
    )
    image: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$",
        description="A container image, of Kubernetes or of YARN's Docker.",
        examples=["hopsml:latest"],
    )

    @field_validator("packages")
    @classmethod
    def _is_in_the_code(cls, named: str | None) -> str | None:
        """Raise ValueError if the requirements file is outside of the code."""
        check_in_the_code(named or "")
        return named

    @field_validator("archive")
    @classmethod
    def _leads_nowhere_else(cls, url: str | None) -> str | None:
        """Raise ValueError for a URL with . or .. as a component."""
        if {".", ".."} & set((url or "").split("/")):
            raise ValueError("a URL without . and .. between its slashes: write where the archive lies")
        return url

    @model_validator(mode="after")
    def _one(self) -> Self:
        """Raise ValueError unless exactly one of the fields is given."""
        if sum(given is not None for given in (self.packages, self.archive, self.image)) != 1:
            raise ValueError("an environment has exactly one of packages, archive and image: leave the others out")
        return self


class WorkerResources(SpecPart):
    """Resources of one worker: cores, total memory (MiB), GPUs, and a label that its node must have."""

    cores: int = Field(default=1, ge=1, le=limits.CORES, description="Cores of one worker.", examples=[4])
    memory_mib: Memory = Field(
        default=1024,
        alias="memory",
        json_schema_extra={"default": "1g"},
        description="Total memory of one worker, for Python and the JVM: a whole number with m, g or t.",
        examples=["16g"],
    )
    gpus: int = Field(default=0, ge=0, le=limits.GPUS, description="GPUs of one worker.", examples=[1])
    node_label: Label | None = Field(
        default=None,
        description="Only nodes with this label: YARN's, or Kubernetes' label node-label.",
        examples=["v100"],
    )


Restart = Literal["end_all", "relaunch"]
"""``end_all``: the other tasks are ended, and the whole job is tried again if it has retries left.

``relaunch``: only the failed task is started again, while the others continue; it counts as a retry of the job.
"""


FUNCTION_PATTERN = rf"^{FILE_LETTER}+\.py:[A-Za-z_][A-Za-z0-9_]*$"
SCRIPT_PATTERN = rf"^{FILE_LETTER}+\.py$"
# A word of a command that may be a file: with an extension, or beginning with ./.
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*\.[A-Za-z0-9]+|\./[A-Za-z0-9_][A-Za-z0-9_./-]*")
_ONE: list[JsonValue] = [{"required": [name]} for name in ("function", "command", "script")]


class Task(SpecPart):
    """One kind of worker of a job. All workers of all tasks start together or not at all."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": _ONE,
            "dependentRequired": {"min": ["max"], "max": ["min"]},
            "not": {"required": ["count", "min"]},
        }
    )

    count: int | None = Field(
        default=None,
        ge=1,
        le=limits.WORKERS,
        description="Number of workers; 1 without min and max.",
        examples=[8],
    )
    min: int | None = Field(
        default=None,
        ge=1,
        le=limits.WORKERS,
        description="Instead of count: the minimum number of workers.",
        examples=[2],
    )
    max: int | None = Field(
        default=None, ge=1, le=limits.WORKERS, description="The maximum number of workers, with min.", examples=[8]
    )
    resources: WorkerResources = Field(
        default_factory=WorkerResources,
        description="Resources of one worker.",
        examples=[{"cores": 4, "memory": "16g"}],
    )
    function: str | None = Field(
        default=None,
        pattern=FUNCTION_PATTERN,
        description="FILE.py:NAME in the code: every worker calls it.",
        examples=["train.py:main"],
    )
    command: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="A program with its arguments, which every worker runs.",
        examples=[["python", "train.py"]],
    )
    script: str | None = Field(
        default=None,
        pattern=SCRIPT_PATTERN,
        description="A script of the code that calls hopsml; it runs once, and starts the workers of the task.",
        examples=["train.py"],
    )
    arguments: dict[str, JsonValue] = Field(
        default={},
        description="Keyword arguments of the function; a script gets them as --name value. Not with a command.",
        examples=[{"batch_size": 64}],
    )
    framework: Literal["tensorflow", "torch", "jax", "distributed", "mpi"] = Field(
        default="tensorflow",
        description="Framework of the group that the workers of a function, or of a command, form; mpi: of a command.",
        examples=["torch"],
    )
    environment: TaskEnvironment | None = Field(
        default=None,
        description="Python packages; by default those of the nodes, as the profile defines.",
        examples=[{"packages": "requirements.txt"}],
    )
    env: dict[Variable, str] = Field(
        default={},
        max_length=limits.VARIABLES,
        description="Environment variables of every worker; no secrets.",
        examples=[{"LEVEL": "3"}],
    )
    ports: Names = Field(
        default=(),
        max_length=limits.PORTS,
        description="Names of ports of every worker.",
        examples=[["tensorboard"]],
    )
    restart: Restart = Field(
        default="end_all",
        description="When it fails: end_all ends the others and tries the job again; relaunch restarts this task alone.",
        examples=["relaunch"],
    )
    ends_with: Name | None = Field(
        default=None,
        description="Task of the job with whose success this one is ended, and then counts as finished.",
        examples=["train"],
    )

    @property
    def fewest(self) -> int:
        """Return the number of workers that the task needs to start."""
        return self.min or self.count or 1

    @property
    def most(self) -> int:
        """Return the greatest number of workers that the task can use."""
        return self.max or self.count or 1

    def files(self) -> tuple[str, ...]:
        """Return the workspace files that the task runs or may run.

        Of a command, these are the words that can be file names.
        """
        if self.command is not None:
            return tuple(dict.fromkeys(word for word in self.command if _FILE.fullmatch(word) and ".." not in word))
        return ((self.function or "").rpartition(":")[0] or str(self.script),)

    @field_validator("function", "script")
    @classmethod
    def _is_in_the_code(cls, named: str | None) -> str | None:
        """Raise ValueError if the file is outside of the code."""
        check_in_the_code((named or "").rpartition(":")[0] or str(named))
        return named

    @field_validator("env")
    @classmethod
    def _can_be_set(cls, env: dict[str, str]) -> dict[str, str]:
        """Raise ValueError for variables that hopsml sets, that contain NUL, or that look like secrets."""
        for name, value in env.items():
            if name.startswith(discovered.OURS) or name in (discovered.FOLDER, discovered.TASKS):
                raise ValueError(f"{name} is set by hopsml, so that tasks find one another: choose another name")
            if "\0" in value:
                raise ValueError(f"{name}: no program can be given a NUL character: leave it out")
            if redact.is_secret(name):
                raise ValueError(
                    f"{name} looks like a secret, and job files are readable by other users; name it under secrets"
                )
        return env

    @field_validator("ports")
    @classmethod
    def _have_variables(cls, ports: tuple[str, ...]) -> tuple[str, ...]:
        """Raise ValueError for a port whose variable is a setting of hopsml."""
        if "range" in ports:
            raise ValueError("HOPSML_PORT_RANGE is a setting of hopsml's: give this port another name")
        return ports

    @model_validator(mode="after")
    def _can_be_started(self) -> Self:
        """Raise ValueError unless the fields of the task are consistent."""
        if sum(given is not None for given in (self.function, self.command, self.script)) != 1:
            raise ValueError("a task has exactly one of function, command and script: leave the others out")
        if (self.min is None) != (self.max is None):
            raise ValueError("min and max go together: write both, or count for a fixed number")
        if self.count is not None and self.min is not None:
            raise ValueError("count and min, max exclude each other: count is fixed, min and max are elastic")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}: swap them")
        if self.command is not None and self.arguments:
            raise ValueError("a command has its arguments in it: move what stands under arguments there")
        if self.command is not None and self.framework == "jax" and self.most > 1:
            raise ValueError(
                "a command of several workers cannot form JAX's group by itself: give a function, or framework: distributed "
                "and call jax.distributed.initialize in it with MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK"
            )
        if self.framework == "mpi" and (self.command is None or self.min is not None):
            raise ValueError("framework: mpi starts a command of a fixed count of processes: give command and count")
        if taken := [name for name in map(discovered.port_variable, self.ports) if name in self.env]:
            raise ValueError(f"{taken[0]} is set by hopsml, for the port of this name; remove it from env")
        return self
