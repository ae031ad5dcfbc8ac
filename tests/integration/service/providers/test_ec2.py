"""Tests of auto-scaling groups on moto's EC2: instances start, are drained by a tag, and the chosen one ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from hopsml.errors import ProviderError
from hopsml.service.providers import ProviderNode
from hopsml.service.providers.ec2 import DRAINING, WARNED, Ec2Provider, means_interruption
from tests.helpers.storage import s3_server

pytestmark = [pytest.mark.local, pytest.mark.variant]  # of test_command.py; moto's server takes seconds to begin
GROUP = "hopsml-gpu-nodes"


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with s3_server.running() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


class Account:
    """Direct access to EC2, independent of the provider under test."""

    def __init__(self) -> None:
        self.scaling, self.machines = boto3.client("autoscaling"), boto3.client("ec2")
        (self.image, *_) = self.machines.describe_images(Owners=["amazon"])["Images"]
        self.scaling.create_launch_configuration(
            LaunchConfigurationName="nodes", ImageId=self.image["ImageId"], InstanceType="m5.large"
        )
        self.scaling.create_auto_scaling_group(
            AutoScalingGroupName=GROUP, LaunchConfigurationName="nodes", MinSize=0, MaxSize=4, DesiredCapacity=0,
            AvailabilityZones=["us-east-1a"],
        )  # fmt: skip

    def group(self) -> dict[str, Any]:
        return self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[GROUP])["AutoScalingGroups"][0]

    def machine(self, instance: str) -> dict[str, Any]:
        found = self.machines.describe_instances(InstanceIds=[instance])
        return found["Reservations"][0]["Instances"][0]

    def close(self) -> None:
        self.scaling.delete_auto_scaling_group(AutoScalingGroupName=GROUP, ForceDelete=True)
        self.scaling.delete_launch_configuration(LaunchConfigurationName="nodes")
        self.scaling.close(), self.machines.close()


@pytest.fixture
def account(server: None) -> Iterator[Account]:
    made = Account()
    yield made
    made.close()


@pytest.fixture
def nodes(account: Account) -> Ec2Provider:
    return Ec2Provider("us-east-1", {"gpu": GROUP}, clock=lambda: 1000.0)


def test_ec2_provider_launches_named_instances_and_terminates_the_chosen_one(
    account: Account, nodes: Ec2Provider
) -> None:
    assert nodes.list() == []
    nodes.launch("gpu", 3, ("one",))
    nodes.launch("gpu", 1, ())
    found = nodes.list()
    assert len(found) == 4 == account.group()["DesiredCapacity"]
    machine = account.machine(found[1].id)
    assert machine["PrivateDnsName"] in found[1].hosts and machine["PrivateIpAddress"] in found[1].hosts
    assert found[1].launched_s == machine["LaunchTime"].timestamp() and found[1].group == "gpu"
    nodes.terminate(found[1])
    assert account.group()["DesiredCapacity"] == 3
    assert account.machine(found[1].id)["State"]["Name"] in ("shutting-down", "terminated")
    assert {node.id for node in nodes.list() if not node.is_ending} == {node.id for node in found} - {found[1].id}


def test_drained_instance_has_a_tag_that_another_service_finds(account: Account, nodes: Ec2Provider) -> None:
    nodes.launch("gpu", 2, ())
    first, second = nodes.list()
    nodes.drain(first)
    assert {"Key": DRAINING, "Value": "true"} in account.machine(first.id)["Tags"]
    assert [node.is_draining for node in Ec2Provider("us-east-1", {"gpu": GROUP}).list()] == [True, False]
    nodes.recall(first)
    assert not [node for node in nodes.list() if node.is_draining]
    account.machines.create_tags(Resources=[second.id], Tags=[{"Key": WARNED, "Value": ""}])
    account.scaling.set_instance_health(InstanceId=first.id, HealthStatus="Unhealthy")
    assert [node.is_warned for node in nodes.list()] == [True, True]


def test_requested_instance_that_does_not_exist_yet_is_a_booting_node(account: Account, nodes: Ec2Provider) -> None:
    """moto starts instances at once: one is detached from the group, as if EC2 had no capacity."""
    nodes.launch("gpu", 2, ())
    first, _ = nodes.list()
    account.scaling.detach_instances(
        AutoScalingGroupName=GROUP, InstanceIds=[first.id], ShouldDecrementDesiredCapacity=True
    )
    described = account.group()
    short = {**described, "DesiredCapacity": 3}
    wanted = list(nodes._wanted("gpu", short, nodes.list()))
    assert [node.id for node in wanted] == ["gpu/wanted-1", "gpu/wanted-2"]
    assert wanted[0] == ProviderNode("gpu/wanted-1", "gpu", (), 1000.0)
    nodes.terminate(wanted[0])
    assert account.group()["DesiredCapacity"] == described["DesiredCapacity"] - 1


def test_spot_requests_are_queried_for_their_interruption_state(account: Account, nodes: Ec2Provider) -> None:
    """moto marks none of them: the codes are from the list of EC2."""
    requests = account.machines.request_spot_instances(
        SpotPrice="1", LaunchSpecification={"ImageId": account.image["ImageId"], "InstanceType": "m5.large"}
    )["SpotInstanceRequests"]
    assert nodes._marked([{"SpotInstanceRequestId": requests[0]["SpotInstanceRequestId"]}, {}]) == set()
    assert (
        means_interruption("marked-for-termination")
        and means_interruption("marked-for-stop")
        and not means_interruption("fulfilled")
    )


def test_ec2_refusals_are_reported_with_their_cause(account: Account) -> None:
    with pytest.raises(ProviderError, match="no auto-scaling group 'other'"):
        Ec2Provider("us-east-1", {"gpu": "other"}).list()
    with pytest.raises(ProviderError, match=r"at most 4 instances, and 5 are wanted.*MaxSize"):
        Ec2Provider("us-east-1", {"gpu": GROUP}).launch("gpu", 5, ())
    with pytest.raises(ProviderError, match=r"drain i-0123.*InvalidID.*role"):
        Ec2Provider("us-east-1", {"gpu": GROUP}).drain(ProviderNode("i-0123", "gpu", (), 0.0))
