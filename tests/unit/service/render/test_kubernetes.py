"""Tests of manifests against the Spark operator's models: each field exists and has the right type."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any

import pydantic
import pytest

from hopsml.core import profiles
from hopsml.errors import ArgumentError
from hopsml.service import spec
from hopsml.service.render import kubernetes
from tests.unit.service.render.test_spark_submit import without

pytestmark = pytest.mark.fast
PROFILE = profiles.parse(
    "k8s", "master: k8s://here\nspark: {spark.kubernetes.container.image: 'hopsml:2'}\n", "k8s.yaml"
)


def rendered(job_file: Path) -> list[dict[str, Any]]:
    return kubernetes.manifests(spec.load(job_file), job_file, PROFILE)


def check_known(manifest: Any, model: Any, path: str = "") -> None:
    """Assert that every field, at any depth, is in the operator's models, and that required ones are present."""
    if typing.get_origin(model) in (typing.Union, types.UnionType, typing.Annotated):
        (model, *_) = [one for one in typing.get_args(model) if one is not type(None)]
        check_known(manifest, model, path)
    elif typing.get_origin(model) is list:
        for each in manifest:
            check_known(each, typing.get_args(model)[0], f"{path}[]")
    elif isinstance(model, type) and issubclass(model, pydantic.BaseModel) and isinstance(manifest, dict):
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        assert set(manifest) <= set(fields), (path, set(manifest) - set(fields))
        assert {name for name, field in fields.items() if field.is_required()} <= set(manifest), path
        for name, value in manifest.items():
            check_known(value, fields[name].annotation, f"{path}.{name}")


def test_manifest_fields_are_all_known_to_the_operator(job_file: Path) -> None:
    from kubeflow_spark_api.models.spark_v1beta2_spark_application import SparkV1beta2SparkApplication as Application

    config, *applications = rendered(job_file)
    assert (config["kind"], [one["metadata"]["name"] for one in applications]) == (
        "ConfigMap",
        ["digits-train", "digits-evaluate"],
    )
    for application in applications:
        check_known(application, Application)
        Application.model_validate(application, strict=True)
    with pytest.raises(AssertionError):
        check_known({**applications[0], "spce": {}}, Application)


def test_manifest_requests_the_resources_of_each_task(job_file: Path) -> None:
    _, train, evaluate = (one.get("spec", {}) for one in rendered(job_file))
    executor = train["executor"]
    assert (executor["instances"], executor["cores"], executor["gpu"]["quantity"]) == (8, 4, 1)
    assert (executor["memory"], executor["memoryOverhead"]) == ("1024m", "15360m")
    assert executor["nodeSelector"] == {"node-label": "v100"} and "gpu" not in evaluate["executor"]
    assert (train["image"], evaluate["image"]) == ("hopsml:1", "hopsml:2")
    assert train["arguments"] == ["/etc/hopsml/job.yaml", "train"]
    assert train["restartPolicy"]["type"] == "OnFailure" and train["restartPolicy"]["onFailureRetries"] == 1
    assert train["sparkConf"]["spark.task.cpus"] == "4"
    for pod in (train["driver"], executor):
        assert {"name": "HOPSML_DATASET", "value": "hdfs:///data/digits"} in pod["env"]
        assert pod["secrets"] == [{"name": "s3-key", "path": "/etc/hopsml-secrets/s3-key", "secretType": "Generic"}]
        assert pod["configMaps"] == [{"name": "digits-code", "path": "/etc/hopsml"}]


def test_config_map_holds_the_code_of_the_job(job_file: Path) -> None:
    config = rendered(job_file)[0]
    assert set(config["data"]) == {"job.yaml", "train.py", "evaluate.py", "hopsml_job_driver.py"}
    assert config["data"]["job.yaml"] == job_file.read_text()
    without(job_file, "retries: 1\n")
    assert rendered(job_file)[1]["spec"]["restartPolicy"] == {"type": "Never"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'image: "hopsml:1"',
            "packages: r.txt",
            "on Kubernetes packages come in an image: name one as environment.image",
        ),
        (
            "name: digits",
            f"name: {'d' * 60}",
            "an application's name has at most 63 characters on Kubernetes, and this has 66",
        ),
        ("[python, evaluate.py]", "[python, a/train.py]", "have one name: in a pod they lie in one folder; rename one"),
    ],
)
def test_job_unsuitable_for_kubernetes_is_refused(job_file: Path, old: str, new: str, words: str) -> None:
    (job_file.parent / "a").mkdir()
    (job_file.parent / "a" / "train.py").write_text("")
    job_file.write_text(job_file.read_text().replace(old, new))
    with pytest.raises(ArgumentError) as refused:
        rendered(job_file)
    assert words in str(refused.value)


def test_other_profile_missing_image_or_oversized_code_is_refused(job_file: Path) -> None:
    job = spec.load(job_file)
    with pytest.raises(ArgumentError, match="profile 'yarn' has master yarn: manifests are for k8s://"):
        kubernetes.manifests(job, job_file, profiles.load("yarn"))
    with pytest.raises(ArgumentError, match="task 'evaluate': no image is known"):
        kubernetes.manifests(job, job_file)
    job_file.with_name("train.py").write_text("def main(): pass\n" + "#" * kubernetes.MOST_CONFIG_BYTES)
    with pytest.raises(ArgumentError, match="a ConfigMap takes 1000000: put the code into the image"):
        rendered(job_file)
