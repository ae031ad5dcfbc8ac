"""Tests of the addresses of jobs: permissions, refusals, and answers that the client accepts."""

from __future__ import annotations

import getpass
import io
import json
import math
import re
import shutil
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from hopsml import client, service_records
from hopsml.core import redact
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError
from hopsml.service import server, workspaces
from hopsml.service import spec as specs
from hopsml.service.browse.project import Project
from hopsml.service.engine import LogPiece
from hopsml.service.rest import job_models, job_routes, service_routes
from hopsml.service.rest.service_application import api_application
from hopsml.service.store.accounts import Role
from hopsml.tracking import provenance
from tests.helpers.service.project import ProjectOnDisk
from tests.helpers.service.searching import searched
from tests.helpers.service.served import JOB, Served

pytestmark = pytest.mark.fast


def test_submitted_job_is_listed_shown_and_explained(served: Served) -> None:
    answer = served.submit()
    assert answer.status_code == 201, answer.text
    job = msgspec.convert(answer.json(), client.ServiceJob)
    assert (job.id, job.owner, job.state) == ("digits-1", "user", "WAITING")
    served.jobs.manager.run_pass()
    detail = msgspec.convert(served.ask("GET", "jobs/digits-1").json(), client.ServiceJobDetail)
    assert "script: train.py" in detail.spec and "needs 1 slot" in detail.why
    assert served.ask("GET", "jobs/1/why").json() == {"why": detail.why}
    changes = msgspec.convert(served.ask("GET", "jobs/1/changes").json(), list[client.JobChange])
    assert [change.cause for change in changes] == ["submitted"]
    assert served.ask("GET", "jobs/1/log").json() == {"text": "", "end": 0}
    assert [job["id"] for job in served.ask("GET", "jobs?state=WAITING&text=DIG").json()["jobs"]] == ["digits-1"]
    assert served.ask("GET", "jobs?state=RUNNING").json() == {"jobs": [], "cursor": None}
    assert served.ask("GET", "cluster").json()["leads"] is True


def test_nodes_and_queues_are_listed_with_their_resources(served: Served) -> None:
    assert served.ask("GET", "nodes").json() == {"nodes": []}
    served.submit()
    served.jobs.manager.run_pass()
    (node,) = served.ask("GET", "nodes", Role.VIEWER).json()["nodes"]
    nothing = {"gpus": 0, "cores": 0, "memory_mib": 0}
    assert {name: node[name] for name in ("capacity", "free", "others", "jobs")} == {
        "capacity": nothing, "free": nothing, "others": nothing, "jobs": [],
    }  # fmt: skip
    (queue,) = served.ask("GET", "queues", Role.VIEWER).json()["queues"]
    assert queue["name"] == "default" and (queue["running"], queue["waiting"]) == (0, 1)
    assert queue["limit"] == {"gpus": None, "cores": None, "memory_mib": None} and queue["guaranteed"] == nothing


def test_ended_job_has_no_slots_and_only_clone_and_remove_as_actions(served: Served) -> None:
    elastic = "name: digits\ntasks: {main: {script: train.py, min: 1, max: 4}}\n"
    job = served.submit(spec=elastic).json()
    assert job["actions"] == ["pause", "cancel", "move", "clone"]
    row = served.jobs.store.job(1)
    assert row is not None
    spec = specs.JobSpec.model_validate_json(row.spec)
    placed = replace(row, placement=[{"a": 1}, {"a": 2}], target=[{"a": 1}, {"a": 1}])
    for state, size in ((Lifecycle.RUNNING, (2, 1)), (Lifecycle.FINISHED, (0, 0)), (Lifecycle.PAUSED, (0, 0))):
        (found,) = served.jobs.sizes(replace(placed, state=state), spec)
        assert (found.slots, found.target, found.fewest, found.most) == (*size, 1, 4), state
    served.jobs.manager.run_pass()
    served.ask("POST", "jobs/1/cancel")
    served.jobs.manager.run_pass()
    ended = served.ask("GET", "jobs/1").json()
    assert (ended["state"], ended["actions"], ended["why"]) == ("CANCELLED", ["clone", "remove"], "")


