"""Tests of a task's log lines, and its waiting time, during an outage of the service."""

from __future__ import annotations

import pytest

from hopsml.airflow import jobs
from hopsml.airflow.jobs import LIMIT_S, Patience
from hopsml.errors import ClusterUnavailable

pytestmark = pytest.mark.fast


def test_an_outage_is_told_at_both_ends_and_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [100.0], list[str]()
    monkeypatch.setattr(jobs.time, "monotonic", lambda: now[0])
    waiting = Patience(lambda text, *values: said.append(text % values))
    error = ClusterUnavailable("no ResourceManager answers")
    for _ in range(2):
        for _ in range(100):
            now[0] += 5.0
            waiting.away(error)
        waiting.answered()
        waiting.answered()
    assert said == ["no ResourceManager answers; asking again, for up to 900 s", "it answers again, after 500 s"] * 2
    now[0] += LIMIT_S
    waiting.away(error)
    now[0] += 1.0
    with pytest.raises(ClusterUnavailable):
        waiting.away(error)
