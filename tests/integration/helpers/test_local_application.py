"""Test of the application that the tests of a file share."""

from __future__ import annotations

import pytest

from hopsml import experiment
from hopsml.experiment import applications
from tests.helpers import local_application
from tests.helpers.clock import END_S, wait_until

pytestmark = pytest.mark.local


def run_on_two_agents() -> None:
    experiment.distributed(lambda: None, num_workers=2, progress=False, keep_warm=60.0)


application = local_application.warm_application(run_on_two_agents, autouse=True)


def agents() -> int:
    return len(applications.get_or_start(keep_warm_s=60.0).coordinator.door.agents)


@pytest.mark.parametrize("test", ["first", "second"])
def test_agents_that_have_ended_are_started_again_before_a_test(test: str) -> None:
    """Else those that the second test starts would count as left behind by it."""
    assert agents() == 2
    applications.get_or_start(keep_warm_s=60.0).coordinator.dismiss_idle("the machine was slow")
    wait_until(lambda: agents() == 0, "the end of the agents", END_S)
