"""Job service that a test calls without a socket."""

from __future__ import annotations

import asyncio
import hashlib
import io
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hopsml.service import server
from hopsml.service.browse.project import Changes, Project
from hopsml.service.jobs import JobService
from hopsml.service.rest.event_stream import Broadcaster, Streams
from hopsml.service.rest.feeds import ProjectFeed
from hopsml.service.rest.service_application import service_application
from hopsml.service.scheduler.resources import Resources
from hopsml.service.store import JobStore
from hopsml.service.store.accounts import Role, Tokens

JOB = "name: digits\ntasks: {main: {script: train.py}}\n"


class Served:
    """A service that was not started: its manager takes a step on request."""

    def __init__(self, jobs: JobService, project: Project) -> None:
        self.jobs, self.project = jobs, project
        self.streams = Streams(Broadcaster(ProjectFeed(Changes(project))), look_s=0.02)
        self.app = service_application(jobs, project, self.streams, "x")
        self.cookie = "hopsml_ui_" + hashlib.sha256(b"x").hexdigest()[:12]
        tokens = Tokens(jobs.store)
        self.tokens = {role: tokens.create(role.name.lower(), role, time.time()) for role in Role}
        self.tokens["bob"] = tokens.create("bob", Role.USER, time.time())  # type: ignore[index]

    def ask(self, method: str, path: str, role: Any = Role.USER, **more: Any) -> httpx.Response:
        """Send one request."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            given = {"authorization": f"Bearer {self.tokens[role]}", **more.pop("headers", {})}
            headers = {name: value for name, value in given.items() if value or name != "authorization"}
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as asking:
                return await asking.request(method, f"/api/v1/{path}", headers=headers, **more)

        return asyncio.run(ask())

    def workspace(self) -> str:
        """Upload a workspace."""
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr(zipfile.ZipInfo("train.py"), "")
        return str(self.ask("POST", "workspaces", content=content.getvalue()).json()["workspace"])

    def submit(self, role: Any = Role.USER, spec: str = JOB, **more: Any) -> httpx.Response:
        """Submit a job."""
        return self.ask("POST", "jobs", role, json={"spec": spec, "workspace": self.workspace()}, **more)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with empty tables, to be copied: creating them takes longer than a test."""
    folder = tmp_path_factory.mktemp("empty")
    JobStore.open(f"sqlite:///{folder}/service.db").close()
    return folder


@pytest.fixture
def served(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    shutil.copytree(empty, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(server, "machine_resources", lambda gpus: Resources(0, 0, 0))  # nothing ever starts
    jobs, _ = server.create_job_service(server.ServerSettings(tmp_path, profile="local"), "http://here/")
    yield Served(jobs, Project(f"file://{tmp_path}/project"))
    jobs.close()
