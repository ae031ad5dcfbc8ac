"""Run the contract of tests/matrix in an environment for each supported combination of versions (``make matrix``).

    python -m tools.version_matrix                      # all cells; the last line is {"cells": n, "failed": [names]}
    python -m tools.version_matrix --cells "oldest newest"

Environments are created by uv in .cache/matrix, and again if their requirements change. Interpreters are those of the
PATH and of pyenv; a cell without its interpreter fails and says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "matrix"
UV = ROOT / ".venv" / "bin" / "uv"
TESTING = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "setuptools", "wheel")
EXTRAS = "search,serving,notebook"


@dataclass(frozen=True)
class Cell:
    """One combination of versions.

    Attributes:
        name: name in ``CELLS=`` and in the result.
        python: minor version of the interpreter.
        packages: requirements besides hopsml's own.
    """

    name: str
    python: str
    packages: tuple[str, ...]


CELLS = (
    Cell(
        "oldest",
        "3.10",
        ("pyspark==3.4.4", "tensorflow-cpu==2.16.2", "keras==3.12.*", "numpy==1.26.*", "pandas==2.*"),
    ),
    Cell("spark-3.3", "3.10", ("pyspark==3.3.4", "numpy==1.26.*", "pandas==2.*")),
    Cell("spark-3.5", "3.12", ("pyspark==3.5.9", "numpy==2.3.*", "pandas==2.*")),
    Cell(
        "newest",
        "3.13",
        (
            "pyspark==4.3.0", "tensorflow-cpu==2.21.*", "keras==3.15.*", "torch==2.13.*", "jax==0.12.*",
            "numpy==2.5.*", "pandas==3.*",
        ),
    ),
)  # fmt: skip


class CellError(Exception):
    """Error of a cell whose environment cannot be created; the message has the remedy."""


def interpreter(python: str) -> Path:
    """Return an interpreter of a minor version; raise CellError if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "") or Path.home() / ".pyenv")
    found = [*sorted(pyenv.glob(f"versions/{python}.*/bin/python"), reverse=True), shutil.which(f"python{python}")]
    for one in found:
        if one and subprocess.run([one, "-c", ""], capture_output=True, check=False).returncode == 0:
            return Path(one)
    raise CellError(f"Python {python} is missing: install it (uv python install {python}, or pyenv install {python})")


def requirements(cell: Cell) -> list[str]:
    """Return the arguments of pip for the environment of a cell."""
    return ["--editable", f"{ROOT}[{EXTRAS}]", *cell.packages, *TESTING]


def create_environment(cell: Cell) -> Path:
    """Return the interpreter of the cell's environment, which is created if its requirements have changed."""
    folder, wanted = CACHE / cell.name, json.dumps(requirements(cell)) + (ROOT / "pyproject.toml").read_text()
    stamp, python = folder / "requirements", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    log = CACHE / f"{cell.name}.install.log"
    CACHE.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        commands: tuple[list[str | Path], ...] = (
            [UV, "venv", "--clear", "--python", interpreter(cell.python), folder],
            [UV, "pip", "install", "--python", python, *requirements(cell)],
            [UV, "pip", "check", "--python", python],
            [python, "-m", "tools.build_native"],  # operations for the cell's TensorFlow
        )
        for command in commands:
            if subprocess.run(command, stdout=output, stderr=output, cwd=ROOT, check=False).returncode:
                lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
                raise CellError(f"its environment cannot be created: {' '.join(lines[-3:])[:400]} (all of it: {log})")
    stamp.write_text(wanted)
    return python


def run_contract(cell: Cell, arguments: Sequence[str]) -> str:
    """Run the tests of a cell; return what failed, empty if all passed."""
    try:
        python = create_environment(cell)
    except CellError as error:
        return str(error)
    log = CACHE / f"{cell.name}.log"
    with log.open("wb") as output:
        command: list[str | Path] = [
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "matrix",
            "tests/matrix",
            *arguments,
        ]
        status = subprocess.run(command, stdout=output, stderr=output, cwd=ROOT, check=False).returncode
    lines = log.read_text(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return "\n".join(failed or lines[-5:]) + f"\n(all of it: {log})" if status else ""


def main() -> int:
    """Run the selected cells one after another; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.version_matrix", description="Run the matrix of versions.")
    parser.add_argument("--cells", default="", help="names of cells, separated by spaces; all by default")
    parser.add_argument("arguments", nargs="*", help="further arguments of pytest, behind --")
    given = parser.parse_args()
    names = given.cells.split() or [cell.name for cell in CELLS]
    if unknown := set(names) - {cell.name for cell in CELLS}:
        parser.error(f"no cell is named {', '.join(sorted(unknown))}; there are: {', '.join(c.name for c in CELLS)}")
    failed = []
    for cell in CELLS:
        if cell.name not in names:
            continue
        began = time.monotonic()
        problem = run_contract(cell, given.arguments)
        state = "failed" if problem else "passed"
        print(f"{cell.name}: Python {cell.python}, {', '.join(cell.packages)}: {state} after "
              f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
        if problem:
            failed.append(cell.name)
            print(problem, file=sys.stderr, flush=True)
    print(json.dumps({"cells": len(names), "failed": failed}))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
