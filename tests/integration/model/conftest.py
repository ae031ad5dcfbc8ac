"""Fixtures of models: a separate project for each test, and folders to export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MakeFolder = Callable[[str], Path]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"file://{tmp_path}/project"
    monkeypatch.setenv("HOPSML_PROJECT_URL", url)
    monkeypatch.setenv("HOPSML_MLFLOW", "0")
    monkeypatch.setenv("HOPSML_MODEL_CACHE", str(tmp_path / "models"))
    return url


@pytest.fixture
def folder(tmp_path: Path) -> MakeFolder:
    """Makes a folder with two files, whose content is the given word."""

    def make(word: str) -> Path:
        made = tmp_path / f"to-export-{word}"
        (made / "inner").mkdir(parents=True)
        (made / "weights.bin").write_bytes(word.encode() * 100)
        (made / "inner" / "more.txt").write_text(word)
        return made

    return make
