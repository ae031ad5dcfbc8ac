"""Tests of resource profiles for agents; test_drivers.py and test_role_gpus.py run them on Spark."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.cluster.driver.backends.spark_executors import ResourceProfiles

pytestmark = pytest.mark.fast

GPUS = {"spark.executor.resource.gpu.amount": "2", "spark.executor.cores": "4", "spark.task.cpus": "2"}
OF_TASKS = {"spark.task.resource.gpu.amount": "1"}
DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}
SCRIPT = {"spark.executor.resource.gpu.discoveryScript": "./discover_gpus.py"}


def profiles(**settings: str) -> ResourceProfiles:
    return ResourceProfiles(None, settings.get)


def amounts(profile: Any) -> tuple[dict[str, float], dict[str, int]] | None:
    """Return the amounts of a task, and those requested of executors."""
    if profile is None:
        return None
    of_task = {name: request.amount for name, request in profile.taskResources.items()}
    return of_task, {name: request.amount for name, request in profile.executorResources.items()}


@pytest.mark.parametrize(
    ("settings", "with_gpu", "bare"),
    [
        ({}, None, None),
        (GPUS, ({"cpus": 2.0, "gpu": 1.0}, {}), None),
        (GPUS | OF_TASKS, None, ({"cpus": 2.0}, {})),
        (GPUS | DYNAMIC, ({"cpus": 2.0, "gpu": 1.0}, {"cores": 4, "gpu": 2}), ({"cpus": 2.0}, {"cores": 4})),
        (GPUS | OF_TASKS | DYNAMIC, None, ({"cpus": 2.0}, {"cores": 4})),
    ],
)
def test_resource_profile_of_each_kind_follows_from_the_spark_settings(
    settings: dict[str, str], with_gpu: Any, bare: Any
) -> None:
    found = profiles(**settings)
    assert (amounts(found.profile_for(bare=False)), amounts(found.profile_for(bare=True))) == (with_gpu, bare)


def test_profile_has_the_gpu_discovery_script_of_the_application() -> None:
    found = profiles(**GPUS, **DYNAMIC, **SCRIPT).profile_for(bare=False)
    assert found.executorResources["gpu"].discoveryScript == "./discover_gpus.py"


def test_profile_is_created_once_per_kind() -> None:
    found = profiles(**GPUS, **DYNAMIC)
    assert found.profile_for(bare=False) is found.profile_for(bare=False)
    assert found.profile_for(bare=True) is found.profile_for(bare=True) is not found.profile_for(bare=False)
