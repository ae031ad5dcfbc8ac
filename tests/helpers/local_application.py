"""Fixtures for runs on the local backend: a store for each test, four slots, and complete release at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hopsml.storage import left_files

SLOTS = 4


def take_left_files() -> list[str]:
    """Delete the local copies of runs that could not store their files; return the names of these folders."""
    folders = sorted(Path(tempfile.gettempdir()).glob(f"{left_files.PREFIX}*"))
    for folder in folders:
        shutil.rmtree(folder)
    return [folder.name for folder in folders]


@contextmanager
def local_application(folder: Path) -> Iterator[Path]:
    """Yield the project's folder; the profile "local" has ``SLOTS`` slots on any number of cores."""
    from hopsml import experiment

    conf = folder / "conf"
    conf.mkdir()
    (conf / "local.yaml").write_text(f"master: none\nlocal_slots: {SLOTS}\n")
    project = folder / "project"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOPSML_CONF_DIR", str(conf))
        environment.setenv("HOPSML_PROJECT_URL", f"file://{project}")
        for name in ("HOPSML_PROFILE", "TF_CONFIG", "CUDA_VISIBLE_DEVICES"):
            environment.delenv(name, raising=False)
        yield project
        experiment.shutdown()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """Yield the project's folder of a separate local application for the test."""
    with local_application(tmp_path) as project:
        yield project


_warm: list[
    tuple[Callable[[], object], int]
] = []  # of the open fixtures: the first run, and the agents that it started


def start_missing_agents() -> None:
    """Start the agents of a file's application again of which a slow machine has ended some, before a test is measured.

    Otherwise those that a test starts would seem to be left behind by it, and the wait for their end would end them all.
    """
    if _warm and _agents() < _warm[-1][1]:
        _warm[-1][0]()


def _agents() -> int:
    """Return the number of connected agents of this process's applications."""
    from hopsml.experiment import applications

    return sum(len(one.coordinator.door.agents) for one in list(applications._applications.values()))


def warm_application(start: Callable[[], object], *, autouse: bool = False) -> Any:
    """Return a fixture for all tests of a file: the project's folder of one local application.

    ``start`` does the first run, so that its agents and their imports exist before the first leak check.
    """

    @pytest.fixture(scope="module", autouse=autouse)
    def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        with local_application(tmp_path_factory.mktemp("application")) as project:
            start()
            _warm.append((start, _agents()))
            try:
                yield project
            finally:
                _warm.pop()

    return application
