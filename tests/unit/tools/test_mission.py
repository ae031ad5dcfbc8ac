"""Tests of the page of features and of the tool that checks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import mission

pytestmark = pytest.mark.fast

ROW = "| {id} | trains | `hopsml/x.py` | `unit/a.py::test_one`, `unit/b.py::test_two` | local | {state} |\n"


def test_named_tests_of_the_page_exist_and_its_ids_are_complete() -> None:
    rows = mission.parse_rows(mission.PAGE.read_text(encoding="utf-8"))
    paths = [test.partition("::")[0] for row in rows for test in row.tests]
    missing = [
        test for row in rows for test in row.tests if test not in mission.existing_tests(paths, mission.ROOT / "tests")
    ]
    assert missing == []
    counts = {"H": 16, "A": 21, "E": 12, "C": 12}
    assert [row.id for row in rows] == [f"{group}{n}" for group, most in counts.items() for n in range(1, most + 1)]


def test_files_named_as_the_implementation_exist() -> None:
    for line in mission.PAGE.read_text(encoding="utf-8").splitlines():
        if (match := mission._ROW.match(line)) is not None:
            for path in match[2].split("|")[1].replace("`", "").split(","):
                assert (mission.ROOT / path.strip()).exists(), f"{match[1]}: {path}"


def test_row_without_a_test_or_with_an_unknown_state_is_refused() -> None:
    for page in (ROW.format(id="H1", state="almost"), "| H1 | x | y | z | local | met |\n", "| H1 | x | y |\n"):
        with pytest.raises(ValueError, match="row H1"):
            mission.parse_rows(page)
    with pytest.raises(ValueError, match="same id"):
        mission.parse_rows(ROW.format(id="H1", state="met") * 2)


def write_junit(folder: Path, cases: str) -> list[Path]:
    file = folder / "all.xml"
    file.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return [file]


def test_result_of_a_function_follows_from_its_cases(tmp_path: Path) -> None:
    cases = "".join(
        f'<testcase classname="tests.unit.{module}" name="{name}">{inner}</testcase>'
        for module, name, inner in (
            ("a", "test_one[x]", ""),
            ("a", "test_one[y]", "<skipped/>"),
            ("a.TestClass", "test_two", ""),
            ("b", "test_bad[x]", ""),
            ("b", "test_bad[y]", "<failure/>"),
            ("b", "test_broken", "<error/>"),
            ("b", "test_left_out", "<skipped/>"),
        )
    )
    assert mission.read_results(write_junit(tmp_path, cases)) == {
        "unit/a.py::test_one": "passed",
        "unit/a.py::test_two": "passed",
        "unit/b.py::test_bad": "failed",
        "unit/b.py::test_broken": "failed",
        "unit/b.py::test_left_out": "skipped",
    }


@pytest.mark.parametrize(
    ("state", "result", "met"),
    [("met", "passed", 1), ("in part: no GPU", "passed", 0), ("met", "failed", 0), ("met", "skipped", 0)],
)
def test_row_is_met_if_it_states_so_and_all_its_tests_passed(state: str, result: str, met: int) -> None:
    rows = mission.parse_rows(ROW.format(id="E3", state=state))
    results = {"unit/a.py::test_one": "passed", "unit/b.py::test_two": result}
    report = mission.summary(rows, {"unit/a.py::test_one", "unit/b.py::test_two"}, results)
    assert (report["rows"], report["met"], report["tests_missing"]) == (1, met, [])
    assert report["tests_failed"] == (["unit/b.py::test_two"] if result == "failed" else [])
    assert report["tests_not_run"] == (["unit/b.py::test_two"] if result == "skipped" else [])


def test_missing_test_is_listed_and_prevents_that_its_row_is_met() -> None:
    rows = mission.parse_rows(ROW.format(id="E3", state="met"))
    report = mission.summary(rows, {"unit/a.py::test_one"}, None)
    assert report == {"rows": 1, "met": 0, "tests_missing": ["unit/b.py::test_two"]}
