"""``hopsml runs tune-communication``: its output, and the scripts it refuses."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from hopsml.cli import repeat as command
from hopsml.errors import ArgumentError
from hopsml.experiment import collective
from hopsml.experiment.options import RunOptions
from hopsml.experiment.tuning import Tuning
from hopsml.tuning.choice import choose

pytestmark = pytest.mark.fast

FOUND = Tuning(
    "train", 4, 160, 28_017_764, choose({"tensorflow": [30.0], "hopsml": [12.0]}, "tensorflow"),
    {"implementation": "hopsml"}, "file:///p/Communication/train-4.json",
)  # fmt: skip


def test_tuning_table_starts_with_the_fastest():
    assert command.tuning_text(FOUND).splitlines() == [
        "train(), 4 workers, 160 gradients of 28.0 MB, in ms per step:",
        "  hopsml          12.00  chosen",
        "  tensorflow      30.00  default",
        "0.40 of the time with the default settings: implementation='hopsml'",
        "recorded in file:///p/Communication/train-4.json; runs with tuned=True use it",
    ]


def test_unchanged_default_is_reported_as_no_gain():
    same = choose({"tensorflow": [30.0], "hopsml": [29.9]}, "tensorflow")
    unchanged = Tuning(
        "train", 4, 160, 28_017_764, same, {"implementation": "tensorflow", "merge_scope": 32}, "file:///r.json"
    )
    assert "the default settings are used: implementation='tensorflow', merge_scope=32" in command.tuning_text(
        unchanged
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no script .*train.py"),
        ("print('nothing')", "called neither collective_all_reduce.. nor submit.."),
    ],
)
def test_missing_script_or_one_without_a_training_is_refused(
    content: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["hopsml"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "train.py"
    if content is not None:
        script.write_text(content)
    with pytest.raises(ArgumentError, match=words):
        command.tune_communication(str(script))


def test_submit_hook_of_a_script_applies_only_to_its_calls(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from hopsml import experiment\nexperiment.submit(print)\n")
    calls, elsewhere = [], []

    def end(options: RunOptions) -> NoReturn:
        calls.append(options)
        with ThreadPoolExecutor(1) as others:
            elsewhere.append(others.submit(collective._submit_hook.get).result())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collective.run_script(str(script), end)
    assert len(calls) == 1 and elsewhere == [None] and collective._submit_hook.get() is None
