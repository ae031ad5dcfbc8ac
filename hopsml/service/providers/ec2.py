"""Nodes of EC2: each group is an auto-scaling group, of which only the number of its instances is changed.

An instance that is asked for and not there yet is a node with the id ``GROUP/wanted-1``, and so on, until it has one of
its own. What is being drained bears a tag, so that a service that comes back knows of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hopsml.errors import ProviderError
from hopsml.service.providers.base import GivenNode

DRAINING = "hopsml-draining"  # tags of an instance
WARNED = "hopsml-warned"  # set by whoever hears of an interruption otherwise, as EventBridge does
ENDED = ("Terminated", "Detached", "Detaching", "EnteringStandby", "Standby")
WANTED = "/wanted-"
TIMEOUT_S = 20.0


class Ec2Provider:
    """``groups``: name here -> name of the auto-scaling group."""

    def __init__(self, region: str | None, groups: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        import boto3
        from botocore.config import Config

        settings = Config(connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, retries={"max_attempts": 2})
        session = boto3.session.Session(region_name=region)
        self._scaling = session.client("autoscaling", config=settings)
        self._machines = session.client("ec2", config=settings)
        self._groups, self._clock = dict(groups), clock
        self._wanted_s: dict[str, float] = {}  # since when instances are waited for

    def list(self) -> Sequence[GivenNode]:
        """Two questions, and one more where there are spot instances."""
        with _refusals("list"):
            found = self._described()
            alive = {
                each["InstanceId"]: each
                for group in found.values()
                for each in group["Instances"]
                if each["LifecycleState"] not in ENDED
            }
            machines = self._described_machines(sorted(alive))
            marked = self._marked(machines.values())
            nodes = [
                _node(name, each, machines.get(each["InstanceId"]), marked, self._clock())
                for name, group in found.items()
                for each in group["Instances"]
                if each["InstanceId"] in alive
            ]
        wanted = [node for name, group in found.items() for node in self._wanted(name, group, nodes)]
        self._wanted_s = {node.id: node.launched_s for node in wanted}
        return [*nodes, *wanted]

    def launch(self, group: str, count: int, jobs: Sequence[str]) -> None:
        """Raise how many instances are desired. EC2 is not told for whom."""
        del jobs
        with _refusals(f"launch {count} of {group}"):
            there = self._described()[group]
            wanted = there["DesiredCapacity"] + count
            if wanted > there["MaxSize"]:
                raise ProviderError(
                    f"EC2: {self._groups[group]} has at most {there['MaxSize']} instances, and {wanted} are wanted; raise "
                    "its MaxSize, or lower `max` of the group"
                )
            self._desire(group, wanted)

    def drain(self, node: GivenNode) -> None:
        """A tag; what boots or does not exist yet has none."""
        if WANTED not in node.id:
            with _refusals(f"drain {node.id}"):
                self._machines.create_tags(Resources=[node.id], Tags=[{"Key": DRAINING, "Value": "true"}])

    def recall(self, node: GivenNode) -> None:
        """Take the tag off."""
        with _refusals(f"recall {node.id}"):
            self._machines.delete_tags(Resources=[node.id], Tags=[{"Key": DRAINING}])

    def terminate(self, node: GivenNode) -> None:
        """This one and no other: the number that is desired falls with it."""
        with _refusals(f"terminate {node.id}"):
            if WANTED in node.id:
                there = self._described()[node.group]
                self._desire(node.group, there["DesiredCapacity"] - 1)
            else:
                self._scaling.terminate_instance_in_auto_scaling_group(
                    InstanceId=node.id, ShouldDecrementDesiredCapacity=True
                )

    def close(self) -> None:
        """Its calls end soon by themselves."""

    def _desire(self, group: str, count: int) -> None:
        self._scaling.set_desired_capacity(
            AutoScalingGroupName=self._groups[group], DesiredCapacity=count, HonorCooldown=False
        )

    def _described(self) -> dict[str, Any]:
        """Name here -> the auto-scaling group."""
        pages = self._scaling.get_paginator("describe_auto_scaling_groups")
        listed = pages.paginate(AutoScalingGroupNames=sorted(set(self._groups.values())))
        found = {group["AutoScalingGroupName"]: group for page in listed for group in page["AutoScalingGroups"]}
        if missing := sorted(set(self._groups.values()) - set(found)):
            raise ProviderError(f"EC2 has no auto-scaling group {missing[0]!r} here; create it, or correct the region")
        return {name: found[theirs] for name, theirs in self._groups.items()}

    def _described_machines(self, ids: Sequence[str]) -> dict[str, Any]:
        if not ids:
            return {}
        pages = self._machines.get_paginator("describe_instances")
        filters = [{"Name": "instance-id", "Values": list(ids)}]  # one that is gone is no error, as it is by its id
        return {
            each["InstanceId"]: each
            for page in pages.paginate(Filters=filters)
            for reservation in page["Reservations"]
            for each in reservation["Instances"]
        }

    def _marked(self, machines: Any) -> set[str]:
        """Spot instances that EC2 will take away, by the state of their requests."""
        requests = [each["SpotInstanceRequestId"] for each in machines if each.get("SpotInstanceRequestId")]
        if not requests:
            return set()
        filters = [{"Name": "spot-instance-request-id", "Values": requests}]
        listed = self._machines.describe_spot_instance_requests(Filters=filters)["SpotInstanceRequests"]
        return {
            request.get("InstanceId", "") for request in listed if is_marked(request.get("Status", {}).get("Code", ""))
        }

    def _wanted(self, name: str, group: Mapping[str, Any], nodes: Sequence[GivenNode]) -> Iterator[GivenNode]:
        there = sum(node.group == name and not node.is_ending for node in nodes)
        for number in range(1, group["DesiredCapacity"] - there + 1):
            wanted = f"{name}{WANTED}{number}"
            yield GivenNode(wanted, name, (), self._wanted_s.get(wanted, self._clock()))


def is_marked(code: str) -> bool:
    """Whether the state of a spot request says that its instance has two minutes left."""
    return code.startswith("marked-for-")


def _node(group: str, listed: Mapping[str, Any], machine: Any, marked: set[str], now: float) -> GivenNode:
    machine = machine or {}
    tags = {tag["Key"] for tag in machine.get("Tags", [])}
    names = [machine.get(key) for key in ("PrivateDnsName", "PrivateIpAddress", "PublicDnsName", "PublicIpAddress")]
    launched = machine.get("LaunchTime")
    return GivenNode(
        listed["InstanceId"],
        group,
        tuple(name for name in names if name),
        launched.timestamp() if launched is not None else now,
        is_draining=DRAINING in tags,
        is_ending=listed["LifecycleState"].startswith("Terminating"),
        is_warned=listed["InstanceId"] in marked or WARNED in tags or listed["HealthStatus"] != "Healthy",
    )


@contextlib.contextmanager
def _refusals(what: str) -> Iterator[None]:
    """boto3's errors as one of ours, with its words."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise ProviderError(
            f"EC2: {what}: {error}; see that the service's role may do it, and what sizes the auto-scaling group allows"
        ) from error
