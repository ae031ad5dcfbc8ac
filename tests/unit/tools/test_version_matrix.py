"""Tests of the cells of the matrix of versions, and of how their outcomes are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.core.versions import ALL, PYTHON, SPARK_NEEDS, TENSORFLOW, parse_version, spark_needs
from tools import version_matrix
from tools.version_matrix import CELLS, CORNERS, Cell, CellError, Outcome, Unavailable

pytestmark = pytest.mark.fast


def version_in(cell: Cell, package: str) -> str:
    """Return the version of a package in a cell; "" if the cell does not name it."""
    found = [one.partition("==")[2] for one in (*cell.packages, *cell.large) if one.startswith(f"{package}==")]
    return found[0] if found else ""


def test_each_supported_spark_and_tensorflow_has_a_cell() -> None:
    sparks = {parse_version(version_in(cell, "pyspark"))[:2] for cell in CELLS}
    assert {needs.spark for needs in SPARK_NEEDS} <= sparks
    assert set(TENSORFLOW.supported) <= {parse_version(version_in(cell, "tensorflow-cpu"))[:2] for cell in CELLS}
    assert {parse_version(cell.python) for cell in CELLS} == set(PYTHON.supported)


def test_each_java_of_each_era_of_spark_has_a_cell() -> None:
    played = {(spark_needs(version).spark[0], cell.java) for cell in CELLS if (version := version_in(cell, "pyspark"))}
    supported = {(needs.spark[0], java) for needs in SPARK_NEEDS for java in needs.javas}
    assert supported - played == {(4, 21)}  # not tried, as the page says


def test_cells_contain_supported_versions_only() -> None:
    for cell in CELLS:
        for known in ALL:
            name = "tensorflow-cpu" if known.package == "tensorflow" else known.package
            if version := version_in(cell, name):
                assert known.verdict(version) == "works", (cell.name, name, version)
        if version := version_in(cell, "pyspark"):
            needs = spark_needs(version)
            assert cell.java in needs.javas and parse_version(cell.python) <= needs.newest_python, cell.name


def test_lowest_versions_apply_to_direct_requirements_but_not_to_the_tools_of_tests() -> None:
    first, second = version_matrix.installations(Cell("low", "3.10", (), extras="spark", lowest=True))
    assert first[:2] == ["--resolution", "lowest-direct"] and first[-1].endswith("[spark]")
    assert "--resolution" not in second and "pytest>=8" in second


def test_large_packages_are_installed_past_the_cache() -> None:
    *_, last = version_matrix.installations(Cell("big", "3.12", ("numpy==2.*",), large=("torch==2.9.*",)))
    assert last == ["--no-cache", "torch==2.9.*", "ml-dtypes"]


def test_table_shows_failed_cells_in_the_order_of_the_cells() -> None:
    passed = Outcome("abc", "2026-11-29", "passed", "15 passed, 4 skipped", 60)
    failed = Outcome("abc", "2026-11-29", "failed", "1 failed, 14 passed", 61)
    lines = version_matrix.table({"newest": failed, "oldest": passed}).splitlines()
    assert lines[2].startswith("| oldest | 3.10 | 11 | pyspark 3.4") or lines[2].startswith(
        "| oldest | 3.10 | 11 | pyspark=="
    )
    assert "| 15 passed, 4 skipped | 60 | 2026-11-29 | abc |" in lines[2]
    assert lines[3].startswith("| newest ") and "| FAILED: 1 failed, 14 passed | 61 |" in lines[3]


def test_missing_interpreter_is_unavailable_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"Python 3\.13 is missing: install it \(uv python install 3\.13"):
        version_matrix.interpreter("3.13")


def test_environment_of_an_interrupted_run_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\nfor last; do :; done\n[ -e "$last" ] && echo left behind || echo not there\nexit 1\n')
    uv.chmod(0o755)
    for name, place in (("CACHE", tmp_path / "cache"), ("UV", uv), ("interpreter", lambda _: "python")):
        monkeypatch.setattr(version_matrix, name, place)
    (tmp_path / "cache" / "newest" / "lib").mkdir(parents=True)
    (cell,) = [cell for cell in CELLS if cell.name == "newest"]
    monkeypatch.setattr(version_matrix, "java_home", lambda _: "")
    with pytest.raises(CellError, match="cannot be created: not there"):
        version_matrix.create_environment(cell)


def test_error_of_a_cell_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def contract(cell: Cell, arguments: object) -> tuple[str, str]:
        if cell.name == CORNERS[0]:
            raise CellError("its environment cannot be created: two packages contradict each other")
        return "15 passed", ""

    monkeypatch.setattr(version_matrix, "CACHE", tmp_path)
    monkeypatch.setattr(version_matrix, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(version_matrix, "PAGE", tmp_path / "matrix.md")
    monkeypatch.setattr(version_matrix, "run_contract", contract)
    monkeypatch.setattr(version_matrix, "commit", lambda: "abc")
    monkeypatch.setattr("sys.argv", ["version_matrix"])
    assert version_matrix.main() == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f'{{"cells": {len(CELLS)}, "failed": ["oldest"]}}'
    assert "| FAILED: not installed |" in (tmp_path / "matrix.md").read_text()

    monkeypatch.setattr(version_matrix, "run_contract", lambda cell, arguments: ("16 passed", ""))
    assert version_matrix.main() == 0  # the failed one alone is repeated
    out = capsys.readouterr().out
    assert out.count("passed before at abc") == len(CELLS) - 1 and "oldest: passed after" in out
