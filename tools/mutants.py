"""Change the code that decides, one small change at a time, and count the changes that its own tests do not notice.

    .venv/bin/python -m tools.mutants [PATTERN ...]      # for instance 'hopsml.cluster.gang.pool*'

Which modules, and which tests, stands in pyproject.toml under [tool.mutmut]. mutmut keeps its work in ``mutants/``: what is
unchanged since is not run again. The result is printed: a line for each module, then one line of JSON with the number of
mutants that were run and of those that survived. Without a pattern it is written to RESULTS with every change that survived,
and why it may: REASONS says so of those that make no difference. The exit status is 1 where more than MOST_LEFT of all
survived.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
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
SURVIVED, NOT_REACHED, NOT_RUN = 0, (5, 33), None  # mutmut's exit codes; all others mean that a test failed or hung


@dataclass
class Module:
    """What became of the mutants of one module."""

    name: str
    total: int = 0
    not_run: int = 0
    left: list[str] = field(default_factory=list)  # names of those that no test noticed


def ensure() -> Path:
    """The folder with mutmut and what it needs besides the environment; CalledProcessError when it cannot be made."""
    stamp = SITE / ".complete"
    if not is_current(stamp, [REQUIREMENTS]):
        uv = (VENV / "bin" / "uv", "pip", "install", "--quiet", "--python", PYTHON, "--no-deps", "--target", SITE)
        run(*uv, "--requirement", REQUIREMENTS)
        stamp.touch()
    return SITE


def mutmut(*arguments: str, capture: bool = False) -> str:
    """Run mutmut in the project's folder; what it printed, where ``capture`` is asked for."""
    environment = {**os.environ, "PYTHONPATH": str(ensure()), "PYTEST_ADDOPTS": "-p tools.drawn_last"}
    command = [str(PYTHON), "-m", "mutmut", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=capture, check=not capture)
    return done.stdout if capture else ""


def modules() -> Iterator[Module]:
    """What stands in mutmut's records, by module."""
    for path in sorted(WORK.rglob("*.py.meta")):
        results = json.loads(path.read_text())["exit_code_by_key"]
        module = Module(str(path.relative_to(WORK)).removesuffix(".py.meta").replace("/", "."), total=len(results))
        for name, code in results.items():
            module.not_run += code is NOT_RUN
            if code == SURVIVED or code in NOT_REACHED:
                module.left.append(name)
        if module.total:
            yield module


def share_left(found: Sequence[Module]) -> float:
    """Survivors among all that were run; 0 where none was."""
    run_ = sum(module.total - module.not_run for module in found)
    return sum(len(module.left) for module in found) / run_ if run_ else 0.0


def summary(found: Sequence[Module]) -> dict[str, int]:
    """Return the closing figures: how many mutants were run, and how many of them no test noticed."""
    return {
        "mutants": sum(module.total - module.not_run for module in found),
        "survived": sum(len(module.left) for module in found),
    }


def change_of(name: str) -> str:
    """The changed lines of a mutant: ``- old`` and ``+ new``."""
    lines = mutmut("show", name, capture=True).splitlines()
    return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def function_of(name: str) -> str:
    """The function that a mutant changes, as one writes it: ``package.module.Class.method``."""
    module, _, changed = re.sub(r"__mutmut_\d+$", "", name).rpartition(".")
    return f"{module}.{changed[1:].removeprefix('_').replace('ǁ', '.').removeprefix('.')}"


Reasons = Mapping[str, Mapping[str, str]]  # function -> pattern of a changed line -> why no test can notice it


def reason_for(function: str, change: str, reasons: Reasons) -> str:
    """Why this change of the function makes no difference; "" where nobody says so."""
    new = "\n".join(line for line in change.splitlines() if line.startswith("+"))
    return next((why for pattern, why in reasons.get(function, {}).items() if re.search(pattern, new)), "")


def page(found: Sequence[Module], reasons: Reasons) -> str:
    """The result as Markdown: the table, then each survivor with its change and the reason."""
    lines = ["# Changes of the code that its tests do not notice", "", "Made by `make mutants`.", ""]
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


def main(patterns: Sequence[str]) -> int:
    """Run those that match (all, without a pattern), print and write what survived."""
    mutmut("run", *patterns)
    found = [module for module in modules() if module.total > module.not_run]
    if not patterns:
        RESULTS.write_text(page(found, tomllib.loads(REASONS.read_text())))
    for module in found:
        print(f"{share_left([module]):7.1%}  {len(module.left):4} of {module.total:4}  {module.name}")
    not_run = sum(module.not_run for module in found)
    print(f"mutants that survived: {share_left(found):.1%}, at most {MOST_LEFT:.0%} may; {not_run} were not run")
    print(json.dumps(summary(found)))
    return int(share_left(found) > MOST_LEFT or (not_run > 0 and not patterns))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
