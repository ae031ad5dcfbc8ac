"""Tests of suggestions for misspelt names."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.core import suggestions
from hopsml.experiment.options import RunOptions

pytestmark = pytest.mark.fast

ARGUMENTS = [field.name for field in dataclasses.fields(RunOptions)]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num_worker", ["num_workers"]),
        ("numWorkers", ["num_workers"]),
        ("workers-num", ["num_workers"]),
        ("min_worker", ["min_workers"]),
        ("workers", ["num_workers", "min_workers", "max_workers"]),
        ("scope", ["merge_scope"]),
        ("logdir", ["local_logdir"]),
        ("metric", ["metric_key"]),
        ("epochs", []),
        ("zzz", []),
    ],
)
def test_similar_returns_the_nearest_names(name: str, meant: list[str]) -> None:
    assert suggestions.similar_names(name, ARGUMENTS) == meant


def test_few_names_are_listed_and_many_are_not() -> None:
    assert suggestions.suggestion_text("zzz", ["a", "b"], "see there") == "there are: a, b"
    assert suggestions.suggestion_text("zzz", ARGUMENTS, "see there") == "see there"
    assert suggestions.suggestion_text("zzz", [], "see there") == "see there"
    assert suggestions.suggestion_text("scoop", [*ARGUMENTS, "scope"], "see there") == "did you mean scope?"


def test_misspelt_verb_is_refused_with_a_suggestion() -> None:
    from hopsml import experiment

    with pytest.raises(AttributeError, match="did you mean collective_all_reduce"):
        experiment.colective_all_reduce  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute '__wrapped__'$"):
        experiment.__wrapped__  # noqa: B018


def test_misspelt_verb_is_explained_once_without_frames_of_hopsml(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from hopsml import experiment\nexperiment.colective_all_reduce(len)\n")
    environment = {**os.environ, "HOME": str(tmp_path)}
    ended = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert ended.stderr.lower().count("did you mean") == 1 and "in __getattr__" not in ended.stderr
