"""Tests of the cells of the matrix of versions, and of how their outcomes are shown."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hopsml.core.versions import (
    ALL,
    JAX,
    KERAS,
    NUMPY,
    PANDAS,
    PYSPARK,
    PYTHON,
    SPARK_NEEDS,
    TENSORFLOW,
    TENSORFLOW_WITH_KERAS_2,
    TORCH,
    SupportedVersions,
    parse_version,
    spark_needs,
    tensorflow_versions,
)
from tools import version_matrix
from tools.version_matrix import CELLS, CORNERS, Cell, CellError, Outcome, Unavailable

pytestmark = pytest.mark.fast


def version_in(cell: Cell, *names: str) -> str:
    """Return the version of a package, which may have several names, in a cell; "" if the cell does not name it."""
    required = (*cell.packages, *cell.large)
    return next((one.partition("==")[2] for one in required for name in names if one.startswith(f"{name}==")), "")


def minors(*names: str) -> set[tuple[int, ...]]:
    """Return the minor versions of a package that cells have."""
    return {parse_version(version)[:2] for cell in CELLS if (version := version_in(cell, *names))}


@pytest.mark.parametrize(
    ("known", "names"),
    [
        (PYSPARK, ("pyspark",)),
        (TENSORFLOW, ("tensorflow", "tensorflow-cpu")),
        (KERAS, ("keras",)),
        (TORCH, ("torch",)),
        (JAX, ("jax",)),
        (NUMPY, ("numpy",)),
    ],
    ids=lambda value: getattr(value, "package", ""),
)
def test_each_supported_minor_version_has_a_cell(known: SupportedVersions, names: tuple[str, ...]) -> None:
    assert set(known.supported) - minors(*names) == set()


def test_each_supported_python_and_pandas_has_a_cell() -> None:
    assert {parse_version(cell.python) for cell in CELLS} == set(PYTHON.supported)
    assert {parse_version(version_in(cell, "pandas"))[:1] for cell in CELLS} >= set(PANDAS.supported)


def test_tensorflow_below_those_of_keras_3_has_a_cell_with_keras_2() -> None:
    below = set(TENSORFLOW_WITH_KERAS_2.supported) - set(TENSORFLOW.supported)
    chosen = {
        parse_version(version_in(cell, "tensorflow"))[:2]
        for cell in CELLS
        if dict(cell.variables).get("TF_USE_LEGACY_KERAS") == "1" and version_in(cell, "tf_keras")
    }
    assert chosen == below


def test_each_java_of_each_era_of_spark_has_a_cell() -> None:
    played = {(spark_needs(version).spark[0], cell.java) for cell in CELLS if (version := version_in(cell, "pyspark"))}
    assert {(needs.spark[0], java) for needs in SPARK_NEEDS for java in needs.javas} - played == set()


def test_cells_contain_supported_versions_only() -> None:
    for cell in CELLS:
        for known in (tensorflow_versions(dict(cell.variables)), *(one for one in ALL if one.package != "tensorflow")):
            names = ("tensorflow", "tensorflow-cpu") if known.package == "tensorflow" else (known.package,)
            if version := version_in(cell, *names):
                assert known.verdict(version) == "works", (cell.name, names, version)
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
    passed = Outcome("abc", "2026-11-29", "passed", "15 passed, 4 skipped", 31, 60, 29)
    failed = Outcome("abc", "2026-11-29", "failed", "1 failed, 14 passed", 0, 61)
    lines = version_matrix.table({"newest": failed, "oldest": passed}).splitlines()
    assert lines[2].startswith("| oldest | 3.10 | 11 | pyspark==3.4.4, ")
    assert "| 15 passed, 4 skipped | 31 | 60 | 2026-11-29 | abc |" in lines[2]
    assert lines[3].startswith("| newest ") and "| FAILED: 1 failed, 14 passed | 0 | 61 |" in lines[3]
    assert lines[-1] == "The part that `make test` plays, in an existing environment: oldest 29 s."


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


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Folder of a matrix whose environments are empty, and whose contract passes; the commit is "abc"."""

    def create(cell: Cell, cache: Path | None = None) -> None:
        assert cache is not None
        for place in (tmp_path / cell.name, cache):
            place.mkdir(exist_ok=True)
            (place / "requirements").touch()

    for name, value in {
        "CACHE": tmp_path, "UV_CACHE": tmp_path / "uv", "RESULTS": tmp_path / "results.json",
        "PAGE": tmp_path / "matrix.md", "create_environment": create, "commit": lambda: "abc",
        "run_contract": lambda cell, arguments: ("16 passed", ""),
    }.items():  # fmt: skip
        monkeypatch.setattr(version_matrix, name, value)
    monkeypatch.setattr("sys.argv", ["version_matrix"])
    monkeypatch.setattr(version_matrix.signal, "signal", lambda *_: None)  # that of the test's process stays
    return tmp_path


