"""The pages of the cluster, of users, of data sets, and of what people note of runs, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.states import Lifecycle
from tests.service.conftest import Opens
from tests.service.stage import Stage
from tests.service.tabs import NARROW, WIDE, until, violations

pytestmark = pytest.mark.local


def test_the_cluster_page_says_who_is_on_which_node_and_what_queues_have(stage: Stage, opens: Opens) -> None:
    holder = stage.submit("holder", 10, user="ben", queue="research")
    stage.reaches(holder, Lifecycle.RUNNING)
    stage.submit("waits", 8)
    page = opens().open("cluster")
    nodes = page.get_by_role("region", name="Nodes")
    nodes.get_by_role("row", name="node2").wait_for()
    said = nodes.get_by_role("row").all_inner_texts()
    assert len(said) == 3 and all(f"{holder.id} ben: " in row for row in said[1:])
    widths = (
        "[...document.querySelectorAll('.nodes td[data-label=GPUs] .fill:first-child')].map((one) => one.style.width)"
    )
    assert sorted(page.evaluate(widths)) == ["100.0%", "25.0%"]
    queues = page.get_by_role("region", name="Queues")
    research, default = (queues.get_by_role("row", name=name).inner_text() for name in ("research", "default"))
    assert "10 GPUs" in research and "16 GPUs, 64 cores, 256 GiB" in research
    assert default.split()[-1] == "1", "one waits"
    stage.ends(holder)
    nodes.get_by_role("link", name="waits").first.wait_for()
    nodes.get_by_role("link", name="waits").first.press("Enter")
    page.wait_for_selector("h1:has-text('waits')")


@pytest.mark.parametrize(("size", "theme"), [(WIDE, "light"), (NARROW, "dark")], ids=["wide", "narrow"])
def test_nothing_is_serious_to_axe_and_nothing_wider_than_the_window(
    stage: Stage, opens: Opens, size: Any, theme: str
) -> None:
    holder = stage.submit("holder", 12, user="ben", tasks=1)
    stage.reaches(holder, Lifecycle.RUNNING)
    tab = opens("ana", size, theme)
    for place in ("cluster",):
        page = tab.open(place)
        until(page, "!document.querySelector('main').textContent.includes('Reading')")
        assert violations(page) == [], place
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
