"""Mutation tests of the pure modules: make one small change of the code at a time, count those that no test detects.

    .venv/bin/python -m tools.mutants                  # a random sample of all mutants, the same each time
    .venv/bin/python -m tools.mutants --sample 1200 --seed 7
    .venv/bin/python -m tools.mutants all              # every mutant; many hours
    .venv/bin/python -m tools.mutants PATTERN ...      # for instance 'hopsml.cluster.gang.pool*'

[tool.mutmut] of pyproject.toml lists the modules and their tests; mutmut stores its work in ``mutants/``. Sampled and
matching mutants are always run; ``all`` runs those without a result, so that it continues where an earlier run ended.
Printed are one line per module, then one line of JSON with the number of mutants that were run and of those that survived.
A sample, and ``all``, are also written to RESULTS, with every surviving change and, where REASONS has one, the reason why
no test can detect it. The exit status is 1 if more than MOST_LEFT of the mutants survived.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tomllib

from tools.setup_environment import PYTHON, ROOT, VENV, is_current, run

SITE = ROOT / ".cache" / "mutants" / "site"
WORK = ROOT / "mutants"
REQUIREMENTS = ROOT / "requirements" / "mutants.txt"
RESULTS = ROOT / "benchmarks" / "results" / "mutants.md"
REASONS = ROOT / "tests" / "mutants_left.toml"
MOST_LEFT = 0.10  # share of all mutants
SAMPLE = 600  # mutants by default: half an hour on two cores
SEED = 20261128
FIRST = "hopsml.cluster.gang.machine*"  # the module with the fewest mutants
SURVIVED, NOT_REACHED, NOT_RUN = 0, (5, 33), None  # mutmut's exit codes; all others mean that a test failed or hung


@dataclass
class Module:
    """Results of the mutants of one module."""

    name: str
    total: int = 0
    not_run: int = 0
    left: list[str] = field(default_factory=list)  # names of those that no test detected


def ensure() -> Path:
    """Install mutmut and its requirements unless current, and return their folder; CalledProcessError if that fails."""
    stamp = SITE / ".complete"
    if not is_current(stamp, [REQUIREMENTS]):
        uv = (VENV / "bin" / "uv", "pip", "install", "--quiet", "--python", PYTHON, "--no-deps", "--target", SITE)
        run(*uv, "--requirement", REQUIREMENTS)
        stamp.touch()
    return SITE


def mutmut(*arguments: str, capture: bool = False) -> str:
    """Run mutmut in the project's folder; return its output if ``capture``, else ""."""
    environment = {**os.environ, "PYTHONPATH": str(ensure()), "PYTEST_ADDOPTS": "-p tools.drawn_last"}
    command = [str(PYTHON), "-m", "mutmut", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=capture, check=not capture)
    return done.stdout if capture else ""


def results_by_module() -> dict[str, dict[str, int | None]]:
    """Return mutmut's records: for each module the exit code of each mutant, by name; None for those without a result."""
    found = {}
    for path in sorted(WORK.rglob("*.py.meta")):
        name = str(path.relative_to(WORK)).removesuffix(".py.meta").replace("/", ".")
        found[name] = json.loads(path.read_text())["exit_code_by_key"]
    return found


def modules(records: Mapping[str, Mapping[str, int | None]], chosen: Container[str] | None = None) -> Iterator[Module]:
    """Yield the outcome of each module that has mutants.

    Args:
        records: As ``results_by_module`` returns them.
        chosen: Names of the mutants to count; None for all.
    """
    for name, results in records.items():
        counted = {mutant: code for mutant, code in results.items() if chosen is None or mutant in chosen}
        left = [mutant for mutant, code in counted.items() if code == SURVIVED or code in NOT_REACHED]
        not_run = sum(code is NOT_RUN for code in counted.values())
        if counted:
            yield Module(name, total=len(counted), not_run=not_run, left=left)


def draw(names: Sequence[str], count: int, seed: int) -> list[str]:
    """Return a uniform random sample of ``count`` mutants without repetition, sorted; all if there are no more."""
    return sorted(random.Random(seed).sample(sorted(names), min(count, len(names))))


