"""Which nodes a service may add, as a file: ``hopsml server --nodes nodes.yaml``.

provider: {command: ./nodes.sh}
groups:
  gpu: {node: {gpus: 8, cores: 64, memory: 480g}, label: gpu, max: 16, price: 12.5}
  cpu: {node: {cores: 32, memory: 128g}, min: 1, max: 20}
"""

from __future__ import annotations

import importlib.util
import shlex
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hopsml import extras
from hopsml.errors import ArgumentError
from hopsml.service import rules_file
from hopsml.service.autoscaler import NodeGroup
from hopsml.service.providers import NodeProvider
from hopsml.service.providers.command import CommandProvider
from hopsml.service.providers.ec2 import Ec2Provider
from hopsml.service.providers.exclusion import YarnExclusion
from hopsml.service.scheduler.resources import Resources
from hopsml.service.spec.names import Label, Name
from hopsml.service.spec.units import Duration, Memory

FIELDS = "a nodes file has provider, groups, drain; see docs/how-to/autoscaling.md"


class Ec2Place(BaseModel):
    """Where the auto-scaling groups are."""

    model_config = ConfigDict(extra="forbid")

    region: str | None = Field(default=None, min_length=1)


class ProviderRule(BaseModel):
    """One of both."""

    model_config = ConfigDict(extra="forbid")

    command: str | None = Field(default=None, min_length=1)
    within: Duration = 60
    ec2: Ec2Place | None = None

    @model_validator(mode="after")
    def _one(self) -> ProviderRule:
        if (self.command is None) == (self.ec2 is None):
            raise ValueError("name one provider: command, or ec2")
        return self


class NodeShape(BaseModel):
    """What of a node can be given to jobs: as much as YARN shows of it."""

    model_config = ConfigDict(extra="forbid")

    gpus: int = Field(default=0, ge=0, lt=1 << 16)
    cores: int = Field(ge=1, lt=1 << 16)
    memory: Memory


class GroupRule(BaseModel):
    """One group: see ``autoscaler.NodeGroup``. ``scaling_group``: EC2's name of it, where that is another one."""

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
        """Raises ArgumentError where the least is above the most."""
        shape = Resources(self.node.gpus, self.node.cores, self.node.memory)
        return NodeGroup(
            name, shape, self.most, self.least, self.label or "", self.price, float(self.boots_within), float(self.idle)
        )


class DrainRule(BaseModel):
    """YARN's exclude file, and what makes it be read: see ``providers.exclusion``."""

    model_config = ConfigDict(extra="forbid")

    exclude_file: Path
    refresh: str = Field(default="yarn rmadmin -refreshNodes -g 3600 -server", min_length=1)


class NodesRules(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")

    provider: ProviderRule
    groups: dict[Name, GroupRule] = Field(min_length=1)
    drain: DrainRule | None = None


@dataclass(frozen=True)
class NodeSupply:
    """What a file says: whoever gives nodes, of which groups, and how YARN is told that one is drained."""

    provider: NodeProvider
    groups: tuple[NodeGroup, ...]
    exclusion: YarnExclusion | None


def load(path: Path) -> NodeSupply:
    """Raises ArgumentError for a file that cannot be used, and names each field that is wrong."""
    rules = rules_file.read("--nodes", path, NodesRules.model_validate, FIELDS)
    groups = tuple(rule.group(name) for name, rule in rules.groups.items())
    within_s, drain = float(rules.provider.within), rules.drain
    exclusion = YarnExclusion(drain.exclude_file, shlex.split(drain.refresh), within_s) if drain is not None else None
    return NodeSupply(_provider(rules, path.parent), groups, exclusion)


def _provider(rules: NodesRules, beside: Path) -> NodeProvider:
    """A command that names a file beside the rules is that one."""
    if rules.provider.command is not None:
        command, *arguments = shlex.split(rules.provider.command)
        if "/" in command:
            command = str(beside / command)
        return CommandProvider((command, *arguments), float(rules.provider.within))
    if importlib.util.find_spec("boto3") is None:
        raise ArgumentError(f"provider ec2 needs boto3; {extras.install('aws')}")
    region = rules.provider.ec2.region if rules.provider.ec2 is not None else None
    return Ec2Provider(region, {name: rule.scaling_group or name for name, rule in rules.groups.items()})
