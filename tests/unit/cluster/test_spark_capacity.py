"""Tests of the number of slots of an application, by its settings, for clusters that cannot run here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hopsml.cluster.driver.backends.base import Capacity
from hopsml.cluster.driver.backends.spark import SparkBackend
from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, FixedGroup, RunSpec
from hopsml.errors import NotEnoughSlots
from hopsml.experiment import plan

pytestmark = pytest.mark.fast


class Settings:
    """The part of a SparkContext that SparkBackend reads before it starts anything."""

    applicationId = "app-1"
    defaultParallelism = 8
    _jvm = None  # Spark's messages about executors are not collected then

    def __init__(self, master: str, executors: int, **settings: str) -> None:
        self.master = master
        self.settings = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
        self.executors = executors
        self.refuses = ""  # Spark's error about resource profiles

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

    def resourceProfileManager(self) -> Settings:
        return self

    def isSupported(self, profile: Any) -> bool:
        if self.refuses:
            raise RuntimeError(self.refuses)
        return True

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
def test_number_of_slots_follows_from_the_spark_settings(
    master: str, settings: dict[str, str], limit: int | None, preferred: int, words: list[str]
) -> None:
    context: Any = Settings(master, executors=3, **settings)
    capacity = SparkBackend(context).capacity()
    assert (capacity.limit, capacity.preferred) == (limit, preferred)
    for word in words:
        assert word in capacity.setting


@pytest.mark.parametrize(
    ("group", "requested"),
    [(FixedGroup(size=5), "num_workers=5"), (ElasticGroup(size=8, min_size=5), "min_workers=5")],
)
@pytest.mark.parametrize(
    ("master", "settings", "remedy"),
    [
        ("local-cluster[2,2,1024]", {}, "use a larger master than local-cluster[2,2,1024]"),
        ("local[4]", {"executor_instances": "1"}, "use a larger master than local[4]"),
        ("yarn", {"executor_instances": "2"}, "raise spark.executor.instances or spark.executor.cores"),
        (
            "yarn",
            {**DYNAMIC, "dynamicAllocation_maxExecutors": "3"},
            "raise spark.dynamicAllocation.maxExecutors above 3",
        ),
        ("spark://m:7077", {"cores_max": "4", "executor_cores": "1"}, "raise spark.cores.max"),
        ("spark://m:7077", {"executor_cores": "1"}, "add workers to the standalone cluster"),
    ],
)
def test_too_few_slots_name_the_argument_and_how_to_get_more(
    group: AnyGroup, requested: str, master: str, settings: dict[str, str], remedy: str
) -> None:
    context: Any = Settings(master, executors=3, **settings)
    context.defaultParallelism = 4
    application: Any = SimpleNamespace(backend=SparkBackend(context))
    with pytest.raises(NotEnoughSlots) as caught:
        plan._group(RunSpec(group=group), application)
    text = str(caught.value)
    assert text.startswith(f"{requested}, but this cluster has at most ") and "spark.task.cpus=1" in text
    assert text.endswith(f"; request fewer workers, or {remedy} before the application starts")


GPU = {"executor_resource_gpu_amount": "1", "executor_cores": "3"}


@pytest.mark.parametrize(
    ("master", "settings", "bare", "together"),
    [
        ("yarn", {"executor_instances": "2", **GPU}, 6, 6),  # on the executors of the others
        ("yarn", {"executor_instances": "2", **GPU, "task_resource_gpu_amount": "1"}, 6, 6),
        ("yarn", {"executor_instances": "2", **GPU, "task_cpus": "3"}, 2, 2),
        ("yarn", {"executor_instances": "2", "executor_cores": "3"}, 0, None),  # no GPUs: all are alike
        ("yarn", {**DYNAMIC, **GPU, "dynamicAllocation_maxExecutors": "5"}, 15, None),  # on separate executors
        ("yarn", {**DYNAMIC, **GPU}, None, None),
        ("yarn", DYNAMIC, 0, None),
    ],
)
def test_number_of_bare_agents_follows_from_the_spark_settings(
    master: str, settings: dict[str, str], bare: int | None, together: int | None
) -> None:
    context: Any = Settings(master, executors=3, **settings)
    capacity = SparkBackend(context).capacity()
    assert (capacity.bare, capacity.together, capacity.alike) == (bare, together, "")


@pytest.mark.parametrize("settings", [{"task_resource_gpu_amount": "1", "executor_instances": "2"}, DYNAMIC])
def test_all_agents_are_alike_if_spark_refuses_a_second_profile(settings: dict[str, str]) -> None:
    context: Any = Settings("yarn", executors=3, **GPU, **settings)
    context.refuses = "TaskResourceProfiles are only supported for Standalone"
    capacity = SparkBackend(context).capacity()
    assert (capacity.bare, capacity.together, capacity.alike) == (0, None, context.refuses)


@pytest.mark.parametrize(
    ("size", "bare", "words"),
    [
        (3, 1, ""),
        (4, 2, ""),
        (4, 1, "3 of them need a GPU, and this cluster has at most 2 slots with one"),
        (5, 3, "this cluster has at most 4 slots"),
        (3, 0, "this cluster has at most 2 slots"),
    ],
)
def test_lack_of_slots_for_both_kinds_is_explained(size: int, bare: int, words: str) -> None:
    assert Capacity(2, "", 2, bare=4, together=4).why_too_small(size, bare) == words


def test_each_kind_has_its_own_limit_on_separate_executors() -> None:
    capacity = Capacity(2, "", 2, bare=1)
    assert capacity.why_too_small(3, 1) == ""
    assert capacity.why_too_small(4, 2) == "2 of them need no GPU, and this cluster has at most 1 slots without one"
    assert Capacity(None, "", 2, bare=None).why_too_small(40, 20) == ""


def test_all_slots_are_one_worker_per_gpu_plus_the_bare_agents() -> None:
    assert Capacity(2, "", 2, bare=6, together=6).default_agents(1) == 3
    assert Capacity(2, "", 2, bare=2, together=2).default_agents(1) == 2  # an executor has a single core