def test_client_has_every_field_of_the_answers() -> None:
    for theirs, ours in (
        (job_models.JobAnswer, client.ServiceJob),
        (job_models.JobProgressAnswer, client.JobProgress),
        (job_models.JobDetail, client.ServiceJobDetail),
        (job_models.ApplicationAnswer, client.JobApplication),
        (job_models.StateChangeAnswer, client.JobChange),
        (job_models.JobRunAnswer, client.JobRun),
        (job_models.JobMetricsAnswer, client.JobRunMetrics),
        (job_models.MetricAnswer, client.JobMetric),
        (job_models.RankLogAnswer, service_records.RankLogPart),
        (job_models.TokenAnswer, client.TokenRecord),
        (service_routes.AuditAnswer, client.AuditRecord),
        (job_models.ScheduleAnswer, client.ServiceSchedule),
        (job_models.SecretAnswer, client.SecretRecord),
    ):
        assert set(theirs.model_fields) == set(ours.__struct_fields__)


def test_role_permits_exactly_its_documented_actions(served: Served) -> None:
    assert served.submit(Role.VIEWER).status_code == 403
    assert served.submit(Role.USER).json()["id"] == "digits-1"
    shown = served.ask("GET", "jobs/1", Role.VIEWER)
    assert shown.status_code == 200 and "not answered yet" in shown.json()["why"]
    for role, status in ((Role.VIEWER, 403), ("bob", 403), (Role.USER, 202), (Role.OPERATOR, 202), (Role.ADMIN, 202)):
        answer = served.ask("POST", "jobs/1/pause", role)
        assert answer.status_code == status, (role, answer.text)
    assert "ask an administrator" in served.ask("POST", "jobs/1/cancel", "bob").json()["remedy"]
    assert served.ask("GET", "jobs/1", headers={"authorization": "Bearer nonsense"}).status_code == 401


def test_submission_repeated_with_the_same_key_is_one_job(served: Served) -> None:
    key = {"headers": {"Idempotency-Key": "k1"}}
    assert served.submit(**key).json() == served.submit(**key).json()
    assert len(served.ask("GET", "jobs").json()["jobs"]) == 1
    other = served.submit(spec=JOB + "priority: 60\n", **key)
    assert other.status_code == 400 and "digits-1" in other.json()["error"]


def test_all_problems_of_a_job_file_are_in_one_answer(served: Served) -> None:
    answer = served.submit(spec="name: Digits\nqueu: x\ntasks: {main: {script: train.py, cuont: 3}}\n")
    assert answer.status_code == 400
    for said in ("name", "did you mean queue", "did you mean count"):
        assert said in answer.text


def test_job_with_a_schedule_is_refused_as_a_plain_submission(served: Served) -> None:
    answer = served.submit(spec=JOB + 'schedule: "0 3 * * *"\n')
    assert answer.status_code == 400 and "/api/v1/schedules" in answer.text


@pytest.mark.parametrize(
    ("method", "path", "more", "status"),
    [
        ("POST", "jobs", {"json": {"spec": JOB, "workspace": "0" * 64}}, 409),
        ("POST", "jobs", {"json": {"spec": JOB, "workspace": "../../etc"}}, 422),
        ("POST", "jobs", {"json": {"spec": JOB, "unknown": 1}}, 422),
        ("POST", "jobs", {"json": {"spec": "x" * (1 << 21)}}, 422),
        ("POST", "jobs", {"content": b"\xff\xfe"}, 422),
        ("POST", "jobs", {"content": b"[" * 100_000}, 422),
        ("POST", "workspaces", {"content": b"no zip"}, 400),
        ("GET", "jobs/digits-9", {}, 404),
        ("GET", "jobs/letters-1", {}, 404),
        ("GET", "jobs/..%2f..%2fetc", {}, 404),
        ("GET", "jobs/99999999999999999999", {}, 404),
        ("GET", "jobs/<script>", {}, 404),
        ("GET", "jobs?limit=0", {}, 422),
        ("GET", "jobs?limit=5000", {}, 422),
        ("GET", "jobs?before=-1", {}, 422),
        ("GET", "jobs?state=NOPE", {}, 422),
        ("GET", "jobs/1/log?offset=-1", {}, 422),
        ("GET", "jobs/1/log?task=nope", {}, 400),
        ("POST", "jobs/1/move", {"json": {"queue": "nowhere"}}, 400),
        ("POST", "jobs/1/move", {"json": {"priority": 101}}, 422),
        ("DELETE", "jobs/1", {}, 405),
    ],
)
def test_invalid_request_is_refused_with_error_and_remedy(
    served: Served, method: str, path: str, more: dict[str, Any], status: int
) -> None:
    served.submit()
    answer = served.ask(method, path, **more)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "remedy"}
    assert len(served.jobs.store.jobs().jobs) == 1


