"""Tests that README and first steps name all extras and how to install them."""

from __future__ import annotations

import re

import pytest
import tomllib

from tests.helpers import pages

pytestmark = pytest.mark.fast

OF_THE_REPOSITORY = {"demo"}  # for its own examples


def extras() -> set[str]:
    project = tomllib.loads(pages.text("pyproject.toml"))["project"]
    return set(project["optional-dependencies"]) - OF_THE_REPOSITORY


def test_readme_names_every_extra_with_the_install_command() -> None:
    (paragraph,) = (part for part in pages.text("README.md").split("\n\n") if "[tensorflow," in part)
    assert "pip install" in paragraph and {name for name in extras() if f"`{name}`" in paragraph} == extras()


def test_first_steps_describe_every_extra() -> None:
    cells = pages.rows("docs/first-steps.md", "Requirements")
    assert {name for cell, _ in cells for name in pages.names(cell)} == extras()


def test_pages_install_the_built_wheel_with_existing_extras() -> None:
    lines = [(page, line) for page in pages.users_pages() for line in pages.text(page).splitlines() if ".whl" in line]
    assert len({page for page, _ in lines}) >= 5
    for page, line in lines:
        installed = re.findall(
            r'pip (?:install|wheel --wheel-dir wheels) "\$\(ls dist/hopsml_spark-\*\.whl\)\[([a-z,-]+)\]"', line
        )
        assert len(installed) == line.count(".whl"), (page, line)
        assert set(",".join(installed).split(",")) <= extras(), (page, line)
