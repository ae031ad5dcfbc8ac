"""Fixtures of a job file with its code, and of profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.service.spec.examples import WHOLE


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the complete example and the files it names into a separate folder."""
    for variable in ("PYSPARK_PYTHON", "HADOOP_CONF_DIR", "HADOOP_HOME", "HOPSML_PROJECT_URL", "HOPSML_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("HOPSML_CONF_DIR", "HOPSML_PROFILE", "HOPSML_SPARK_MASTER"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "job.yaml").write_text(WHOLE)
    (tmp_path / "train.py").write_text("def main(batch_size=1, lr=0.1):\n    return {'accuracy': lr * batch_size}\n")
    (tmp_path / "evaluate.py").write_text("print('evaluated')\n")
    return tmp_path / "job.yaml"
