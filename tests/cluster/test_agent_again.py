"""An agent that was cut off: when Spark is asked for another one, and how long that tries to be let in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from hopsml.cluster.agent import agent as agents
from hopsml.cluster.agent.agent import Agent, Bootstrap
from hopsml.cluster.driver.backends.spark import most_failures

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("master", "settings", "most"),
    [
        ("yarn", {}, 4),
        ("local-cluster[2,1,1024]", {"spark.task.maxFailures": "2"}, 2),
        ("spark://there:7077", {"spark.task.maxFailures": "1"}, 1),
        ("yarn", {"spark.excludeOnFailure.enabled": "true"}, 1),
        ("local", {"spark.task.maxFailures": "8"}, 1),
        ("local[*]", {"spark.task.maxFailures": "8"}, 1),
        ("local[4, 3]", {}, 3),
        ("local[*,2]", {}, 2),
    ],
)
def test_a_task_may_fail_as_often_as_spark_allows_before_it_ends_all_others(
    master: str, settings: Mapping[str, str], most: int
) -> None:
    assert most_failures(master, lambda key, default: settings.get(key, default)) == most


def agent(patience_s: float) -> Agent:
    return Agent(Bootstrap(1, (), "", "", (), 10.0, ()), 0, "", (), Path("/nowhere"), patience_s=patience_s)


def test_one_that_replaces_another_waits_until_the_coordinator_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    async def refused_twice(self: Agent) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("no address of the coordinator answers")
        return "connected"

    monkeypatch.setattr(Agent, "_connect_now", refused_twice)
    monkeypatch.setattr(agents, "AGAIN_PAUSE_S", 0.001)
    assert asyncio.run(agent(patience_s=60.0)._connect()) == "connected"  # type: ignore[comparison-overlap]
    tries.clear()
    with pytest.raises(ConnectionError):
        asyncio.run(agent(patience_s=0.0)._connect())
    assert len(tries) == 1
