"""Tests of commands on runs of another user: what is not permitted, and whom to ask."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.storage import mailbox
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import provenance
from tests.helpers.command_line import Cli
from tests.helpers.service.project import ProjectOnDisk

pytestmark = [pytest.mark.local, pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")]
OTHER = 65534


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProjectOnDisk]:
    """Yield a project that every user can read."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="hopsml-other-user-") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{folder}")
        yield ProjectOnDisk(Path(folder))


@contextlib.contextmanager
def other_user() -> Iterator[None]:
    """Have the permissions of another user."""
    os.seteuid(OTHER)
    try:
        yield
    finally:
        os.seteuid(0)


def test_cancel_by_another_user_names_the_owner(project: ProjectOnDisk, cli: Cli) -> None:
    run = project.run("app_1", state=None, driver_process=provenance.process_identity())
    mailbox.write_cancel_request(RunDir(f"{project.url}/Experiments/app_1"), "imports what a request needs")
    cli("runs", "cancel", run.id, "--timeout", "0")
    Path(run.folder, "cancel.json").unlink()
    with other_user():
        done = cli("runs", "cancel", run.id)
    assert done.status == 1 and "run app_1 belongs to ana" in done.err and "ask ana to cancel it" in done.err
    assert "write elsewhere" not in done.err


def test_unreadable_run_has_no_remedy_for_writing(project: ProjectOnDisk, cli: Cli) -> None:
    run = project.run("app_1")
    assert cli("runs", "show", run.id).status == 0
    run.folder.chmod(0o700)
    with other_user():
        done = cli("runs", "show", run.id)
    assert done.status == 1 and "ask the owner" in done.err and "write elsewhere" not in done.err
