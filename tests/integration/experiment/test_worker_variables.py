"""Tests of the variables that every worker has, such as those of torch.distributed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import EnvironmentConflict
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit

pytestmark = pytest.mark.local
NAMES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")


def test_every_worker_has_rank_world_size_and_master_variables(store: Path, tmp_path: Path) -> None:
    def train() -> None:
        import os

        found = {name: os.environ[name] for name in (*NAMES, "TF_CONFIG")}
        (tmp_path / os.environ["RANK"]).write_text(json.dumps(found))

    submit(train, 3).result(END_S)
    found: list[dict[str, Any]] = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    chief = json.loads(found[0]["TF_CONFIG"])["cluster"]["chief"][0]
    for rank, variables in enumerate(found):
        assert [variables[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == [str(rank), "3", str(rank)]
        assert f"{variables['MASTER_ADDR']}:{variables['MASTER_PORT']}" == chief


def test_trial_has_world_size_1_and_rank_0(store: Path) -> None:
    def train(x: int) -> int:
        import os

        return int(os.environ["WORLD_SIZE"]) * 10 + int(os.environ["RANK"])

    found = experiment.search(train, experiment.Searchspace(x=("DISCRETE", [0, 1, 2])), searcher="grid", progress=False)
    assert list(found.trials["value"]) == [10, 10, 10]


def test_user_variables_that_conflict_are_refused_or_honoured(store: Path) -> None:
    def train() -> list[str]:
        import os

        return [os.environ["MASTER_PORT"], os.environ["TF_CONFIG"], os.environ["WORLD_SIZE"]]

    given = {"MASTER_PORT": "29500", "TF_CONFIG": "{}"}
    with pytest.raises(EnvironmentConflict, match="TF_CONFIG is already set"):
        submit(train, environment=given)
    with pytest.raises(EnvironmentConflict, match="MASTER_PORT is already set"):
        submit(train, environment={"MASTER_PORT": "29500"})
    assert submit(train, environment=given, honour_environment=True).result(END_S).value == ["29500", "{}", "2"]
