"""The scaling model (hopsml/tuning/scaling.py) against measured steps of 2 to 4 workers, and published figures.

    python -m benchmarks scaling       measures, and reports the largest error of the model
    python -m benchmarks.scaling       only the tables of its predictions; measures nothing

The model's inputs are measured with other loads than those on which it is evaluated: all-reduces of single tensors of a
few sizes, with as many workers on the machine, of many small ones for the cost of a tensor in addition to its bytes,
and the same step without its reduction.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import gradient_sets, models
from benchmarks.figures import Report, worst_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers.bare import free_ports
from benchmarks.peers.base import SCRIPTS
from benchmarks.peers.hopsml import PEER
from benchmarks.turn_server import TurnServer
from hopsml.tuning import scaling
from hopsml.tuning.scaling import AllReduceMeasurement, Cluster, LinkCosts, StepSettings, TrainingCost, fit_link_costs

WORKERS = (2, 3, 4)  # one worker has nothing to send
LINKS = ("memory", "sockets")
SETS = ("inception-v1", "resnet-50", "160x4kB")
LINK_KB = (1024, 2048, 4096)  # of tensors that travel alone: for the cost of a message and of a byte
SEVERAL = 8  # of them in a step, over one: the cost of a further collective, without the wait for the slowest member
MANY = "64x1kB"  # for the cost of a tensor in addition to its bytes
LOADS = (*SETS, *(f"{count}x{size}kB" for size in LINK_KB for count in (1, SEVERAL)), MANY)
OURS = StepSettings("direct", pack_bytes=scaling.PACK_BYTES)
START_TIMEOUT_S = 300.0
TURN_S = 0.1
Rounds = Mapping[str, Sequence[float]]  # seconds by round, for each load, with and without its reduction


def run(options: Options) -> Report:
    """Measure the worst error over the sets of gradients, two to four workers, memory and sockets."""
    report, errors = Report(), []
    for group, rounds in measure(options).items():
        for name in SETS:
            predicted, measured = predict(int(group.rpartition("-")[2]), rounds, name), statistics.median(rounds[name])
            errors.append(abs(predicted / measured - 1))
            line = f"{group}, {name}: {predicted * 1e3:.2f} ms, measured {measured * 1e3:.2f}"
            options.say(line)
            report.notes.append(f"scaling, {line}")
    report.figures.append(worst_of("collective.model_error", errors, "ratio"))
    report.notes.append(
        "scaling: steps that make gradients of a network's sizes and sum them; the model is given the step without sums, "
        f"and what all-reduces of 1 and {SEVERAL} tensors of {', '.join(map(str, LINK_KB))} kB and of {MANY} take"
    )
    return report


def predict(workers: int, rounds: Rounds, name: str) -> float:
    """Return the seconds of a set's step that the model predicts from its computation and from other loads."""
    single = {size * 1024: _reduction(rounds, f"1x{size}kB") for size in LINK_KB}
    several = {size * 1024: _reduction(rounds, f"{SEVERAL}x{size}kB") for size in LINK_KB}
    further = {size: max((several[size] - single[size]) / (SEVERAL - 1), 1e-6) for size in single}
    link = fit_link_costs([AllReduceMeasurement(workers, size, seconds) for size, seconds in further.items()])
    per_step = statistics.median(max(0.0, single[size] - further[size]) for size in single)
    cluster = Cluster(link, link, workers_per_host=workers)
    many = gradient_sets.shapes_of(MANY)
    one_pack = scaling.predict_step(
        TrainingCost(0.0, (gradient_sets.bytes_of(many),)), cluster, workers, OURS
    ).communication_s
    per_gradient = max(0.0, _reduction(rounds, MANY) - one_pack - per_step) / len(many)
    compute = statistics.median(rounds[f"{name}/compute"])
    training = TrainingCost(
        compute, tuple(map(_bytes, gradient_sets.shapes_of(name))), per_gradient, per_step_s=per_step
    )
    return scaling.predict_step(training, cluster, workers, OURS).seconds


def _reduction(rounds: Rounds, load: str) -> float:
    """Return the seconds that a load's step takes in addition to its computation, paired by round."""
    pairs = zip(rounds[load], rounds[f"{load}/compute"], strict=True)
    return statistics.median(whole - compute for whole, compute in pairs)


