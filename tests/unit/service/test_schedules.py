"""Tests of schedules: created by a submission, started by the leader, each planned time once."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from hopsml.core.states import Lifecycle
from hopsml.service.manager.requests import store_due_jobs
from hopsml.service.store import JobStore, StaleRecord
from hopsml.service.store.accounts import SIGNED_IN, Role, Tokens
from hopsml.service.store.rows import JobLimits, Leader
from hopsml.service.store.schedules import Schedules
from tests.helpers.service.served import JOB, Served

pytestmark = pytest.mark.fast
ME = Leader("me", "here", 1e12, 1)
NIGHTLY = JOB + 'schedule: "0 3 * * *"\nschedule_zone: Europe/Berlin\n'


def put_schedule(served: Served, role: Any = Role.USER, spec: str = NIGHTLY) -> Any:
    return served.ask("POST", "schedules", role, json={"spec": spec, "workspace": served.workspace()})


def jobs(served: Served) -> list[str]:
    return [job["id"] for job in served.ask("GET", "jobs").json()["jobs"]]


def lead_with_schedules(served: Served) -> tuple[JobStore, Schedules]:
    store = served.jobs.store
    store.acquire_lease("me", "here", 0.0, 1e12)
    return store, Schedules(store)


def test_schedule_is_created_shown_paused_triggered_and_removed(served: Served) -> None:
    made = put_schedule(served)
    assert made.status_code == 201, made.text
    shown = served.ask("GET", "schedules/digits-1", Role.VIEWER).json()
    assert (shown["schedule"], shown["zone"], shown["overlap"]) == ("0 3 * * *", "Europe/Berlin", "skip")
    assert shown["planned_s"] > time.time() and jobs(served) == []
    assert put_schedule(served, spec=NIGHTLY + "overlap: queue\n").json()["id"] == "digits-1", "in its place"
    for what, status in (("pause", 204), ("resume", 204), ("trigger", 201)):
        assert served.ask("POST", f"schedules/1/{what}", "bob").status_code == 403
        assert served.ask("POST", f"schedules/1/{what}").status_code == status
    assert jobs(served) == ["digits-1"]
    assert "schedule" not in served.ask("GET", "jobs/1").json()["spec"], "a job that it has started is one like others"
    assert served.ask("GET", "schedules").json()[0]["last_job"] == "digits-1"
    assert served.ask("DELETE", "schedules/1", "bob").status_code == 403
    assert served.ask("DELETE", "schedules/1").status_code == 204
    assert served.ask("GET", "schedules").json() == [] and jobs(served) == ["digits-1"]
    assert served.ask("GET", "schedules/1").status_code == served.ask("GET", "schedules/x-1").status_code == 404


def test_invalid_schedule_is_refused(served: Served) -> None:
    assert put_schedule(served, Role.VIEWER).status_code == 403
    assert "has no schedule" in put_schedule(served, spec=JOB).json()["error"]
    assert put_schedule(served, spec=JOB + 'schedule: "0 3 * * *"\nschedule_zone: Berlin\n').status_code == 400
    assert "the job has none" in served.submit(spec=JOB + "overlap: queue\n").text
    assert put_schedule(served, spec=NIGHTLY + "secrets: [s3-key]\n").status_code == 400


def test_each_planned_time_starts_one_job_and_an_outage_one(served: Served) -> None:
    put_schedule(served, spec=NIGHTLY + "overlap: cancel\n")
    store, schedules = lead_with_schedules(served)
    (row,) = schedules.all()
    store_due_jobs(schedules, ME, row.planned_s - 1)
    assert jobs(served) == []
    for _ in range(3):
        store_due_jobs(schedules, ME, row.planned_s + 1)
    assert jobs(served) == ["digits-1"]
    store_due_jobs(schedules, ME, row.planned_s + 30 * 86_400)
    assert jobs(served) == ["digits-2", "digits-1"], "one for thirty days"
    assert [(request.job, request.kind) for request in store.open_requests()] == [(1, "CANCEL")]
    assert [change.cause for change in store.changes(2)] == ["by schedule digits-1"]


def test_planned_time_is_skipped_while_the_owner_has_too_many_jobs(served: Served) -> None:
    """The leader's pass continues with the schedules of others."""
    assert served.submit().status_code == 201
    for role in (Role.USER, "bob"):
        assert put_schedule(served, role).status_code == 201
    store, schedules = lead_with_schedules(served)
    store.limits = JobLimits(unfinished=1, stored=100)
    mine, _ = schedules.all()
    store_due_jobs(schedules, ME, mine.planned_s + 1)
    assert [job["owner"] for job in served.ask("GET", "jobs").json()["jobs"]] == ["bob", "user"]
    left_out = schedules.one(mine.id)
    assert left_out.note.startswith("left out: user has 1 jobs that have not ended")
    assert left_out.planned_s == mine.planned_s + 86_400
    refused = served.ask("POST", "schedules/1/trigger")
    assert refused.status_code == 400 and "have not ended" in refused.json()["error"]


