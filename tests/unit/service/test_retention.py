"""Tests of the files of ended jobs: their drivers' folders are not polled again, and are removed after the retention."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from hopsml.core.states import Lifecycle
from hopsml.engines.local_driver import ENDED, OUTPUT, ROOM, RUNNING
from hopsml.errors import ArgumentError
from hopsml.service import server
from hopsml.service.engine.local import ASIDE, LocalEngine
from hopsml.service.lifecycle.record import EngineSnapshot, SeenApplication, ended_tags
from hopsml.service.retention import DAY_S, UPLOADED_S, RemovedCounts
from hopsml.service.scheduler.resources import Resources
from hopsml.service.store.accounts import Role
from hopsml.service.store.database import jobs as jobs_table
from hopsml.service.store.rows import JobLimits, NewJob
from tests.helpers.service.followed import PlayedJob
from tests.helpers.service.served import Served

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def project_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    made = LocalEngine(tmp_path / "applications", Resources())
    yield made
    made.close()


def application(folder: Path, tag: str, status: int | None = 0) -> Path:
    """Create the folder of an application that has ended; ``status`` None: without an exit status."""
    made = folder / tag
    made.mkdir(parents=True)
    running = {"pid": 1 << 30, "ticks": 1, "driver": 1 << 30, "driver_ticks": 1}
    (made / RUNNING).write_text(json.dumps(running).ljust(ROOM))
    (made / OUTPUT).write_text(f"printed by {tag}\n")
    if status is not None:
        (made / ENDED).write_text(json.dumps({"status": status, "problem": ""}))
    return made


def test_folders_of_launches_whose_end_is_stored_are_not_polled_again(engine: LocalEngine, tmp_path: Path) -> None:
    tags = [f"t-{number}" for number in range(20)]
    for tag in tags:
        application(tmp_path / "applications", tag)
    assert {*(engine.poll().sight.applications or ())} == {*tags}
    for tag in tags[1:]:
        engine.forget(tag)
    assert {*(engine.poll().sight.applications or ())} == {"t-0"}
    assert sorted(os.listdir(tmp_path / "applications")) == [ASIDE, "t-0"]
    assert len(os.listdir(tmp_path / "applications" / ASIDE)) == 19
    found = engine.log("t-7", 0, 100)
    assert found is not None and found.data == b"printed by t-7\n"
    assert engine.log("t-99", 0, 100) is None
    engine.forget("t-0")
    assert engine.poll().sight.applications == {} and engine._over == {} and engine._asked == set()


def test_a_launch_that_has_not_ended_is_still_polled(engine: LocalEngine, tmp_path: Path) -> None:
    (tmp_path / "applications" / "t-1").mkdir()
    engine.poll()
    engine.forget("t-1")
    assert (tmp_path / "applications" / "t-1").is_dir()


def test_old_logs_of_removable_launches_are_removed(engine: LocalEngine, tmp_path: Path) -> None:
    for number in range(4):
        made = application(tmp_path / "applications", f"t-{number}")
        os.utime(made, (number * 100, number * 100))
    engine.poll()
    for number in range(4):
        engine.forget(f"t-{number}")
    assert engine.remove(250, lambda tag: tag != "t-1") == 2
    assert sorted(os.listdir(tmp_path / "applications" / ASIDE)) == ["t-1", "t-3"]


def test_a_launch_is_dropped_once_no_active_job_waits_for_its_end() -> None:
    seen = {
        "running": (SeenApplication("1", Lifecycle.RUNNING),),
        "stored": (SeenApplication("2", Lifecycle.FINISHED),),
        "not-stored": (SeenApplication("3", Lifecycle.FAILED),),
        "twice": (SeenApplication("4", Lifecycle.FINISHED), SeenApplication("5", Lifecycle.RUNNING)),
    }
    sight = EngineSnapshot(seen, frozenset({"again"}), {"refused": "no", "again": "no", "living": "no"})
    assert sorted(ended_tags(sight, {"running": "1", "not-stored": "3", "living": ""})) == ["refused", "stored"]
    assert ended_tags(EngineSnapshot(None), {}) == []


# ------------------------------------------------------------------------------------- of a whole service

NOW = 2_000_000_000.0


def create_ended_job(
    served: Served, tmp_path: Path, days: float, *, code: str = "", role: Any = Role.USER
) -> PlayedJob:
    """Create a job that ended ``days`` days before NOW, with its files."""
    played = PlayedJob(served, tmp_path)
    tag = f"{served.jobs.manager.prefix}-{played.serial}-1"
    application(tmp_path / "applications", tag)
    (tmp_path / "jobs" / played.id).mkdir()
    (tmp_path / "jobs" / played.id / "job.yaml").write_text("name: digits\n")
    exchanged = tmp_path / "project" / "Jobs"
    (exchanged / served.jobs.own_name(served.jobs.store.job(played.serial)) / "1").mkdir(parents=True)
    (exchanged / f"{tag}.slots").write_text("2")
    values = {"state": "FINISHED", "ended_s": NOW - days * DAY_S, "tries": 1}
    values |= {"workspace": code} if code else {}
    with served.jobs.store.write_transaction() as connection:
        connection.execute(update(jobs_table).where(jobs_table.c.serial == played.serial).values(values))
    os.utime(tmp_path / "applications" / tag, (NOW - days * DAY_S,) * 2)
    return played


def remaining(tmp_path: Path, *path: str) -> list[str]:
    folder = tmp_path.joinpath(*path)
    return sorted(name for name in os.listdir(folder) if name != ASIDE)


def test_files_of_jobs_are_removed_after_the_retention_and_their_rows_are_retained(
    served: Served, tmp_path: Path
) -> None:
    old, new = create_ended_job(served, tmp_path, 91), create_ended_job(served, tmp_path, 89)
    served.jobs.manager.run_pass()
    assert remaining(tmp_path, "applications") == [], "both have ended, and were moved aside"
    assert served.jobs.retention.sweep(NOW) == RemovedCounts(jobs=1, logs=1)
    assert remaining(tmp_path, "jobs") == [new.id]
    assert remaining(tmp_path, "applications", ASIDE) == [f"{served.jobs.manager.prefix}-{new.serial}-1"]
    assert len(remaining(tmp_path, "project", "Jobs")) == 2
    assert served.ask("GET", f"jobs/{old.id}").json()["state"] == "FINISHED"
    assert served.ask("GET", f"jobs/{old.id}/log").json() == {"text": "", "end": 0}
    assert served.jobs.retention.sweep(NOW) == RemovedCounts()


def test_code_that_no_job_and_no_schedule_needs_is_removed(served: Served, tmp_path: Path) -> None:
    workspaces = served.jobs.workspaces
    names = ("of-old", "of-new", "of-waiting", "of-schedule", "of-nobody", "uploaded-now")
    for name in names:
        folder = tmp_path / "workspaces" / name
        folder.mkdir()
        (folder / "train.py").write_text("")
        os.utime(folder, (NOW - 100 * DAY_S,) * 2)
    os.utime(tmp_path / "workspaces" / "uploaded-now", (NOW - UPLOADED_S + 60,) * 2)
    create_ended_job(served, tmp_path, 91, code="of-old")
    create_ended_job(served, tmp_path, 91, code="of-schedule")
    create_ended_job(served, tmp_path, 89, code="of-new")
    waiting = PlayedJob(served, tmp_path)
    with served.jobs.store.write_transaction() as connection:
        connection.execute(
            update(jobs_table).where(jobs_table.c.serial == waiting.serial).values(workspace="of-waiting")
        )
    from hopsml.service.store.schedules import Schedules

    wanted = {"spec": "{}", "profile": "local", "workspace": "of-schedule", "planned_s": NOW, "now": NOW}
    Schedules(served.jobs.store).store_schedule("bob", "nightly", **wanted)  # type: ignore[arg-type]
    uploaded = {name for name in remaining(tmp_path, "workspaces") if len(name) == 64}
    found = served.jobs.retention.sweep(NOW)
    assert found.workspaces == 2 + len(uploaded)
    assert remaining(tmp_path, "workspaces") == sorted({*names} - {"of-old", "of-nobody"})
    os.utime(tmp_path / "workspaces" / "of-new", (0, 0))
    assert workspaces.folder("of-new").stat().st_mtime > time.time() - 60, "a lookup of code renews its retention"


def test_rm_deletes_the_files_of_one_ended_job(served: Served, tmp_path: Path) -> None:
    one, other = create_ended_job(served, tmp_path, 1), create_ended_job(served, tmp_path, 1)
    waiting = PlayedJob(served, tmp_path)
    served.jobs.manager.run_pass()
    refused = served.ask("POST", f"jobs/{waiting.id}/remove")
    assert refused.status_code == 400 and f"hopsml jobs cancel {waiting.id}" in refused.json()["remedy"]
    assert served.ask("POST", f"jobs/{one.id}/remove", "bob").status_code == 403
    assert served.ask("POST", f"jobs/{one.id}/remove").status_code == 200
    assert remaining(tmp_path, "jobs") == [other.id]
    assert remaining(tmp_path, "applications", ASIDE) == [f"{served.jobs.manager.prefix}-{other.serial}-1"]
    assert served.ask("POST", f"jobs/{one.id}/remove").status_code == 200, "a second removal succeeds"
    assert served.ask("GET", f"jobs/{one.id}").json()["state"] == "FINISHED"
    cloned = served.ask("POST", f"jobs/{one.id}/clone")
    assert cloned.status_code == 409 and cloned.json()["remedy"] == "submit the job again"
    assert served.ask("POST", f"jobs/{other.id}/clone").status_code == 201
    actions = [entry["action"] for entry in served.ask("GET", "audit", Role.ADMIN).json()["entries"]]
    assert "remove" in actions


def test_files_of_jobs_whose_rows_were_removed_are_removed(served: Served, tmp_path: Path) -> None:
    """Their owner has submitted more jobs than are stored of one user."""
    create_ended_job(served, tmp_path, 91)
    served.jobs.manager.run_pass()
    served.jobs.store.limits = JobLimits(unfinished=10, stored=1)
    waiting = served.jobs.store.submit(NewJob("digits", "user", "default", 50, "{}", "local"), NOW)
    assert served.ask("GET", "jobs/1").status_code == 404
    found = served.jobs.retention.sweep(NOW)
    assert (found.jobs, found.logs) == (1, 1) and remaining(tmp_path, "jobs") == [] == remaining(
        tmp_path, "project", "Jobs"
    )
    assert served.ask("GET", f"jobs/{waiting.id}").status_code == 200


def test_limits_of_jobs_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    for unfinished, stored in ((10, 10), (0, 10)):
        wanted = server.ServerSettings(tmp_path, profile="local", unfinished_jobs=unfinished, stored_jobs=stored)
        with pytest.raises(ArgumentError, match=r"--stored-jobs 10: .*higher than"):
            server.create_job_service(wanted, "http://here/")


def test_a_retention_of_zero_days_is_refused(tmp_path: Path) -> None:
    for days in (0.0, -1.0, float("nan")):
        with pytest.raises(ArgumentError, match="--keep-days"):
            server.create_job_service(server.ServerSettings(tmp_path, profile="local", keep_days=days), "http://here/")
