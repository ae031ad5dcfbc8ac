"""Tests of a search's page data, from its event log."""

from __future__ import annotations

import pytest

from hopsml.service.browse.logs import LogQuery
from hopsml.service.browse.project import Project
from tests.helpers.service.project import ProjectOnDisk
from tests.helpers.service.searching import searched

pytestmark = pytest.mark.fast


def test_search_detail_has_trials_improvements_and_rungs(project: ProjectOnDisk) -> None:
    searched(project, "app_1")
    found = Project(project.url).search("app_1")
    assert (found.metric, found.direction, found.best, found.planned) == ("accuracy", "max", 3, 6)
    assert [number for number, _ in found.improvements] == [0, 1, 2, 3]
    assert found.counts["running"] == 1 and found.rungs == [(2, 6)]
    third = found.trials[3]
    assert (third.id, third.config, third.curve[0]) == ("id-3", {"lr": 0.08, "act": "gelu"}, [0, 1, 2])
    assert third.value == 1.0 and third.parent is None


def test_trial_has_the_details_and_logs_of_a_run(project: ProjectOnDisk) -> None:
    run = searched(project, "app_1")
    trial = run.folder / "trials" / "id-2" / "trial.json"
    trial.write_text(
        '{"number": 2, "params": {"lr": 0.04}, "status": "FINALIZED", "final_metric": 0.7, "duration": 1500}'
    )
    browsed = Project(project.url)
    detail = browsed.detail("app_1", "id-2")
    assert (detail.row.name, detail.row.arguments, detail.row.seconds) == ("trial 2", {"lr": 0.04}, 1.5)
    assert [line.text for line in browsed.logs("app_1", LogQuery(), "id-2").page(0, 10).lines] == ["trial 2 speaks"]
    assert browsed.detail("app_1", "id-5").row.state == "RUNNING"
