"""Steps that a disturbed training made, read from the files by which its workers synchronised."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopsml.elastic import Sampler
from tests.helpers.cluster.elastic_workload import BATCH, EPOCHS, N_SAMPLES


@dataclass(frozen=True)
class Generation:
    """One formation of the group: the steps that all of its members finished, and the time of the first one."""

    number: int
    world: int
    first: int
    last: int
    began: float  # seconds since the epoch


def generations(folder: Path) -> list[Generation]:
    """Return the generations that finished a step, in order; files are ``<generation>-<step>-<rank>.npy``."""
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


@dataclass(frozen=True)
class Mend:
    """A change in which the chief's process continued: the first step after it, and the members before and after."""

    step: int
    before: int
    after: int

    @property
    def lost(self) -> int:
        """Number of members lost in the change."""
        return max(0, self.before - self.after)


def mends(folder: Path) -> list[Mend]:
    """Return a run's changes in place, in order, from ``pid-<rank>-<generation>``, ``world-<generation>`` and step files."""
    of_chief: dict[int, list[int]] = {}
    for path in folder.glob("[0-9]*-*-0.npy"):
        generation, step, _ = map(int, path.stem.split("-"))
        of_chief.setdefault(generation, []).append(step)
    found = []
    for before, after in itertools.pairwise(sorted(of_chief)):
        pids = [(folder / f"pid-0-{generation}").read_text() for generation in (before, after)]
        worlds = [int((folder / f"world-{generation}").read_text()) for generation in (before, after)]
        if pids[0] == pids[1]:
            found.append(Mend(min(of_chief[after]), *worlds))
    return found


def steps_lost(found: list[Generation]) -> int:
    """Return the largest number of finished steps that one change of generation repeated."""
    changes = itertools.pairwise(found)
    return max((max(0, before.last - after.first + 1) for before, after in changes), default=0)


def recovered_s(found: list[Generation], disturbed: float) -> float | None:
    """Return the seconds from the disturbance to the next step of a complete new generation; None if there was none."""
    later = [one.began for one in found if one.began > disturbed and one.number]
    return round(min(later) - disturbed, 2) if later else None


@dataclass(frozen=True)
class Samples:
    """Numbers of repeated, skipped and given-up samples in the history that the weights come from."""

    repeated: int = 0  # repeated within a step, or used in a wrong one
    skipped: int = 0  # not trained on in their step, for no reason that is allowed
    given_up: int = 0  # shares of lost members in the batches that were running when the others continued

    @property
    def sound(self) -> bool:
        return not self.repeated and not self.skipped


WINDOW = 3  # steps from the first one after a loss, of which at most ``SHORT`` lack the lost share
SHORT = 2


def samples(seen: list[list[int]], changes: Sequence[Mend] = ()) -> Samples:
    """Compare each step with the batch of an undisturbed training.

    A step may lack samples if the others continued in place without a member just before it: at most the lost members'
    shares, and in at most ``SHORT`` steps for each such change.
    """
    repeated = skipped = given_up = 0
    allowed = {change: SHORT for change in changes if change.lost}
    expected = batches()
    for number, (batch, done) in enumerate(zip(expected, seen, strict=False), start=1):
        counts = Counter(done)
        repeated += sum((counts - Counter(batch)).values())
        missing = len((Counter(batch) - counts).keys())
        near = [one for one, left in allowed.items() if left and one.step <= number < one.step + WINDOW]
        if missing and missing <= sum(one.lost * -(-len(batch) // one.before) for one in near):
            allowed |= {one: allowed[one] - 1 for one in near}
            given_up += missing
        else:
            skipped += missing
    skipped += sum(map(len, expected[len(seen) :]))
    repeated += sum(map(len, seen[len(expected) :]))
    return Samples(repeated, skipped, given_up)


def batches() -> list[list[int]]:
    """Return the batches of an undisturbed training, in order."""
    data, found = Sampler(N_SAMPLES, BATCH, seed=3, epochs=EPOCHS), []
    while not data.is_exhausted:
        found.append([int(one) for one in data.next_batch()])
    return found


def weight(seen: list[list[int]]) -> float:
    """Return the weight of a training with these samples, step by step."""
    found = 0.0
    for step in seen:
        found = 0.99 * found + float(np.sum(np.sin(np.sort(step))))
    return found
