"""Files with the rules of a server, which are validated as a whole: its queues, and the nodes that it may add.

``hopsml server --queues queues.yaml``:

    research: {weight: 2, guaranteed: {gpus: 16}, limit: {gpus: 64}}
    default: {}

``hopsml server --nodes nodes.yaml``:

    provider: {command: ./nodes.sh}
    groups:
      gpu: {node: {gpus: 8, cores: 64, memory: 480g}, label: gpu, max: 16, price: 12.5}
      cpu: {node: {cores: 32, memory: 128g}, min: 1, max: 20}
"""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from hopsml.core import extras
from hopsml.errors import ArgumentError
from hopsml.service.autoscaler import NodeGroup
from hopsml.service.providers import NodeProvider
from hopsml.service.providers.command import CommandProvider, YarnExclusion
from hopsml.service.providers.ec2 import Ec2Provider
from hopsml.service.scheduler.resources import DEFAULT_QUEUE, NOTHING, UNLIMITED, Queue, Resources
from hopsml.service.spec.fields import Duration, Label, Memory, Name
from hopsml.storage import trust

Rules = TypeVar("Rules")
SHOWN = 10  # most errors in a message


def read_rules(option: str, path: Path, check: Callable[[Any], Rules], fields: str) -> Rules:
    """Read a YAML file, and return what ``check`` makes of its content.

    Args:
        option: Command-line option that names the file, for messages.
        path: The file.
        check: Converts the content; raises pydantic's ValidationError.
        fields: List of the valid fields, for messages.

    Raises:
        ArgumentError: The file cannot be read or is invalid; the message names the option, the file and each wrong
            field.
    """
    try:
        with open(path, "rb", opener=trust.opener) as file:
            return check(yaml.safe_load(file.read()))
    except OSError as error:
        raise ArgumentError(
            f"{option} {path}: the file cannot be read: {error.strerror or error}; give a readable file"
        ) from error
    except yaml.YAMLError as error:
        raise ArgumentError(f"{option} {path}: the file is not YAML: {_problem(error)}; correct it") from error
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:SHOWN])
        raise ArgumentError(f"{option} {path}: {said}; {fields}") from error


def _problem(error: yaml.YAMLError) -> str:
    """Return one line that describes a YAML error, with the line number in the file if it is known."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).partition("\n")[0]


FIELDS = "a nodes file has provider, groups, drain; see docs/how-to/autoscaling.md"


class Ec2Location(BaseModel):
    """Location of the EC2 auto-scaling groups."""

    model_config = ConfigDict(extra="forbid")

    region: str | None = Field(default=None, min_length=1)


class ProviderRule(BaseModel):
    """Provider of nodes: either a command, or EC2."""

    model_config = ConfigDict(extra="forbid")

    command: str | None = Field(default=None, min_length=1)
    within: Duration = 60
    ec2: Ec2Location | None = None

    @model_validator(mode="after")
    def _one(self) -> ProviderRule:
        """Raise ValueError unless exactly one provider is named."""
        if (self.command is None) == (self.ec2 is None):
            raise ValueError("name one provider: command, or ec2")
        return self


class NodeShape(BaseModel):
    """Resources of a node that jobs can use, as YARN reports them."""

    model_config = ConfigDict(extra="forbid")

    gpus: int = Field(default=0, ge=0, lt=1 << 16)
    cores: int = Field(ge=1, lt=1 << 16)
    memory: Memory


class GroupRule(BaseModel):
    """One node group, from which ``autoscaler.NodeGroup`` is made.

    ``scaling_group`` is EC2's name of the group, if it differs from the name in the file.
    """

    model_config = ConfigDict(extra="forbid")

    node: NodeShape
    label: Label | None = None
    least: int = Field(default=0, ge=0, alias="min")
    most: int = Field(ge=0, le=10_000, alias="max")
    price: float = Field(default=1.0, ge=0, lt=1e9)
    boots_within: Duration = 600
    idle: Duration = 600
    scaling_group: str | None = Field(default=None, min_length=1)

    def group(self, name: str) -> NodeGroup:
        """Convert the rule to the autoscaler's node group.

        Raises ArgumentError as ``NodeGroup``, for example if ``min`` is greater than ``max``.
        """
        shape = Resources(self.node.gpus, self.node.cores, self.node.memory)
        return NodeGroup(
            name, shape, self.most, self.least, self.label or "", self.price, float(self.boots_within), float(self.idle)
        )


class DrainRule(BaseModel):
    """YARN's exclude file, and the command that makes YARN read it; see ``providers.exclusion``."""

    model_config = ConfigDict(extra="forbid")

    exclude_file: Path
    refresh: str = Field(default="yarn rmadmin -refreshNodes -g 3600 -server", min_length=1)


