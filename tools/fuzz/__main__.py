"""Fuzz all readers of foreign bytes, some minutes each (``make fuzz``).

    .venv/bin/python -m tools.fuzz --minutes 1                      # all targets
    .venv/bin/python -m tools.fuzz --minutes 60 --targets "job-file run-records"

The last line is {"targets": n, "executions": {target: n}, "failed": [...]}; the exit status is 1 if a target failed:
its reader raised an undocumented error, an input took too long or too much memory, or the process ended early. Inputs and
tracebacks are in .cache/fuzz/findings; the corpus in .cache/fuzz/corpus grows with each run. The fuzzer is atheris,
installed into .cache/fuzz/site.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.fuzz.targets import TARGETS
from tools.setup_environment import PYTHON, ROOT, VENV, Missing, fetch, is_current

FOLDER = ROOT / ".cache" / "fuzz"
REQUIREMENTS = ROOT / "requirements" / "fuzz.txt"
AT_ONCE = 2  # processes
START_S = 300  # seconds for the start of a process, with imports and instrumentation on a busy machine
_EXECUTED = re.compile(r"^stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """Result of fuzzing one target: the number of executions, and the faults that were found."""

    name: str
    executions: int
    faults: tuple[str, ...]


def ensure() -> Path:
    """Install atheris unless it is current, and return its folder; ``setup_environment.Missing`` if it cannot be fetched."""
    site = FOLDER / "site"
    stamp = site / ".complete"
    if not is_current(stamp, [REQUIREMENTS]):
        uv = (VENV / "bin" / "uv", "pip", "install", "--quiet", "--python", PYTHON, "--no-deps", "--target", site)
        fetch(*uv, "--requirement", REQUIREMENTS)
        stamp.touch()
    return site


def fuzz(name: str, seconds: int, runs: int, folder: Path = FOLDER) -> Outcome:
    """Fuzz one target in a process, and return the result.

    Args:
        name: Name of the target.
        seconds: Time limit; 0: none.
        runs: Number of executions; -1: any.
        folder: Folder of the corpus, the findings and the log.
    """
    findings, log = folder / "findings" / name, folder / f"{name}.log"
    shutil.rmtree(findings, ignore_errors=True)
    for left in findings.parent.glob(f"{name}-*"):  # inputs that took too long, or too much memory
        left.unlink()
    findings.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": f"{ensure()}{os.pathsep}{ROOT}"}
    command = [PYTHON, "-m", "tools.fuzz.fuzzer", name, folder, str(seconds), str(runs)]
    memory = Path("/dev/shm")
    # libFuzzer ends its process without exit functions: the folder of a target's files is deleted here.
    scratch = tempfile.TemporaryDirectory(prefix="hopsml-fuzz-", dir=memory if memory.is_dir() else None)
    with log.open("wb") as file, scratch as folder_of_files:
        environment["TMPDIR"] = folder_of_files
        process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, cwd=ROOT
        )
        try:
            status = process.wait(seconds + START_S if seconds else None)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
    return _outcome(name, status, log.read_text(errors="replace"), findings)


def _outcome(name: str, status: int, output: str, findings: Path) -> Outcome:
    """Return the result of a process that has ended, from its output and the findings that it has written."""
    executed = _EXECUTED.search(output)
    faults = [json.loads(file.read_text())["signature"] for file in sorted(findings.glob("*.json"))]
    faults += [f"{file.name}" for file in sorted(findings.parent.glob(f"{name}-*"))]
    if not faults and (status or executed is None):
        faults.append(f"the process ended with status {status}: {output.strip().splitlines()[-1:]}")
    return Outcome(name, int(executed[1]) if executed is not None else 0, tuple(faults))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz the selected targets, print the closing line, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="minutes for each target")
    parser.add_argument("--targets", default="", help="names, separated by spaces; all by default")
    given = parser.parse_args(arguments)
    names = given.targets.split() or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]!r}; the targets are {', '.join(TARGETS)}")
    try:
        ensure()
    except Missing as problem:
        print(f"fuzz: {problem}", file=sys.stderr)
        return 1
    seconds = max(1, round(60 * given.minutes))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda name: fuzz(name, seconds, -1), names))
    for outcome in outcomes:
        print(f"{outcome.name}: {outcome.executions} executions, {len(outcome.faults)} faults", file=sys.stderr)
    failed = [f"{outcome.name}: {fault}" for outcome in outcomes for fault in outcome.faults]
    executions = {outcome.name: outcome.executions for outcome in outcomes}
    print(json.dumps({"targets": len(outcomes), "executions": executions, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
