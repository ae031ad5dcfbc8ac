"""Tests of the pages of cluster, users, data sets and notes in a real browser."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopsml.client import Client
from hopsml.core.newer_python import UTC
from hopsml.core.states import Lifecycle
from hopsml.errors import ServiceError
from hopsml.model import description
from hopsml.model.description import Lineage, ModelDescription, ModelFile, Signature, TensorSpec
from hopsml.model.directory import FolderAliases
from hopsml.model.serving_load import ServingLoad, VersionLoad, write_load
from tests.helpers import leaks
from tests.helpers.clock import END_S
from tests.helpers.service.project import ProjectOnDisk
from tests.integration.service.conftest import Opens
from tests.integration.service.prefix_proxy import prefixed
from tests.integration.service.stage import Stage
from tests.integration.service.tabs import HOSTILE, NARROW, WIDE, Tab, press, until, violations

pytestmark = pytest.mark.local

# What reaches beyond the window.
WIDER = """[...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > innerWidth)
  .map((one) => one.outerHTML.slice(0, 100)).slice(0, 5)"""


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
    job = stage.submit("reads", 1, datasets="{train: 'hdfs:///data/digits'}")
    page = opens("vera").open("datasets")
    row = page.get_by_role("row", name="hdfs:///data/digits")
    assert "ana as train" in row.inner_text()
    row.get_by_role("link", name=job.id, exact=True).press("Enter")
    page.wait_for_selector(f"h1:has-text('{job.id}')")


def digits_in(project: ProjectOnDisk) -> str:
    """Write a data set below the project's folder of data sets; return its URL."""
    folder = project.folder / "Datasets" / f"digits {HOSTILE[1].replace('/', '-')}"
    folder.mkdir(parents=True, exist_ok=True)
    columns = {HOSTILE[0]: pa.array([0.5, 1.5]), "label": pa.array([7, 8], pa.int8())}
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    (folder / "notes.txt").write_text("what is in it")
    return f"file://{folder}"


def test_dataset_has_its_files_schema_and_first_rows_for_those_who_may_see_it(stage: Stage, opens: Opens) -> None:
    url = digits_in(stage.project)
    stage.submit("reads", 1, datasets=json.dumps({"train": url}))
    page = opens("ana").open("datasets")
    page.get_by_role("link", name=url).press("Enter")
    page.wait_for_selector("h1:has-text('digits')")
    rows = page.get_by_role("region", name="Rows of rows.parquet")
    rows.get_by_role("cell", name="1.5").wait_for()
    heads = rows.get_by_role("columnheader").all_inner_texts()
    assert [head.split("\n") for head in heads] == [[HOSTILE[0], "double"], ["label", "int8"]]
    page.get_by_role("button", name="notes.txt").press("Enter")
    page.wait_for_selector("pre:has-text('what is in it')")
    assert page.locator(".properties div:has(dt:text-is('Files')) dd").inner_text() == "2"
    assert page.evaluate("window.hit") is None

    other = opens("ben").open("datasets")
    other.get_by_role("link", name=url).press("Enter")
    other.wait_for_selector(".reason:has-text('no job of ben names the data set')")
    assert other.get_by_role("region", name="Files").count() == 0


def exported(project: ProjectOnDisk, name: str, number: int, **more: Any) -> None:
    """Add a version of a model."""
    folder = project.folder / "Models" / name / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    made = ModelDescription(name, number, "keras", datetime(2026, 11, 28, 12, tzinfo=UTC), creator="ana", **more)
    (folder / "model.json").write_bytes(description.encode(made))


def models_in(project: ProjectOnDisk) -> None:
    """Add a model with two versions; texts that its exporter chooses are malicious."""
    if not (project.folder / "Experiments" / "app_model").exists():
        project.run("app_model", name="trains")
    inputs = {HOSTILE[2]: TensorSpec("float32", (None, 28, 28), (HOSTILE[1],))}
    exported(project, "digits", 1, metrics={"accuracy": 0.91})
    exported(
        project, "digits", 2, metrics={"accuracy": 0.97, HOSTILE[0]: 1.0}, description=HOSTILE[1], bytes=2_500_000,
        signature=Signature(inputs, {"label": TensorSpec("int64", (None,))}), requirements={"keras": "3.11.0"},
        lineage=Lineage("app_model", f"{project.url}/Experiments/app_model", "0123abcd" * 5, True, [{"url": HOSTILE[3]}]),
        artifacts={"keras": "model.keras"}, files={"model.keras": ModelFile(2_500_000, "0" * 64)},
    )  # fmt: skip
    FolderAliases(f"{project.url}/Models/digits").set("production", 1)


