"""Tests that `make lint` refuses import cycles of files, however the imports are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import import_circles

pytestmark = pytest.mark.fast


def circles(folder: Path, **sources: str) -> list[list[str]]:
    """Return the import cycles of a package ``p`` with these files; ``sub_x`` is in its folder ``sub``."""
    for name, source in {"__init__": "", "sub___init__": "", **sources}.items():
        path = folder / "p" / f"{name.replace('sub_', 'sub/', 1)}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    files = import_circles.modules(folder, "p")
    return import_circles.circles(
        {n: import_circles.imported(p.read_text(), n, p.name == "__init__.py", files) for n, p in files.items()}
    )


@pytest.mark.parametrize(
    "back",
    [
        "import p.a",
        "from p import a",
        "from p.a import name",
        "from . import a",
        "from .a import name",
        "def f():\n    from p.a import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import name",
    ],
)
def test_import_cycle_is_found_for_every_form_of_import(tmp_path: Path, back: str) -> None:
    assert circles(tmp_path, a="from p import b\nimport json", b="from p.c import x", c=back) == [["p.a", "p.b", "p.c"]]


def test_each_import_cycle_is_named_once_without_its_importers(tmp_path: Path) -> None:
    sources = {"a": "from p import b, d", "b": "from p import c", "c": "from p import b", "d": "import p.sub.e"}
    found = circles(tmp_path, **sources, sub_e="from .. import f", f="from p.sub import e")
    assert found == [["p.b", "p.c"], ["p.f", "p.sub.e"]]


def test_downward_imports_are_not_a_cycle(tmp_path: Path) -> None:
    assert (
        circles(tmp_path, a="from p import b, c", b="from p.c import x", c="import os", sub_e="from .. import a") == []
    )
