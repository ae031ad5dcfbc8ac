"""Tests of the doctor's checks of addresses and ports on hosts with other networks, in network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clock import END_S
from tests.helpers.lone_host import WIRED, on_lone_host
from tools.shaped_network import hindrance

pytestmark = [pytest.mark.local, pytest.mark.skipif(hindrance() != "", reason=f"no networks of our own: {hindrance()}")]

LOOK = """
import dataclasses, json, os, socket, sys
os.environ["HOPSML_PORT_RANGE"] = "40000-40004"
from hopsml.doctor import checks, facts
from hopsml.doctor.checks import Needs
found = facts.find_addresses(*sys.argv[1:3])
needs = Needs(profile="yarn", spark=True, yarn=True, distributed=True, master="yarn")
finding = checks.addresses(found, needs)
print(json.dumps({"facts": dataclasses.asdict(found), "status": finding.status.name, "summary": finding.summary,
                  "remedy": finding.remedy, "ports": facts.probe_ports().free}))
"""


def inspect_host(
    folder: Path, devices: str, hosts: str = "", resolver: str = "", driver_host: str = ""
) -> dict[str, Any]:
    """Return the doctor's findings on a host named node1 with this network, hosts file and resolver."""
    command = [sys.executable, "-c", LOOK, driver_host, ""]
    words = on_lone_host(folder, devices, command, hosts=hosts, resolver=resolver)
    done = subprocess.run(words, capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_host_with_only_ipv6_announces_its_address_and_can_bind(tmp_path: Path) -> None:
    found = inspect_host(tmp_path, f"{WIRED} ip -6 addr add fd00::5/64 dev eth0 nodad", "fd00::5 node1\n")
    assert found["facts"]["announced"] == "fd00::5" and found["facts"]["problem"] == ""
    assert (found["status"], found["ports"]) == ("OK", 5)


def test_name_that_resolves_to_loopback_on_an_ipv6_host_is_skipped(tmp_path: Path) -> None:
    found = inspect_host(tmp_path, f"{WIRED} ip -6 addr add fd00::5/64 dev eth0 nodad", "::1 node1\n")
    assert found["facts"]["announced"] == "fd00::5" and found["status"] == "OK"


def test_all_addresses_of_a_host_are_listed(tmp_path: Path) -> None:
    devices = f"{WIRED} ip addr add 10.0.0.5/24 dev eth0; ip addr add 10.1.0.5/24 dev eth0"
    found = inspect_host(tmp_path, devices, "10.0.0.5 node1\n")
    assert "connect to the driver at 10.0.0.5" in found["summary"] and "it also has 10.1.0.5" in found["summary"]


def test_unresponsive_resolver_fails_in_time_with_the_setting_named(tmp_path: Path) -> None:
    devices = f"{WIRED} ip addr add 10.0.0.5/24 dev eth0; ip route add default dev eth0"
    resolver = "nameserver 192.0.2.53\noptions timeout:1 attempts:1\n"
    found = inspect_host(tmp_path, devices, "127.0.0.1 localhost\n", resolver, driver_host="driver.example.org")
    assert found["status"] == "FAIL" and "'driver.example.org' cannot be resolved" in found["summary"]
    assert "SPARK_LOCAL_IP" in found["remedy"] and "10.0.0.5" in found["remedy"]


def test_unresolvable_host_name_fails_with_a_remedy(tmp_path: Path) -> None:
    found = inspect_host(tmp_path, f"{WIRED} ip addr add 10.0.0.5/24 dev eth0", "127.0.0.1 localhost\n")
    assert found["status"] == "FAIL" and "'node1' cannot be resolved" in found["summary"]