def test_job_list_is_paged(served: Served) -> None:
    for _ in range(5):
        served.submit()
    first = served.ask("GET", "jobs?limit=2").json()
    second = served.ask("GET", f"jobs?limit=2&before={first['cursor']}").json()
    assert [job["serial"] for page in (first, second) for job in page["jobs"]] == [5, 4, 3, 2]


def test_job_list_in_queue_order_has_only_a_first_page(served: Served) -> None:
    for name, priority in (("old", 50), ("urgent", 90), ("low", 10), ("new", 50)):
        served.submit(spec=JOB.replace("digits", name) + f"priority: {priority}\n")
    page = served.ask("GET", "jobs?order=turn&limit=3").json()
    assert [job["name"] for job in page["jobs"]] == ["urgent", "old", "new"] and page["cursor"] is not None
    page = served.ask("GET", "jobs?order=turn&limit=4&state=WAITING").json()
    assert [job["name"] for job in page["jobs"]][-1] == "low" and page["cursor"] is None
    refused = served.ask("GET", "jobs?order=turn&before=3")
    assert refused.status_code == 400 and "only the first page" in refused.json()["remedy"]


def test_ended_jobs_are_listed_with_the_last_one_first(served: Served) -> None:
    for name in ("first", "second", "third", "waits"):
        served.submit(spec=JOB.replace("digits", name))
    for serial in (2, 3, 1):
        served.ask("POST", f"jobs/{serial}/cancel")
        served.jobs.manager.run_pass()
    page = served.ask("GET", "jobs?order=ended").json()
    assert [job["name"] for job in page["jobs"]] == ["first", "third", "second"] and page["cursor"] is None
    page = served.ask("GET", "jobs?order=ended&limit=2&state=CANCELLED").json()
    assert [job["name"] for job in page["jobs"]] == ["first", "third"] and page["cursor"] is not None
    refused = served.ask("GET", "jobs?order=ended&before=3")
    assert refused.status_code == 400 and "only the first page" in refused.json()["remedy"]


def test_job_list_has_the_progress_of_the_newest_run_if_requested(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_routes, "_HAS_RUNS", (Lifecycle.WAITING,))  # nothing ever starts here
    project = ProjectOnDisk(Path(served.project.url.removeprefix("file://")))
    for _ in range(4):
        served.submit()
    names = [served.jobs.own_name(served.jobs.store.job(serial)) for serial in (1, 2, 3)]
    project.run(f"{names[0]}-main_1", started=1.0)
    run = project.run(f"{names[0]}-main_2", state=None, started=2.0, driver_process=provenance.process_identity())
    run.report(19, loss=0.5)
    run.write("driver.json", {"time": 1.0, "progress": {"done": 3, "total": 40, "unit": "epoch"}})
    searched(project, f"{names[1]}-main_1")
    project.run(f"{names[2]}-main_1", state=None, driver_process=provenance.process_identity())
    asked = {job["serial"]: job["progress"] for job in served.ask("GET", "jobs?progress=true").json()["jobs"]}
    metric = {"metric_name": "loss", "metric": 0.5}
    assert asked[1] == {"run": run.id, "done": 3, "total": 40, "unit": "epoch", **metric}
    assert (asked[2]["done"], asked[2]["total"], asked[2]["unit"]) == (5, 6, "trial")
    assert (asked[3]["done"], asked[3]["metric"]) == (None, None) and asked[4] is None
    assert all(job["progress"] is None for job in served.ask("GET", "jobs").json()["jobs"])
    assert served.ask("GET", "jobs/1").json()["progress"] == asked[1]
    texts = [msgspec.convert(asked[serial], client.JobProgress).text() for serial in (1, 2, 3)]
    assert texts == ["epoch 3 of 40", "trials 5 of 6", "starting"]


def test_progress_remains_while_a_job_closes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_routes, "_HAS_RUNS", (Lifecycle.WAITING,))  # nothing ever starts here
    project = ProjectOnDisk(Path(served.project.url.removeprefix("file://")))
    for _ in range(3):
        served.submit()
    names = [served.jobs.own_name(served.jobs.store.job(serial)) for serial in (1, 2, 3)]
    steps, epochs, _ = (project.run(f"{name}-main_1", started=1.0) for name in names)
    steps.report(70, loss=0.5)
    epochs.write("driver.json", {"time": 1.0, "progress": {"done": 3, "total": 3, "unit": "epoch"}})
    asked = served.ask("GET", "jobs?progress=true").json()["jobs"]
    texts = {job["serial"]: msgspec.convert(job["progress"], client.JobProgress).text() for job in asked}
    assert texts == {1: "step 70", 2: "epoch 3 of 3", 3: "starting"}


