"""Files of a search as its driver writes them: configurations, reports, ended trials and a running one."""

from __future__ import annotations

import json
from typing import Any

from hopsml.search.contract import Suggestion
from hopsml.search.dispatch import journal
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.events import AttemptBegan, AttemptEnded, LaneJoined, ValuesReported
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.storage import segments
from hopsml.tracking import provenance
from tests.helpers.search.searching import Counting
from tests.helpers.service.project import ProjectOnDisk, RunOnDisk

SPACE = {"lr": ["LOGUNIFORM", [0.001, 1.0]], "act": ["CATEGORICAL", ["relu", "gelu"]]}


class TwoParameters(Counting):
    """Searcher of a growing learning rate and one of two activations."""

    def ask(self, number: int) -> Any:
        """Return the configuration of this number."""
        super().ask(number)
        return Suggestion({"lr": 0.01 * 2**number, "act": ("relu", "gelu")[number % 2]})


def searched(project: ProjectOnDisk, run_id: str, trials: int = 6, **record: Any) -> RunOnDisk:
    """Write a search of which all trials but the last have ended; the values are best in its middle."""
    search = {
        "version": 2,
        "direction": "max",
        "metric": "accuracy",
        "total": trials,
        "folder": "trials",
        "space": SPACE,
    }
    asked = {**search, "searcher": "random", "stopper": "asha", **record.pop("search", {})}
    run = project.run(
        run_id, state=None, verb="search", search=asked, driver_process=provenance.process_identity(), **record
    )
    dispatch = Dispatch(SearchSpec(trials, "max", "accuracy"), TwoParameters())
    writer, _ = segments.register_writer(
        f"file://{run.folder}/journal", [journal.version_line(), json.dumps(["session", provenance.process_identity()])]
    )
    writer.add([json.dumps(["name", number, f"id-{number}"]) for number in range(trials)])
    dispatch.handle(LaneJoined(0), 0.0)
    for number in range(trials):
        dispatch.handle(AttemptBegan(number, 1), float(number))
        value = 1 - abs(number - trials / 2) / trials
        for step in range(3):
            dispatch.handle(ValuesReported(number, 1, step, value * (step + 1) / 3), number + 0.1 * step)
        if number < trials - 1:
            dispatch.handle(AttemptEnded(number, 1, "finished", value), number + 0.5)
        folder = run.folder / "trials" / f"id-{number}"
        folder.mkdir(parents=True)
        (folder / "output.log").write_text(f"trial {number} speaks\n")
    writer.add(journal.fact_lines(dispatch.take_facts()))
    return run
