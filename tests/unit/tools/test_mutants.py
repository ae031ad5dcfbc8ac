"""`make mutants`: the sample that is drawn, the figures, and the page of surviving changes with their reasons."""

from __future__ import annotations

import functools
import importlib
import re
from types import SimpleNamespace
from typing import Any

import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

from tools import drawn_last, mutants

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("hopsml.cluster.gang.machine.x_root_failure__mutmut_5", "hopsml.cluster.gang.machine.root_failure"),
        ("hopsml.cluster.shared.layout.x__by_bus__mutmut_12", "hopsml.cluster.shared.layout._by_bus"),
        (
            "hopsml.cluster.gang.pace.xǁDrainsǁrequest_storing_agent__mutmut_7",
            "hopsml.cluster.gang.pace.Drains.request_storing_agent",
        ),
        ("hopsml.cluster.gang.machine.xǁGroupMachineǁrank__mutmut_7", "hopsml.cluster.gang.machine.GroupMachine.rank"),
    ],
)
def test_mutant_name_is_mapped_to_its_function(name: str, function: str) -> None:
    assert mutants.function_of(name) == function


def test_summary_counts_the_mutants_that_ran() -> None:
    found = [mutants.Module("a", 5, not_run=2, left=["x"]), mutants.Module("b", 4)]
    assert mutants.summary(found) == {"mutants": 7, "survived": 1}


def test_only_drawn_mutants_are_counted() -> None:
    records = {"a": {"a.1": 0, "a.2": 1, "a.3": 33}, "b": {"b.1": 0}, "c": {"c.1": None, "c.2": 1}}
    drawn = list(mutants.modules(records, {"a.1", "a.2", "c.1"}))
    assert [(one.name, one.total, one.not_run, one.left) for one in drawn] == [("a", 2, 0, ["a.1"]), ("c", 1, 1, [])]
    assert mutants.summary(list(mutants.modules(records))) == {"mutants": 5, "survived": 3}


def test_mutant_sample_is_reproducible_and_bounded() -> None:
    names = [f"m.x_f__mutmut_{number}" for number in range(100)]
    drawn = mutants.draw(names, 30, seed=1)
    assert len(set(drawn)) == 30
    assert drawn == mutants.draw(names[::-1], 30, seed=1)
    assert drawn != mutants.draw(names, 30, seed=2)
    assert mutants.draw(names, 200, seed=1) == sorted(names)


def test_reason_matches_only_the_inserted_line() -> None:
    reasons = {"m.f": {r"strict=(None|False)": "they are equally long"}}
    change = "-    zip(a, b, strict=True)\n+    zip(a, b, strict=False)"
    assert mutants.reason_for("m.f", change, reasons) == "they are equally long"
    assert mutants.reason_for("m.f", change.replace("False", "True"), reasons) == ""
    assert mutants.reason_for("m.f", "- strict=None\n+ strict=True", reasons) == ""
    assert mutants.reason_for("m.g", change, reasons) == ""


def test_mutants_page_shows_the_reason_of_a_survivor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "change_of", lambda name: "- one\n+ two")
    found = [mutants.Module("m", total=4, left=["m.x_f__mutmut_1", "m.x_g__mutmut_2"])]
    text = mutants.page(found, "All mutants.", {"m.f": {"two": "it is the same"}})
    assert "| `m` | 4 | 2 | 50.0% |\n| all | 4 | 2 | 50.0% |\n" in text
    assert "`m.x_f__mutmut_1`: it is the same\n```diff\n- one\n+ two\n```\n" in text
    assert "`m.x_g__mutmut_2`\n```diff\n" in text


def test_mutant_reasons_name_existing_functions() -> None:
    for function, reasons in tomllib.loads(mutants.REASONS.read_text()).items():
        module, *path = re.split(r"\.(?=_?[A-Z]|\w+$)", function)
        assert callable(functools.reduce(getattr, path, importlib.import_module(module)))
        assert all(re.compile(pattern) and why for pattern, why in reasons.items())


def test_tests_that_draw_examples_run_last() -> None:
    @given(st.none())
    def drawn(nothing: None) -> None: ...

    def plain() -> None: ...

    items: list[Any] = [SimpleNamespace(obj=drawn), SimpleNamespace(obj=plain), SimpleNamespace(name="of a document")]
    first, second, last = items
    drawn_last.pytest_collection_modifyitems(items)
    assert items == [second, last, first]
