"""Tests of ``hopsml.tensorflow.TrainingLoop`` on the local backend: one loop, five algorithms by name."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml import experiment
from tests.helpers.local_application import warm_application
from tests.helpers.training import loop_workload

pytestmark = [pytest.mark.tensorflow]
QUIET: dict[str, Any] = {"progress": False, "keep_warm": 120.0}


application = warm_application(
    lambda: experiment.parameter_server(loop_workload.train, args={"algorithms": []}, num_workers=2, num_ps=1, **QUIET),
    autouse=True,
)


@pytest.mark.variant  # of training/averaging.py, each by itself
def test_every_algorithm_trains_equal_models_by_name() -> None:
    names = ["sync_sgd", "local_sgd", "block_momentum", "elastic_averaging"]
    args = {"algorithms": names}
    result = experiment.collective_all_reduce(loop_workload.train, args=args, num_workers=2, **QUIET)
    assert list(result.value) == names
    for name, found in result.value.items():
        assert found["accuracy"] > 0.85, (name, found)
        assert found["alike"], f"{name}: the workers end with different models"
        assert found["logs"]["loss"] > 0


@pytest.mark.variant  # of test_parameter_server
def test_async_sgd_trains_with_parameter_servers() -> None:
    args = {"algorithms": ["async_sgd"]}
    result = experiment.parameter_server(loop_workload.train, args=args, num_workers=2, num_ps=1, **QUIET)
    found = result.value["async_sgd"]
    assert found["logs"]["steps"] == 240, "120 of each worker"
    assert found["accuracy"] > 0.85


def test_algorithm_unsupported_by_the_run_is_refused() -> None:
    def train() -> list[str]:
        return [loop_workload.refused("async_sgd"), loop_workload.refused("local_sgd", evry=3)]

    of_servers, setting = experiment.collective_all_reduce(train, num_workers=1, **QUIET).value
    assert (
        "algorithm='async_sgd' cannot train in this run; start the function by experiment.parameter_server"
        in of_servers
    )
    assert "evry: not a setting of algorithm='local_sgd'; it has every" in setting
    changing = experiment.collective_all_reduce(
        lambda: loop_workload.refused("elastic_averaging"), min_workers=1, max_workers=1, **QUIET
    ).value
    assert "in a group that may change" in changing and "num_workers=" in changing


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("local_sgd", {}),
    ("elastic_averaging", {}),
    ("block_momentum", {"momentum": 0.5}),
    ("block_momentum", {"momentum": 0.5, "nesterov": False}),
    ("sync_sgd", {}),
]


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(KINDS[:2], id="local_sgd and elastic_averaging"),
        pytest.param(KINDS[2:], id="block_momentum and sync_sgd", marks=pytest.mark.variant),
    ],
)
def test_several_calls_of_run_train_as_one_call(kinds: list[tuple[str, dict[str, Any]]]) -> None:
    """A call may end within a block; weights changed by the user between two calls are the start of the next one."""

    def train() -> list[dict[str, Any]]:
        calls = [[16], [8, 8], [4] * 4, [6, 10], [3, 2, 11]]
        found = []
        for name, settings in kinds:
            settings = settings if name == "sync_sgd" else {"every": 4, **settings}
            found.append(loop_workload.in_pieces(name, settings, calls))
            found[-1]["set"] = loop_workload.in_pieces(name, settings, [[8], [6, 8]], changed=True)["weights"]
        return found

    for (name, _), found in zip(
        kinds, experiment.collective_all_reduce(train, num_workers=2, **QUIET).value, strict=True
    ):
        first, *others = found["weights"]
        assert others == [pytest.approx(first)] * len(others), name
        undisturbed, after_change = found["set"]
        assert after_change == pytest.approx(undisturbed), f"{name}: begins anew with the weights that were set"
