"""Tests of the audit log: its content, its readers, and no waiting for it without end."""

from __future__ import annotations

import logging
import re
import sqlite3
from pathlib import Path

import pytest

from hopsml.errors import ArgumentError
from hopsml.service import server
from hopsml.service.jobs import DAY_S, DROP_S
from hopsml.service.rest.audited import action_of
from hopsml.service.store.accounts import AuditEntry, AuditLog, Role
from tests.helpers.service.served import Served

pytestmark = pytest.mark.fast


def entries(served: Served, query: str = "") -> list[tuple[str, ...]]:
    """Return user, role, action, target and outcome of each entry, oldest first."""
    found = served.ask("GET", f"audit?{query}", Role.ADMIN).json()["entries"]
    assert all(one["peer"] == "127.0.0.1" and one["at_s"] > 0 for one in found)
    return [(one["user"], one["role"], one["action"], one["target"], one["outcome"]) for one in reversed(found)]


def test_every_change_is_recorded_once(served: Served) -> None:
    digest = served.workspace()
    submission = {"json": {"spec": "name: digits\ntasks: {main: {script: train.py}}\n", "workspace": digest}}
    for _ in range(2):
        served.ask("POST", "jobs", **submission, headers={"Idempotency-Key": "k"})
    served.ask("POST", "jobs/1/move", Role.OPERATOR, json={"priority": 7})
    for verb in ("pause", "resume", "cancel"):
        served.ask("POST", f"jobs/digits-1/{verb}")
    served.jobs.manager.run_pass()
    served.ask("POST", "jobs/1/cancel")  # it is over: nothing changes
    served.ask("POST", "jobs/1/clone", "bob")
    made = served.ask("POST", "tokens", Role.ADMIN, json={"user": "eve", "label": "of eve"}).json()["token"]
    served.ask("DELETE", f"tokens/{served.ask('GET', 'tokens', Role.ADMIN).json()[-1]['id']}", Role.ADMIN)
    found = entries(served)
    token_id = found[-1][3]
    assert found == [
        ("user", "user", "upload", digest, 201),
        ("user", "user", "submit", "digits-1", 201),
        ("user", "user", "submit", "digits-1", 201),
        ("operator", "operator", "move", "digits-1", 202),
        ("user", "user", "pause", "digits-1", 202),
        ("user", "user", "resume", "digits-1", 202),
        ("user", "user", "cancel", "digits-1", 202),
        ("user", "user", "cancel", "1", 202),
        ("bob", "user", "clone", "digits-2", 201),
        ("admin", "admin", "token create", token_id, 201),
        ("admin", "admin", "token revoke", token_id, 204),
    ]
    assert made not in str(found) and len(token_id) == 12


def test_refused_users_are_recorded_but_invalid_requests_are_not(served: Served) -> None:
    served.submit()
    served.ask("POST", "jobs/1/cancel", "bob")
    served.ask("POST", "tokens", Role.USER, json={"user": "eve"})
    served.ask("POST", "jobs/1/pause", headers={"authorization": "Bearer s3cr3t"})
    served.ask("DELETE", "no/such/address", headers={"authorization": "Bearer s3cr3t"})
    for path, status in (("jobs/9/cancel", 404), ("jobs/1/nothing", 404), ("jobs", 422), ("no", 404)):
        assert served.ask("POST", path).status_code == status
    served.ask("GET", "jobs/1", headers={"authorization": "Bearer s3cr3t"})
    assert entries(served)[2:] == [
        ("bob", "user", "cancel", "1", 403),
        ("user", "user", "token create", "", 403),
        ("", "", "pause", "1", 401),
        ("", "", "delete no", "such", 401),
    ]
    assert "s3cr3t" not in served.ask("GET", "audit", Role.ADMIN).text


