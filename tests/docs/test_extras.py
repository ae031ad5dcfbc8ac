"""README and the first steps say what there is to install besides the core, and how."""

from __future__ import annotations

import ast

import pytest

from tests.docs import pages

pytestmark = pytest.mark.fast

OF_THE_REPOSITORY = {"demo"}  # for its own examples


def extras() -> set[str]:
    tree = ast.parse(pages.text("setup.py"))
    tables = [one.value for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "EXTRAS"]
    (table,) = (one for one in tables if isinstance(one, ast.Dict))
    return {ast.literal_eval(key) for key in table.keys if key is not None} - OF_THE_REPOSITORY


def test_every_extra_is_named_beside_the_command() -> None:
    (told,) = (part for part in pages.text("README.md").split("\n\n") if "[tensorflow," in part)
    assert "pip install" in told and {name for name in extras() if f"`{name}`" in told} == extras()


def test_the_first_steps_say_what_each_is_for() -> None:
    cells = pages.rows("docs/first-steps.md", "What you need")
    assert {name for cell, _ in cells for name in pages.names(cell)} == extras()
