"""Runs one scenario and judges it: the final weights, every sample, the steps lost, what is left behind."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from hopsml import experiment
from hopsml.errors import RunError
from tests.chaos.history import generations, recovered_s, repeated_and_skipped, steps_lost
from tests.chaos.scenarios import Scenario, Trial
from tests.cluster import elastic_workload
from tests.cluster.elastic_workload import expected_weight

WAIT_S = 120.0
GONE_S = 10.0
COMMIT_EVERY = 2


@dataclass(frozen=True)
class Outcome:
    """A row of the table."""

    scenario: str
    backend: str
    state: str
    passed: bool
    recovered_s: float | None
    steps_lost: int
    samples_repeated: int
    samples_skipped: int
    left_over: int
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def play(scenario: Scenario, backend: str, folder: Path) -> Outcome:
    """Start the run, disturb it, wait for its end, give everything back, look at what happened."""
    with scenario.around(folder):
        return _play(scenario, backend, folder)


def _play(scenario: Scenario, backend: str, folder: Path) -> Outcome:
    args = {"folder": str(folder), "commit": COMMIT_EVERY, **scenario.args}
    run = experiment.submit(
        elastic_workload.train,
        args=args,
        min_workers=scenario.least,
        max_workers=scenario.most,
        progress=False,
        **scenario.options,
    )
    began = time.time()
    problem, value = "", None
    try:
        trial = Trial(run, folder)
        scenario.disturb(trial)
        began = trial.harmed_at or time.time()
        value = run.result(WAIT_S).value
    except (RunError, TimeoutError) as error:
        problem = str(error) if scenario.ends == "FINISHED" else ""
        run.cancel()
        run.join(WAIT_S)
    except psutil.NoSuchProcess as error:
        problem = f"the disturbance did not find its victim: {error}"
    finally:
        experiment.shutdown()
    return _judge(scenario, backend, folder, began, value, problem, run.state.notes)


def _judge(
    scenario: Scenario, backend: str, folder: Path, began: float, value: Any, problem: str, notes: list[str]
) -> Outcome:
    found = generations(folder)
    state = "FINISHED" if value is not None else "FAILED"
    repeated = skipped = 0
    if value is not None:
        repeated, skipped = repeated_and_skipped(value["seen"])
        difference = abs(value["weight"] - expected_weight()) / abs(expected_weight())
        if difference > 1e-9:
            problem = f"the weights differ by {difference:.1e} from those of an undisturbed run"
    lost, left = steps_lost(found), _left_over(folder)
    limit = 0 if scenario.loses_nothing else int(scenario.args.get("commit", COMMIT_EVERY)) + 1
    limit = limit if scenario.may_lose is None else scenario.may_lose
    if not problem and state != scenario.ends:
        problem = f"it ended {state}, expected was {scenario.ends}"
    if not problem and lost > limit:
        problem = f"{lost} steps were lost, at most {limit} may be; {'; '.join(notes)}"
    if not problem and scenario.notes and not any(scenario.notes in note for note in notes):
        problem = f"nobody said '{scenario.notes}': {'; '.join(notes)}"
    passed = not problem and not left and not repeated and not skipped
    return Outcome(
        scenario.name, backend, state, passed, recovered_s(found, began), lost, repeated, skipped, left, problem
    )


def _left_over(folder: Path) -> int:
    """Workers that live, after all that time that they were promised to be gone in."""
    pids = [int(path.read_text()) for path in folder.glob("pid-*-*")]
    deadline = time.monotonic() + GONE_S
    while alive := [pid for pid in pids if _lives(pid)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return len(alive)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