def half_width(share: float, count: int) -> float:
    """Return half the width of the 95 % confidence interval of a share that was measured on ``count`` samples."""
    return 1.96 * math.sqrt(share * (1 - share) / count) if count else 0.0


def share_left(found: Sequence[Module]) -> float:
    """Return the share of survivors among all mutants that were run; 0 if none was."""
    run_ = sum(module.total - module.not_run for module in found)
    return sum(len(module.left) for module in found) / run_ if run_ else 0.0


def summary(found: Sequence[Module]) -> dict[str, int]:
    """Return the closing figures: numbers of mutants that were run, and that survived."""
    return {
        "mutants": sum(module.total - module.not_run for module in found),
        "survived": sum(len(module.left) for module in found),
    }


def change_of(name: str) -> str:
    """Return the changed lines of a mutant: ``- old`` and ``+ new``."""
    lines = mutmut("show", name, capture=True).splitlines()
    return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def function_of(name: str) -> str:
    """Return the dotted name of the function that a mutant changes: ``package.module.Class.method``."""
    module, _, changed = re.sub(r"__mutmut_\d+$", "", name).rpartition(".")
    return f"{module}.{changed[1:].removeprefix('_').replace('ǁ', '.').removeprefix('.')}"


Reasons = Mapping[str, Mapping[str, str]]  # function -> pattern of a changed line -> why no test can detect it


def reason_for(function: str, change: str, reasons: Reasons) -> str:
    """Return the recorded reason why a change of the function has no effect; "" if there is none."""
    new = "\n".join(line for line in change.splitlines() if line.startswith("+"))
    return next((why for pattern, why in reasons.get(function, {}).items() if re.search(pattern, new)), "")


def page(found: Sequence[Module], about: str, reasons: Reasons) -> str:
    """Return the result as Markdown: the table, then each survivor with its change and the reason."""
    lines = ["# Mutants that the tests do not detect", "", f"Written by `make mutants`. {about}", ""]
    lines += ["| module | mutants | survived | share |", "|---|---|---|---|"]
    for module in found:
        lines.append(f"| `{module.name}` | {module.total} | {len(module.left)} | {share_left([module]):.1%} |")
    total, left = sum(module.total for module in found), sum(len(module.left) for module in found)
    lines += [f"| all | {total} | {left} | {share_left(found):.1%} |", ""]
    for module in found:
        for name in module.left:
            change = change_of(name)
            why = reason_for(function_of(name), change, reasons)
            lines += [f"`{name}`{': ' if why else ''}{why}", "```diff", change, "```"]
    return "\n".join(lines) + "\n"


def report(found: Sequence[Module]) -> int:
    """Print a line per module and the closing figures; return the exit status."""
    for module in found:
        print(f"{share_left([module]):7.1%}  {len(module.left):4} of {module.total:4}  {module.name}")
    figures, share = summary(found), share_left(found)
    margin = half_width(share, figures["mutants"])
    print(f"survivors: {share:.1%} (a sample: +- {margin:.1%}), limit {MOST_LEFT:.0%}")
    print(json.dumps(figures))
    return int(share > MOST_LEFT)


def main(arguments: Sequence[str]) -> int:
    """Run a sample, all, or those that match; print the result and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants")
    parser.add_argument("patterns", nargs="*", help="'all', or patterns of names; without any, a random sample is run")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw")
    given = parser.parse_args(arguments)
    chosen: list[str] | None = None
    about = "All mutants." if given.patterns == ["all"] else f"Mutants that match {' '.join(given.patterns)}."
    if given.patterns:
        mutmut("run", *(() if given.patterns == ["all"] else given.patterns))
    else:
        mutmut("run", FIRST)  # mutmut makes the mutants of all modules at the begin of any run
        names = [name for results in results_by_module().values() for name in results]
        chosen = draw(names, given.sample, given.seed)
        about = f"A random sample of {len(chosen)} among {len(names)} mutants, seed {given.seed}."
        mutmut("run", *chosen)
    found = [module for module in modules(results_by_module(), chosen) if module.total > module.not_run]
    if given.patterns in ([], ["all"]):
        RESULTS.write_text(page(found, about, tomllib.loads(REASONS.read_text())))
    print(about)
    return report(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
