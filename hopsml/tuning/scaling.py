"""Prediction of the duration of a training step with N workers; no side effects.

It is computed from the step of one worker, its gradients and the cost of messages. A step is forward pass, backward
pass, reduction, update. Its communication is the sum of its collectives (``costs``), one after another, of packs that
are merged as the settings define. Where communication begins once all gradients are ready, it is added to the
computation. Where the packs of the last layers are sent while the first layers' gradients are still computed, only the
remaining part is added. With double buffering the previous step's gradients are sent during this one: the step takes
the longer of the two, plus the share of communication that uses the worker's own cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hopsml.tuning import costs
from hopsml.tuning.costs import Algorithm, Cluster

ALONE_BYTES: Final = 1 << 20  # hopsml's collective sends a tensor of this size or more separately
PACK_BYTES: Final = 4 << 20
FORWARD_SHARE: Final = 1 / 3  # of a step's computation: a backward pass needs twice the matrix products


@dataclass(frozen=True)
class Training:
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
class Step:
    """Prediction of a step: seconds of the whole, and of its parts as if they did not overlap."""

    seconds: float
    compute_s: float
    communication_s: float


def packs(gradients: Sequence[int], settings: StepSettings) -> list[list[int]]:
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


def step(training: Training, cluster: Cluster, workers: int, settings: StepSettings = StepSettings()) -> Step:
    """Return the prediction for a step of ``workers`` workers with these settings."""
    load = cluster.load(workers)
    compute = training.compute_s * load
    if workers < 2 or not training.gradients:  # nothing is sent
        return Step(compute, compute, 0.0)
    reduce: Callable[..., float] = costs.hierarchical if settings.hierarchical else costs.flat
    together = packs(training.gradients, settings)
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
    return Step(whole, compute, communication)


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


def efficiency(training: Training, cluster: Cluster, workers: int, settings: StepSettings) -> float:
    """Return the scaling efficiency: throughput of ``workers`` workers divided by that of ``workers`` single ones.

    A single worker does not share its cores.
    """
    return training.compute_s / step(training, cluster, workers, settings).seconds
