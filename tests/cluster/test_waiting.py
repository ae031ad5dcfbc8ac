"""What people read of a run that has not begun."""

from __future__ import annotations

import pytest

from hopsml.cluster.driver.active_run import ActiveRun
from hopsml.cluster.driver.formation import RunRequest
from hopsml.cluster.driver.run_state import RunState
from hopsml.cluster.driver.waiting import why_missing
from hopsml.cluster.gang.gang import Conclude, Phase
from hopsml.cluster.gang.gang_for import gang_for
from hopsml.cluster.gang.pool import Pool
from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, FixedGroup, RunSpec
from tests.cluster.simulated import SimulatedBackend

pytestmark = pytest.mark.fast


def waiting(group: AnyGroup) -> ActiveRun:
    request = RunRequest("run", RunSpec(group=group), payload=b"", run_url="file:///nowhere")
    return ActiveRun(request, gang_for(group), RunState("run", group.size))


@pytest.mark.parametrize(("group", "wanted"), [(FixedGroup(size=2), 2), (ElasticGroup(size=4, min_size=3), 3)])
def test_where_nothing_is_known_of_the_agents_that_are_missing_that_is_said(group: AnyGroup, wanted: int) -> None:
    outcome, backend = Conclude(Phase.FAILED, "start"), SimulatedBackend(2)
    text = why_missing(waiting(group), outcome, Pool(), backend, ())
    assert text.startswith(f"0 of {wanted} agents are connected; those that were asked for have ended")
    assert why_missing(waiting(group), outcome, Pool(), backend, ("other",)).endswith("connected; other holds some")
