"""Run notebooks from top to bottom in fresh kernels, and write them with their outputs for the site (`make docs`).

python -m tools.execute_notebooks [--again | --without-outputs] FOLDER     # of all notebooks/*.ipynb, into FOLDER

A notebook whose copy in FOLDER was made of the same cells is not run again, unless --again is given. Runs are stored in a
temporary project, with two slots for the profile ``local``; each notebook selects its own profile.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
CELL_S = 600  # limit of a cell
MADE_OF = "hopsml_made_of"  # metadata of a copy: digest of the cells that it was made of


def digest(notebook: nbformat.NotebookNode) -> str:
    """Return a digest of the cells' texts."""
    return hashlib.sha256("\0".join(cell.source for cell in notebook.cells).encode()).hexdigest()


def is_current(copy: Path, notebook: nbformat.NotebookNode) -> bool:
    """Return True if ``copy`` was made of the same cells."""
    if not copy.exists():
        return False
    return bool(nbformat.read(copy, as_version=4).metadata.get(MADE_OF) == digest(notebook))


def execute(notebook: nbformat.NotebookNode, project: Path) -> None:
    """Run all cells; the outputs are added to ``notebook``. CellExecutionError names the cell that fails."""
    from nbclient import NotebookClient

    shutil.copytree(ROOT / "conf", project / "conf")
    (project / "conf" / "local.yaml").write_text("master: none\nlocal_slots: 2\n")  # whatever this machine has
    settings = {
        "HOPSML_PROJECT_URL": f"file://{project}",
        "HOPSML_CONF_DIR": f"{project}/conf",
        "PYTHONPATH": str(ROOT),
        "PLOTLY_RENDERER": "notebook",  # its script is in the output: the site is read without a network
    }
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HOPSML_")} | settings
    place = {"metadata": {"path": str(project)}}
    NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", resources=place).execute(env=variables)
    for cell in notebook.cells:
        if cell.cell_type == "code":  # what the JVM and frameworks write to stderr is not of the notebook
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                # Plotly's HTML requests MathJax from another server; no plot here needs it.
                if page := output.get("data", {}).get("text/html"):
                    output.data["text/html"] = re.sub(r'<script src="https?:[^>]*></script>', "", page)


def run_all(notebooks: Path, copies: Path, again: bool = False) -> int:
    """Run the notebooks of a folder that have no current copy, and write their copies; return the number that failed."""
    copies.mkdir(parents=True, exist_ok=True)
    failed = 0
    for path in sorted(notebooks.glob("*.ipynb")):
        notebook, copy = nbformat.read(path, as_version=4), copies / path.name
        if not again and is_current(copy, notebook):
            continue
        made_of, began = digest(notebook), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="hopsml-notebook-") as project:
            try:
                execute(notebook, Path(project))
            except Exception as error:  # noqa: BLE001 - of the notebook's own code: all are run, and each failure is shown
                print(f"{path.name}: {error}", file=sys.stderr)
                failed += 1
                continue
        notebook.metadata[MADE_OF] = made_of
        nbformat.write(notebook, copy)
        print(f"{path.name}: run in {time.monotonic() - began:.0f} s")
    return failed


def copy_missing(notebooks: Path, copies: Path) -> None:
    """Copy the notebooks that have no copy, without outputs; a later run replaces them."""
    copies.mkdir(parents=True, exist_ok=True)
    for path in notebooks.glob("*.ipynb"):
        if not (copies / path.name).exists():
            shutil.copy(path, copies / path.name)


def main() -> int:
    """Execute what is not current; exit status 1 if a notebook fails."""
    parser = argparse.ArgumentParser(description="Run the notebooks and write them with their outputs.")
    parser.add_argument("--again", action="store_true", help="run notebooks whose cells have not changed, too")
    parser.add_argument(
        "--without-outputs", action="store_true", help="run none: write those that have no copy as they are"
    )
    parser.add_argument("folder", type=Path, help="folder of the copies")
    given = parser.parse_args()
    if given.without_outputs:
        copy_missing(ROOT / "notebooks", given.folder)
        return 0
    failed = run_all(ROOT / "notebooks", given.folder, given.again)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
