"""Tests of the comparison of two runs: bit equality, and differences in how they were started."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.storage.run_dir import RunDir
from hopsml.tracking import compare
from hopsml.tracking.catalog import StoredRun

pytestmark = pytest.mark.local

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def stored(run_id: str = "app_1", folder: str = "/nowhere", **facts: Any) -> StoredRun:
    parts: dict[str, Any] = {"run": {}, "status": {"state": "FINISHED"}, **facts}
    return StoredRun(RunDir(f"file://{folder}/{run_id}"), **parts)


@settings(max_examples=40)
@given(VALUES)
def test_value_equals_its_json_round_trip(value: Any) -> None:
    assert compare.is_equal_json(value, value)
    assert compare.is_equal_json(json.loads(json.dumps(value)), json.loads(json.dumps(value)))


@given(st.floats(), st.floats())
def test_floats_are_equal_exactly_if_their_bits_are(one: float, other: float) -> None:
    same_bits = struct.pack("d", one) == struct.pack("d", other) or (one != one and other != other)
    assert compare.is_equal_json(one, other) == same_bits


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, True), (0.0, -0.0), ([1], [1, 2]), ({"a": 1}, {"a": 1, "b": None}), ("1", 1), ([], {})],
)
def test_values_of_different_type_or_content_are_not_equal(one: Any, other: Any) -> None:
    assert not compare.is_equal_json(one, other)


def test_results_that_differ_in_the_last_bit_are_not_the_same() -> None:
    verdict = compare.compare_results(stored(outputs={"a": 0.1 + 0.2}), stored(outputs={"a": 0.3}))
    assert not verdict.same
    assert [(found.name, found.left, found.right) for found in verdict.differing] == [("a", 0.1 + 0.2, 0.3)]


def test_own_address_and_log_of_a_run_are_not_compared() -> None:
    one = stored("app_1", outputs={"plot": "file:///nowhere/app_1/plot.png", "log": "file:///nowhere/app_1/logs/x"})
    other = stored("app_2", outputs={"plot": "file:///nowhere/app_2/plot.png", "log": "file:///nowhere/app_2/logs/x"})
    assert compare.compare_results(one, other).same
    assert compare.compare_results(one, other).compared == ("plot",)


def test_ignored_outputs_may_differ() -> None:
    one, other = stored(outputs={"a": 1, "seconds": 2.5}), stored(outputs={"a": 1, "seconds": 2.75})
    assert not compare.compare_results(one, other).same
    assert compare.compare_results(one, other, ignore=["seconds"]).same


def test_output_of_only_one_run_is_a_difference_even_if_none() -> None:
    assert not compare.compare_results(stored(outputs={"metric": None}), stored(outputs={})).same


def test_failed_and_finished_run_are_not_the_same() -> None:
    assert not compare.compare_results(stored(), stored(status={"state": "FAILED"})).same


def checkpoint(folder: Path, run_id: str, step: str, weights: bytes, notes: str) -> None:
    target = folder / run_id / "checkpoints" / step
    target.mkdir(parents=True)
    (target / "variables").write_bytes(weights)
    (target / "checkpoint.json").write_text(notes)


def test_weights_of_the_last_checkpoint_are_compared_without_its_notes(tmp_path: Path) -> None:
    checkpoint(tmp_path, "app_1", "step-000000009", b"old", "1")
    checkpoint(tmp_path, "app_1", "step-000000010", b"weights", "1")
    checkpoint(tmp_path, "app_2", "step-000000010", b"weights", "2")
    checkpoint(tmp_path, "app_3", "step-000000010", b"others!", "3")
    one, two, three = (stored(f"app_{number}", str(tmp_path)) for number in (1, 2, 3))
    assert compare.compare_results(one, two).same
    assert compare.compare_results(one, two).compared == ("checkpoint step-000000010/variables",)
    assert not compare.compare_results(one, three).same
    checkpoint(tmp_path, "app_2", "step-000000011", b"damaged", "2")
    marked = next(tmp_path.rglob("app_2/**/step-000000011"))
    (marked / "corrupt.json").write_text("{}")
    assert compare.compare_results(one, two).same


def test_differences_name_section_and_entry() -> None:
    one = stored(
        run={"arguments": {"lr": 0.1}, "seed": 1, "source": "def f():\n    return 1\n", "code_sha256": "a"},
        environment={"packages": {"numpy": "2.0", "old": "1"}, "spark": {"settings": {"spark.executor.cores": "1"}}},
        inputs=[{"url": "x", "checksum": "sha256:1"}],
    )
    other = stored(
        "app_2",
        run={"arguments": {"lr": 0.2}, "seed": 1, "source": "def f():\n    return 2\n", "code_sha256": "b"},
        environment={"packages": {"numpy": "2.1"}, "inputs": [{"url": "x", "checksum": "sha256:2"}]},
        outputs={"metric": 3},
    )
    found = {(d.section, d.name): (d.left, d.right) for d in compare.differences(one, other)}
    assert found == {
        ("arguments", "lr"): (0.1, 0.2),
        ("code", "function"): ("a", "b"),
        ("inputs", "x"): ("sha256:1", "sha256:2"),
        ("packages", "numpy"): ("2.0", "2.1"),
        ("packages", "old"): ("1", None),
        ("spark", "spark.executor.cores"): ("1", None),
        ("result", "metric"): (None, 3),
    }
    assert "-    return 1\n+    return 2" in compare.source_diff(one, other)
    assert compare.differences(one, one) == [] and compare.source_diff(one, one) == ""
