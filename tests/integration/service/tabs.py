"""Tabs of a real browser, with waiting conditions, and texts that must stay texts."""

from __future__ import annotations

import importlib.resources
from typing import Any

HOSTILE = (
    "<script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    '"><svg onload=window.hit=1>',
    "javascript:window.hit=1",
    "{{constructor.constructor('window.hit=1')()}}",
    "${window.hit=1}",
    "</title><script>window.hit=1</script>",
    "\u202eright to left \x1b[31m",
)
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
WAITS = 500  # looks, one each 20 ms
SERIOUS = ("serious", "critical")


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true; Playwright's wait needs an eval that the page's policy forbids."""
    for _ in range(WAITS):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"it did not come to {expression}: {page.locator('main').inner_text()[:2000]}")


def press(page: Any, name: str) -> None:
    """Press a button by keyboard."""
    page.get_by_role("button", name=name, exact=True).press("Enter")


class Tab:
    """Browser tab that records its console output, which must be empty."""

    def __init__(self, context: Any, address: str) -> None:
        context.set_default_timeout(120_000)
        self.page, self.console = context.new_page(), list[str]()
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self._root = address.split("?")[0]
        self.page.goto(address)

    def open(self, place: str) -> Any:
        """Open a route of the page and wait until it is shown."""
        self.page.goto(f"{self._root}#/{place}")
        self.page.wait_for_selector("main h1")
        return self.page


def violations(page: Any) -> list[dict[str, Any]]:
    """Return the serious violations that axe finds, shortened."""
    source = importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    page.evaluate(source)  # not as a script of the page, which forbids it
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        {"id": one["id"], "nodes": [node["html"][:200] for node in one["nodes"][:3]]}
        for one in found
        if one["impact"] in SERIOUS
    ]
