"""Tests that no two classes of the package have the same name, and that public modules offer public names."""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import pytest

import hopsml

pytestmark = pytest.mark.local
PACKAGE = Path(__file__).parents[3] / "hopsml"
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


def test_class_names_are_unique_in_the_package() -> None:
    twice = {name: files for name, files in classes().items() if len(files) > 1}
    assert not {name: files for name, files in twice.items() if name not in SAME_THING}, "give one a name of its own"
    assert not SAME_THING - set(twice), "these are not defined twice any more"


def test_package_exports_are_not_hidden_by_modules_of_the_same_name() -> None:
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


@pytest.mark.fast
@pytest.mark.parametrize("name", ["", *(f".{module}" for module in hopsml._MODULES), ".maggy"])
def test_completion_lists_only_the_public_names_of_a_module(name: str) -> None:
    module = importlib.import_module(f"hopsml{name}")
    assert sorted(dir(module)) == sorted(module.__all__)
    assert [one for one in dir(module) if not hasattr(module, one)] == []


@pytest.mark.fast
def test_public_module_lists_all_its_functions_and_classes() -> None:
    """The completion is made of the list, so a name that is missing there cannot be found."""
    for name in hopsml._MODULES:
        module = importlib.import_module(f"hopsml.{name}")
        own = {
            one
            for one, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__ and callable(value) and not one.startswith("_")
        }
        internal = {"executor_limit"} if name == "util" else set()
        assert own - set(module.__all__) == internal, name


def test_main_call_is_the_last_statement_of_a_module() -> None:
    """Definitions after the call of the main function do not exist while it runs."""
    late = []
    for path in sorted(PACKAGE.rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        runs = [
            number for number, node in enumerate(body) if isinstance(node, ast.If) and "__main__" in ast.dump(node.test)
        ]
        late += [str(path.relative_to(PACKAGE)) for number in runs if number != len(body) - 1]
    assert not late
