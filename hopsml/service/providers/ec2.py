"""Nodes of EC2: each group is an auto-scaling group, whose desired number of instances is changed.

An instance that is requested but does not exist yet is a node with the id ``GROUP/wanted-1`` etc., until it has an
instance id. Draining instances have a tag, from which a restarted service reads that state.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hopsml.errors import ProviderError
from hopsml.service.providers import ProviderNode

DRAINING = "hopsml-draining"  # tags of an instance
WARNED = "hopsml-warned"  # set by other services that receive interruption warnings, such as EventBridge
ENDED = ("Terminated", "Detached", "Detaching", "EnteringStandby", "Standby")
WANTED = "/wanted-"
TIMEOUT_S = 20.0


class Ec2Provider:
    """Provider of EC2 instances; ``groups`` maps group names of the service to names of auto-scaling groups."""

    def __init__(self, region: str | None, groups: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        import boto3
        from botocore.config import Config

        settings = Config(connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, retries={"max_attempts": 2})
        session = boto3.session.Session(region_name=region)
        self._scaling = session.client("autoscaling", config=settings)
        self._machines = session.client("ec2", config=settings)
        self._groups, self._clock = dict(groups), clock
        self._wanted_s: dict[str, float] = {}  # node id -> time since which the instance has been requested

    def list(self) -> Sequence[ProviderNode]:
        """Return all nodes by two requests, or three if there are spot instances."""
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
        """Increase the number of desired instances; EC2 does not need the names of the jobs."""
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

    def drain(self, node: ProviderNode) -> None:
        """Set the draining tag of an instance; an instance that does not exist yet has none."""
        if WANTED not in node.id:
            with _refusals(f"drain {node.id}"):
                self._machines.create_tags(Resources=[node.id], Tags=[{"Key": DRAINING, "Value": "true"}])

    def recall(self, node: ProviderNode) -> None:
        """Remove the draining tag of an instance."""
        with _refusals(f"recall {node.id}"):
            self._machines.delete_tags(Resources=[node.id], Tags=[{"Key": DRAINING}])

    def terminate(self, node: ProviderNode) -> None:
        """Terminate exactly this instance; the number of desired instances decreases with it."""
        with _refusals(f"terminate {node.id}"):
            if WANTED in node.id:
                there = self._described()[node.group]
                self._desire(node.group, there["DesiredCapacity"] - 1)
            else:
                self._scaling.terminate_instance_in_auto_scaling_group(
                    InstanceId=node.id, ShouldDecrementDesiredCapacity=True
                )

    def close(self) -> None:
        """Return at once, as calls in progress end soon by their timeouts."""

    def _desire(self, group: str, count: int) -> None:
        """Set the number of desired instances of a group."""
        self._scaling.set_desired_capacity(
            AutoScalingGroupName=self._groups[group], DesiredCapacity=count, HonorCooldown=False
        )

    def _described(self) -> dict[str, Any]:
        """Return the description of each auto-scaling group, by the service's group name. Raises ProviderError."""
        pages = self._scaling.get_paginator("describe_auto_scaling_groups")
        listed = pages.paginate(AutoScalingGroupNames=sorted(set(self._groups.values())))
        found = {group["AutoScalingGroupName"]: group for page in listed for group in page["AutoScalingGroups"]}
        if missing := sorted(set(self._groups.values()) - set(found)):
            raise ProviderError(f"EC2 has no auto-scaling group {missing[0]!r} here; create it, or correct the region")
        return {name: found[theirs] for name, theirs in self._groups.items()}

    def _described_machines(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the descriptions of instances, by instance id."""
        if not ids:
            return {}
        pages = self._machines.get_paginator("describe_instances")
        # an instance that has ended is not an error here, unlike a request by id
        filters = [{"Name": "instance-id", "Values": list(ids)}]
        return {
            each["InstanceId"]: each
            for page in pages.paginate(Filters=filters)
            for reservation in page["Reservations"]
            for each in reservation["Instances"]
        }

    def _marked(self, machines: Any) -> set[str]:
        """Return the ids of spot instances that EC2 will interrupt, by the state of their requests."""
        requests = [each["SpotInstanceRequestId"] for each in machines if each.get("SpotInstanceRequestId")]
        if not requests:
            return set()
        filters = [{"Name": "spot-instance-request-id", "Values": requests}]
        listed = self._machines.describe_spot_instance_requests(Filters=filters)["SpotInstanceRequests"]
        return {
            request.get("InstanceId", "")
            for request in listed
            if means_interruption(request.get("Status", {}).get("Code", ""))
        }

    def _wanted(self, name: str, group: Mapping[str, Any], nodes: Sequence[ProviderNode]) -> Iterator[ProviderNode]:
        """Yield placeholders for instances that are desired and do not exist yet."""
        there = sum(node.group == name and not node.is_ending for node in nodes)
        for number in range(1, group["DesiredCapacity"] - there + 1):
            wanted = f"{name}{WANTED}{number}"
            yield ProviderNode(wanted, name, (), self._wanted_s.get(wanted, self._clock()))


def means_interruption(code: str) -> bool:
    """Return True if the state of a spot request means that its instance will be interrupted within two minutes."""
    return code.startswith("marked-for-")


def _node(group: str, listed: Mapping[str, Any], machine: Any, marked: set[str], now: float) -> ProviderNode:
    """Convert the description of an instance to a node."""
    machine = machine or {}
    tags = {tag["Key"] for tag in machine.get("Tags", [])}
    names = [machine.get(key) for key in ("PrivateDnsName", "PrivateIpAddress", "PublicDnsName", "PublicIpAddress")]
    launched = machine.get("LaunchTime")
    return ProviderNode(
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
    """Convert boto3's errors within this context to ProviderError with their text."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise ProviderError(
            f"EC2: {what}: {error}; see that the service's role may do it, and what sizes the auto-scaling group allows"
        ) from error
