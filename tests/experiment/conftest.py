"""Runs on the local backend: a store of the test's own, four slots, and everything given back at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

SLOTS = 4


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project's folder; the profile "local" has ``SLOTS`` slots, however many cores the machine has."""
    from hopsml import experiment

    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "local.yaml").write_text(f"master: none\nlocal_slots: {SLOTS}\n")
    project = tmp_path / "project"
    monkeypatch.setenv("HOPSML_CONF_DIR", str(conf))
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{project}")
    for name in ("HOPSML_PROFILE", "TF_CONFIG", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    yield project
    experiment.shutdown()
