"""hopsml's collective compared with gloo and TensorFlow's ring: one all-reduce by size, and whole training steps.

All groups with the same number of workers run at once and alternate, in a different order each round. The time of one
all-reduce is that of the slowest member. A figure over several sizes is the worst of them: the largest of the medians
over the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import fits, foreign_peers, overlap, peers, step
from benchmarks.figures import Figure, Report, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers.bare import free_ports
from benchmarks.peers.base import SCRIPTS
from benchmarks.peers.hopsml import PEER
from benchmarks.turn_server import TurnServer, take_turns

WORKERS = (2, 4)
SIZES = (1_000, 25_000, 250_000, 2_500_000, 25_000_000)  # float32: 4 kB to 100 MB
WAYS = ("hopsml", "gloo", "tensorflow", "hopsml-sockets", "hopsml-fp16")
START_TIMEOUT_S = 300.0
Times = dict[tuple[str, int], list[float]]  # milliseconds by round, for each method and size


def run(options: Options) -> Report:
    """Measure all-reduces and training steps, with two workers and with four."""
    report = Report()
    reduces = {workers: all_reduces(workers, options) for workers in WORKERS}
    report.figures += [
        _worst("collective.gloo_ratio", reduces, "hopsml", "gloo", "gloo"),
        _worst("collective.tf_ratio", reduces, "hopsml", "tensorflow", "TensorFlow's ring"),
        _worst("collective.sockets_gloo_ratio", reduces, "hopsml-sockets", "gloo", "gloo"),
        ratio_of(
            "collective.fp16_ratio",
            reduces[2]["hopsml-fp16", SIZES[-1]],
            reduces[2]["hopsml-sockets", SIZES[-1]],
            "float32, sockets, 100 MB, 2 workers",
        ),
    ]
    for workers, times in reduces.items():
        for size in SIZES:
            theirs = times["gloo", size], times["tensorflow", size]
            name = f"collective.{label(size)}_n{workers}"
            report.figures += [
                ratio_of(f"{name}_gloo_ratio", times["hopsml", size], theirs[0], "gloo"),
                ratio_of(f"{name}_tf_ratio", times["hopsml", size], theirs[1], "TensorFlow's ring"),
            ]
    for workers in WORKERS:
        steps = step.measure(workers, options, ("bare", step.COLLECTIVE))
        report.figures.append(
            ratio_of(f"collective.loop_ratio_n{workers}", steps[step.COLLECTIVE], steps["bare"], "TensorFlow by hand")
        )
    report.figures += fits.figures(options)
    report.notes.append(fits.NOTE)
    report.add(foreign_peers.run(options))
    report.add(overlap.run(options))
    report.notes.append(
        "collective: float32 zeros; members of hopsml's group share memory, as on one machine; sockets: the same without; "
        "the worst over 4 kB to 100 MB and two and four workers; loop: the custom loop of the figures of step"
    )
    return report


def all_reduces(workers: int, options: Options, all_ways: Sequence[str] = WAYS, sizes: Sequence[int] = SIZES) -> Times:
    """Return milliseconds of one all-reduce by method and size, one median per round."""
    with temporary_folder() as name, TurnServer(Path(name) / "turns") as server:
        folder = Path(name)
        with Launched(commands(server.path, workers, options, all_ways, sizes), folder) as launched:
            wanted = workers * len(all_ways) * len(sizes)
            launched.wait_until(lambda: server.accept() == wanted, START_TIMEOUT_S, f"{wanted} connections")
            names = {f"{way}-{size}": (way, size) for size in sizes for way in all_ways}
            times: Times = {}
            for size in sizes:  # a round of one size is short, so that other load affects all methods alike
                ways = [one for one, (_, of) in names.items() if of == size]
                turns = take_turns(server, ways, _calls(size))
                for way in ways:
                    server.steps(way, 3)
                rounds = alternate(options.rounds_of(8, 4), {way: _median_ms(turns[way]) for way in ways})
                times |= {names[way]: values for way, values in rounds.items()}
                shown = ", ".join(f"{names[way][0]} {statistics.median(values):.2f}" for way, values in rounds.items())
                options.say(f"{workers} workers, {label(size)}: {shown} ms")
            for way in names:
                server.steps(way, 0)
    return times


def commands(path: Path, workers: int, options: Options, ways: Sequence[str], sizes: Sequence[int]) -> list[Command]:
    """Return the commands that start the members of all groups."""
    python = {"gloo": peers.find("torchrun").python(options.say)} if "gloo" in ways else {}
    ours = PEER.python(options.say)
    found = []
    for way in ways:
        addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(workers))
        script = [str(python.get(way, ours)), str(SCRIPTS / "all_reduce.py"), way, str(path)]
        variables = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
        found += [
            Command([*script, str(rank), addresses, ",".join(map(str, sizes))], variables) for rank in range(workers)
        ]
    return found


def _calls(size: int) -> int:
    """Return the calls per round; a single small call would end before the system schedules both processes."""
    return max(3, min(200, 5_000_000 // size))


def _median_ms(turn: Callable[[], list[float]]) -> Callable[[], float]:
    return lambda: statistics.median(turn()) * 1000


def _worst(name: str, reduces: dict[int, Times], ours: str, theirs: str, peer: str) -> Figure:
    ratios: Sequence[Figure] = [
        ratio_of(name, times[ours, size], times[theirs, size], peer) for times in reduces.values() for size in SIZES
    ]
    return max(ratios, key=lambda one: one.value)


def label(size: int) -> str:
    """Return the label of an array of ``size`` float32 values, such as "4kB"."""
    kilobytes = size * 4 // 1000
    return f"{kilobytes}kB" if kilobytes < 1000 else f"{kilobytes // 1000}MB"
