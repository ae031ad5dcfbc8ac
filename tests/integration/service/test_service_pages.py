"""Tests of the pages of cluster, users, data sets and notes in a real browser."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from hopsml.client import Client
from hopsml.core.states import Lifecycle
from hopsml.errors import ServiceError
from tests.helpers import leaks
from tests.helpers.clock import END_S
from tests.integration.service.conftest import Opens
from tests.integration.service.prefix_proxy import prefixed
from tests.integration.service.stage import Stage
from tests.integration.service.tabs import HOSTILE, NARROW, WIDE, Tab, press, until, violations

pytestmark = pytest.mark.local


def test_cluster_page_shows_jobs_per_node_and_queue_usage(stage: Stage, opens: Opens) -> None:
    holder = stage.submit("holder", 10, user="ben", queue="research")
    stage.reaches(holder, Lifecycle.RUNNING)
    stage.submit("waits", 8)
    page = opens().open("cluster")
    nodes = page.get_by_role("region", name="Nodes")
    nodes.get_by_role("row", name="node2").wait_for()
    row_texts = nodes.get_by_role("row").all_inner_texts()
    assert len(row_texts) == 3 and all(f"{holder.id} ben: " in row for row in row_texts[1:])
    widths = (
        "[...document.querySelectorAll('.nodes td[data-label=GPUs] .fill:first-child')].map((one) => one.style.width)"
    )
    assert sorted(page.evaluate(widths)) == ["0%", "75%"], "what is free: none of one, six of eight of the other"

    queues = page.get_by_role("region", name="Queues")
    research = queues.get_by_role("row", name="research").inner_text()
    assert "10 GPUs" in research and "16 GPUs, 64 cores, 256 GiB" in research
    page.wait_for_selector(".queues tr:has-text('default') td[data-label=Waiting]:text-is('1')")
    stage.ends(holder)
    nodes.get_by_role("link", name="waits").first.wait_for()
    nodes.get_by_role("link", name="waits").first.press("Enter")
    page.wait_for_selector("h1:has-text('waits')")


def test_token_is_created_shown_once_used_and_revoked(stage: Stage, opens: Opens) -> None:
    page = opens("adam").open("users")
    page.get_by_label("User", exact=True).fill("carla")
    page.get_by_label("Purpose", exact=True).fill(HOSTILE[1])
    page.get_by_label("Expires after").select_option("86400")
    page.get_by_label("User", exact=True).press("Enter")
    field = page.get_by_role("textbox", name="New token")
    field.wait_for()
    client = Client(stage.page("adam").partition("?")[0], field.input_value())
    client.cluster()
    press(page, "Done")
    page.get_by_label("User", exact=True).wait_for()
    assert page.get_by_role("textbox", name="New token").count() == 0
    row = page.get_by_role("row", name="carla")
    assert "until" in row.inner_text() and HOSTILE[1] in row.inner_text()
    ends = row.evaluate("row => [...row.cells].map(cell => cell.getBoundingClientRect().bottom)")
    assert len(set(ends)) == 1, "the line below a row has steps"
    row.get_by_role("button").press("Enter")
    until(page, "document.activeElement.textContent === 'Keep token'")
    press(page, "Revoke token")
    page.wait_for_selector("tr:has-text('carla'):has-text('revoked')")
    with pytest.raises(ServiceError, match="token"):
        client.cluster()
    assert page.evaluate("window.hit") is None


def test_revoking_a_token_twice_shows_the_refusal(stage: Stage, opens: Opens) -> None:
    admin = stage.client("adam")
    admin.create_token("dora", label="for a test")
    tab = opens("adam")
    page = tab.open("users")
    page.get_by_role("row", name="dora").get_by_role("button").press("Enter")
    until(page, "document.activeElement.textContent === 'Keep token'")
    (token,) = [one for one in admin.tokens() if one.user == "dora"]
    admin.revoke_token(token.id)
    press(page, "Revoke token")
    page.wait_for_selector(f".error-message:has-text(\"there is no token '{token.id}' that is not revoked\")")
    assert "hopsml tokens ls" in page.locator(".error-message").inner_text()
    assert len(tab.console) == 1 and "400" in tab.console[0]
    tab.console.clear()


@pytest.mark.variant
def test_run_is_annotated_found_by_its_tag_and_saved_in_a_view(stage: Stage, opens: Opens) -> None:
    for name in ("app_1", "app_2"):
        stage.project.run(name, name=f"run {name}")
    page = opens().open("runs")
    page.get_by_label("Edit note of run app_1").press("Enter")
    page.get_by_label("Tags").fill("good base")
    page.get_by_label("Note", exact=True).fill(HOSTILE[1])
    page.get_by_label("Tags").press("Enter")
    page.get_by_role("link", name="good").press("Enter")
    until(page, "document.querySelectorAll('table.runs tbody tr').length === 1")
    assert HOSTILE[1] in page.locator("tr:has-text('app_1')").inner_text() and page.evaluate("window.hit") is None
    page.locator("summary:text-is('Views')").press("Enter")
    page.get_by_label("Name of the view").fill("the good ones")
    page.get_by_label("Name of the view").press("Enter")
    page.get_by_role("link", name="the good ones").wait_for()
    page.get_by_label("Filter runs").fill("name:run")
    until(page, "document.querySelectorAll('table.runs tbody tr').length === 2")
    page.get_by_role("link", name="the good ones").press("Enter")
    until(page, "document.querySelectorAll('table.runs tbody tr').length === 1")
    page.get_by_label("Delete the view the good ones").press("Enter")
    page.wait_for_selector("text=No saved views.")


@pytest.mark.variant
def test_dataset_page_links_to_the_jobs_that_name_it(stage: Stage, opens: Opens) -> None:
    job = stage.submit("reads", 1, dataset="hdfs:///data/digits")
    page = opens("vera").open("datasets")
    row = page.get_by_role("row", name="hdfs:///data/digits")
    row.get_by_role("link", name=job.id, exact=True).press("Enter")
    page.wait_for_selector(f"h1:has-text('{job.id}')")


@pytest.mark.variant
def test_changes_work_below_a_proxy_path(stage: Stage, browser: Any) -> None:
    job = stage.submit("proxied", 1)
    stage.reaches(job, Lifecycle.RUNNING)
    stage.project.run("app_below", name="below")
    with prefixed(stage.page("ana"), "/proxy/8888") as below, leaks.not_of_this_test():
        context = browser.new_context()
        tab = Tab(context, below)
        page = tab.open(f"job/{job.id}")
        press(page, "Pause")
        page.wait_for_selector(".title .state.PAUSED")
        page = tab.open("runs?filter=below")
        page.get_by_label("Edit note of below").press("Enter")
        page.get_by_label("Tags").fill("kept")
        page.get_by_label("Tags").press("Enter")
        page.get_by_role("link", name="kept").wait_for()
        context.close()
    assert tab.console == []


@pytest.mark.variant
def test_users_page_explains_that_an_administrator_is_needed(opens: Opens) -> None:
    page = opens("olga").open("users")
    page.wait_for_selector("text=Your role is operator")
    assert page.get_by_role("link", name="Users").count() == 0


@pytest.mark.variant
def test_users_page_explains_a_missing_audit_log(opens: Opens) -> None:
    tab = opens("adam")
    tab.page.route("**/api/v1/audit*", lambda route: route.fulfill(status=404, json={"error": "there is nothing here"}))
    tab.open("users/audit").wait_for_selector("text=This server has no audit log")
    assert len(tab.console) == 1 and "404" in tab.console.pop(), "not asked again"


@pytest.mark.variant
def test_audit_log_is_paged_filtered_and_escaped(opens: Opens) -> None:
    """Against the contract of ``/api/v1/audit``: entries, newest first, and a cursor for earlier ones."""
    tab = opens("adam")
    queries: list[dict[str, str]] = []

    def answer(route: Any) -> None:
        query = dict(parse_qsl(urlsplit(route.request.url).query))
        queries.append(query)
        newest = int(query.get("before", 151)) - 1
        ids = range(newest, max(0, newest - int(query["limit"])), -1)
        entries = [
            {"id": n, "at_s": 1.8e9 + n, "user": query.get("user") or "ana", "role": "user", "action": "job.cancel",
             "target": f"digits-{n} {HOSTILE[1]}", "outcome": "done", "peer": "127.0.0.1"}
            for n in ids
        ]  # fmt: skip
        route.fulfill(json={"entries": entries, "cursor": ids[-1] if ids[-1] > 1 else None})

    tab.page.route("**/api/v1/audit?*", answer)
    page = tab.open("users/audit")
    until(page, "document.querySelectorAll('table tbody tr').length === 100")
    press(page, "Load more")
    until(page, "document.querySelectorAll('table tbody tr').length === 150")
    page.get_by_role("searchbox", name="User").fill("ben")
    page.wait_for_selector("tbody tr:has-text('ben')")
    assert queries[-1]["user"] == "ben" and page.evaluate("window.hit") is None


@pytest.mark.variant
@pytest.mark.parametrize(
    ("size", "theme"),
    [(WIDE, "light"), pytest.param(NARROW, "dark", marks=pytest.mark.variant)],
    ids=["wide", "narrow"],
)
def test_service_pages_have_no_serious_axe_violation_and_fit_the_window(
    stage: Stage, opens: Opens, size: Any, theme: str
) -> None:
    holder = stage.submit("holder", 12, user="ben", tasks=1)
    stage.reaches(holder, Lifecycle.RUNNING)
    tab = opens("adam", size, theme)
    for place in ("cluster", "users", "datasets", "runs"):
        page = tab.open(place)
        until(page, "!document.querySelector('main').textContent.includes('Loading')")
        assert violations(page) == [], place
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place


@pytest.mark.variant
def test_malicious_texts_are_escaped_on_service_pages(stage: Stage, opens: Opens) -> None:
    texts = [text for text in HOSTILE if text.isprintable()]
    root, _, token = stage.page("adam").partition("?token=")
    with httpx.Client(base_url=f"{root}api/v1/", headers={"authorization": f"Bearer {token}"}, timeout=END_S) as client:
        for number, text in enumerate(texts):
            run = f"hostile_{number}"
            stage.project.run(run, name=text, user=text, outputs={text: 0.5})
            tag = text.replace(" ", "/").replace('"', "'").replace(",", ";")[:40]
            view = {"name": text, "query": f"filter={text}", "shared": True}
            created = {"user": text, "label": text}
            for answer in (
                client.put(f"run-notes/{run}", json={"note": text, "tags": [tag]}),
                client.post("views", json=view),
                client.post("tokens", json=created),
            ):
                assert answer.status_code in (200, 201), answer.text
    tab = opens("adam")
    for place in ("runs", "users", "users/audit", "cluster", "datasets", "jobs?owner=<img src=x onerror=window.hit=1>"):
        page = tab.open(place)
        until(page, "!document.querySelector('main').textContent.includes('Loading')")
        if place == "runs":
            page.locator("summary:text-is('Views')").press("Enter")
            page.get_by_role("link", name=texts[0], exact=True).first.wait_for()
        if place == "users":
            page.get_by_role("row", name=texts[0]).first.wait_for()
        assert page.evaluate("window.hit") is None, place
        assert page.locator("main :is(script, img, svg[onload], [onerror], a[href^='javascript:'])").count() == 0, place
