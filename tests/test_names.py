"""Tests that no two classes of the package have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.local
PACKAGE = Path(__file__).parents[1] / "hopsml"
# One thing seen from two sides; a name that means two things has no place here.
SAME_THING = {
    # Maggy's call forms of what hopsml has: the name is Maggy's.
    "Trial",
    # One optimizer, for Keras and for torch.
    "LAMB", "LARS", "RMSpropWarmup",
    # The clock's event of either state machine, of a group and of a search.
    "Tick",
}  # fmt: skip


def classes() -> dict[str, list[str]]:
    """Name of each class that others may know -> the files that define it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    return found


def test_a_name_means_one_thing() -> None:
    twice = {name: files for name, files in classes().items() if len(files) > 1}
    assert not {name: files for name, files in twice.items() if name not in SAME_THING}, "give one a name of its own"
    assert not SAME_THING - set(twice), "these are not defined twice any more"


def test_what_a_package_exports_is_not_hidden_by_a_module_of_the_same_name() -> None:
    """The import of ``package.name`` sets that name in the package, whatever was there."""
    hidden = [
        f"{path.parent.relative_to(PACKAGE)}: {alias.name} of {node.module}"
        for path in sorted(PACKAGE.rglob("__init__.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if (path.parent / f"{alias.asname or alias.name}.py").exists()
        and node.module.rpartition(".")[2] not in (alias.asname or alias.name, path.parent.name)
    ]
    assert not hidden


def test_a_module_that_is_run_has_all_its_functions_by_then() -> None:
    """What stands behind the call of its main function does not exist while that runs."""
    late = []
    for path in sorted(PACKAGE.rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        runs = [
            number for number, node in enumerate(body) if isinstance(node, ast.If) and "__main__" in ast.dump(node.test)
        ]
        late += [str(path.relative_to(PACKAGE)) for number in runs if number != len(body) - 1]
    assert not late
