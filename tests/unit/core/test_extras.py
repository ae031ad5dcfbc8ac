"""Tests of install commands in messages: the source that hopsml was installed from, never another project's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.core import extras

pytestmark = pytest.mark.fast


def test_install_command_names_the_source_of_the_installed_hopsml(tmp_path: Path) -> None:
    wheel = tmp_path / "hopsml_spark-1.0-py3-none-any.whl"
    wheel.touch()
    nowhere = tmp_path / "site-packages"

    def command_for(url: str, **more: object) -> str:
        return extras.install_command_from("mlflow", {"url": url, **more}, "1.0", nowhere)

    assert command_for(wheel.as_uri(), archive_info={}) == f"pip install '{wheel}[mlflow]'"
    assert command_for(tmp_path.as_uri(), dir_info={"editable": True}) == f"pip install -e '{tmp_path}[mlflow]'"
    removed_wheel = (
        "pip install './hopsml_spark-1.0-py3-none-any.whl[mlflow]' (the wheel from which hopsml was installed)"
    )
    assert command_for("file:///no/such.whl") == command_for("https://index/hopsml_spark-1.0.whl") == removed_wheel
    assert command_for("") == "pip install 'hopsml-spark[mlflow]==1.0'"
    assert extras.install_command_from("mlflow", {}, "*", nowhere) == "pip install 'hopsml-spark[mlflow]'"


def test_install_command_of_a_repository_on_the_path_is_editable(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml"):
        (tmp_path / name).touch()
    assert extras.install_command_from("spark", {}, "*", tmp_path) == f"pip install -e '{tmp_path}[spark]'"