def test_rank_log_of_an_ended_job_names_its_newest_run(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_routes, "STALE_S", math.inf)  # the list would never be read again
    project = ProjectOnDisk(Path(served.project.url.removeprefix("file://")))
    served.submit()
    name = served.jobs.own_name(served.jobs.store.job(1))
    project.run(f"{name}-main_1", started=1.0).print(0, "first")
    assert served.ask("GET", "jobs/1/ranks/0/log").json()["newest"] == f"{name}-main_1"
    project.run(f"{name}-main_2", started=2.0).print(0, "last")
    served.ask("POST", "jobs/1/cancel")
    served.jobs.manager.run_pass()
    found = served.ask("GET", f"jobs/1/ranks/0/log?run={name}-main_1").json()
    assert (found["is_over"], found["newest"]) == (True, f"{name}-main_2")


def test_job_list_has_wait_reasons_if_requested(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_routes, "WHYS", 2)
    for _ in range(4):
        served.submit()
    served.ask("POST", "jobs/4/cancel")
    served.jobs.manager.run_pass()
    asked, plain = (served.ask("GET", f"jobs?{query}").json()["jobs"] for query in ("why=true", ""))
    assert [job["why"] != "" for job in asked] == [False, True, True, False], "the newest two of those that wait"
    assert asked[1]["why"] == served.ask("GET", "jobs/3/why").json()["why"]
    assert [job["why"] for job in plain] == [""] * 4
    assert msgspec.convert(asked[1], client.ServiceJob).why.startswith("needs 1 slot")


def test_about_answer_states_that_the_server_has_jobs(served: Served) -> None:
    about = served.ask("GET", "../about", Role.VIEWER).json()
    assert (about["jobs"], about["user"], about["role"]) == (True, "viewer", "viewer")


def test_user_requests_are_applied_in_the_next_pass(served: Served) -> None:
    served.submit()
    served.jobs.manager.run_pass()
    served.ask("POST", "jobs/1/move", json={"priority": 99})
    served.ask("POST", "jobs/1/pause")
    served.jobs.manager.run_pass()
    found = served.ask("GET", "jobs/1").json()
    assert (found["state"], found["priority"], found["cause"]) == ("PAUSED", 99, "paused by user")
    served.ask("POST", "jobs/1/resume")
    clone = served.ask("POST", "jobs/1/clone", "bob").json()
    assert (clone["id"], clone["owner"]) == ("digits-2", "bob")
    served.jobs.manager.run_pass()
    assert served.ask("GET", "jobs/1").json()["state"] == "WAITING"
    served.ask("POST", "jobs/1/cancel")
    served.jobs.manager.run_pass()
    found = served.ask("POST", "jobs/1/cancel").json()
    assert (found["state"], found["cause"]) == ("CANCELLED", "cancelled by user")


def test_job_moved_before_its_first_pass_has_the_new_priority(served: Served) -> None:
    served.submit()
    served.ask("POST", "jobs/1/move", json={"priority": 99})
    served.jobs.manager.run_pass()  # takes it and moves it, at the same time
    assert served.ask("GET", "jobs/1").json()["priority"] == 99
    assert served.jobs.why(served.jobs.store.job(1)).startswith("needs 1 slot")


