"""How a run's end reads: what the remedy says of errors whose own words do not help."""

from __future__ import annotations

import pytest

from hopsml.cluster.driver import remedies
from hopsml.cluster.driver.endings import error_of
from hopsml.cluster.driver.run_state import RunState
from hopsml.cluster.gang.gang import Conclude, Phase
from hopsml.cluster.shared.protocol import WorkerFailed as FailureReport

pytestmark = pytest.mark.fast

KERAS = """  File "keras/src/backend/tensorflow/optimizer.py", line 134, in _distributed_tf_update_step
    distribution.extended.update(
AssertionError
"""
INPUT = """    name = input("name? ")
           ^^^^^^^^^^^^^^^
EOFError: EOF when reading a line
"""


@pytest.mark.parametrize(
    ("cause", "traceback", "words"),
    [
        ("AssertionError", KERAS, ["outside the strategy's scope", "with strategy.scope():"]),
        (
            "ValueError: Variable (w) was not created in the distribution strategy scope of (x)",
            "",
            ["strategy.scope()"],
        ),
        ("AssertionError", "    assert len(x) == 3\nAssertionError", []),
        ("ValueError: a bad value", KERAS, []),  # within a step, and about something else
        ("EOFError: EOF when reading a line", INPUT, ["a worker has no keyboard", "args="]),
        ("EOFError: Ran out of input", "    pickle.load(file)\nEOFError: Ran out of input", []),
        (
            "ModuleNotFoundError: No module named 'here.sub'",
            "",
            ["'here' is here and not on h1", "--ship-environment auto"],
        ),
        ("ModuleNotFoundError: No module named 'xgboost'", "", ["'xgboost' is not on h1", "pip install", "--py-files"]),
        ("ValueError: no", "", []),
    ],
)
def test_remedies(cause: str, traceback: str, words: list[str]) -> None:
    said = remedies.remedy(cause, traceback, "h1", here=lambda module: module == "here")
    assert bool(said) == bool(words)
    for word in words:
        assert word in said


def test_what_the_driver_could_import() -> None:
    assert remedies.is_here("json") and remedies.is_here("hopsml.cluster")
    assert not remedies.is_here("no_such_module") and not remedies.is_here("no_such_module.below")


@pytest.mark.parametrize(
    ("cause", "words"), [("EOFError: EOF", "has no keyboard"), ("ValueError: 3", "correct the cause")]
)
def test_the_error_ends_in_the_remedy_and_the_log(cause: str, words: str) -> None:
    report = FailureReport("r", 0, cause, INPUT, False, "/runs/r/logs/g0-rank0.log", "")
    outcome = Conclude(Phase.FAILED, error="worker", reason=cause, rank=0)
    error = error_of(outcome, RunState("r", 2), "/runs/r", report, "h1", "")
    last = str(error).splitlines()[-1]
    assert last.startswith("Remedy: ") and words in last
    assert last.endswith("`hopsml logs /runs/r --rank 0` shows the whole log.")
