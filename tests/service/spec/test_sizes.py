"""Tests of the resources that a job takes of a cluster."""

from __future__ import annotations

import pytest

from hopsml.service import spec
from hopsml.service.spec import sizes
from tests.service.spec.examples import SMALL, WHOLE

pytestmark = pytest.mark.fast


def test_drivers_count() -> None:
    job = spec.loads(WHOLE)
    driver = 1024 + 384
    assert sizes.fewest(job) == sizes.Size(3, 2 * 4 + 1 + 2, 2, 2 * 16384 + 4096 + 2 * driver)
    assert sizes.most(job) == sizes.Size(9, 8 * 4 + 1 + 2, 8, 8 * 16384 + 4096 + 2 * driver)
    assert sizes.driver(10_000) == sizes.Size(0, 1, 0, 11_000)


def test_a_line_for_people() -> None:
    assert spec.summary(spec.loads(WHOLE)) == (
        "digits: 2 tasks (train 2 to 8, evaluate 1), 3 to 9 slots, 2 to 8 GPUs, 11 to 35 cores and 38.8 to 134.8 GiB with 2 "
        "drivers"
    )
    assert spec.summary(spec.loads(SMALL)) == (
        "small: 1 task (train 1), 1 slot, 0 GPUs, 2 cores and 2.4 GiB with its driver"
    )
