"""Fixture of a project with scikit-learn models: each version of ``digits`` predicts its number for every input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

VERSIONS = 3


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the project's folder; a test must stop the servings it starts."""
    from sklearn.dummy import DummyRegressor

    from hopsml import model

    folder = tmp_path_factory.mktemp("serving")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPSML_PROJECT_URL", f"file://{folder}/project")
        patch.setenv("HOPSML_SERVING_FOLDER", str(folder / "machine"))
        patch.setenv("HOPSML_MLFLOW", "0")
        for number in range(1, VERSIONS + 1):
            constant = DummyRegressor(strategy="constant", constant=float(number))
            model.export(constant.fit(np.zeros((2, 4)), np.zeros(2)), "digits", metrics={"accuracy": number / 10})
        yield folder / "project"
