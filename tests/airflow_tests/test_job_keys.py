"""Tests that a key of a job's description without effect is named."""

from __future__ import annotations

import pytest

from hopsml.airflow.jobs import without_effect

pytestmark = pytest.mark.fast


def test_keys_that_mean_nothing_are_named_with_what_to_do_instead() -> None:
    known = {
        "appPath": "/jobs/train.py",
        "args": "--x 1",
        "profile": "yarn",
        "appName": "n",
        "spark.executor.memory": "1g",
    }
    assert without_effect(known, "train") == []
    strange = {"distributionStrategy": "COLLECTIVE_ALL_REDUCE", "spark.tensorflow.num.ps": 1, "amMemory": 2048}
    first, second, third = without_effect({**known, **strange}, "train")
    assert first.startswith(
        "job 'train': distributionStrategy='COLLECTIVE_ALL_REDUCE' has no effect: the script says which"
    )
    assert "spark.tensorflow.num.ps=1 has no effect" in second
    assert third.endswith("amMemory=2048 has no effect: give spark.driver.memory")
