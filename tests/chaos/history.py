"""What a training that was disturbed did, step by step: read from the files by which its workers kept in step."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.elastic_workload import BATCH, EPOCHS, N_SAMPLES


@dataclass(frozen=True)
class Generation:
    """One formation of the group: the steps that all of its members finished, and when the first one was."""

    number: int
    world: int
    first: int
    last: int
    began: float  # seconds since the epoch


def generations(folder: Path) -> list[Generation]:
    """Those that finished a step, in order; files are ``<generation>-<step>-<rank>.npy``."""
    shares: dict[tuple[int, int], dict[int, float]] = {}
    for path in folder.glob("[0-9]*-*-*.npy"):
        generation, step, rank = map(int, path.stem.split("-"))
        shares.setdefault((generation, step), {})[rank] = path.stat().st_mtime
    worlds = {number: max(len(found) for (g, _), found in shares.items() if g == number) for number, _ in shares}
    found = []
    for number, world in sorted(worlds.items()):
        steps = sorted(step for (g, step), ranks in shares.items() if g == number and len(ranks) == world)
        if steps:
            found.append(Generation(number, world, steps[0], steps[-1], max(shares[number, steps[0]].values())))
    return found


def steps_lost(found: list[Generation]) -> int:
    """Steps that were done and had to be done again, at worst, by one change of generation."""
    changes = itertools.pairwise(found)
    return max((max(0, before.last - after.first + 1) for before, after in changes), default=0)


def recovered_s(found: list[Generation], disturbed: float) -> float | None:
    """From the disturbance to the next step that all members of a new generation finished; None where none began."""
    later = [one.began for one in found if one.began > disturbed and one.number]
    return round(min(later) - disturbed, 2) if later else None


def repeated_and_skipped(seen: list[list[int]]) -> tuple[int, int]:
    """Samples that were seen more than once in an epoch, and those that were not seen, along the final history."""
    per_epoch, repeated, skipped = -(-N_SAMPLES // BATCH), 0, 0
    for epoch in range(EPOCHS):
        counts: Counter[Any] = Counter(
            one for step in seen[epoch * per_epoch : (epoch + 1) * per_epoch] for one in step
        )
        repeated += sum(count - 1 for count in counts.values())
        skipped += N_SAMPLES - len(counts)
    return repeated, skipped
