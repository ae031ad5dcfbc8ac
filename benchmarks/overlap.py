"""Share of the communication that double buffering hides, with a device that computes as long as an all-reduce takes.

Two workers, each with three kinds of steps that alternate: with the reduction inside the step, with the reduction
during the next step, and with none. The device is emulated: a step waits, so that the processors are free for the
communication. The reduction adds the first less the last to a step; the part of it that the second kind does not have
is hidden.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import Report, measured
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers.bare import free_ports
from benchmarks.peers.base import SCRIPTS
from benchmarks.peers.hopsml import PEER
from benchmarks.turn_server import TurnServer, take_turns

WORKERS = 2
SIZE = 40_000_000  # bytes of gradients
STEPS = 10  # per turn
WAYS = ("alone", "in-step", "beside")
START_TIMEOUT_S = 300.0


def run(options: Options) -> Report:
    """Measure the hidden share, and the times of the steps."""
    times, device_ms = measure(options)
    shares = [
        (within - beside) / (within - alone)
        for alone, within, beside in zip(*(times[way] for way in WAYS), strict=True)
    ]
    report = Report([measured("collective.hidden_share", shares, "ratio")])
    for way in WAYS:
        report.figures.append(measured(f"collective.overlap_{way.replace('-', '_')}_ms", times[way], "ms"))
    report.notes.append(
        f"overlap: {WORKERS} workers, {SIZE // 1_000_000} MB of gradients over sockets, a device that computes for "
        f"{device_ms:.1f} ms, as long as one all-reduce takes; a step's time is the slowest worker's; alone: no reduction"
    )
    return report


def measure(options: Options) -> tuple[dict[str, list[float]], float]:
    """Return milliseconds of a step by method, one median per round, and the device's computing time in ms."""
    with (
        temporary_folder() as name,
        TurnServer(Path(name) / "turns") as server,
        Launched(commands(server.path, options), Path(name)) as launched,
    ):
        wanted = WORKERS * (1 + len(WAYS))
        launched.wait_until(lambda: server.accept() == wanted, START_TIMEOUT_S, f"{wanted} connections")
        (device_s,) = server.steps("calibrate", 1)
        turns = take_turns(server, WAYS, STEPS)
        for way in WAYS:
            server.steps(way, 3)
        rounds = alternate(options.rounds_of(10, 5), {way: _median_ms(turns[way]) for way in WAYS})
        for way in ("calibrate", *WAYS):
            server.steps(way, 0)
    for way, values in rounds.items():
        options.say(f"{way}: {statistics.median(values):.2f} ms")
    return rounds, device_s * 1000


def commands(path: Path, options: Options) -> list[Command]:
    """Return the commands of the two members."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(WORKERS))
    script = [str(PEER.python(options.say)), str(SCRIPTS / "overlapped_steps.py"), str(path)]
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    return [Command([*script, str(rank), addresses, str(SIZE)], variables) for rank in range(WORKERS)]


def _median_ms(turn: Callable[[], list[float]]) -> Callable[[], float]:
    return lambda: statistics.median(turn()) * 1000