def test_log_answer_does_not_split_a_character(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.submit()
    printed = "é→x".encode()
    monkeypatch.setattr(
        served.jobs,
        "log",
        lambda row, task, offset, limit, number: LogPiece(printed[offset : offset + 3], offset, len(printed)),
    )
    assert served.ask("GET", "jobs/1/log").json() == {"text": "é", "end": 2}
    assert served.ask("GET", "jobs/1/log?offset=2").json() == {"text": "→", "end": 5}
    printed = printed[:4]  # it ended there
    assert served.ask("GET", "jobs/1/log?offset=2").json() == {"text": "\ufffd", "end": 4}


def test_administrators_create_and_revoke_tokens(served: Served) -> None:
    for role in (Role.VIEWER, Role.USER, Role.OPERATOR):
        assert served.ask("POST", "tokens", role, json={"user": "eve", "role": "admin"}).status_code == 403
        assert served.ask("GET", "tokens", role).status_code == 403
    made = served.ask("POST", "tokens", Role.ADMIN, json={"user": "eve"})
    assert made.status_code == 201
    served.tokens["eve"] = made.json()["token"]  # type: ignore[index]
    assert served.submit("eve").status_code == 403  # the lowest role, where none is named
    rows = msgspec.convert(served.ask("GET", "tokens", Role.ADMIN).json(), list[client.TokenRecord])
    (mine,) = [row for row in rows if row.user == "eve"]
    assert mine.role == "viewer" and made.json()["token"] not in str(rows)
    assert served.ask("DELETE", f"tokens/{mine.id}", Role.ADMIN).status_code == 204
    assert served.ask("GET", "jobs", "eve").status_code == 401
    assert served.ask("DELETE", f"tokens/{mine.id}", Role.ADMIN).status_code == 400


def test_job_with_an_unreadable_spec_does_not_stop_other_jobs(served: Served) -> None:
    for _ in range(2):
        served.submit()
    with served.jobs.store.write_transaction() as connection:
        connection.exec_driver_sql("""UPDATE jobs SET spec = '{"name": "x", "newer": 1}' WHERE serial = 1""")
    served.jobs.manager.run_pass()
    assert served.jobs.why(served.jobs.store.job(2)).startswith("needs 1 slot")
    assert served.ask("GET", "jobs/1").json()["state"] == "WAITING"


def test_openapi_document_describes_every_address() -> None:
    document = json.loads(json.dumps(api_application().openapi()))
    assert document["openapi"].startswith("3.1")
    assert {"/api/v1/jobs", "/api/v1/jobs/{job}/why", "/api/v1/workspaces"} <= set(document["paths"])
    for path, methods in document["paths"].items():
        for method, what in methods.items():
            assert what.get("description"), f"{method} {path}"


def test_run_notes_are_stored_found_by_tag_and_readable_by_all(served: Served, tmp_path: Path) -> None:
    project = ProjectOnDisk(tmp_path / "project")
    for name in ("app_1", "app_2"):
        project.run(name)
    text = "<img src=x onerror=hit()> \x1b[31m"
    asked = {"note": text, "tags": ["Good", "base"]}
    assert served.ask("PUT", "run-notes/app_1", Role.VIEWER, json=asked).status_code == 403
    assert served.ask("PUT", "run-notes/app_3", json=asked).status_code == 404
    assert served.ask("PUT", "run-notes/app_1", json={"note": "x" * 100_000}).status_code == 422
    half = b'{"note": "half of a pair: \\ud800"}'  # no database keeps it
    assert served.ask(
        "PUT", "run-notes/app_1", content=half, headers={"content-type": "application/json"}
    ).status_code in (400, 422)
    assert served.ask("PUT", "run-notes/app_1", json=asked).json()["who"] == "user"
    assert served.ask("GET", "run-notes/app_1", Role.VIEWER).json()["note"] == text
    assert served.ask("GET", "run-notes/app_2").json()["tags"] == []
    rows = {row["id"]: row for row in served.ask("GET", "../runs", Role.VIEWER).json()["rows"]}
    assert (rows["app_1"]["tags"], rows["app_1"]["note"], rows["app_2"]["tags"]) == (["Good", "base"], text, [])
    for found, wanted in (("tag:good", ["app_1"]), ("tag:goo", []), ("-tag:good", ["app_2"])):
        assert [row["id"] for row in served.ask("GET", f"../runs?filter={found}").json()["rows"]] == wanted


def test_datasets_are_those_named_in_job_files(served: Served) -> None:
    assert served.ask("GET", "datasets").json() == {"datasets": []}
    served.submit()
    served.submit(spec=JOB + "dataset: hdfs:///data/digits\n")
    served.submit(spec=JOB + "dataset: s3://bucket/letters\n")
    served.submit("bob", spec=JOB + "dataset: hdfs:///data/digits\n")
    served.submit(spec=JOB + "description: 'no \"dataset\" at all'\n")
    digits, letters = served.ask("GET", "datasets", Role.VIEWER).json()["datasets"]
    assert (digits["url"], digits["count"], digits["living"]) == ("hdfs:///data/digits", 2, 2)
    assert [(job["id"], job["owner"]) for job in digits["jobs"]] == [("digits-4", "bob"), ("digits-2", "user")]
    assert (letters["url"], [job["id"] for job in letters["jobs"]]) == ("s3://bucket/letters", ["digits-3"])


def test_views_are_stored_shared_and_deleted(served: Served) -> None:
    view = {"name": "failed", "query": "filter=state%3Afailed", "shared": True}
    assert served.ask("POST", "views", Role.VIEWER, json=view).status_code == 403
    made = served.ask("POST", "views", json=view).json()
    assert served.ask("GET", "views", Role.VIEWER).json() == [made] and made["owner"] == "user"
    assert served.ask("DELETE", f"views/{made['id']}", "bob").status_code == 403
    assert served.ask("DELETE", f"views/{made['id']}").status_code == 204
    assert served.ask("GET", "views").json() == []


def test_job_naming_missing_files_or_functions_is_refused(served: Served) -> None:
    for task, said in (
        ("script: other.py", "no file 'other.py'"),
        ("script: ../train.py", 'tasks.main.script: "../train.py": it lies outside of the code'),
        ("script: /etc/train.py", "it lies outside of the code"),
        ("function: train.py:main", "train.py has no function 'main'"),
    ):
        refused = served.submit(spec=f"name: digits\ntasks: {{main: {{{task}}}}}\n")
        assert refused.status_code == 400 and said in refused.json()["error"], refused.json()
    environment = "name: digits\ntasks: {main: {script: train.py, environment: {packages: needs.txt}}}\n"
    served.jobs.is_local = True
    assert "in the environment of the service" in served.submit(spec=environment).text


def test_change_requested_by_a_page_of_another_origin_is_refused(served: Served) -> None:
    served.submit()
    cookie = {"authorization": "", "cookie": f"{served.cookie}={served.tokens[Role.USER]}"}
    for more, status in (
        ({"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:9"}, 403),
        ({"origin": "http://service:9"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "http://proxy"}, 202),
        ({"origin": "http://service"}, 202),
    ):
        assert served.ask("POST", "jobs/1/pause", headers=cookie | more).status_code == status, more


@pytest.mark.parametrize(
    "names", [("a", "a"), ("a", "a/b"), (".",), ("x" * 300,)], ids=["twice", "below", "dot", "long"]
)
def test_zip_that_cannot_be_a_folder_is_refused(served: Served, names: tuple[str, ...]) -> None:
    content = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w") as archive:
        warnings.simplefilter("ignore")  # about duplicate names
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), "text")
    refused = served.ask("POST", "workspaces", content=content.getvalue())
    assert (refused.status_code == 400 and "code is no zip" in refused.json()["error"]) or "plain file" in refused.text


