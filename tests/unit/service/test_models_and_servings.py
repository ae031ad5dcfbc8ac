"""Tests of the addresses of models and servings."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from hopsml.core.newer_python import UTC
from hopsml.model import description, serving_load
from hopsml.model.description import Lineage, ModelDescription, ModelFile, Signature, TensorSpec
from hopsml.model.serving_load import ServingLoad, VersionLoad
from hopsml.service.browse import models, servings
from hopsml.service.store.accounts import Role
from hopsml.serving.definitions import ServingDefinition
from tests.helpers.service.project import ProjectOnDisk
from tests.helpers.service.served import Served
from tests.unit.service.test_rest import send_request

pytestmark = pytest.mark.fast
EXPORTED = datetime(2026, 11, 28, 12, tzinfo=UTC)


def exported(project: ProjectOnDisk, name: str, number: int, **more: object) -> Path:
    """Add a version of a model; return its directory."""
    folder = project.folder / "Models" / name / str(number)
    folder.mkdir(parents=True)
    (folder / "claim.json").write_text("{}")
    made = ModelDescription(name, number, "keras", EXPORTED, creator="ana", **more)  # type: ignore[arg-type]
    (folder / "model.json").write_bytes(description.encode(made))
    return folder


def test_models_are_listed_with_their_newest_version_and_aliases(project: ProjectOnDisk) -> None:
    assert send_request(project, "/api/models").json() == {"models": [], "is_cut": False}
    exported(project, "digits", 1, metrics={"accuracy": 0.8})
    exported(project, "digits", 2, metrics={"accuracy": 0.9})
    (project.folder / "Models" / "digits" / "3").mkdir()  # its export was killed
    (project.folder / "Models" / "unfinished" / "1").mkdir(parents=True)
    (project.folder / "Models" / "digits" / "aliases").mkdir()
    (project.folder / "Models" / "digits" / "aliases" / "production.json").write_text('{"version": 1}')
    (found,) = send_request(project, "/api/models").json()["models"]
    assert (found["name"], found["versions"], found["newest"]) == ("digits", 3, 2)
    assert found["metrics"] == {"accuracy": 0.9} and found["aliases"] == {"production": 1}
    assert (found["flavor"], found["creator"], found["created"]) == ("keras", "ana", EXPORTED.timestamp())


def test_version_has_signature_metrics_lineage_and_files(project: ProjectOnDisk) -> None:
    project.run("app_1")
    signature = Signature({"x": TensorSpec("float32", (None, 2), ("a", "b"))}, {"y": TensorSpec("int64", (None,))})
    origin = Lineage(
        "app_1", f"{project.url}/Experiments/app_1", "0123abcd", True, [{"url": "hdfs:///data/digits"}, {}]
    )
    exported(project, "digits", 1)
    exported(
        project, "digits", 2, signature=signature, lineage=origin, files={"a/b.bin": ModelFile(7, "0" * 64)}, bytes=7,
        artifacts={"keras": "m.keras"}, requirements={"keras": "3.11"}, description="nightly",
    )  # fmt: skip
    detail = send_request(project, "/api/models/digits").json()
    newest, first = detail["versions"]
    assert newest["signature"]["inputs"]["x"] == {"dtype": "float32", "shape": [None, 2], "features": ["a", "b"]}
    assert (newest["run"], newest["commit"], newest["is_dirty"]) == ("app_1", "0123abcd", True)
    assert newest["inputs"] == ["hdfs:///data/digits", ""] and newest["artifacts"] == ["keras"]
    assert newest["files"] == [{"name": "a/b.bin", "bytes": 7}] and newest["file_count"] == 1
    assert (first["version"], first["signature"], first["run"]) == (1, None, "")


def test_run_of_another_project_is_no_link(project: ProjectOnDisk) -> None:
    exported(project, "digits", 1, lineage=Lineage("app_1", "hdfs:///Projects/other/Experiments/app_1"))
    (version,) = send_request(project, "/api/models/digits").json()["versions"]
    assert (version["run"], version["origin"]) == ("", "hdfs:///Projects/other/Experiments/app_1")


def test_damaged_version_is_reported_and_the_others_are_shown(project: ProjectOnDisk) -> None:
    exported(project, "digits", 1)
    (exported(project, "digits", 2) / "model.json").write_text('{"name": 1}')
    detail = send_request(project, "/api/models/digits").json()
    assert [one["version"] for one in detail["versions"]] == [1] and "export the model again" in detail["unread"]["2"]
    (listed,) = send_request(project, "/api/models").json()["models"]
    assert listed["newest"] == 1 and "version 2" in listed["problem"]


def test_only_the_newest_versions_are_returned(project: ProjectOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3):
        exported(project, "digits", number)
        exported(project, f"other{number}", 1)
    monkeypatch.setattr(models, "MOST_VERSIONS", 2)
    monkeypatch.setattr(models, "MOST_MODELS", 2)
    detail = send_request(project, "/api/models/digits").json()
    assert [one["version"] for one in detail["versions"]] == [3, 2] and detail["older"] == 1
    listed = send_request(project, "/api/models").json()
    assert len(listed["models"]) == 2 and listed["is_cut"]


@pytest.mark.parametrize("name", ["none", "..%2FServing", "%2Fetc", "..", "a%00"])
def test_unknown_or_invalid_model_is_refused(project: ProjectOnDisk, name: str) -> None:
    exported(project, "digits", 1)
    answer = send_request(project, f"/api/models/{name}")
    assert answer.status_code == 404 and answer.json()["error"] and answer.json()["remedy"]


def test_models_and_servings_need_a_valid_token(served: Served) -> None:
    for place in ("models", "models/digits", "servings"):
        assert served.ask("GET", f"../{place}", headers={"authorization": "Bearer no"}).status_code == 401
        assert served.ask("GET", f"../{place}", Role.VIEWER).status_code in (200, 404)


def test_link_out_of_the_project_is_not_read(project: ProjectOnDisk, tmp_path: Path) -> None:
    outside = ProjectOnDisk(tmp_path / "secret")
    exported(outside, "digits", 1, description="the-servers-key")
    (project.folder / "Models").mkdir(parents=True)
    os.symlink(outside.folder / "Models" / "digits", project.folder / "Models" / "digits")
    for place in ("models", "models/digits"):
        answer = send_request(project, f"/api/{place}")
        assert answer.status_code in (200, 403) and b"the-servers-key" not in answer.content


LOAD = ServingLoad(
    updated_s=1000.0, started_s=900.0, user="ana", machine="node1", url="http://node1:8501", application="", replicas=2,
    ready=1, restarts=3, version=4, canary=5, share=0.25, waiting=6, seconds=0.02,
    versions=[VersionLoad(4, 30, 1, 2.5), VersionLoad(5, 10, 0, 0.5)], rates=[1.0, 3.0],
)  # fmt: skip


def defined(project: ProjectOnDisk, name: str, **more: object) -> None:
    """Add the definition of a serving, as ``hopsml serve`` writes it."""
    folder = project.folder / "Serving"
    folder.mkdir(parents=True, exist_ok=True)
    made = ServingDefinition(name, "digits", creator="ana", created=EXPORTED, **more)  # type: ignore[arg-type]
    (folder / f"{name}.json").write_bytes(description.msgspec.json.encode(made))


def test_servings_are_listed_with_their_load(project: ProjectOnDisk) -> None:
    assert send_request(project, "/api/servings").json() == {"servings": [], "is_cut": False}
    defined(project, "digits", version="production")
    defined(project, "idle")
    serving_load.write_load("digits", project.url, LOAD)
    (project.folder / "Serving" / "digits.server.json").write_text("{}")
    digits, idle = servings.list_servings(project.url, 1005.0).servings
    assert (digits.state, digits.requested, digits.load) == ("RUNNING", "production", LOAD)
    assert (idle.state, idle.why, idle.load) == ("STOPPED", "", None)
    told = send_request(project, "/api/servings").json()["servings"]
    assert [(one["name"], one["state"]) for one in told] == [("digits", "UNKNOWN"), ("idle", "STOPPED")]
    assert "hopsml serve show digits" in told[0]["why"] and told[0]["load"]["versions"][0]["rate"] == 2.5
    serving_load.delete_load("digits", project.url)
    assert servings.list_servings(project.url, 1005.0).servings[0].state == "STOPPED"


def test_unreadable_records_of_servings_are_explained(project: ProjectOnDisk) -> None:
    defined(project, "one")
    defined(project, "two")
    (project.folder / "Serving" / "one.json").write_text("[]")
    (project.folder / "Serving" / "two.load.json").write_text(json.dumps({"rates": "x"}))
    for found in send_request(project, "/api/servings").json()["servings"]:
        assert found["state"] == "UNKNOWN" and "delete it" in found["why"]


def test_answer_about_servings_has_no_private_files(project: ProjectOnDisk) -> None:
    defined(project, "digits")
    private = project.folder / "Serving" / "digits.private"
    private.mkdir()
    (private / "access.json").write_text('{"token": "the-token"}')
    assert b"the-token" not in send_request(project, "/api/servings").content
