"""Tests of the detection of growth: a continued rise with the work, not one step, a temporary rise or noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from tests.soak.growth import Tolerance, growth

pytestmark = pytest.mark.fast

MEMORY = Tolerance(each=2_000.0, altogether=200_000.0)  # bytes a job, bytes
COUNT = Tolerance(each=0.01, altogether=1.0)  # descriptors
JOBS = [10.0 * number for number in range(60)]
_noise = random.Random(7)


def series(of: Callable[[float], float], noise: float = 0.0) -> list[float]:
    return [of(done) + noise * _noise.gauss(0, 1) for done in JOBS]


@pytest.mark.parametrize(
    ("values", "tolerance"),
    [
        (series(lambda done: 50e6 + 42_000 * done), MEMORY),
        (series(lambda done: 50e6 + 42_000 * done, noise=500_000), MEMORY),
        (series(lambda done: 50e6 + 3_000 * done, noise=50_000), MEMORY),
        (series(lambda done: 40 + done // 10), COUNT),
        (series(lambda done: 40 + done // 50), COUNT),
        (series(lambda done: 50e6 + 42_000 * done + 1e6 * math.sin(done)), MEMORY),
        (series(lambda done: 1e6 * min(done, 100) + 42_000 * done), MEMORY),
    ],
    ids=["steady", "noisy", "slow", "one per round", "one per five rounds", "waves", "after warm-up"],
)
def test_series_that_rises_with_the_work_grows(values: list[float], tolerance: Tolerance) -> None:
    assert growth(JOBS, values, tolerance) is not None


@pytest.mark.parametrize(
    ("values", "tolerance"),
    [
        (series(lambda done: 50e6), MEMORY),
        (series(lambda done: 50e6, noise=2e6), MEMORY),
        (series(lambda done: 50e6 + 1_000 * done), MEMORY),
        (series(lambda done: 50e6 + 42_000 * min(done, 150)), MEMORY),
        (series(lambda done: 50e6 + (20e6 if done > 400 else 0)), MEMORY),
        (series(lambda done: 50e6 + 10e6 * (done % 100) / 100), MEMORY),
        (series(lambda done: 80e6 - 42_000 * done), MEMORY),
        (series(lambda done: 40 + done % 3), COUNT),
        (series(lambda done: 40 + (done > 300)), COUNT),
        (series(lambda done: 40 + (done in (300, 310))), COUNT),
    ],
    ids=[
        "flat",
        "noise",
        "tolerated",
        "warm-up",
        "step",
        "sawtooth",
        "falling",
        "oscillating",
        "one more",
        "temporary",
    ],
)
def test_series_that_stops_rising_does_not_grow(values: list[float], tolerance: Tolerance) -> None:
    assert growth(JOBS, values, tolerance) is None


def test_slope_is_per_unit_of_work() -> None:
    found = growth(JOBS, series(lambda done: 7e6 + 42_000 * done), MEMORY)
    assert found is not None and found.each == pytest.approx(42_000)
    assert found.altogether == pytest.approx(42_000 * 200)


def test_few_samples_or_no_work_give_no_decision() -> None:
    assert growth(JOBS[:7], [42_000.0 * done for done in JOBS[:7]], MEMORY) is None
    assert growth([5.0] * 60, [1e6 * number for number in range(60)], MEMORY) is None
    assert growth([], [], MEMORY) is None