def test_invalid_value_is_named_as_sent_but_secrets_are_not(served: Served) -> None:
    served.submit()
    said = served.ask("POST", "jobs/1/move", json={"priority": 900}).json()["error"]
    assert said.startswith("priority 900: it must be "), said
    refused = served.ask("POST", "tokens", Role.ADMIN, json={"user": "eve", "role": "vewer"})
    assert refused.json()["error"].startswith("role 'vewer': it must be 'viewer', 'user', 'operator' or 'admin'")
    assert "hidden" not in served.ask("PUT", "secrets/Bad name", json={"value": "hidden"}).text
    assert served.ask("GET", "jobs?text=" + "a" * 60_000).status_code == 422
    assert served.ask("GET", f"jobs/1/log?offset={2**53 - 1}").json()["text"] == ""


def test_remedy_for_a_refused_token_is_not_masked(served: Served) -> None:
    answer = served.ask("GET", "jobs", headers={"authorization": "Bearer of-nobody"})
    said = f"{answer.json()['error']}; {answer.json()['remedy']}"
    assert answer.status_code == 401 and "expired nor revoked" in said and redact.text(said) == said


def test_local_server_token_is_used_only_for_that_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "client.json").write_text('{"address": "http://127.0.0.1:1/", "token": "own"}')
    monkeypatch.setenv("HOPSML_SERVER_STATE", str(tmp_path))
    monkeypatch.delenv("HOPSML_TOKEN", raising=False)
    monkeypatch.setenv("HOPSML_SERVER", "http://127.0.0.1:2/")
    with pytest.raises(ArgumentError, match="set HOPSML_TOKEN"):
        client.Client.of_environment()
    monkeypatch.setenv("HOPSML_SERVER", "http://127.0.0.1:1")
    client.Client.of_environment()


