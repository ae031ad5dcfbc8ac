"""README says what there is to install besides the core, and how."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
OF_THE_REPOSITORY = {"demo"}  # for its own examples


def test_every_extra_is_named_beside_the_command() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    tables = [one.value for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "EXTRAS"]
    (table,) = (one for one in tables if isinstance(one, ast.Dict))
    extras = {ast.literal_eval(key) for key in table.keys if key is not None} - OF_THE_REPOSITORY
    (told,) = (
        part for part in (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n") if "[tensorflow," in part
    )
    assert "pip install" in told and {name for name in extras if f"`{name}`" in told} == extras
