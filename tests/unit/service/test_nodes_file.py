"""Tests of the file with nodes that may be added: content and error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.errors import ArgumentError
from hopsml.service import rules_files, server
from hopsml.service.autoscaler import NodeGroup
from hopsml.service.providers.command import CommandProvider
from hopsml.service.providers.ec2 import Ec2Provider
from hopsml.service.scheduler.resources import Resources
from tests.helpers import pages

pytestmark = pytest.mark.fast
GROUPS = "groups: {cpu: {node: {cores: 4, memory: 16g}, max: 2}}"
WHOLE = """
provider: {command: ./nodes.sh --site a, within: 2m}
groups:
  gpu: {node: {gpus: 8, cores: 64, memory: 480g}, label: gpu, min: 1, max: 16, price: 12.5, boots_within: 15m, idle: 5m}
  cpu: {node: {cores: 32, memory: 128g}, max: 20}
drain: {exclude_file: /etc/hadoop/exclude}
"""


def load(folder: Path, text: str) -> rules_files.NodeSupply:
    (folder / "nodes.yaml").write_text(text)
    return rules_files.load_nodes(folder / "nodes.yaml")


def test_complete_nodes_file_is_loaded(tmp_path: Path) -> None:
    supply = load(tmp_path, WHOLE)
    assert isinstance(supply.provider, CommandProvider) and supply.exclusion is not None
    assert supply.provider._command == (f"{tmp_path}/nodes.sh", "--site", "a") and supply.provider._within_s == 120
    assert supply.groups == (
        NodeGroup("gpu", Resources(8, 64, 480 << 10), 16, 1, "gpu", 12.5, 900.0, 300.0),
        NodeGroup("cpu", Resources(0, 32, 128 << 10), 20),
    )


def test_nodes_files_of_the_documentation_are_loaded(tmp_path: Path) -> None:
    first, second = pages.snippets("docs/how-to/autoscaling.md", "yaml")
    assert [group.name for group in load(tmp_path, first).groups] == ["cpu", "gpu"]
    assert isinstance(load(tmp_path, second).provider, Ec2Provider)


def test_ec2_provider_is_loaded(tmp_path: Path) -> None:
    supply = load(tmp_path, f"provider: {{ec2: {{region: eu-central-1}}}}\n{GROUPS}")
    assert isinstance(supply.provider, Ec2Provider) and supply.exclusion is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("provider: [", "the file is not YAML"),
        (GROUPS, "provider: Field required.*a nodes file has"),
        (f"provider: {{command: a, ec2: {{}}}}\n{GROUPS}", "name one provider: command, or ec2"),
        (f"provider: {{}}\n{GROUPS}", "name one provider"),
        ("provider: {command: a}\ngroups: {}", "groups: .*at least 1"),
        (
            "provider: {command: a}\ngroups: {cpu: {node: {cores: 4, memory: 16g}, max: 2, maxx: 3}}",
            "groups.cpu.maxx: ",
        ),
        ("provider: {command: a}\ngroups: {cpu: {node: {cores: 4, memory: 16}, max: 2}}", "groups.cpu.node.memory: "),
        (
            "provider: {command: a}\ngroups: {cpu: {node: {cores: 4, memory: 1g}, max: 2, min: 3}}",
            "min=3 is not between",
        ),
    ],
)
def test_invalid_nodes_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(tmp_path, text)


def test_nodes_file_with_the_local_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodes.yaml").write_text(WHOLE)
    with pytest.raises(ArgumentError, match="profile 'local' runs jobs on this machine alone"):
        server.create_job_service(server.ServerSettings(tmp_path, profile="local", nodes=tmp_path / "nodes.yaml"), "")
    assert not (tmp_path / "service.db").exists()


def test_missing_nodes_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read: No such file"):
        rules_files.load_nodes(tmp_path / "nodes.yaml")
