"""Tests of the registry with a real MLflow server: same numbers, same aliases, and behaviour during its outage."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hopsml import model
from tests.helpers.tracking.mlflow_server import MlflowServer
from tests.integration.model.conftest import MakeFolder

pytestmark = pytest.mark.mlflow


@pytest.mark.variant  # of test_registry
def test_versions_and_aliases_are_equal_in_mlflow(
    mlflow_server: MlflowServer,
    folder: MakeFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # MLflow takes no source on a local disk.
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"memory://bucket/{tmp_path.name}")
    monkeypatch.delenv("HOPSML_MLFLOW", raising=False)
    source = folder("a")
    model.export(source, "digits", metrics={"accuracy": 0.5})  # before there was a server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    client = mlflow_server.client()
    model.export(source, "digits", description="with one", metrics={"accuracy": 0.75})
    found = {one.version: one for one in client.search_model_versions("name = 'digits'")}
    assert {str(number): one.source for number, one in found.items()} == {
        str(version.version): version.url for version in model.versions("digits")
    }
    second = found[max(found)]
    assert (second.description, second.tags["hopsml.metric.accuracy"]) == ("with one", "0.75")

    model.set_alias("digits", 1, "production")
    assert str(client.get_model_version_by_alias("digits", "production").version) == "1"
    client.set_registered_model_alias("digits", "production", "2")  # as a person does in MLflow's own pages
    client.set_registered_model_alias("digits", "canary", "1")
    assert model.aliases("digits") == {"canary": 1, "production": 2}
    assert model.find("digits", "production").version == 2
    model.delete_alias("digits", "canary")
    assert list(client.get_registered_model("digits").aliases) == ["production"]

    model.export(source, "digits")
    model.delete("digits", 3)
    model.export(source, "digits", model_version=6)
    assert sorted(int(one.version) for one in client.search_model_versions("name = 'digits'")) == [1, 2, 6]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # an address without a server
    with caplog.at_level(logging.WARNING):
        made = model.export(source, "digits")
        model.set_alias("digits", 7, "production")
        assert made is not None and model.find("digits", "production").version == made.version == 7
    assert "the next export sends them" in caplog.text and "the alias production for version 7" in caplog.text
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    model.export(source, "digits")
    assert sorted(int(one.version) for one in client.search_model_versions("name = 'digits'")) == [1, 2, 6, 7, 8]
