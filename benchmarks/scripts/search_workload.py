"""Workload of the searches, the same for every candidate: trials that sleep, as no other work is as uniform.

sixteen   16 trials of 0.3 to 2 s, 18 s in all; on two executors, in this order, at least 9.5 s
short     trials of 0.05 s
asha      64 trials of up to 27 steps, a step of 0.01 to 0.06 s by the trial; a trial's quality shows at its first step
"""

from __future__ import annotations

import heapq
import random

SIXTEEN = (1.3, 1.6, 1.9, 0.8, 1.5, 0.4, 1.9, 1.1, 0.6, 0.7, 1.2, 2.0, 0.9, 0.3, 0.5, 1.3)
SHORT_S = 0.05
ASHA_TRIALS, MAX_STEP, FACTOR = 64, 27, 3


def least_s(durations: tuple[float, ...], places: int) -> float:
    """Return the shortest time of all trials in order, if each free executor starts the next one at once."""
    free = [0.0] * places
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def asha_trials() -> list[dict[str, float]]:
    """Return quality and seconds per step of each trial; the same on every machine."""
    draw = random.Random(20261121)
    return [
        {"quality": round(draw.random(), 4), "step_s": round(draw.uniform(0.01, 0.06), 4)} for _ in range(ASHA_TRIALS)
    ]


def value_at(step: int, quality: float) -> float:
    """Return the value of a learning curve at a step: better trials are better from the beginning."""
    return quality * (1.0 - 0.5 ** (0.2 * step))
