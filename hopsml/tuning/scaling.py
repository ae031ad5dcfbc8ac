"""Prediction of the duration of a training step with N workers; no side effects.

It is computed from the step of one worker, its gradients and the cost of messages. A step is forward pass, backward
pass, reduction, update. Its communication is the sum of its collectives (``flat_s``), one after another, of packs that
are merged as the settings define. Where communication begins once all gradients are ready, it is added to the
computation. Where the packs of the last layers are sent while the first layers' gradients are still computed, only the
remaining part is added. With double buffering the previous step's gradients are sent during this one: the step takes
the longer of the two, plus the share of communication that uses the worker's own cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hopsml.errors import ArgumentError

Algorithm = Literal["ring", "halving-doubling", "doubling", "direct"]
ALONE_BYTES: Final = 1 << 20  # hopsml's collective sends a tensor of this size or more separately
PACK_BYTES: Final = 4 << 20
FORWARD_SHARE: Final = 1 / 3  # of a step's computation: a backward pass needs twice the matrix products


@dataclass(frozen=True)
class LinkCosts:
    """Cost of a message between two members: ``alpha_s`` seconds, and ``beta_s`` for each of its bytes.

    ``per_message_s`` is the cost of each further message that is sent in the same step.
    """

    alpha_s: float
    beta_s: float
    per_message_s: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """Cluster of machines of one kind.

    Attributes:
        memory: link between two workers of one machine.
        network: link between two workers of different machines.
        workers_per_host: number of workers on each machine but the last.
        cores_per_host: number of cores; more workers than that share cores, and all take longer. 0: each has the cores
            that it needs.
    """

    memory: LinkCosts
    network: LinkCosts
    workers_per_host: int = 1
    cores_per_host: int = 0

    def host_count(self, workers: int) -> int:
        """Return the number of machines on which so many workers run."""
        return -(-workers // self.workers_per_host)

    def workers_per_core(self, workers: int) -> float:
        """Return the number of workers per core on the fullest machine; at least 1."""
        here = min(workers, self.workers_per_host)
        return max(1.0, here / self.cores_per_host) if self.cores_per_host else 1.0


def ring_s(link: LinkCosts, members: int, size: float) -> float:
    """Return the seconds of a ring all-reduce of ``size`` bytes."""
    if members < 2:
        return 0.0
    return 2 * (members - 1) * (link.alpha_s + size / members * link.beta_s)


def halving_doubling_s(link: LinkCosts, members: int, size: float) -> float:
    """Return the seconds of an all-reduce of ``size`` bytes by recursive halving and doubling."""
    if members < 2:
        return 0.0
    power = 1 << (members.bit_length() - 1)
    inner = 2 * math.log2(power) * link.alpha_s + 2 * (power - 1) / power * size * link.beta_s
    outside = 0.0 if power == members else 2 * (link.alpha_s + size * link.beta_s)
    return inner + outside


def doubling_s(link: LinkCosts, members: int, size: float) -> float:
    """Return the seconds of an all-reduce of ``size`` bytes by recursive doubling."""
    return math.ceil(math.log2(members)) * (link.alpha_s + size * link.beta_s) if members > 1 else 0.0


def direct_s(link: LinkCosts, members: int, size: float) -> float:
    """Return the seconds of an all-reduce of ``size`` bytes by direct exchange between all members."""
    if members < 2:
        return 0.0
    further = 2 * (members - 2) * link.per_message_s
    return 2 * link.alpha_s + further + 2 * (members - 1) / members * size * link.beta_s


ALGORITHMS: Final[dict[Algorithm, Callable[[LinkCosts, int, float], float]]] = {
    "ring": ring_s,
    "halving-doubling": halving_doubling_s,
    "doubling": doubling_s,
    "direct": direct_s,
}


def flat_s(cluster: Cluster, workers: int, size: float, algorithm: Algorithm) -> float:
    """Return the seconds of one all-reduce in which all workers take part alike.

    A step is as slow as its slowest link.
    """
    link = cluster.memory if cluster.host_count(workers) == 1 else cluster.network
    return ALGORITHMS[algorithm](link, workers, size) * cluster.workers_per_core(workers)


def hierarchical_s(cluster: Cluster, workers: int, size: float, algorithm: Algorithm) -> float:
    """Return the seconds of a hierarchical all-reduce.

    It sums within each machine's memory, then between machines, and distributes the result in memory.
    """
    hosts = cluster.host_count(workers)
    here = direct_s(cluster.memory, min(workers, cluster.workers_per_host), size) * cluster.workers_per_core(workers)
    return here + ALGORITHMS[algorithm](cluster.network, hosts, size)


@dataclass(frozen=True)
class AllReduceMeasurement:
    """Measurement of one all-reduce of ``size`` bytes between ``members`` workers."""

    members: int
    size: int
    seconds: float


def fit_link_costs(measured: Sequence[AllReduceMeasurement], per_message_s: float = 0.0) -> LinkCosts:
    """Return the link costs that fit measurements of the ``direct`` all-reduce best.

    The fit is by least squares of relative differences.

    Args:
        measured: the measurements, of at least two sizes.
        per_message_s: cost of each further message of a step, which is not fitted.

    Raises:
        ArgumentError: measurements of fewer than two sizes, through which no line can be fitted.
    """
    if len({one.size for one in measured}) < 2:
        raise ArgumentError(
            "the cost per message and the cost per byte can be separated only with all-reduces of two sizes or more"
        )
    # Each row is (2, 2 (p-1)/p n) . (alpha, beta) = seconds, divided by the seconds.
    rows = [(2 / one.seconds, 2 * (one.members - 1) / one.members * one.size / one.seconds) for one in measured]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = sum(row[0] for row in rows), sum(row[1] for row in rows)
    determinant = aa * bb - ab * ab
    alpha, beta = (bb * a1 - ab * b1) / determinant, (aa * b1 - ab * a1) / determinant
    if alpha < 0:
        alpha, beta = 0.0, b1 / bb
    if beta < 0:
        alpha, beta = a1 / aa, 0.0
    return LinkCosts(alpha, beta, per_message_s)


@dataclass(frozen=True)
class TrainingCost:
    """Cost of a step of one worker by itself.

    Attributes:
        compute_s: seconds of forward pass, backward pass and update on a worker that does not share its cores.
        gradients: bytes of each gradient in float32, in the order of the layers.
        per_gradient_s: cost of each gradient in addition to its bytes, such as an operation of the framework.
        per_byte_s: cost of each byte outside the collective: copies into packs and out of them.
        per_step_s: cost of a step's reduction regardless of its size: workers reach it one after the other.
    """

    compute_s: float
    gradients: tuple[int, ...]
    per_gradient_s: float = 0.0
    per_byte_s: float = 0.0
    per_step_s: float = 0.0


@dataclass(frozen=True)
class StepSettings:
    """Settings for the communication of gradients.

    Attributes:
        algorithm: algorithm of the all-reduce.
        merge_scope: number of gradients in one collective, from the last layer on; None: all. Without effect with
            ``pack_bytes``.
        pack_bytes: size of hopsml's packs: small gradients are merged up to so many bytes, those of 1 MB or more are
            sent separately.
        wire_bytes: bytes of each float32 as it is sent: 4, or 2 with fp16.
        convert_s: seconds per byte of float32 for the conversion to the sent type, and back.
        hierarchical: reduce within each machine first.
        overlapped: send packs as soon as their gradients are ready.
        double_buffering: send the previous step's gradients during this one.
        processor_share: share of the communication that uses the cores on which the worker computes: 0 on GPUs.
    """

    algorithm: Algorithm = "ring"
    merge_scope: int | None = None
    pack_bytes: int | None = None
    wire_bytes: int = 4
    convert_s: float = 0.0
    hierarchical: bool = False
    overlapped: bool = False
    double_buffering: bool = False
    processor_share: float = 0.0


@dataclass(frozen=True)
class StepPrediction:
    """Prediction of a step: seconds of the whole, and of its parts as if they did not overlap."""

    seconds: float
    compute_s: float
    communication_s: float


def group_gradients(gradients: Sequence[int], settings: StepSettings) -> list[list[int]]:
    """Return the positions of the gradients that are sent together, in the order in which they are sent."""
    if settings.pack_bytes is not None:
        return _by_bytes(gradients, settings.pack_bytes)
    backwards = list(reversed(range(len(gradients))))
    scope = settings.merge_scope or max(1, len(gradients))
    return [backwards[begin : begin + scope] for begin in range(0, len(backwards), scope)]


def _by_bytes(gradients: Sequence[int], most: int) -> list[list[int]]:
    small: list[list[int]] = []
    filled = 0
    for position, size in enumerate(gradients):
        if size >= ALONE_BYTES:
            continue
        if not small or filled + size > most:
            small.append([])
            filled = 0
        small[-1].append(position)
        filled += size
    return [*small, *([position] for position, size in enumerate(gradients) if size >= ALONE_BYTES)]


def predict_step(
    training: TrainingCost, cluster: Cluster, workers: int, settings: StepSettings = StepSettings()
) -> StepPrediction:
    """Return the prediction for a step of ``workers`` workers with these settings."""
    load = cluster.workers_per_core(workers)
    compute = training.compute_s * load
    if workers < 2 or not training.gradients:  # nothing is sent
        return StepPrediction(compute, compute, 0.0)
    reduce: Callable[..., float] = hierarchical_s if settings.hierarchical else flat_s
    together = group_gradients(training.gradients, settings)
    seconds = []
    for pack in together:
        size = sum(training.gradients[position] for position in pack)
        outside = len(pack) * training.per_gradient_s + size * (training.per_byte_s + settings.convert_s)
        on_wire = size * settings.wire_bytes / 4
        seconds.append(reduce(cluster, workers, on_wire, settings.algorithm) + outside * load)
    seconds[0] += training.per_step_s
    communication = sum(seconds)
    if settings.double_buffering:
        whole = max(compute + settings.processor_share * communication, communication)
    elif settings.overlapped:
        whole = _overlapped(training.gradients, compute, together, seconds)
    else:
        whole = compute + communication
    return StepPrediction(whole, compute, communication)


def _overlapped(
    gradients: Sequence[int], compute: float, together: Sequence[Sequence[int]], seconds: Sequence[float]
) -> float:
    """Return the end of the last pack, in seconds from the begin of the step.

    A gradient is ready when the backward pass has reached its layer; every layer takes the same time.
    """
    forward = compute * FORWARD_SHARE
    each = (compute - forward) / len(gradients)
    ready = [forward + each * (len(gradients) - position) for position in range(len(gradients))]
    end = 0.0
    for begin, taken in sorted(
        (max(ready[position] for position in pack), taken) for pack, taken in zip(together, seconds, strict=True)
    ):
        end = max(end, begin) + taken
    return max(end, compute)


def efficiency(training: TrainingCost, cluster: Cluster, workers: int, settings: StepSettings) -> float:
    """Return the scaling efficiency: throughput of ``workers`` workers divided by that of ``workers`` single ones.

    A single worker does not share its cores.
    """
    return training.compute_s / predict_step(training, cluster, workers, settings).seconds