def test_empty_idempotency_key_is_refused(served: Served) -> None:
    for key in ("", "  "):
        answer = served.submit(headers={"Idempotency-Key": key})
        assert answer.status_code == 400 and "Idempotency-Key is empty" in answer.json()["error"]
    assert served.submit(headers={"Idempotency-Key": "k"}).status_code == 201


@pytest.mark.parametrize(
    ("method", "path", "taken"),
    [("GET", "jobs/1/cancel", "POST"), ("PUT", "jobs/1/cancel", "POST"), ("DELETE", "jobs", "GET and POST"),
     ("POST", "jobs/1/log", "GET"), ("DELETE", "../runs", "GET")],
)  # fmt: skip
def test_wrong_method_is_refused_with_the_allowed_ones(served: Served, method: str, path: str, taken: str) -> None:
    answer = served.ask(method, path)
    assert answer.status_code == 405 and answer.json()["error"] == f"this address takes {taken}, not {method}"
    assert answer.headers["allow"] == taken.replace(" and ", ", ")


def test_unknown_address_is_refused(served: Served) -> None:
    assert served.ask("GET", "no/such").json()["error"] == "this address does not exist"
    assert served.ask("POST", "no/such").json()["error"] == "this address does not exist"


def test_runs_of_a_job_exclude_those_of_similarly_named_jobs(served: Served, tmp_path: Path) -> None:
    served.submit()
    own = served.jobs.own_name(served.jobs.store.job(1))
    assert re.fullmatch("digits-1-[0-9a-f]{8}", own)
    project = ProjectOnDisk(tmp_path / "project")
    project.run(f"{own}-main_2", started=2000.0, outputs={"accuracy": float("inf")})
    project.run(f"{own}-main_1", outputs={"accuracy": 0.5})
    for other in ("digits-1-main_1", own.replace("-1-", "-11-") + "-main_1", "x"):
        project.run(other)
    found = served.ask("GET", "jobs/1/runs", Role.VIEWER).json()
    assert [(run["id"].removeprefix(own), run["state"], run["metric"]) for run in found] == [
        ("-main_1", "FINISHED", 0.5),
        ("-main_2", "FINISHED", None),
    ]


def test_job_metrics_summarize_the_reports_of_its_runs(served: Served, tmp_path: Path) -> None:
    served.submit()
    own = served.jobs.own_name(served.jobs.store.job(1))
    project = ProjectOnDisk(tmp_path / "project")
    assert served.ask("GET", "jobs/1/metrics", Role.VIEWER).json() == []
    made = project.run(f"{own}-main_1", state=None)
    for step, loss in enumerate((3.0, 1.0, float("nan"), 2.0)):
        made.report(step, loss=loss, **({"accuracy": 0.5} if step == 1 else {}))
    project.run(f"{own}-main_2", started=2000.0)
    served.project.runs.refresh(0.0)
    first, second = served.ask("GET", "jobs/1/metrics", Role.VIEWER).json()
    assert (second["metrics"], first["id"], first["state"]) == ([], f"{own}-main_1", "RUNNING")
    assert first["metrics"] == [
        {"name": "accuracy", "reports": 1, "step": 1.0, "last": 0.5, "lowest": 0.5, "highest": 0.5},
        {"name": "loss", "reports": 4, "step": 3.0, "last": 2.0, "lowest": 1.0, "highest": 3.0},
    ]


def test_rank_log_continues_from_run_to_run(served: Served, tmp_path: Path) -> None:
    served.submit()
    own = served.jobs.own_name(served.jobs.store.job(1))
    project = ProjectOnDisk(tmp_path / "project")

    def read(rank: int, more: str = "") -> dict[str, Any]:
        served.project.runs.refresh(0.0)
        found: dict[str, Any] = served.ask("GET", f"jobs/1/ranks/{rank}/log?{more}", Role.VIEWER).json()
        return {name: value.removeprefix(own) if isinstance(value, str) else value for name, value in found.items()}

    assert read(1) == {"run": "", "newest": "", "lines": [], "end": 0, "is_whole": True, "is_over": False}
    first = project.run(f"{own}-main_1", state=None)
    first.print(0, "of the other")
    first.print(1, "one", "two", "three")
    part = read(1, "limit=2")
    assert (part["run"], part["lines"], part["end"], part["is_whole"]) == ("-main_1", ["one", "two"], 2, False)
    part = read(1, f"run={own}-main_1&offset=2")
    assert (part["lines"], part["end"], part["is_whole"], part["is_over"]) == (["three"], 3, True, False)
    first.write("status.json", {"state": "FINISHED", "seconds": 1.0})
    project.run(f"{own}-eval_1", started=3000.0).print(0, "judged")
    part = read(1, f"run={own}-main_1&offset=3")
    assert (part["lines"], part["newest"], part["is_over"]) == ([], "-eval_1", True)
    assert read(0)["lines"] == ["judged"] and read(0, "task=main")["lines"] == ["of the other"]
    refused = read(7)
    assert "has no log of rank 7" in refused["error"] and refused["remedy"] == "those that there are: 0"
    assert "has made no run 'x'" in read(0, "run=x")["error"]


