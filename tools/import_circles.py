"""Find circular imports: ``python -m tools.import_circles`` prints each circle of files under ``hopsml/``.

Every import counts, including those within functions and those for type checkers, which only hide a circle. When this was
written the strictest rule required two repairs, so a laxer one was not necessary. A package's ``__init__`` counts if a name
is imported from it that is not one of its files.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "hopsml"


def modules(root: Path, package: str) -> dict[str, Path]:
    """Return the file of each module of the package, by the module's name."""
    files = sorted((root / package).rglob("*.py"))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(source: str, name: str, is_package: bool, known: Mapping[str, object]) -> set[str]:
    """Return those of the ``known`` modules that the source of module ``name`` imports, anywhere in it."""
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
    """Return a shortest circle for each set of modules that import each other; [] if there is none."""
    found: list[list[str]] = []
    done: set[str] = set()
    for name in sorted(imports):
        if name not in done and (circle := _shortest(name, imports)):
            found.append(circle)
            done.update(circle)
    return found


def _shortest(start: str, imports: Mapping[str, set[str]]) -> list[str]:
    """Return the shortest path from a module back to itself, by breadth-first search; [] if there is none."""
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
    """Print the circles and return exit status 1 if there is one."""
    files = modules(ROOT, PACKAGE)
    graph = {n: imported(p.read_text(), n, p.name == "__init__.py", files) for n, p in files.items()}
    found = circles(graph)
    for circle in found:
        print("a circle of files:", " -> ".join([*circle, circle[0]]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
