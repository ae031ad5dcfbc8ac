"""How long a training step takes with N workers, from the step of one, its gradients and what messages cost; pure.

A step is forward, backward, reduction, update. Its communication is the sum of its collectives' (``costs``), one after
another, of packs that are merged as the settings say. Where it begins once all gradients are there, it is added to the
computation. Where the packs of the last layers travel while the first ones' gradients are still computed, only what is not
over when they are done is added. With double buffering the previous step's gradients travel during this one: the step
takes the longer of the two, and what communication takes of the worker's own cores in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hopsml.tuning import costs
from hopsml.tuning.costs import Algorithm, Cluster

ALONE_BYTES: Final = 1 << 20  # from here on hopsml's collective sends a tensor by itself
PACK_BYTES: Final = 4 << 20
FORWARD_SHARE: Final = 1 / 3  # of a step's computation: a backward pass is two products of matrices for each of its one


@dataclass(frozen=True)
class Training:
    """What one worker does in a step by itself.

    Attributes:
        compute_s: seconds of forward, backward and update on a worker that has its cores for itself.
        gradients: bytes of each gradient in float32, in the order of the layers.
        per_gradient_s: what each of them costs beside its bytes, such as an operation of the framework's.
        per_step_s: what a step's reduction costs however little it reduces: workers come to it one after the other.
        per_byte_s: what each byte costs outside of the collective: copies into packs and out of them.
    """

    compute_s: float
    gradients: tuple[int, ...]
    per_gradient_s: float = 0.0
    per_byte_s: float = 0.0
    per_step_s: float = 0.0


@dataclass(frozen=True)
class StepSettings:
    """How gradients travel.

    Attributes:
        merge_scope: gradients in one collective, from the last layer on; None: all. Without effect with ``pack_bytes``.
        pack_bytes: hopsml's packs: small gradients together up to so many bytes, those of 1 MB or more by themselves.
        wire_bytes: of each float32 as it is sent: 4, or 2 with fp16.
        convert_s: seconds that a worker takes to make a byte of float32 the wire's, and back.
        hierarchical: within each machine first.
        overlapped: packs travel as soon as their gradients are there.
        double_buffering: the previous step's gradients travel during this one.
        processor_share: of the communication, what needs the cores on which the worker computes: 0 on GPUs.
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
    """The prediction: seconds of a whole step, and of its parts as if nothing were hidden."""

    seconds: float
    compute_s: float
    communication_s: float


def packs(gradients: Sequence[int], settings: StepSettings) -> list[list[int]]:
    """Positions of the gradients that travel together, in the order in which they are sent."""
    if settings.pack_bytes is not None:
        return _by_bytes(gradients, settings.pack_bytes)
    backwards = list(reversed(range(len(gradients))))
    scope = settings.merge_scope or len(gradients)
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
    """The step of ``workers`` workers with these settings."""
    load = cluster.load(workers)
    compute = training.compute_s * load
    if workers < 2:
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
    """The end of the last pack; a gradient is there when as much of the backward pass is done as layers lie behind it."""
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
    """The examples a second of ``workers`` workers over so many times those of one that has its cores for itself."""
    return training.compute_s / step(training, cluster, workers, settings).seconds
