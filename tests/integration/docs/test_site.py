"""Tests of the site: strict build, all public names with real signatures, no requests to other servers."""

from __future__ import annotations

import html
import importlib
import re
from pathlib import Path

import pytest

from tests.helpers import pages
from tests.helpers.pages import ROOT
from tests.integration.tools.test_makefile import made
from tools.site_docstrings import one_by_one

PUBLIC = {  # page -> modules whose ``__all__`` it has
    "experiment": ("experiment",),
    "training": ("elastic", "tensorflow", "tracking"),
    "files": ("hdfs",),
    "serving": ("serving",),
    "airflow": ("airflow",),
    "maggy": ("maggy.config",),
}
TRIGGERS = {"HopsMLJobTrigger", "HopsMLRunTrigger"}  # the operators' own matter
_ELSEWHERE = r"=?\(?[\"']?(?:https?:)?//"
FETCHED = re.compile(rf"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href){_ELSEWHERE}|\burl{_ELSEWHERE}")


@pytest.fixture(scope="module")
def site() -> Path:
    """The site as `make docs` builds it; tests/integration/notebook runs the notebooks."""
    made(ROOT, "docs", NOTEBOOKS="--without-outputs")
    return ROOT / ".cache" / "site"


@pytest.mark.local
@pytest.mark.variant
def test_site_documents_every_public_name(site: Path) -> None:
    for page, modules in PUBLIC.items():
        content = site.joinpath("reference", f"{page}.html").read_text()
        for name in modules:
            module = importlib.import_module(f"hopsml.{name}")
            second_names = {one for one, known in vars(module).items() if getattr(known, "__name__", one) != one}
            wanted = {*module.__all__} - TRIGGERS - second_names
            missing = {one for one in wanted if f'id="hopsml.{name}.{one}"' not in content}
            assert not missing, (page, missing)


@pytest.mark.local
@pytest.mark.variant
def test_site_shows_the_arguments_of_a_verb(site: Path) -> None:
    content = site.joinpath("reference", "experiment.html").read_text()
    part = content.partition('id="hopsml.experiment.collective_all_reduce"')[2].partition('class="doc doc-object ')[0]
    shown = html.unescape(re.sub(r"<[^>]+>", "", part))
    assert "checkpoint_every_s: float = 60.0" in shown and "options: RunOptions" not in shown
    assert "description" in shown and "required" not in shown


@pytest.mark.local
@pytest.mark.variant
def test_site_requests_no_other_server(site: Path) -> None:
    found = [
        (path.name, hit.group(0)[:100])
        for path in site.rglob("*") if path.suffix in (".html", ".css")
        for hit in FETCHED.finditer(path.read_text(errors="replace"))
    ]  # fmt: skip
    assert not found


@pytest.mark.local
def test_pages_name_only_public_modules() -> None:
    named = re.findall(r"^::: (\S+)", "\n".join(pages.text(page) for page in pages.users_pages()), re.M)
    for module in named:
        assert module.count(".") <= 1 or module.startswith("hopsml.maggy."), module
        importlib.import_module(module)


BEFORE = """Does it.

Args:
    name, description: for people who
        look later.
    **more: the rest.

Raises:
    ArgumentError, TypeError: at once."""
AFTER = """Does it.

Args:
    name: for people who
        look later.
    description: see ``name``.
    **more: the rest.

Raises:
    ArgumentError, TypeError: at once."""


@pytest.mark.fast
def test_arguments_documented_on_one_line_are_split() -> None:
    assert one_by_one(BEFORE) == AFTER
    assert one_by_one("No arguments, none: here.") == "No arguments, none: here."
