"""Runs on this machine whose project is in a Kerberized HDFS, and whose only credential is a token file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.core import delegation_tokens as tokens
from hopsml.storage import filesystem
from hopsml.storage.filesystem import for_url
from tests.helpers import scenarios
from tests.helpers.clock import WAIT_S
from tests.helpers.local_application import local_application
from tests.helpers.storage.token_workload import store_until

LIFE_S = 15.0  # of a token that nobody renews: see the fixture


@pytest.fixture
def token_file(secure_hdfs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the token file of a local application whose project is in the secure HDFS; there is no ticket."""
    yield from application_with_tokens(secure_hdfs, tmp_path, monkeypatch)


def application_with_tokens(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the token file of a local application whose project is in the HDFS of a cluster; there is no ticket."""
    path = tmp_path / "given-tokens"
    monkeypatch.setenv(tokens.VARIABLE, str(path))
    with _application(cluster, tmp_path, {}):
        yield path


@pytest.fixture
def ticket_cache(secure_hdfs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the ticket cache of a local application whose project is in the secure HDFS; it is empty, and without tokens."""
    path = tmp_path / "alice.cc"
    monkeypatch.delenv(tokens.VARIABLE, raising=False)
    with _application(secure_hdfs, tmp_path, {"KRB5CCNAME": f"FILE:{path}"}):
        yield path


@contextmanager
def _application(cluster: Any, folder: Path, variables: dict[str, str]) -> Iterator[None]:
    """Context of a local application with a project in HDFS; without ``KRB5CCNAME`` there is no ticket."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(cluster.conf_dir))
        for variable, value in {**cluster.kdc.environment(), **variables}.items():
            patch.setenv(variable, value)
        with local_application(folder), pytest.MonkeyPatch.context() as project:
            project.setenv("HOPSML_PROJECT_URL", project_url(cluster, folder))
            yield
        filesystem.close_all()


def project_url(cluster: Any, local: Path) -> str:
    """Return the project's URL of a test with this folder."""
    return f"{cluster.namenode_url}/user/alice/{local.name}"


def start(cluster: Any, local: Path, **named: Any) -> tuple[Any, str]:
    """Start a run of two workers that store files until ``stop`` exists in ``local``; return it and their folder."""
    folder = f"{project_url(cluster, local)}/stored"
    args = {"local": str(local), "folder": folder, **named}
    expect(cluster, local)
    return experiment.submit(store_until, args=args, num_workers=2, progress=False), folder


def expect(cluster: Any, local: Path) -> str:
    """Let the scenario measure files of workers, and search the project; return the folder for these files in HDFS."""
    folder = f"{project_url(cluster, local)}/stored"
    scenarios.expect(cluster, local, folder)
    scenarios.watch(cluster, project_url(cluster, local))
    return folder


def notes(run: Any) -> str:
    """Return all notes of a run, one a line."""
    return "\n".join(run.state.notes)


def stored(folder: str, at_least: int) -> bool:
    """Return True if the first worker has stored so many files."""
    try:
        return sum("/0-" in entry.url for entry in for_url(folder).list_dir(folder)) >= at_least
    except FileNotFoundError:
        return False


def finish(run: Any, local: Path, folder: str) -> None:
    """End the run, and check that everything is stored."""
    (local / "stop").touch()
    run.result(WAIT_S)
    assert missing_bytes(local, folder) == 0
    assert json.loads(for_url(run.run_dir).read_bytes(f"{run.run_dir}/status.json"))["state"] == "FINISHED"


def missing_bytes(local: Path, folder: str, ranks: int = 2, child: bool = False) -> int:
    """Return how many bytes of the workers' files, and of their children's, are not in HDFS as they were written."""
    stored = {entry.url.rpartition("/")[2]: entry.length for entry in for_url(folder).list_dir(folder)}
    lost = 0
    for rank in range(ranks):
        for number in range(json.loads((local / f"rank-{rank}.json").read_text())["count"]):
            for name, content in ((f"{rank}-{number}", b"worker"), (f"{rank}-{number}-child", b"child")):
                if (child or content == b"worker") and stored.get(name) != len(content):
                    lost += len(content)
    return lost
