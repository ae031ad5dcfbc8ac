"""Tests of the validation of a search's arguments before a start, and its messages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pandas
import pytest

from hopsml import experiment
from hopsml.experiment.options import SearchOptions
from hopsml.experiment.searches import call as calls
from hopsml.search.contract import Suggestion

pytestmark = pytest.mark.fast

SPACE = {"lr": ("DOUBLE", [0.0, 1.0])}
WITH_BUDGETS = pytest.mark.parametrize(
    "given", [{"searcher": "asha"}, {"searcher": "hyperband", "searcher_args": {"max_budget": 9}}]
)


def checked(function: Callable[..., Any], **given: Any) -> calls.SearchCall:
    return calls.checked_call("search", SearchOptions(function, SPACE, **given), seed=1)


@WITH_BUDGETS
def test_function_without_budget_parameter_is_noted_and_called_without_it(given: dict[str, Any]) -> None:
    call = checked(lambda lr: lr, **given)
    (note,) = call.notes
    assert "has no parameter budget" in note and "stopper='asha'" in note
    first = call.searcher.ask(0)
    assert isinstance(first, Suggestion) and first.config.keys() == {"lr"}


@WITH_BUDGETS
@pytest.mark.parametrize("function", [lambda lr, budget: lr, lambda hparams: 1, lambda **every: 1])
def test_function_with_budget_parameter_receives_the_budget(
    function: Callable[..., Any], given: dict[str, Any]
) -> None:
    call = checked(function, **given)
    first = call.searcher.ask(0)
    assert call.notes == () and isinstance(first, Suggestion) and first.config.keys() == {"lr", "budget"}


@pytest.mark.parametrize(
    ("name", "words"), [("max_budget", "searcher_args"), ("points", "searcher_args"), ("max_step", "stopper_args")]
)
def test_algorithm_argument_passed_to_the_verb_is_refused_with_its_place(name: str, words: str) -> None:
    given: dict[str, Any] = {name: 81}
    with pytest.raises(TypeError, match=f'no argument .{name}.: say {words}={{"{name}": '):
        experiment.search(lambda lr: lr, SPACE, **given)


def test_search_data_must_be_a_dict_of_dataframes() -> None:
    with pytest.raises(TypeError, match=r"search\(\): data={'rows': \.\.\.} is a list; it must be a Spark DataFrame"):
        checked(lambda lr, rows: lr, data={"rows": [1, 2]})
    with pytest.raises(TypeError, match=r"is a pandas DataFrame; .*Convert it by spark\.createDataFrame"):
        checked(lambda lr, rows: lr, data={"rows": pandas.DataFrame({"x": [1]})})
    with pytest.raises(TypeError, match="it must be a dict of DataFrames by the names"):
        checked(lambda lr, rows: lr, data=[1])


_IN_A_NOTEBOOK = """
import sys
import ipykernel.zmqshell  # a notebook's kernel
sys.modules["ipywidgets"] = None  # it is not installed
from hopsml import Searchspace
from hopsml.search.algorithms.tpe import Tpe
Tpe(Searchspace(lr=("DOUBLE", [0.0, 1.0])))
assert "tqdm.notebook" in sys.modules  # which is looked at in notebooks alone
"""


def test_tpe_in_a_notebook_prints_no_progress_bar_warning() -> None:
    ended = subprocess.run([sys.executable, "-c", _IN_A_NOTEBOOK], capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "TqdmWarning" not in ended.stderr, ended.stderr


def test_echo_with_several_workers_per_trial_is_noted() -> None:
    assert any("echo has no effect" in note for note in checked(lambda lr: lr, echo=True, workers_per_trial=2).notes)
    assert checked(lambda lr: lr, echo=True).notes == ()
