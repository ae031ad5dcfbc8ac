"""Tests of stoppers that pass checkpoints between trials, and of BOHB, with real agents and checkpoints."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import hopsml
from hopsml import Searchspace, experiment
from tests.helpers.local_application import warm_application

pytestmark = pytest.mark.local

STEPS = 12
RATES = Searchspace(rate=("DOUBLE", [0.0, 1.0]))


store = warm_application(
    lambda: experiment.search(
        lambda x: x, {"x": ("DISCRETE", [1, 2, 3, 4])}, searcher="grid", keep_warm=60.0, progress=False
    )
)


def climb(rate: float) -> dict[str, Any]:
    """Train from the trial's checkpoint, adding ``rate`` to the height at each step; return the rates of all steps."""
    trial = hopsml.trial()
    assert trial is not None
    rates: list[float] = []
    if trial.resume_checkpoint is not None:
        rates = json.loads((trial.resume_checkpoint / "rates.json").read_text())
    for step in range(len(rates) + 1, STEPS + 1):
        rates.append(rate)
        with trial.checkpoint(step) as folder:
            (folder / "rates.json").write_text(json.dumps(rates))
        if step < STEPS:  # the stopper ends it at STEPS: an answer within the report would arrive before the return
            hopsml.report(step=step, height=sum(rates))
        time.sleep(0.02)
    return {"height": sum(rates), "rates": rates}


@pytest.mark.parametrize("stopper", ["pbt", pytest.param("pb2", marks=pytest.mark.variant)])
def test_worst_population_members_continue_from_the_best(store: Path, stopper: str) -> None:
    result = experiment.search(
        climb, RATES, searcher="random", stopper=stopper, num_trials=4, metric="height", seed=11, progress=False,
        keep_warm=60.0, stopper_args={"population": 4, "interval": 3, "max_step": STEPS, "synchronous": True},
    )  # fmt: skip
    folder = Path(result.run_dir.removeprefix("file://"))
    outputs = [json.loads((folder / "trials" / row["trial_id"] / ".outputs.json").read_text()) for row in result.rows]
    assert len(outputs) == 4 and {len(output["rates"]) for output in outputs} == {STEPS}
    mixed = [output["rates"] for output in outputs if len(set(output["rates"])) > 1]
    assert mixed, "nobody has taken over from another"
    starts = {tuple(output["rates"][:3]) for output in outputs}
    assert len(starts) < 4, "who takes over goes on with the weights, so with the beginning, of who was better"
    for output in outputs:  # the value is that of the whole line of descent, not of the last configuration alone
        assert output["height"] == pytest.approx(sum(output["rates"]))
    assert result.value == max(output["height"] for output in outputs)


def journal_of(run_dir: str) -> list[list[Any]]:
    """Return the events of a search's journal."""
    files = sorted(Path(run_dir.removeprefix("file://"), "journal").glob("*.jsonl"))
    return [
        event for file in files for line in file.read_text().splitlines() if isinstance(event := json.loads(line), list)
    ]


def test_bohb_trains_good_configurations_longest_and_improves(store: Path) -> None:
    def train(x: float) -> None:
        for step in range(1, 10):
            hopsml.report(step=step, height=step - 10 * (x - 0.5) ** 2)

    result = experiment.search(
        train, {"x": ("DOUBLE", [0.0, 1.0])}, searcher="bohb", stopper="hyperband", num_trials=30, metric="height",
        seed=5, progress=False, keep_warm=60.0, max_executors=1, stopper_args={"max_step": 9, "reduction_factor": 3},
    )  # fmt: skip
    far = {row["number"]: abs(row["config"]["x"] - 0.5) for row in result.rows}
    steps = dict.fromkeys(far, 9)
    for event in reversed(journal_of(result.run_dir)):
        if event[0] == "report" and event[4] in ("pause", "stop"):
            steps[event[1]] = event[2]  # of the first verdict: so short a trial has returned before it can be paused
    assert {1, 3, 9} <= set(steps.values())
    longest = [far[name] for name in far if steps[name] == 9]
    shortest = [far[name] for name in far if steps[name] == 1]
    assert sum(longest) / len(longest) < sum(shortest) / len(shortest)
    early, late = list(far.values())[:8], list(far.values())[-8:]
    assert sum(late) < sum(early), "what is tried last lies nearer to the best than what was tried first"
