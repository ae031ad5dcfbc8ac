"""Tests of the predecessor's small helpers."""

from __future__ import annotations

from pathlib import Path

import pytest

import hopsml.util as util
from hopsml.cluster.worker import context
from hopsml.cluster.worker.context import WorkerContext
from hopsml.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.fast


def test_grid_params_is_the_product() -> None:
    grid = util.grid_params({"lr": [0.1, 0.2], "batch": [32, 64, 128]})
    assert grid == {"lr": [0.1, 0.1, 0.1, 0.2, 0.2, 0.2], "batch": [32, 64, 128, 32, 64, 128]}


def test_grid_params_accepts_a_session_and_any_sequence() -> None:
    session = object()
    assert util.grid_params(session, {"a": (1, 2)}) == {"a": [1, 2]}
    assert util.grid_params({"a": range(2), "b": ["x"]}) == {"a": [0, 1], "b": ["x", "x"]}
    assert util.grid_params({}) == {}


@pytest.mark.parametrize("arguments", [(), ([1],), ({"a": [1]}, {"a": [1]}, {}), ({"a": "abc"},), ({"a": 3},)])
def test_grid_params_refuses_other_arguments(arguments: tuple[object, ...]) -> None:
    with pytest.raises(ArgumentTypeError, match="grid_params"):
        util.grid_params(*arguments)


def test_grid_params_refuses_an_empty_list() -> None:
    with pytest.raises(ArgumentError, match="'a' has no values"):
        util.grid_params({"a": []})


def test_num_param_servers_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUM_TF_PS", raising=False)
    assert util.num_param_servers() == 0
    monkeypatch.setenv("NUM_TF_PS", "2")
    assert util.num_param_servers(object()) == 2
    monkeypatch.setenv("NUM_TF_PS", "two")
    with pytest.raises(ArgumentError, match="NUM_TF_PS='two'"):
        util.num_param_servers()


def test_num_executors_is_the_group_size_in_a_worker_and_one_without_spark() -> None:
    assert util.num_executors(object()) == 1
    here = Path()
    context.set_current(WorkerContext("r", 0, 0, 7, 0, "chief", "file:///r", here, here, here, here))
    try:
        assert util.num_executors() == 7
    finally:
        context.set_current(None)


@pytest.mark.parametrize(
    ("conf", "master", "limit"),
    [
        ({}, "local-cluster[2, 1, 1024]", 2),
        ({"spark.executor.instances": "3"}, "yarn", 3),
        ({"spark.executor.instances": "3", "spark.dynamicAllocation.maxExecutors": "9"}, "yarn", 3),
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "9"}, "yarn", 9),
        ({"spark.dynamicAllocation.enabled": "true", "spark.executor.instances": "3"}, "yarn", None),
        ({}, "spark://host:7077", None),
        ({}, "local[4]", None),
    ],
)
def test_executor_limit_follows_from_the_spark_settings(conf: dict[str, str], master: str, limit: int | None) -> None:
    assert util.executor_limit(conf, master) == limit
