"""hopsml's collective between hosts with a slow network: float16 on the wire, and algorithms of an all-reduce.

The hosts are network namespaces of this machine (tools/shaped_network.py), which need root; where they cannot be
created, a note reports it. All groups of one network run at once and alternate, in a different order each round. The
time of one all-reduce is that of the slowest member; packets are those that all hosts together send for it, counted by
their devices.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Figure, Report, measured, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers.base import SCRIPTS
from benchmarks.peers.hopsml import PEER
from benchmarks.turn_server import TurnServer
from tools.shaped_network import Cable, Network, hindrance, shaped_network

RATES_MBIT = (1_000, 10_000)
LARGEST = 25_000_000  # float32: 100 MB
ALGORITHMS = ("direct", "pairwise", "ring", "auto")
HOSTS = (4, 8, 16)
SIZES = (250, 2_500, 25_000, 250_000, 2_500_000)  # float32: 1 kB to 10 MB
CABLES = {"0.1ms": Cable(rate_mbit=1_000, delay_ms=0.1), "1ms": Cable(rate_mbit=1_000, delay_ms=1)}
START_TIMEOUT_S = 300.0
PORT = 29_000
Times = dict[str, list[float]]  # milliseconds by round, for each method


def run(options: Options) -> Report:
    """Measure two hosts at two rates, then more hosts with delays."""
    report = Report()
    if why := hindrance():
        report.notes.append(f"network: not measured, as there can be no networks of our own: {why}")
        return report
    for rate in RATES_MBIT:
        with groups(2, Cable(rate_mbit=rate), ("sockets", "fp16"), (LARGEST,), options) as (_, server):
            times = take(server, ("sockets", "fp16"), LARGEST, 1, options.rounds_of(8, 3))
        peer = f"float32, {rate // 1000} Gbit/s, 100 MB, 2 hosts"
        report.figures.append(ratio_of(f"network.fp16_ratio_{rate // 1000}gbit", times["fp16"], times["sockets"], peer))
        options.say(f"{rate} Mbit/s: {shown(times)}")
    for label, cable in CABLES.items():
        for hosts in HOSTS:
            with groups(hosts, cable, ALGORITHMS, SIZES, options) as (network, server):
                for size in SIZES:
                    report.figures += of_size(network, server, f"network.{label}_n{hosts}", size, options)
    report.notes.append(
        "network: namespaces of one machine, whose cores do all the work; 1 Gbit/s; 0.1 ms, 1 ms: from host to host, "
        "plus 0.1 ms that the switch itself takes; auto: what the library chooses"
    )
    return report


@contextmanager
def groups(
    hosts: int, cable: Cable, ways: Sequence[str], sizes: Sequence[int], options: Options
) -> Iterator[tuple[Network, TurnServer]]:
    """Start one process on each host, with a group for each method."""
    with (
        shaped_network(hosts, cable) as network,
        temporary_folder() as name,
        TurnServer(Path(name) / "turns") as server,
    ):
        addresses = ",".join(f"{network.address(host)}:{PORT}" for host in range(hosts))
        script = [str(PEER.python(options.say)), str(SCRIPTS / "all_reduce.py")]
        chosen = [",".join(f"hopsml-{way}" for way in ways), str(server.path)]
        words = [[*script, *chosen, str(host), addresses, ",".join(map(str, sizes))] for host in range(hosts)]
        commands = [Command(network.command(host, line), {"OMP_NUM_THREADS": "1"}) for host, line in enumerate(words)]
        with Launched(commands, Path(name)) as launched:
            wanted = hosts * len(ways) * len(sizes)
            launched.wait_until(lambda: server.accept() == wanted, START_TIMEOUT_S, f"{wanted} connections")
            yield network, server


def take(server: TurnServer, ways: Sequence[str], size: int, calls: int, rounds: int) -> Times:
    """Return for each method one median of ``calls`` calls per round, in milliseconds."""

    def turn(way: str) -> Callable[[], float]:
        return lambda: statistics.median(server.steps(f"hopsml-{way}-{size}", calls)) * 1000

    for way in ways:
        server.steps(f"hopsml-{way}-{size}", 2)
    return alternate(rounds, {way: turn(way) for way in ways})


def of_size(network: Network, server: TurnServer, name: str, size: int, options: Options) -> list[Figure]:
    """Return milliseconds and packets of each algorithm for one size."""
    calls = max(2, min(20, 500_000 // size))
    times = take(server, ALGORITHMS, size, calls, options.rounds_of(6, 2))
    sent: Times = {}
    for way in ALGORITHMS:
        before = packets(network)
        server.steps(f"hopsml-{way}-{size}", calls)
        sent[way] = [(packets(network) - before) / calls]
    kilobytes = size * 4 // 1000
    name = f"{name}_{kilobytes}kB" if kilobytes < 1000 else f"{name}_{kilobytes // 1000}MB"
    options.say(f"{name}: {shown(times)}; packets {', '.join(f'{way} {count[0]:.0f}' for way, count in sent.items())}")
    found = [measured(f"{name}_{way}", times[way], "ms", "direct", times["direct"]) for way in ALGORITHMS]
    return found + [measured(f"{name}_{way}_packets", sent[way], "packets") for way in ALGORITHMS if way != "auto"]


def packets(network: Network) -> int:
    """Return the number of packets that all hosts have sent so far."""
    total = 0
    for host in range(network.hosts):
        with network.inside(host):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        [line] = [line for line in lines if line.strip().startswith("eth0:")]
        total += int(line.split(":")[1].split()[9])
    return total


def shown(times: Times) -> str:
    """Return the median of each method as text for the log."""
    return ", ".join(f"{way} {statistics.median(values):.2f}" for way, values in times.items()) + " ms"
