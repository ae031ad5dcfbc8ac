"""Fixtures of the service: a project for a test's runs, a service, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers import leaks
from tests.helpers.service.project import project
from tests.helpers.service.served import empty, served
from tests.integration.service.stage import Stage
from tests.integration.service.tabs import WIDE, Tab

__all__ = ["empty", "project", "served"]
Opens = Callable[..., Tab]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install -y --no-install-recommends chromium")
    from playwright.sync_api import sync_playwright

    with leaks.not_of_this_test(), sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start one service for all tests of a file."""
    stage = Stage(tmp_path_factory.mktemp("stage"))
    yield stage
    stage.close()


@pytest.fixture
def stage(shared_stage: Stage) -> Iterator[Stage]:
    """Yield the shared service with an idle cluster."""
    yield shared_stage
    shared_stage.clear()


@pytest.fixture
def opens(browser: Any, shared_stage: Stage) -> Iterator[Opens]:
    """Yield a function that opens a tab of a user; its console must be empty at the end."""
    tabs: list[tuple[Tab, Any]] = []

    def open_tab(user: str = "ana", size: Any = WIDE, theme: str = "light", stage: Stage = shared_stage) -> Tab:
        with leaks.not_of_this_test():
            context = browser.new_context(viewport=size, color_scheme=theme)
            tabs.append((Tab(context, stage.page(user)), context))
        return tabs[-1][0]

    yield open_tab
    for _, context in tabs:
        context.close()
    assert [tab.console for tab, _ in tabs] == [[]] * len(tabs)


@pytest.fixture
def tab(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """Yield a tab at the ``address`` of the test's file; the test may set a size and a theme."""
    size, theme = getattr(request, "param", (WIDE, "light"))
    with leaks.not_of_this_test():
        context = browser.new_context(viewport=size, color_scheme=theme)
        opened = Tab(context, address)
    yield opened
    context.close()
    assert opened.console == []