@pytest.mark.parametrize("job", ["nope-9", "nope-1", "digits-9", "9"])
def test_unknown_job_is_refused_as_it_was_given(served: Served, job: str) -> None:
    served.submit()
    for path in (f"jobs/{job}", f"jobs/{job}/log", f"jobs/{job}/why"):
        assert f"there is no job '{job}'" in served.ask("GET", path).json()["error"]


def test_log_of_a_nonexistent_try_is_empty_or_refused(served: Served) -> None:
    served.submit()
    assert served.ask("GET", "jobs/1/log?try=1").json() == {"text": "", "end": 0}
    answer = served.ask("GET", "jobs/1/log?try=2")
    assert answer.status_code == 400 and "job digits-1 has no try 2: it was tried 0 times" in ": ".join(
        answer.json().values()
    )


def test_job_file_too_large_for_its_driver_is_refused(served: Served) -> None:
    deep = "[" * 12 + "1," * 40_000 + "]" * 12
    spec = f"name: digits\ntasks: {{main: {{script: train.py, arguments: {{x: {deep}}}}}}}\n"
    answer = served.submit(spec=spec)
    assert answer.status_code == 400 and "bytes with a line for each value" in answer.json()["error"], answer.text
    assert served.submit(spec=spec.replace("1," * 40_000, "1," * 8_000)).status_code == 201


def test_only_the_server_user_runs_jobs_if_jobs_run_as_the_server(empty: Path, tmp_path: Path) -> None:
    shutil.copytree(empty, tmp_path, dirs_exist_ok=True)
    own, wanted = getpass.getuser(), server.ServerSettings(tmp_path, profile="local")
    jobs, _ = server.create_job_service(wanted, "http://here/")
    asking = Served(jobs, Project(f"file://{tmp_path}/project"))

    def create(user: str, role: str) -> httpx.Response:
        return asking.ask("POST", "tokens", Role.ADMIN, json={"user": user, "role": role})

    for role in ("user", "operator", "admin"):
        refused = create("eve", role)
        assert refused.status_code == 400 and f"run as {own}" in refused.text and "--trust-users" in refused.text
    assert create("eve", "viewer").status_code == create(own, "admin").status_code == 201
    jobs.close()
    with pytest.raises(ArgumentError, match="--trust-users"):  # the accounts that the test created directly
        server.create_job_service(wanted, "http://here/")
    jobs, _ = server.create_job_service(replace(wanted, trust_users=True), "http://here/")
    assert (
        Served(jobs, Project(f"file://{tmp_path}/project"))
        .ask("POST", "tokens", Role.ADMIN, json={"user": "eve", "role": "user"})
        .status_code
        == 201
    )
    jobs.close()


def test_sign_in_is_refused_if_jobs_run_as_the_server(empty: Path, tmp_path: Path) -> None:
    shutil.copytree(empty, tmp_path, dirs_exist_ok=True)
    wanted = server.ServerSettings(tmp_path, profile="local", sign_in=tmp_path / "sign-in.yaml")
    with pytest.raises(ArgumentError, match="--sign-in: jobs of profile local run as"):
        server.create_job_service(wanted, "http://here/")
    jobs, _ = server.create_job_service(replace(wanted, trust_users=True), "http://here/")
    jobs.close()


def test_uploads_of_each_user_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "MOST_OF_A_USER_BYTES", 5000)

    def upload(name: str, role: Any) -> httpx.Response:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr(name, bytes(3000))
        return served.ask("POST", "workspaces", role, content=content.getvalue())

    assert upload("a.bin", Role.USER).status_code == 201
    refused = upload("b.bin", Role.USER)
    assert refused.status_code == 400 and "that user has uploaded" in refused.text and "hopsml jobs rm" in refused.text
    assert upload("b.bin", "bob").status_code == 201
