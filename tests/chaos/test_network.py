"""Scenarios on hosts with the networks of real clusters: proxies, firewalls, partitions.

They need root, and a kernel that allows network namespaces and virtual devices.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import network_driver
from tests.chaos.runner import Outcome
from tests.helpers import clock_shift
from tests.helpers.cluster.workloads import wait_until
from tools.shaped_network import Cable, Network, hindrance, shaped_network

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(hindrance() != "", reason=f"no networks of our own: {hindrance()}")]
SUM = 4.0  # of two workers, twice
BEATS = {"HOPSML_KEEPALIVE_S": "1"}


@contextmanager
def silent_proxy(network: Network, host: int) -> Iterator[dict[str, str]]:
    """Start a proxy on a host that accepts connections and never answers; yield the variables that name it."""
    with network.inside(host):
        listening = socket.create_server((network.address(host), 3128), backlog=64)
    with listening:
        url = f"http://{network.address(host)}:3128"
        yield {name: url for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY")}


def judged(
    scenario: str, program: str, found: dict[str, Any], outcomes: list[Outcome], error: tuple[str, ...] = ()
) -> None:
    """Add a row to the table; fail if the sum is wrong, or if the error lacks one of the texts of ``error``."""
    missing = [words for words in error if words not in found.get("text", "")]
    is_right = not missing if error else found.get("value") == SUM
    problem = "" if is_right else f"{missing} {found}"[:4000]
    state = "FINISHED" if "value" in found else "FAILED"
    backend = "torch" if program == "torch" else "local"
    over = "hopsml" if program == "own" else "tensorflow"
    outcomes.append(Outcome(scenario, backend, state, not problem, None, 0, 0, 0, 0, problem, program, over=over))
    assert not problem, problem


PROXIED = [
    pytest.param("collective_all_reduce", "tensorflow", {"implementation": "tensorflow"}, marks=pytest.mark.tensorflow),
    pytest.param("parameter_server", "servers", {}, marks=[pytest.mark.tensorflow, pytest.mark.variant]),
    pytest.param("jax", "jax", {}, marks=[pytest.mark.torch, pytest.mark.variant]),
    pytest.param("torch", "torch", {"backend": "gloo"}, marks=[pytest.mark.torch, pytest.mark.variant]),
]


@pytest.mark.parametrize(("verb", "program", "options"), PROXIED, ids=[one.values[1] for one in PROXIED])
def test_workers_connect_directly_despite_a_proxy_in_the_environment(
    verb: str, program: str, options: dict[str, Any], tmp_path: Path, outcomes: list[Outcome]
) -> None:
    with shaped_network(4) as network, silent_proxy(network, 3) as variables:
        found = network_driver.play(network, tmp_path, verb, program, variables, **options)
    judged("a proxy that does not answer", program, found, outcomes)


OVER_IPV6 = [
    pytest.param("torch", "own", {"backend": "hopsml"}, marks=pytest.mark.torch),
    pytest.param("collective_all_reduce", "tensorflow", {"implementation": "tensorflow"}, marks=pytest.mark.tensorflow),
    pytest.param("torch", "torch", {"backend": "gloo"}, marks=[pytest.mark.torch, pytest.mark.variant]),
    pytest.param("parameter_server", "servers", {}, marks=[pytest.mark.tensorflow, pytest.mark.variant]),
    pytest.param("jax", "jax", {}, marks=[pytest.mark.torch, pytest.mark.variant]),
]


@pytest.mark.parametrize(("verb", "program", "options"), OVER_IPV6, ids=[one.values[1] for one in OVER_IPV6])
def test_group_between_hosts_with_only_ipv6_trains(
    verb: str, program: str, options: dict[str, Any], tmp_path: Path, outcomes: list[Outcome]
) -> None:
    with shaped_network(3, version=6) as network:
        found = network_driver.play(network, tmp_path, verb, program, **options)
    judged("hosts with only IPv6", program, found, outcomes)


@pytest.mark.local
@pytest.mark.variant
@pytest.mark.skipif(clock_shift.HINDRANCE != "", reason=clock_shift.HINDRANCE)
@pytest.mark.parametrize("shift_s", [clock_shift.DAY_S, -clock_shift.DAY_S], ids=["ahead", "behind"])
def test_host_whose_clock_is_a_day_off_trains_and_is_named(
    shift_s: int, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    with shaped_network(3) as network:
        clocks = {1: clock_shift.shifted(shift_s, tmp_path)}
        found = network_driver.play(network, tmp_path, "distributed", "own", of_hosts=clocks)
    judged(f"a host's clock is a day {'ahead' if shift_s > 0 else 'behind'}", "own", found, outcomes)
    assert found["log"].count("clock skew: ") == 1 and f"clock skew: {'+' if shift_s > 0 else '-'}86" in found["log"]


# TensorFlow sends heartbeats each five seconds; shorter pauses are not tested here.
IDLE = [
    pytest.param(
        *("collective_all_reduce", "tensorflow", {"implementation": "tensorflow"}, 7.0), marks=pytest.mark.tensorflow
    ),
    pytest.param("torch", "torch", {"backend": "gloo"}, 3.0, marks=pytest.mark.torch),
    pytest.param("parameter_server", "servers", {}, 7.0, marks=[pytest.mark.tensorflow, pytest.mark.variant]),
    pytest.param("jax", "jax", {}, 7.0, marks=[pytest.mark.torch, pytest.mark.variant]),
    pytest.param("torch", "own", {"backend": "hopsml"}, 7.0, marks=[pytest.mark.torch, pytest.mark.variant]),
]


@pytest.mark.parametrize(("verb", "program", "options", "idle_s"), IDLE, ids=[one.values[1] for one in IDLE])
def test_training_survives_a_firewall_that_drops_idle_connections(
    verb: str, program: str, options: dict[str, Any], idle_s: float, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    with shaped_network(3, Cable(idle_s=idle_s)) as network:
        args = {"pause_s": 2 * idle_s}
        found = network_driver.play(network, tmp_path, verb, program, BEATS, args, **options)
    judged("a firewall that drops idle connections", program, found, outcomes)


@pytest.mark.torch
@pytest.mark.variant
def test_stalled_run_ends_at_its_progress_timeout_and_names_the_firewall(
    tmp_path: Path, outcomes: list[Outcome]
) -> None:
    """Without keepalive only progress_timeout ends the run."""
    with shaped_network(3, Cable(idle_s=3.0)) as network:
        variables, args = {"HOPSML_KEEPALIVE_S": "0"}, {"pause_s": 6.0}
        options = {"backend": "gloo", "progress_timeout": 15.0}
        found = network_driver.play(network, tmp_path, "torch", "torch", variables, args, **options)
    words = ("(progress_timeout=15)", "firewall", "HOPSML_KEEPALIVE_S")
    judged("idle connections dropped, no keepalive", "torch", found, outcomes, words)


@pytest.mark.torch
@pytest.mark.variant
def test_path_that_drops_large_packets_is_named_in_the_final_error(tmp_path: Path, outcomes: list[Outcome]) -> None:
    with shaped_network(3, Cable(largest=1000)) as network:
        options = {"backend": "gloo", "progress_timeout": 15.0, "start_timeout": 40.0}
        found = network_driver.play(network, tmp_path, "torch", "torch", None, **options)
    judged("a path that drops large packets", "torch", found, outcomes, ("Seen before: preflight: ", "did not answer"))


@pytest.mark.local
@pytest.mark.variant
def test_error_of_a_partitioned_fixed_group_names_the_network(tmp_path: Path, outcomes: list[Outcome]) -> None:
    mark = tmp_path / "trains"
    with shaped_network(3) as network, ThreadPoolExecutor(1) as pool:
        args = {"mark": str(mark)}
        waiting = pool.submit(network_driver.play, network, tmp_path, "distributed", "cut_off", None, args)
        wait_until(lambda: mark.exists() or waiting.done(), "the first step", 60.0)
        network.cut(2)
        found = waiting.result()
    words = ("the network between the driver and 10.214.77.12 was interrupted", "heartbeat_timeout=", "min_workers=")
    judged("a fixed group is cut in two", "own", found, outcomes, words)


CLOSED = Cable(ports=((40000, 40050),))
KEPT_IN = [
    pytest.param("torch", "torch", {"backend": "gloo"}, marks=pytest.mark.torch),
    pytest.param("jax", "jax", {}, marks=pytest.mark.torch),
    pytest.param("collective_all_reduce", "tensorflow", {"implementation": "tensorflow"}, marks=pytest.mark.tensorflow),
    pytest.param("parameter_server", "servers", {}, marks=pytest.mark.tensorflow),
    pytest.param("torch", "own", {"backend": "hopsml"}, marks=pytest.mark.torch),
]


@pytest.mark.variant
@pytest.mark.parametrize(("verb", "program", "options"), KEPT_IN, ids=[one.values[1] for one in KEPT_IN])
def test_all_connections_use_ports_of_the_range(
    verb: str, program: str, options: dict[str, Any], tmp_path: Path, outcomes: list[Outcome]
) -> None:
    with shaped_network(3, CLOSED) as network:
        variables = {"HOPSML_PORT_RANGE": "40000-40050"}
        found = network_driver.play(network, tmp_path, verb, program, variables, **options)
    judged("a firewall that is open for HOPSML_PORT_RANGE alone", program, found, outcomes)


@pytest.mark.torch
@pytest.mark.variant
def test_group_that_cannot_connect_fails_with_the_cause_at_its_timeout(tmp_path: Path, outcomes: list[Outcome]) -> None:
    """The ports of agents and of torch's store are open; gloo, in workers without the variable, uses others."""
    with shaped_network(3, CLOSED) as network:
        variables = {"HOPSML_PORT_RANGE": "40000-40050"}
        options = {"backend": "gloo", "start_timeout": 20.0, "environment": {"HOPSML_PORT_RANGE": ""}}
        found = network_driver.play(network, tmp_path, "torch", "torch", variables, **options)
    words = ("its process connects to the other members of its group", "HOPSML_PORT_RANGE")
    judged("a firewall that does not let the group connect", "torch", found, outcomes, words)


@pytest.mark.torch
@pytest.mark.variant
@pytest.mark.parametrize("ports", ["40000-40000", "40000-40002"])
def test_range_with_too_few_ports_is_refused_with_the_number_per_agent(
    ports: str, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    with shaped_network(3) as network:
        found = network_driver.play(network, tmp_path, "torch", "own", {"HOPSML_PORT_RANGE": ports})
    words = (f"HOPSML_PORT_RANGE={ports}", "each agent on a host needs 6 ports", "ss -tlnp")
    judged("HOPSML_PORT_RANGE with too few ports", "own", found, outcomes, words)
