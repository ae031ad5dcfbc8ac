"""Runner that executes one scenario and checks final weights, every sample, lost steps and leftovers."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hopsml import experiment
from hopsml.errors import RunError
from hopsml.experiment.run import Run
from tests.chaos import history
from tests.chaos.history import Generation, Mend, Samples, generations, recovered_s, steps_lost
from tests.chaos.scenarios import Scenario, Trial
from tests.helpers import clock
from tests.helpers.cluster import elastic_workload

WAIT_S = 120.0
GONE_S = 10.0
COMMIT_EVERY = 2
OVER = os.environ.get(
    "HOPSML_CHAOS_OVER", ""
)  # "tensorflow" or "hopsml": collectives to use; by default those of the scenario
PATIENCE_S = 1.0  # of a step that is well on, as long as the harm is not done


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
    detail: str = ""
    samples_given_up: int = 0  # given-up shares of lost members: see history.Samples
    over: str = OVER
    on: str = field(default_factory=lambda: str(datetime.date.today()))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Evidence:
    """Data by which a finished scenario is judged; ``limit``: the number of steps that may be lost."""

    found: list[Generation]
    disturbed: float  # seconds since the epoch
    limit: int
    value: Any = None  # what the training returned; None where it failed
    problem: str = ""
    left_over: list[str] = field(default_factory=list)  # what each of them is
    notes: list[str] = field(default_factory=list)
    detail: str = ""
    mends: list[Mend] = field(default_factory=list)


def play(
    scenario: Scenario,
    backend: str,
    folder: Path,
    cluster: Any = None,
    program: Callable[..., Any] = elastic_workload.train,
    start: Callable[..., Run] | None = None,
    **options: Any,
) -> Outcome:
    """Start the run, disturb it, wait for its end, release everything, and judge the result.

    ``start``: another verb than ``experiment.submit``; it chooses its collectives itself.
    """
    with scenario.around(folder):
        if scenario.before is not None:
            scenario.before(cluster)
        args = {"folder": str(folder), "commit": COMMIT_EVERY, "patience_s": PATIENCE_S, **scenario.args}
        if OVER == "hopsml" and program is elastic_workload.train:
            args["over"] = OVER
        if OVER and start is None:
            options = {"implementation": OVER, **options}
        requested: dict[str, Any] = {
            "args": args,
            "min_workers": scenario.least,
            "max_workers": scenario.most,
            "progress": False,
        }
        run = (start or experiment.submit)(program, **requested, **scenario.options, **options)
        return _play(scenario, backend, Trial(run, folder, cluster), int(args["commit"]))


def _play(scenario: Scenario, backend: str, trial: Trial, commit_every: int) -> Outcome:
    run, folder = trial.run, trial.folder
    started_at = time.time()
    problem, value = "", None
    try:
        scenario.disturb(trial)
        started_at = trial.disturbed or time.time()
        elastic_workload.announce(folder / "disturbed", "")
        value = run.result(WAIT_S).value
        problem = scenario.after(trial) if scenario.after is not None else ""
    except (RunError, TimeoutError, AssertionError) as error:
        problem = problem_of(error, scenario, run.state.notes)
        run.cancel()
        run.join(WAIT_S)
    except (psutil.NoSuchProcess, ProcessLookupError) as error:
        problem = f"the disturbance did not find its victim: {error}; {'; '.join(run.state.notes)}"
    finally:
        experiment.shutdown()
    limit = 0 if scenario.loses_nothing else commit_every + 1
    limit = limit if trial.may_lose is None else trial.may_lose
    left = left_over(pids(folder))
    return judge(
        scenario,
        backend,
        Evidence(
            generations(folder),
            started_at,
            limit,
            value,
            problem,
            left,
            run.state.notes,
            trial.detail,
            history.mends(folder),
        ),
    )


def problem_of(error: Exception, scenario: Scenario, notes: list[str]) -> str:
    """Return "" if the run ended with the expected error; timeouts and missing victims are always problems."""
    if isinstance(error, RunError) and scenario.error and scenario.error in str(error):
        return ""
    return f"{type(error).__name__}: {error}; {'; '.join(notes)}"


def judge(scenario: Scenario, backend: str, seen: Evidence) -> Outcome:
    """Return the outcome: whether the training ended like an undisturbed one, and its losses."""
    state, problem = "FINISHED" if seen.value is not None else "FAILED", seen.problem
    found = Samples()
    if seen.value is not None:
        found = history.samples(seen.value["seen"], seen.mends)
        expected = history.weight(seen.value["seen"])
        difference = abs(seen.value["weight"] - expected) / abs(expected)
        if difference > 1e-9:
            problem = f"the weights differ by {difference:.1e} from those of an undisturbed run that sees the same"
        elif not found.sound:
            problem = f"{found.repeated} samples were repeated, {found.skipped} were skipped; {'; '.join(seen.notes)}"
    lost = steps_lost(seen.found)
    if not problem and scenario.error and state != "FAILED":
        problem = f"it ended {state}, expected was an error with '{scenario.error}'"
    if not problem and lost > seen.limit:
        problem = f"{lost} steps were lost, at most {seen.limit} may be; {'; '.join(seen.notes)}"
    if not problem and scenario.notes and not any(scenario.notes in note for note in seen.notes):
        problem = f"nobody said '{scenario.notes}': {'; '.join(seen.notes)}"
    if seen.left_over:
        problem = "; ".join([*([problem] if problem else []), f"left over: {', '.join(seen.left_over)}"])
    return Outcome(
        scenario.name,
        backend,
        state,
        passed=not problem,
        recovered_s=recovered_s(seen.found, seen.disturbed),
        steps_lost=lost,
        samples_repeated=found.repeated,
        samples_skipped=found.skipped,
        left_over=len(seen.left_over),
        problem=problem,
        detail=seen.detail,
        samples_given_up=found.given_up,
    )


def pids(folder: Path) -> list[int]:
    """Return the pids of all workers of a run."""
    return [int(path.read_text()) for path in folder.glob("pid-*-*")]


def left_over(found: Iterable[int], within_s: float = GONE_S) -> list[str]:
    """Return pid, state and command of each process that still runs after the promised time."""
    watched = set(found)
    deadline = clock.awake() + within_s
    while alive := [description for pid in watched if (description := _living(pid))]:
        if clock.awake() > deadline:
            break
        time.sleep(0.05)
    return alive


def _living(pid: int) -> str:
    """Pid, state, age and command of a process; empty if it has ended."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return ""
            age = time.time() - process.create_time()
            command = " ".join(process.cmdline())
            return f"{pid} ({process.status()}, {age:.0f} s old, below {process.ppid()}): {_shortened(command)}"
    except psutil.NoSuchProcess:
        return ""


def _shortened(command: str) -> str:
    """Return both ends of a long command: a JVM's class and the user's script are at the end."""
    return command if len(command) <= 300 else f"{command[:100]} ... {command[-200:]}"
