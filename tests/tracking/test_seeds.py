"""Tests of the run's seed: given, inherited or drawn, and errors for invalid ones."""

from __future__ import annotations

import pytest

from hopsml import tracking
from hopsml.errors import ArgumentError
from hopsml.tracking import seeds

pytestmark = pytest.mark.fast


def test_the_call_wins_over_the_environment() -> None:
    assert seeds.choose({"HOPSML_SEED": "7"}, {"HOPSML_SEED": "8"}) == 7
    assert seeds.choose({}, {"HOPSML_SEED": "8"}) == 8


def test_a_drawn_seed_is_another_each_time() -> None:
    drawn = {seeds.choose({}, {}) for _ in range(20)}
    assert len(drawn) > 15
    assert all(0 <= seed <= seeds.LARGEST for seed in drawn)


@pytest.mark.parametrize("text", ["-1", "1.5", "abc", str(2**32), "²", " 1"])
def test_what_is_no_seed_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"HOPSML_SEED=.*whole number from 0 to 4294967295"):
        seeds.choose({"HOPSML_SEED": text}, {})


def test_a_program_without_a_run_has_seed_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOPSML_SEED", raising=False)
    assert tracking.seed() == 0
    monkeypatch.setenv("HOPSML_SEED", "12")
    assert tracking.seed() == 12