def test_refused_submissions_are_recorded_with_their_job_names(served: Served) -> None:
    served.submit(spec="name: lost\nqueue: nowhere\ntasks: {main: {script: train.py}}\n")
    served.submit(spec="no job")
    served.ask("POST", "jobs", json={"spec": "name: bare\ntasks: {main: {script: train.py}}\n", "workspace": "0" * 64})
    served.ask("POST", "workspaces", content=b"no zip")
    served.ask("POST", "schedules", json={"spec": "name: plain\ntasks: {main: {script: train.py}}\n"})
    served.submit()
    served.ask("POST", "jobs/1/move", json={"queue": "nowhere"})  # no submission
    found = [(action, target, outcome) for _, _, action, target, outcome in entries(served) if outcome != 201]
    assert found == [
        ("submit", "lost", 400),
        ("submit", "", 400),
        ("submit", "bare", 409),
        ("upload", "", 400),
        ("schedule put", "plain", 400),
    ]


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("GET", "/api/v1/jobs", None),
        ("HEAD", "/api/v1/jobs", None),
        ("POST", "/api/runs", None),
        ("POST", "/proxy/80/api/v1/jobs", ("submit", "")),
        ("POST", "/api/v1/jobs/1/cancel", ("cancel", "1")),
        ("POST", "/api/v1/jobs/1/explode", ("other", "1")),
        ("PUT", "/api/v1/secrets/s3", ("secret put", "s3")),
        ("POST", "/api/v1/schedules", ("schedule put", "")),
        ("POST", "/api/v1/schedules/nightly-7/trigger", ("schedule trigger", "nightly-7")),
        ("POST", "/api/v1/schedules/nightly-7/drop", ("other", "nightly-7")),
        ("POST", "/api/v1/runs/app_1/profiles", ("profile", "app_1")),
        ("PUT", "/api/v1/windows/s3", ("put windows", "s3")),
        ("BREW", "/api/v1/" + "x" * 5000, ("other", "")),
    ],
)
def test_action_of_a_request(method: str, path: str, found: tuple[str, str] | None) -> None:
    assert action_of(method, path) == found


def test_only_administrators_read_the_audit_log_page_by_page(served: Served) -> None:
    for role in (Role.VIEWER, Role.USER, Role.OPERATOR):
        assert served.ask("GET", "audit", role).status_code == 403
    for _ in range(3):
        served.workspace()
    first = served.ask("GET", "audit?limit=2", Role.ADMIN).json()
    rest = served.ask("GET", f"audit?limit=2&before={first['cursor']}", Role.ADMIN).json()
    assert [one["id"] for page in (first, rest) for one in page["entries"]] == [3, 2, 1] and rest["cursor"] is None
    assert entries(served, "user=bob") == [] and len(entries(served, "action=upload&user=user")) == 3
    for query in ("before=0", "before=x", "before=99999999999999999999", "limit=0", "limit=1001", "user=" + "x" * 201):
        assert served.ask("GET", f"audit?{query}", Role.ADMIN).status_code == 422, query


def test_request_succeeds_or_fails_independently_of_a_locked_audit_log(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served.submit()
    with served.jobs.store.write_transaction() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout=50")
    other = sqlite3.connect(tmp_path / "service.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING, "hopsml.service"):
        assert served.ask("POST", "jobs/1/cancel", "bob").status_code == 403
        assert served.ask("POST", "jobs/1/cancel").status_code == 503  # neither the request nor its entry is stored
    other.execute("ROLLBACK")
    other.close()
    assert re.search(
        r"the audit log lacks cancel '1' by bob \(user\) from \S+, answered 403: .*somebody holds it", caplog.text
    )
    assert served.ask("POST", "jobs/1/cancel").status_code == 202
    assert entries(served)[2:] == [("user", "user", "cancel", "digits-1", 202)]


def test_leader_deletes_old_entries_once_an_hour(served: Served) -> None:
    log = AuditLog(served.jobs.store)

    def add(days: float) -> None:
        log.add(AuditEntry(100 * DAY_S - days * DAY_S, "bob", "user", "submit", "", 201, ""))

    add(91)
    served.jobs.drop_old_audit_entries(100 * DAY_S)
    assert len(log.page().entries) == 1, "it does not lead yet"
    served.jobs.manager.run_pass()
    add(89)
    served.jobs.drop_old_audit_entries(100 * DAY_S)
    assert [row.at_s for row in log.page().entries] == [11 * DAY_S]
    add(95)
    served.jobs.drop_old_audit_entries(100 * DAY_S + DROP_S - 1)
    assert len(log.page().entries) == 2
    served.jobs.drop_old_audit_entries(100 * DAY_S + DROP_S)
    assert len(log.page().entries) == 1


def test_retention_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    for days in (0.0, -1.0, float("nan")):
        with pytest.raises(ArgumentError, match="--audit-days"):
            server.create_job_service(server.ServerSettings(tmp_path, profile="local", audit_days=days), "http://here/")