class NodesRules(BaseModel):
    """Schema of the whole nodes file."""

    model_config = ConfigDict(extra="forbid")

    provider: ProviderRule
    groups: dict[Name, GroupRule] = Field(min_length=1)
    drain: DrainRule | None = None


@dataclass(frozen=True)
class NodeSupply:
    """Content of a nodes file: the provider, its node groups, and how YARN excludes nodes that are drained."""

    provider: NodeProvider
    groups: tuple[NodeGroup, ...]
    exclusion: YarnExclusion | None


def load_nodes(path: Path) -> NodeSupply:
    """Read the provider and groups of nodes that the server may add, and YARN's settings for excluding drained nodes.

    Raises:
        ArgumentError: The file cannot be used; names each invalid field.
    """
    rules = read_rules("--nodes", path, NodesRules.model_validate, FIELDS)
    groups = tuple(rule.group(name) for name, rule in rules.groups.items())
    within_s, drain = float(rules.provider.within), rules.drain
    exclusion = YarnExclusion(drain.exclude_file, shlex.split(drain.refresh), within_s) if drain is not None else None
    return NodeSupply(_provider(rules, path.parent), groups, exclusion)


def _provider(rules: NodesRules, beside: Path) -> NodeProvider:
    """Create the provider; a relative path of its command is resolved against the folder of the nodes file."""
    if rules.provider.command is not None:
        command, *arguments = shlex.split(rules.provider.command)
        if "/" in command:
            command = str(beside / command)
        return CommandProvider((command, *arguments), float(rules.provider.within))
    if importlib.util.find_spec("boto3") is None:
        raise ArgumentError(f"provider ec2 needs boto3; {extras.install_command('aws')}")
    region = rules.provider.ec2.region if rules.provider.ec2 is not None else None
    return Ec2Provider(region, {name: rule.scaling_group or name for name, rule in rules.groups.items()})


class QueueShare(BaseModel):
    """GPUs, cores and memory of a guarantee or a limit; omitted resources have no limit."""

    model_config = ConfigDict(extra="forbid")

    gpus: int | None = Field(default=None, ge=0)
    cores: int | None = Field(default=None, ge=0)
    memory: Memory | None = None

    def resources(self, otherwise: int) -> Resources:
        """Convert to the scheduler's resources; omitted ones get the value ``otherwise``."""
        return Resources(*(otherwise if each is None else each for each in (self.gpus, self.cores, self.memory)))


class QueueRule(BaseModel):
    """One queue, from which ``scheduler.policy.Queue`` is made."""

    model_config = ConfigDict(extra="forbid")

    weight: float = Field(default=1.0, gt=0, lt=1e6)
    guaranteed: QueueShare | None = None
    limit: QueueShare | None = None
    driver_memory: Memory | None = None

    def queue(self, name: str) -> Queue:
        """Convert the rule to the scheduler's queue. Raises ArgumentError if the guarantee exceeds the limit."""
        return Queue(
            name,
            self.weight,
            self.guaranteed.resources(0) if self.guaranteed else NOTHING,
            self.limit.resources(UNLIMITED) if self.limit else None,
            self.driver_memory,
        )


def load_queues(path: Path | None) -> tuple[Queue, ...]:
    """Read the queues of a file; the queue "default" is added if the file does not define it.

    Args:
        path: The file; None for the default queue alone.

    Raises:
        ArgumentError: The file cannot be used.
    """
    if path is None:
        return (Queue(),)
    known = TypeAdapter(dict[Name, QueueRule])
    fields = "a queue has weight, guaranteed, limit, driver_memory"
    rules = read_rules("--queues", path, lambda given: known.validate_python(given or {}), fields)
    return tuple(rule.queue(name) for name, rule in {DEFAULT_QUEUE: QueueRule(), **rules}.items())