def test_model_has_versions_aliases_metrics_signature_and_lineage(stage: Stage, opens: Opens) -> None:
    models_in(stage.project)
    page = opens("vera").open("models")
    row = page.get_by_role("row", name="digits")
    assert "production → 1" in row.inner_text() and "accuracy 0.97" in row.inner_text()
    row.get_by_role("link", name="digits", exact=True).press("Enter")
    shown = page.get_by_role("region", name="Version 2")
    signature = page.get_by_role("region", name="Inputs and outputs")
    signature.get_by_role("cell", name="(any, 28, 28)").wait_for()
    assert HOSTILE[2] in signature.inner_text() and HOSTILE[1] in shown.inner_text()
    assert "0123abcd0123 with changes" in shown.inner_text() and page.evaluate("window.hit") is None
    page.get_by_role("link", name="production").press("Enter")
    page.get_by_role("region", name="Version 1").wait_for()
    page.get_by_role("link", name="2", exact=True).press("Enter")
    page.get_by_role("region", name="Version 2").get_by_role("link", name="app_model").press("Enter")
    page.wait_for_selector("h1:has-text('trains')")


def servings_in(project: ProjectOnDisk, now_s: float) -> None:
    """Add a running serving and one that does not run."""
    folder = project.folder / "Serving"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("digits", "idle"):
        defined = {"name": name, "model": "digits", "version": "production", "creator": HOSTILE[1]}
        (folder / f"{name}.json").write_text(json.dumps(defined))
    load = ServingLoad(
        updated_s=now_s, started_s=now_s - 600, user="ana", machine="node1", url="http://node1:8501", application="",
        replicas=3, ready=2, restarts=1, version=1, canary=2, share=0.25, waiting=4, seconds=0.0123,
        versions=[VersionLoad(1, 1200, 0, 30.0), VersionLoad(2, 400, 3, 10.5)],
        rates=[10.0, 20.0, 38.0, 25.0, 40.5],
    )  # fmt: skip
    write_load("digits", project.url, load)


def test_serving_page_shows_replicas_canary_and_load_until_it_is_old(stage: Stage, opens: Opens) -> None:
    models_in(stage.project)
    servings_in(stage.project, time.time())
    page = opens("vera").open("servings")
    digits = page.get_by_role("region", name="digits", exact=True)
    digits.locator(".state.RUNNING").wait_for()
    text = digits.inner_text()
    for part in ("2 of 3 answer", "40.5 per second", "12.3 ms", "version 2, 25 %", HOSTILE[1]):
        assert part in text, part
    canary = page.get_by_role("region", name="Versions of digits").get_by_role("row", name="canary")
    assert canary.inner_text().split() == ["2", "canary", "25", "%", "10.5", "per", "second", "400", "3"]
    assert page.get_by_role("region", name="idle").locator(".state.STOPPED").count() == 1
    servings_in(stage.project, time.time() - 1000)  # as if its supervisor was killed
    page.wait_for_selector(".reason:has-text('hopsml serve show digits')")
    assert page.evaluate("window.hit") is None
    digits.get_by_role("link", name="digits").press("Enter")
    page.get_by_role("region", name="Version 2").wait_for()


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
    models_in(stage.project)
    servings_in(stage.project, time.time())
    url = digits_in(stage.project)
    reader = stage.submit("reads", 1, datasets=json.dumps({"train": url}))
    tab = opens("adam", size, theme)
    details = (f"dataset?url={quote(url, safe='')}", "models", "model/digits", "servings", f"job/{reader.id}/code")
    for place in ("cluster", "users", "datasets", "runs", *details):
        page = tab.open(place)
        until(page, "!document.querySelector('main').textContent.includes('Loading')")
        assert violations(page) == [], place
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (place, page.evaluate(WIDER))


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
