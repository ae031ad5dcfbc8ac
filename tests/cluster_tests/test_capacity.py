"""How many slots an application has, where no such cluster can run here: by its settings alone."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.cluster.driver.backends.spark import SparkBackend

pytestmark = pytest.mark.fast


class Settings:
    """What SparkBackend asks of a SparkContext before it starts anything."""

    applicationId = "app-1"
    defaultParallelism = 8

    def __init__(self, master: str, executors: int, **settings: str) -> None:
        self.master = master
        self.settings = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
        self.executors = executors

    def getConf(self) -> Settings:
        return self

    def get(self, key: str, default: str | None = None) -> str | None:
        return self.settings.get(key, default)

    @property
    def _jsc(self) -> Settings:
        return self

    def sc(self) -> Settings:
        return self

    def statusTracker(self) -> Settings:
        return self

    def getExecutorInfos(self) -> list[int]:
        return list(range(self.executors + 1))  # with the driver


DYNAMIC = {"dynamicAllocation_enabled": "true"}


@pytest.mark.parametrize(
    ("master", "settings", "limit", "preferred", "words"),
    [
        ("yarn", {"executor_instances": "3", "executor_cores": "4"}, 12, 12, ["spark.executor.instances=3"]),
        ("yarn", {"executor_instances": "3", "executor_cores": "4", "task_cpus": "2"}, 6, 6, ["spark.task.cpus=2"]),
        ("yarn", {}, 2, 2, ["spark.executor.instances is not set"]),
        (
            "yarn",
            {"executor_instances": "2", "executor_cores": "4", "executor_resource_gpu_amount": "1"},
            2, 2, ["spark.executor.resource.gpu.amount=1", "spark.executor.instances=2"],
        ),
        ("yarn", {**DYNAMIC, "dynamicAllocation_maxExecutors": "5"}, 5, 5, ["dynamicAllocation.maxExecutors=5"]),
        ("yarn", DYNAMIC, None, 3, ["spark.dynamicAllocation.maxExecutors is not set"]),
        ("spark://m:7077", {"cores_max": "6", "executor_cores": "2"}, 6, 6, ["spark.cores.max=6"]),
        ("spark://m:7077", {"executor_cores": "2"}, 6, 6, ["master spark://m:7077"]),
        ("local-cluster[2,3,1024]", {}, 6, 6, ["local-cluster[2,3,1024]"]),
        ("local[*]", {}, 8, 8, ["local[*]"]),
    ],
)  # fmt: skip
def test_slots_follow_from_the_settings(
    master: str, settings: dict[str, str], limit: int | None, preferred: int, words: list[str]
) -> None:
    context: Any = Settings(master, executors=3, **settings)
    capacity = SparkBackend(context).capacity()
    assert (capacity.limit, capacity.preferred) == (limit, preferred)
    for word in words:
        assert word in capacity.setting
