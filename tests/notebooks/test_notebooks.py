"""Every notebook runs from top to bottom in a fresh kernel, on a real local-cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]

ROOT = Path(__file__).parents[2]


def outputs_of(notebook: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{folder}")
    monkeypatch.setenv("HOPSML_CONF_DIR", str(ROOT / "conf"))
    content = nbformat.read(notebook, as_version=4)
    NotebookClient(content, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    return ["".join(str(output) for output in cell.get("outputs", [])) for cell in content.cells]


@pytest.mark.timeout(300)
def test_digits(tmp_path, monkeypatch):
    outputs = "\n".join(outputs_of(ROOT / "notebooks" / "digits.ipynb", tmp_path, monkeypatch))
    assert '"state": "FINISHED"' in outputs
    assert len(list((tmp_path / "Experiments").glob("*/status.json"))) == 3
    assert list((tmp_path / "Experiments").glob("*_1/events/**/*tfevents*"))