def test_clock_set_back_starts_no_job_twice(served: Served) -> None:
    put_schedule(served, spec=NIGHTLY + "overlap: cancel\n")
    _, schedules = lead_with_schedules(served)
    (row,) = schedules.all()
    store_due_jobs(schedules, ME, row.planned_s + 1)
    store_due_jobs(schedules, ME, row.planned_s - 7200)
    assert schedules.one(1).planned_s == row.planned_s, "planned anew"
    store_due_jobs(schedules, ME, row.planned_s + 1)
    assert jobs(served) == ["digits-1"]
    store_due_jobs(schedules, ME, row.planned_s + 86_401)
    assert jobs(served) == ["digits-2", "digits-1"]


def test_running_job_makes_the_next_planned_time_skip(served: Served) -> None:
    put_schedule(served)
    _, schedules = lead_with_schedules(served)
    (row,) = schedules.all()
    store_due_jobs(schedules, ME, row.planned_s + 1)
    store_due_jobs(schedules, ME, row.planned_s + 86_401)
    assert jobs(served) == ["digits-1"]
    assert served.jobs.store.job(1).state == Lifecycle.WAITING and "skipped" in schedules.one(1).note


def test_server_that_does_not_lead_starts_no_scheduled_job(served: Served) -> None:
    put_schedule(served)
    _, schedules = lead_with_schedules(served)
    (row,) = schedules.all()
    with pytest.raises(StaleRecord):
        store_due_jobs(schedules, replace(ME, holder="you"), row.planned_s + 1)
    assert jobs(served) == [] and schedules.all() == [row]
    schedules.pause(1, True, row.planned_s, row.planned_s)
    store_due_jobs(schedules, ME, row.planned_s + 1)
    assert jobs(served) == []


def test_manager_pass_starts_due_schedules(served: Served) -> None:
    put_schedule(served)
    schedules = Schedules(served.jobs.store)
    schedules.pause(1, False, time.time() - 1, time.time() - 1)
    served.jobs.manager.run_pass()
    assert jobs(served) == ["digits-1"]


@pytest.mark.parametrize("lost", ["revoked", "expired", "a viewer now"])
def test_schedule_is_paused_when_its_owner_may_not_submit_any_more(served: Served, lost: str) -> None:
    tokens, now = Tokens(served.jobs.store), time.time()
    served.tokens["eve"] = tokens.create(  # type: ignore[index]
        "eve", Role.USER, now, lasts_s=3600 if lost == "expired" else None
    )
    assert put_schedule(served, "eve").status_code == 201
    _, schedules = lead_with_schedules(served)
    (row,) = schedules.all()
    if lost != "expired":
        (own,) = [one for one in tokens.all() if one.user == "eve"]
        tokens.revoke(own.id, now)
    if lost == "a viewer now":
        tokens.create("eve", Role.VIEWER, now)
    store_due_jobs(schedules, ME, row.planned_s + 90_000)
    (row,) = schedules.all()
    assert jobs(served) == [] and row.is_paused and row.note == "paused: eve may not submit jobs any more"
    if lost != "expired":  # which it will be in an hour
        triggered = served.ask("POST", "schedules/1/trigger", Role.OPERATOR)
        assert triggered.status_code == 403 and "its owner eve may not submit" in triggered.json()["error"]
        assert jobs(served) == []
    tokens.create("eve", Role.USER, now)
    schedules.pause(row.id, False, row.planned_s, row.planned_s)
    store_due_jobs(schedules, ME, row.planned_s + 90_000)
    assert jobs(served) == ["digits-1"], "resumed by somebody, with an owner who may"


def test_signed_in_owner_may_submit_after_the_session_until_role_or_token_is_lost(served: Served) -> None:
    tokens, now, day = Tokens(served.jobs.store), time.time(), 86_400.0

    def signed_in(role: Role, at: float) -> str:
        return tokens.create("ana", role, at, label=SIGNED_IN, lasts_s=day / 2)

    assert not tokens.may_submit("ana", now)
    session = signed_in(Role.USER, now)
    assert tokens.may_submit("ana", now + 20 * day) and not tokens.may_submit("ana", now + 31 * day)
    tokens.sign_out(session, now + 1, lambda connection, target: None)
    assert tokens.caller(session, now + 2) is None and tokens.may_submit("ana", now + day)
    signed_in(Role.VIEWER, now + day)
    assert not tokens.may_submit("ana", now + day + 1), "the provider says less than before"
    signed_in(Role.USER, now + 2 * day)
    assert tokens.may_submit("ana", now + 3 * day)
    tokens.revoke([one for one in tokens.all() if one.user == "ana"][-1].id, now + 3 * day)
    assert not tokens.may_submit("ana", now + 3 * day)


def test_number_of_schedules_of_an_owner_is_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsml.service.store.schedules.MOST", 2)
    made = [put_schedule(served, spec=NIGHTLY.replace("digits", f"digits-{n}")).status_code for n in range(3)]
    assert made == [201, 201, 400]
    assert put_schedule(served, spec=NIGHTLY.replace("digits", "digits-1")).status_code == 201, (
        "in the place of the one before"
    )
    assert put_schedule(served, "bob").status_code == 201