def test_error_of_a_cell_does_not_stop_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def contract(cell: Cell, arguments: object) -> tuple[str, str]:
        if cell.name == CORNERS[0]:
            raise CellError("its environment cannot be created: two packages contradict each other")
        return "15 passed", ""

    with monkeypatch.context() as patched:
        patched.setattr(version_matrix, "run_contract", contract)
        assert version_matrix.main() == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f'{{"cells": {len(CELLS)}, "failed": ["oldest"]}}'
    assert "| FAILED: not installed |" in (folder / "matrix.md").read_text()

    assert version_matrix.main() == 0  # the failed one alone is repeated
    out = capsys.readouterr().out
    assert out.count("passed before at abc") == len(CELLS) - 1 and "oldest: passed after" in out


def folders(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_dir()}


def test_run_leaves_no_environment_but_those_that_existed_and_no_cache(folder: Path) -> None:
    (folder / "oldest").mkdir()
    (folder / "oldest" / "requirements").touch()
    assert version_matrix.main() == 0
    assert folders(folder) == {"oldest"}


def test_cache_is_removed_before_a_cell_of_another_spark(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached: list[set[str]] = []

    def contract(cell: Cell, arguments: object) -> tuple[str, str]:
        (folder / "uv" / f"of {cell.spark}").touch()
        cached.append({path.name for path in (folder / "uv").glob("of *")})
        return "16 passed", ""

    monkeypatch.setattr(version_matrix, "run_contract", contract)
    assert version_matrix.main() == 0
    assert max(map(len, cached)) == 1  # cells of one Spark follow each other


def test_remains_of_an_interrupted_run_do_not_stop_the_next_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(cell: Cell, arguments: object) -> tuple[str, str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(version_matrix, "run_contract", interrupted)
        with pytest.raises(KeyboardInterrupt):
            version_matrix.main()
    assert folders(folder) == set()
    for name in ("uv", "java-8", "torch-2.4"):  # as after kill -9
        (folder / name / "lib").mkdir(parents=True)
    (folder / "results.json").write_text('{"oldest": {"comm')
    assert version_matrix.main() == 0
    assert folders(folder) == set() and len(json.loads((folder / "results.json").read_text())) == len(CELLS)


def test_results_of_selected_tests_are_not_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["version_matrix", "--", "-k", "torch"])
    assert version_matrix.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == f'{{"cells": {len(CELLS)}, "failed": []}}'
    assert not (folder / "results.json").exists() and not (folder / "matrix.md").exists()


def test_second_run_at_the_same_time_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with version_matrix.exclusive_lock("run"), pytest.raises(SystemExit, match="2"):
        version_matrix.main()
    assert "another run of the matrix uses" in capsys.readouterr().err


def test_java_without_its_vector_module_ignores_the_option_that_names_it(tmp_path: Path) -> None:
    java = tmp_path / "runtime" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nprintf '%s;' \"$@\"\n")
    java.chmod(0o755)
    home = version_matrix.java_without_vectors(tmp_path / "runtime")
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "x"]
    done = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert done.stdout == "-cp;a b;Main;x;"
