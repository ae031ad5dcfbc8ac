"""Fixtures for runs on the local backend: a store for each test, four slots, and complete release at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SLOTS = 4


@contextmanager
def local_application(folder: Path) -> Iterator[Path]:
    """The project's folder; the profile "local" has ``SLOTS`` slots, however many cores the machine has."""
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
    """The project's folder of a test's own local application."""
    with local_application(tmp_path) as project:
        yield project
