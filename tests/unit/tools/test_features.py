"""Tests of the comparison of features: one process against several workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.features.table import Feature, Outcome, Row, Verdict, judge, page, summary

ROOT = Path(__file__).resolve().parents[3]


def feature(**options: object) -> Feature:
    return Feature("name", "group", dict, **options)  # type: ignore[arg-type]


@pytest.mark.fast
def test_workers_within_the_tolerance_of_one_process_are_equal() -> None:
    single = Outcome({"weights": [[1.0, float("nan")]], "steps": 3})
    assert judge(feature(), single, [Outcome({"weights": [[1.00001, float("nan")]], "steps": 3})] * 2).state == "equal"
    apart = judge(feature(), single, [single, Outcome({"weights": [[1.1, float("nan")]], "steps": 3})])
    assert apart == Verdict("differs", "rank 1, weights [0] [0]: 1.1 instead of 1")
    assert judge(feature(), single, [Outcome({"steps": 3})]).state == "differs"
    assert judge(feature(), single, [Outcome(error="ValueError: no")]).note == "rank 0 fails: ValueError: no"
    assert judge(feature(), Outcome(error="ValueError: no"), [single]).note == "one process fails: ValueError: no"


@pytest.mark.fast
def test_refusal_counts_only_with_its_remedy_on_all_workers() -> None:
    refused = feature(expected="refused", reason="take the other")
    single, error = Outcome({}), Outcome(error="Wrapped\n\x1b[1mArgumentError: take the other one\x1b[0m")
    assert judge(refused, single, [error, error]) == Verdict("refused", "ArgumentError: take the other one")
    assert judge(refused, single, [error, Outcome({})]).state == "differs"
    assert judge(refused, single, [Outcome(error="crash"), error]).state == "differs"


@pytest.mark.fast
def test_summary_counts_features_by_their_worst_verdict() -> None:
    rows = [
        Row("Keras", feature(), {"hopsml": Verdict("equal"), "tensorflow": Verdict("differs", "a | b")}),
        Row("PyTorch", feature(), {"hopsml": Verdict("equal")}),
        Row("Keras", feature(expected="by design", reason="so"), {"hopsml": Verdict("by design", "so")}),
    ]
    assert summary(rows) == {"keras": 1, "torch": 1, "equal": 1, "refused": 0, "differs": 1}
    assert "| name | supported | differs | a \\| b |" in page(rows)


@pytest.mark.variant
@pytest.mark.tensorflow
@pytest.mark.timeout(2400)
def test_every_feature_is_equal_or_refused_with_several_workers(tmp_path: Path) -> None:
    environment = {**os.environ, "HOPSML_PROFILE": "local", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tools.features", "--page", str(tmp_path / "features.md")]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    counts = json.loads(ended.stdout.splitlines()[-1])
    assert (ended.returncode, counts["differs"]) == (0, 0), ended.stdout
    assert counts["keras"] >= 60
