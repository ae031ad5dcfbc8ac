"""Gradients of published networks, reduced by every available method, against TensorFlow's strategy by hand.

All groups with the same number of workers run at once and alternate, set after set, in a different order each round;
for networks with large gradients each method runs alone with its control, as memory allows. The steps of
scripts/gradient_steps.py make gradients of a set's sizes and sum them over the group; those called ``model:`` are
training steps of a network. A figure is the median over the rounds of a method's step over that of TensorFlow's
strategy by hand, which contains nothing of hopsml.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import environments, gradient_sets, peers
from benchmarks.figures import Figure, Report, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers.bare import free_ports
from benchmarks.peers.base import SCRIPTS
from benchmarks.peers.hopsml import PEER
from benchmarks.turn_server import TurnServer, take_turns

WORKERS = (2, 4)
HOROVODS = ("horovod", "tensorflow-2.12")  # Horovod, and TensorFlow by hand in the version for which Horovod is built
WAYS = ("tensorflow", "merged", "hopsml", "ddp", "parameter-server", *HOROVODS)
BY_HAND = "tensorflow"
MODELS = ("model:inception-v1", "model:vgg-16", "model:resnet-50")
TRAIN = ("tensorflow", "merged", "hopsml")  # the methods for which a network's training step is written
SMALL = ("inception-v1", "resnet-50", "160x4kB")  # the sets of a quick run
MOST_SERVED = 200 << 20  # bytes that the one parameter server serves: with more, a step takes minutes
START_TIMEOUT_S = 300.0
TURN_S = 0.5  # approximate duration of a turn of the slowest method
LARGE, PER_BYTE = (
    200 << 20,
    7.0,
)  # bytes of gradients above which groups do not all run at once; memory of a process per byte
Times = dict[tuple[str, str], list[float]]  # milliseconds by round, for each method and load
Pairs = dict[tuple[str, str], tuple[list[float], list[float]]]  # the same, with those of its control in the same rounds


@dataclass(frozen=True)
class Bench:
    """Combination of methods, loads and a number of workers that runs at once."""

    workers: int
    ways: Sequence[str]
    loads: Sequence[str]

    def loads_of(self, way: str) -> list[str]:
        """Return the loads in which a method takes part."""
        return [load for load in self.loads if _takes(way, load)]

    def ways_of(self, load: str) -> list[str]:
        """Return the methods that take part in a load."""
        return [way for way in self.ways if _takes(way, load)]


def _takes(way: str, load: str) -> bool:
    if load.startswith("model:"):
        return way in TRAIN
    if way == "parameter-server":
        return gradient_sets.bytes_of(gradient_sets.shapes_of(load)) <= MOST_SERVED
    return True


def run(options: Options) -> Report:
    """Measure the sets of gradients with two workers and with four, and the networks with two."""
    report = Report()
    ways = _available(report, options)
    merged, horovod = [], []
    for workers in WORKERS:
        loads = [*options.choose(tuple(gradient_sets.SETS), SMALL), *(MODELS if workers == 2 else ())]
        pairs: Pairs = {}
        for bench in sittings(workers, ways, loads):
            if (lack := _lacks(bench)) > 0:
                report.notes.append(
                    f"models: {', '.join(bench.loads)} of {workers} workers, {' and '.join(bench.ways)}: left out, about "
                    f"{lack:.0f} GB more of memory would be needed"
                )
                continue
            pairs |= paired(measure(bench, options))
        report.figures += [
            _ratio(f"models.{_label(load)}_n{workers}_{way}_ratio", pairs, way, load) for way, load in pairs
        ]
        merged.append(_ratio("collective.merge_ratio", pairs, "merged", "inception-v1"))
        horovod += [
            _beside_horovod(pairs, load) for load in loads if {("horovod", load), ("hopsml", load)} <= set(pairs)
        ]
    report.figures = [max(found, key=lambda one: one.value) for found in (merged, horovod) if found] + report.figures
    report.notes.append(
        "models: a step makes gradients of the network's sizes and sums them; ratios to TensorFlow's strategy by hand, "
        "Horovod's to that of TensorFlow 2.12; "
        "merged: the same strategy with hopsml's reduction, 32 gradients in a collective by the scoped allocator; hopsml: "
        "the strategy over hopsml's own collective; ddp: DistributedDataParallel over gloo; parameter-server: one of them, "
        "where workers read weights and send gradients and wait for nobody; model: training steps of the network itself"
    )
    return report


def sittings(workers: int, ways: Sequence[str], loads: Sequence[str]) -> list[Bench]:
    """Return what runs at once: all methods for small loads; each method with its control for one large load."""
    small = [load for load in loads if _gradients(load) <= LARGE]
    found = [Bench(workers, ways, small)]
    for load in loads:
        if load not in small:
            others = [way for way in ways if way not in (BY_HAND, HOROVODS[1]) and _takes(way, load)]
            found += [Bench(workers, (control_of(way), way), [load]) for way in others]
    return found


def control_of(way: str) -> str:
    """Return the control of a method: TensorFlow by hand, for Horovod in the version for which it is built."""
    return HOROVODS[1] if way == "horovod" else BY_HAND


def paired(times: Times) -> Pairs:
    """Return each method's times paired with its control's."""
    return {
        (way, load): (values, times[control_of(way), load])
        for (way, load), values in times.items()
        if way not in (BY_HAND, HOROVODS[1])
    }


def _gradients(load: str) -> int:
    return gradient_sets.bytes_of(gradient_sets.shapes_of(load.removeprefix("model:")))


def _lacks(bench: Bench) -> float:
    """Return the GB of memory that are missing for so many processes; at most 0 if there is enough."""
    largest = max(map(_gradients, bench.loads), default=0)
    needed = PER_BYTE * largest * bench.workers * len(bench.ways) if largest > LARGE else 0.0
    return (needed - psutil.virtual_memory().available) / 1e9


def _available(report: Report, options: Options) -> list[str]:
    """Return the methods available here: building Horovod from source takes a compiler and a quarter of an hour."""
    try:
        environments.ensure("horovod", options.say)
    except RuntimeError as error:
        report.note_of("Horovod")(str(error))
        return [way for way in WAYS if way not in HOROVODS]
    return list(WAYS)


def _beside_horovod(pairs: Pairs, load: str) -> Figure:
    """Return hopsml's step over TensorFlow's by hand, divided by the same of Horovod with its version of TensorFlow."""
    ours, theirs = (
        [one / other for one, other in zip(*pairs[way, load], strict=True)] for way in ("hopsml", "horovod")
    )
    return ratio_of("collective.horovod_ratio", ours, theirs, f"Horovod 0.28.1, {load}")


def _label(load: str) -> str:
    return load.replace("model:", "train-")


def _ratio(name: str, pairs: Pairs, way: str, load: str) -> Figure:
    return ratio_of(name, *pairs[way, load], f"{control_of(way)} by hand")


def measure(bench: Bench, options: Options) -> Times:
    """Return milliseconds of a step by method and load, one median per round."""
    with group(bench, options) as server:
        times: Times = {}
        for load in bench.loads:
            times |= _of_load(server, bench, load, options)
    return times


@contextlib.contextmanager
def group(bench: Bench, options: Options) -> Iterator[TurnServer]:
    """Start all groups, ready to take turns; end them in order after the block, and kill them in any case."""
    with (
        temporary_folder() as name,
        TurnServer(Path(name) / "turns") as server,
        Launched(list(commands(server.path, bench, options)), Path(name)) as launched,
    ):
        wanted = sum(len(bench.loads_of(way)) * _members(way, bench.workers) for way in bench.ways)
        launched.wait_until(lambda: server.accept() == wanted, START_TIMEOUT_S, f"{wanted} connections")
        yield server
        for way in bench.ways:
            for load in bench.loads_of(way):
                server.steps(f"{way} {load}", 0)


def _of_load(server: TurnServer, bench: Bench, load: str, options: Options) -> Times:
    ways = bench.ways_of(load)
    names = {f"{way} {load}": (way, load) for way in ways}
    slowest = max(server.steps(name, 3)[-1] for name in names)  # traced in the first step, and warm in the last
    count = max(1, min(50, int(TURN_S / slowest)))
    turns = {name: _median_ms(turn) for name, turn in take_turns(server, list(names), count).items()}
    rounds = alternate(options.rounds_of(6, 4), turns)
    shown = ", ".join(f"{names[name][0]} {statistics.median(values):.1f}" for name, values in rounds.items())
    options.say(f"{bench.workers} workers, {load}, {count} steps a turn: {shown} ms")
    return {names[name]: values for name, values in rounds.items()}


def _median_ms(turn: Callable[[], list[float]]) -> Callable[[], float]:
    return lambda: statistics.median(turn()) * 1000


def _members(way: str, workers: int) -> int:
    """Return the number of processes that respond: with parameter servers only the coordinator."""
    return 1 if way == "parameter-server" else workers


def commands(path: Path, bench: Bench, options: Options) -> Iterable[Command]:
    """Return the commands that start the members of all groups."""
    ours = str(PEER.python(options.say))
    for way in bench.ways:
        loads = ",".join(bench.loads_of(way))
        if way == "parameter-server":
            yield from _parameter_servers(ours, path, bench.workers, loads)
            continue
        if way == "horovod":
            yield from _horovod(path, bench.workers, loads, options)
            continue
        python = str(_python_of(way, options))
        addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(bench.workers))
        for rank in range(bench.workers):
            script = [python, str(SCRIPTS / "gradient_steps.py"), way, str(path), str(rank), addresses, loads]
            # The default of torchrun.
            yield Command(script, {**QUIET, "OMP_NUM_THREADS": "1"} if way == "ddp" else QUIET)


def _python_of(way: str, options: Options) -> Path:
    if way in HOROVODS:
        return environments.ensure("horovod", options.say)
    return peers.find("torchrun").python(options.say) if way == "ddp" else PEER.python(options.say)


def _horovod(path: Path, workers: int, loads: str, options: Options) -> Iterable[Command]:
    """Return the command of Horovod's launcher, which starts the members with their ranks; no addresses are needed."""
    python = str(_python_of("horovod", options))
    launcher = [python, "-m", "horovod.runner.launch", "--gloo", "--network-interfaces", "lo"]
    script = [python, str(SCRIPTS / "gradient_steps.py"), "horovod", str(path), "0", "", loads]
    yield Command([*launcher, "-np", str(workers), "-H", f"localhost:{workers}", *script], QUIET)


def _parameter_servers(python: str, path: Path, workers: int, loads: str) -> Iterable[Command]:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers + 2)]
    cluster = json.dumps({"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]})
    jobs = [("chief", 0), ("ps", 0), *(("worker", index) for index in range(workers))]
    for job, index in jobs:
        script = [python, str(SCRIPTS / "parameter_servers.py"), job, str(index), str(path), cluster, loads]
        yield Command(script, QUIET)


QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
