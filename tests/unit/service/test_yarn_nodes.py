"""Tests of the service's view of YARN's nodes."""

from __future__ import annotations

import pytest

from hopsml.service.engine.yarn import seen_nodes
from hopsml.yarn import YarnNode

pytestmark = pytest.mark.fast


def named(*nodes: tuple[str, str]) -> list[tuple[str, bool]]:
    return [(node.name, node.is_open) for node in seen_nodes(YarnNode(name, state, 8, 8192) for name, state in nodes)]


def test_node_is_named_by_its_host_and_open_while_running() -> None:
    assert named(("node1:8041", "RUNNING"), ("node2:8041", "DECOMMISSIONING")) == [("node1", True), ("node2", False)]


def test_node_restarted_at_another_port_is_the_same() -> None:
    assert named(("node1:40001", "LOST"), ("node1:40007", "RUNNING")) == [("node1", True)]


def test_two_nodes_on_one_host_are_named_with_their_ports() -> None:
    found = named(("node1:8041", "RUNNING"), ("node1:8042", "RUNNING"), ("node2:8041", "RUNNING"))
    assert found == [("node1:8041", True), ("node1:8042", True), ("node2", True)]