def _bytes(shape: Sequence[int]) -> int:
    return gradient_sets.bytes_of([tuple(shape)])


def measure(options: Options) -> dict[str, Rounds]:
    """Return the rounds of each group, in which all loads take turns."""
    groups = {f"{link}-{workers}": workers for link in LINKS for workers in WORKERS}
    loads = [f"{load}{part}" for load in LOADS for part in ("/compute", "")]
    ports = iter(free_ports(sum(groups.values())))
    addresses = {name: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for name, count in groups.items()}
    with temporary_folder() as folder, TurnServer(Path(folder) / "turns") as server:
        script = [str(PEER.python(options.say)), str(SCRIPTS / "scaling_steps.py"), str(server.path)]
        described = [json.dumps(addresses), ",".join(loads)]
        commands = [Command([*script, str(rank), *described], models.QUIET) for rank in range(max(WORKERS))]
        with Launched(commands, Path(folder)) as launched:
            wanted = sum(groups.values()) * len(loads)
            launched.wait_until(lambda: server.accept() == wanted, START_TIMEOUT_S, f"{wanted} connections")
            found: dict[str, Rounds] = {}
            for name in groups:
                turns = {load: _turn(server, f"{name} {load}") for load in loads}
                found[name] = alternate(options.rounds_of(8, 5), turns)
            return found


def _turn(server: TurnServer, name: str) -> Callable[[], float]:
    seconds = server.steps(name, 4)[-1]  # traced in the first step, and warm in the last
    count = max(3, min(200, int(TURN_S / seconds)))
    return lambda: statistics.median(server.steps(name, count))


# ---------------------------------------------------------------------------------------------- published figures

RESNET_50: Final = tuple(map(_bytes, gradient_sets.shapes_of("resnet-50")))
V100_STEP_S: Final = (
    0.19  # ResNet-50, 64 images in float32 on one V100, about 340 images a second: an assumption, not published there
)
NVLINK: Final = LinkCosts(20e-6, 1 / 40e9)
LINE: Final = LinkCosts(50e-6, 8 / 25e9)  # 25 Gbit/s, the whole line
ONE_FLOW: Final = LinkCosts(50e-6, 8 / 10e9)  # the share of one TCP connection on AWS
CLOUD: Final = {"25 Gbit/s": LINE, "10 Gbit/s of them": ONE_FLOW}
V100_WAYS: Final = {
    "float32": StepSettings(),
    "fp16": StepSettings(wire_bytes=2),
    "double buffering": StepSettings(double_buffering=True),
    "both": StepSettings(wire_bytes=2, double_buffering=True),
}
PREDICTED: Final = (8, 16, 32, 64, 128, 256, 512, 1024)


def table() -> str:
    """Return a Markdown table of each method's efficiency with 8 to 1 024 workers, and the published values for 32."""
    training = TrainingCost(V100_STEP_S, RESNET_50)
    lines = ["| network | way | " + " | ".join(map(str, PREDICTED)) + " |", "|---|---|" + "---|" * len(PREDICTED)]
    for label, network in CLOUD.items():
        cluster = Cluster(NVLINK, network, workers_per_host=8)
        for way, settings in V100_WAYS.items():
            values = [scaling.efficiency(training, cluster, workers, settings) for workers in PREDICTED]
            lines.append(f"| {label} | {way} | " + " | ".join(f"{value:.0%}" for value in values) + " |")
    lines += ["", "| 32 workers | published | " + " | ".join(CLOUD) + " |", "|---|---|" + "---|" * len(CLOUD)]
    clusters = [Cluster(NVLINK, network, workers_per_host=8) for network in CLOUD.values()]
    both = [scaling.efficiency(training, cluster, 32, V100_WAYS["both"]) for cluster in clusters]
    plain = [scaling.efficiency(training, cluster, 32, V100_WAYS["float32"]) for cluster in clusters]
    lines.append("| efficiency, both | 95% | " + " | ".join(f"{value:.0%}" for value in both) + " |")
    gains = [one / other for one, other in zip(both, plain, strict=True)]
    lines.append("| both over float32 | 2.1 | " + " | ".join(f"{value:.2f}" for value in gains) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
