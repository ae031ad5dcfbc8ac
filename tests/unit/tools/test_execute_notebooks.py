"""Tests of the tool that runs notebooks for the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from tools import execute_notebooks


def write(path: Path, *cells: str) -> None:
    path.parent.mkdir(exist_ok=True)
    content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(content, path)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """First cells of the notebooks that were run, without a kernel."""
    seen: list[str] = []

    def execute(notebook: Any, project: Path) -> None:
        seen.append(notebook.cells[0].source)
        if "raise" in notebook.cells[0].source:
            raise ValueError("of the cell")

    monkeypatch.setattr(execute_notebooks, "execute", execute)
    return seen


@pytest.mark.fast
def test_only_changed_notebooks_are_executed_again(tmp_path: Path, started: list[str]) -> None:
    notebooks, copies = tmp_path / "notebooks", tmp_path / "copies"
    write(notebooks / "a.ipynb", "1")
    write(notebooks / "b.ipynb", "2")
    assert execute_notebooks.run_all(notebooks, copies) == 0 and started == ["1", "2"]
    write(notebooks / "b.ipynb", "3")
    assert execute_notebooks.run_all(notebooks, copies) == 0 and started == ["1", "2", "3"]
    assert execute_notebooks.run_all(notebooks, copies, again=True) == 0 and started == ["1", "2", "3", "1", "3"]


@pytest.mark.fast
def test_copy_without_outputs_is_replaced_by_an_executed_one_only(tmp_path: Path, started: list[str]) -> None:
    notebooks, copies = tmp_path / "notebooks", tmp_path / "copies"
    write(notebooks / "a.ipynb", "1")
    execute_notebooks.copy_missing(notebooks, copies)
    assert (copies / "a.ipynb").read_bytes() == (notebooks / "a.ipynb").read_bytes()
    assert execute_notebooks.run_all(notebooks, copies) == 0 and started == ["1"]
    execute_notebooks.copy_missing(notebooks, copies)
    assert execute_notebooks.run_all(notebooks, copies) == 0 and started == ["1"]


@pytest.mark.fast
def test_failed_notebook_is_counted_and_leaves_no_copy(
    tmp_path: Path, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    notebooks, copies = tmp_path / "notebooks", tmp_path / "copies"
    write(notebooks / "a.ipynb", "raise")
    write(notebooks / "b.ipynb", "2")
    assert execute_notebooks.run_all(notebooks, copies) == 1
    assert [path.name for path in copies.iterdir()] == ["b.ipynb"] and "a.ipynb: of the cell" in capsys.readouterr().err


@pytest.mark.local
def test_executed_notebook_has_outputs_without_stderr_and_uses_the_given_project(tmp_path: Path) -> None:
    text = "import os, sys; print(os.environ['HOPSML_PROJECT_URL']); print('noise', file=sys.stderr); 1 + 1"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text)])
    execute_notebooks.execute(notebook, tmp_path)
    (cell,) = notebook.cells
    assert [output.get("text") or output.data["text/plain"] for output in cell.outputs] == [f"file://{tmp_path}\n", "2"]
