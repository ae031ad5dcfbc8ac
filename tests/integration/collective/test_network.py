"""Tests of members on networks that are slow, lose packets or fall silent, in network namespaces."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from hopsml.collective import Group
from hopsml.errors import CollectiveTimeout, PeerLost
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.collective.together import SECRET, each
from tools.shaped_network import Cable, Network, hindrance, shaped_network

pytestmark = [pytest.mark.local, pytest.mark.skipif(hindrance() != "", reason=f"no networks of our own: {hindrance()}")]

PORT = 29000
LARGE = np.ones(2_000_000, "float32")
NOTICED_WITHIN_S = 2.0  # beyond the requested timeout


def form_on(network: Network, size: int, **options: Any) -> list[Group]:
    """A member on each host."""
    names = [f"{network.address(host)}:{PORT}" for host in range(size)]
    options = {"secret": SECRET, "form_timeout_s": 20} | options

    def one(rank: int) -> Group:
        with network.inside(rank):
            return Group.form(rank, names, **options)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@contextmanager
def group_on(network: Network, size: int, **options: Any) -> Iterator[list[Group]]:
    """The same, ended afterwards."""
    members = form_on(network, size, **options)
    try:
        yield members
    finally:
        for member in members:
            member.end()


class Busy:
    """Members that call again and again, until it fails."""

    def __init__(self, members: list[Group], call: Callable[[Group], object]) -> None:
        self._rounds = [0] * len(members)
        self._pool = ThreadPoolExecutor(len(members))
        self._found: list[Future[tuple[BaseException, float]]] = [
            self._pool.submit(self._work, member, call) for member in members
        ]

    def _work(self, member: Group, call: Callable[[Group], object]) -> tuple[BaseException, float]:
        while True:
            try:
                call(member)
            except Exception as error:  # noqa: BLE001 - it is what is looked at
                return error, clock.awake()
            self._rounds[member.rank] += 1

    def until_under_way(self) -> None:
        """Each has made a few."""
        while min(self._rounds) < 3:
            assert not any(one.done() for one in self._found), [one.result() for one in self._found if one.done()]
            time.sleep(0.002)

    def ends(self) -> list[tuple[BaseException, float]]:
        """Return each member's error and its time."""
        with self._pool:
            return [one.result(timeout=END_S) for one in self._found]


@pytest.mark.parametrize("algorithm", ["direct", "pairwise", "ring"])
def test_silent_host_is_detected_without_a_deadline(algorithm: str) -> None:
    """No connection is closed: the host just stops answering."""
    with shaped_network(4) as network, group_on(network, 4, network_timeout_s=1, algorithm=algorithm) as members:
        busy = Busy(members, lambda m: m.all_reduce(LARGE))
        busy.until_under_way()
        network.cut(2)
        at = clock.awake()
        for rank, (error, noticed) in enumerate(busy.ends()):
            assert isinstance(error, PeerLost), error
            assert rank == 2 or error.rank == 2, error
            assert noticed - at < 2 + NOTICED_WITHIN_S


def test_silent_host_is_named_at_the_deadline() -> None:
    with shaped_network(3) as network, group_on(network, 3, timeout_s=0.6) as members:
        each(members, lambda m: m.barrier())
        network.cut(1)
        start_s = clock.awake()
        for rank, error in enumerate(each(members, lambda m: m.all_reduce(LARGE))):
            assert isinstance(error, CollectiveTimeout), error
            assert rank == 1 or error.rank == 1, error
        assert clock.awake() - start_s < 0.6 + NOTICED_WITHIN_S


def test_host_silent_between_calls_is_detected_in_the_next_call() -> None:
    """No operation was running when the cable was cut."""
    with shaped_network(3) as network, group_on(network, 3, network_timeout_s=1) as members:
        each(members, lambda m: m.barrier())
        network.cut(0)
        start_s = clock.awake()
        for error in each(members[1:], lambda m: m.barrier()):
            assert isinstance(error, PeerLost) and error.rank == 0, error
        assert clock.awake() - start_s < 2 + NOTICED_WITHIN_S


def test_short_interruption_of_a_cable_only_delays_the_result() -> None:
    with shaped_network(2) as network, group_on(network, 2, network_timeout_s=20) as members:
        each(members, lambda m: m.barrier())
        network.cut(1)
        repair = threading.Timer(0.3, network.mend, [1])
        repair.start()
        for result in each(members, lambda m: m.all_reduce(LARGE)):
            assert np.array_equal(result, 2 * LARGE)
        repair.join()


@pytest.mark.parametrize("algorithm", ["direct", "pairwise", "ring"])
def test_packet_loss_does_not_change_the_results(algorithm: str) -> None:
    values = [np.random.default_rng(rank).integers(0, 99, 100_003).astype("float32") for rank in range(4)]
    with (
        shaped_network(4, Cable(rate_mbit=1000, delay_ms=0.1, loss=0.01)) as network,
        group_on(network, 4, algorithm=algorithm, timeout_s=60) as members,
    ):
        for _ in range(3):
            for result in each(members, lambda m: m.all_reduce(values[m.rank])):
                assert np.array_equal(result, np.sum(values, 0))
            for result in each(members, lambda m: m.all_reduce([m.rank])):
                assert result == [6]


STOPPED = """
import sys, numpy as np
from hopsml.collective import Group
rank = int(sys.argv[1])
group = Group.form(rank, sys.argv[2:], secret=b"a secret of the tests", network_timeout_s=1)
x = np.zeros(20_000_000, "float32")  # more of it is under way than buffers hold
for number in range(12):
    group.all_reduce(x, out=x)
    print(number, flush=True)
"""


def test_process_stopped_longer_than_the_network_timeout_is_not_lost() -> None:
    """Its kernel still acknowledges; unread data waits in full buffers."""
    with shaped_network(2) as network:
        names = [f"{network.address(host)}:{PORT}" for host in range(2)]
        members = [
            subprocess.Popen(
                network.command(rank, [sys.executable, "-c", STOPPED, str(rank), *names]),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            first, second = members
            assert first.stdout is not None and second.stdout is not None
            while first.stdout.readline() not in ("2\n", ""):
                continue
            second.send_signal(signal.SIGSTOP)
            time.sleep(3.5)  # the member must not fail during this time
            assert first.poll() is None
            second.send_signal(signal.SIGCONT)
            assert "11\n" in first.stdout.readlines()
            assert "11\n" in second.stdout.readlines()
        finally:
            for member in members:
                member.kill()
                member.wait()
                assert member.stdout is not None
                member.stdout.close()


def test_namespaces_end_when_their_creator_is_killed() -> None:
    code = (
        "import sys; from tools.shaped_network import *\n"
        "with shaped_network(2, Cable(delay_ms=1)) as network:\n"
        "    print(*network._pids, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        pids = [int(pid) for pid in maker.stdout.readline().split()]
        assert len(pids) == 2
        maker.kill()
    clock.wait_until(lambda: not any(is_alive(pid) for pid in pids), "the end of the namespaces' processes")


def is_alive(pid: int) -> bool:
    """True if such a process still holds a namespace."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"infinity" in file.read()
    except FileNotFoundError:
        return False
