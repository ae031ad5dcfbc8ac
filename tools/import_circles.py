"""No file imports itself over others: ``python -m tools.import_circles`` names each circle of files under ``hopsml/``.

Every import counts, those within functions and those for type checkers, too: they hide a circle, they do not open it. When
this was written the strictest rule cost two repairs, so there was no need for a laxer one. A package's ``__init__`` counts
where a name is taken from it that is no file of it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "hopsml"


def modules(root: Path, package: str) -> dict[str, Path]:
    """Name of each module of the package -> its file."""
    files = sorted((root / package).rglob("*.py"))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(source: str, name: str, is_package: bool, known: Mapping[str, object]) -> set[str]:
    """Those of the ``known`` modules that the source of module ``name`` imports, wherever in it."""
    found = set()
    for full in _names(ast.parse(source), name if is_package else name.rpartition(".")[0]):
        while full and full not in known:  # a name within a module
            full = full.rpartition(".")[0]
        found.add(full)
    return found - {"", name}


def _names(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """For each knot of modules that import each other the shortest circle of its first one; [] where there is none."""
    found: list[list[str]] = []
    done: set[str] = set()
    for name in sorted(imports):
        if name not in done and (circle := _shortest(name, imports)):
            found.append(circle)
            done.update(circle)
    return found


def _shortest(start: str, imports: Mapping[str, set[str]]) -> list[str]:
    """The shortest way from a module back to itself, by breadth first; [] where there is none."""
    ways = {start: [start]}
    queue = [start]
    for name in queue:
        for following in sorted(imports[name]):
            if following == start:
                return ways[name]
            if following not in ways:
                ways[following] = [*ways[name], following]
                queue.append(following)
    return []


def main() -> int:
    """Print the circles; the exit status is 1 where there is one."""
    files = modules(ROOT, PACKAGE)
    graph = {n: imported(p.read_text(), n, p.name == "__init__.py", files) for n, p in files.items()}
    found = circles(graph)
    for circle in found:
        print("a circle of files:", " -> ".join([*circle, circle[0]]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
