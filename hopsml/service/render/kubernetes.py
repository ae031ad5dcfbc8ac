"""Manifests of a job for Kubernetes' Spark operator: one SparkApplication (v1beta2) per task, and a ConfigMap.

The image contains Spark, Python and hopsml; the job file and the files of functions and scripts are in the ConfigMap.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from hopsml.core.profiles import Profile
from hopsml.errors import ArgumentError
from hopsml.service.driver import SCRIPT
from hopsml.service.render import spark_submit
from hopsml.service.spec.job import DRIVER_MIB, JobSpec
from hopsml.service.spec.task import Task

VERSION, KIND = "sparkoperator.k8s.io/v1beta2", "SparkApplication"
FOLDER = "/etc/hopsml"  # mount path of the ConfigMap in every pod
SECRETS = "/etc/hopsml-secrets"
JOB_FILE = "job.yaml"
MOST_CONFIG_BYTES = 1_000_000  # Kubernetes' limit is 1 MiB, including names
_LONGEST_NAME = 63
_SPARK = "4.0.0"  # used if pyspark is not installed
_RETRY_S = 30
_IMAGE = "spark.kubernetes.container.image"


def manifests(job: JobSpec, job_file: Path, profile: Profile | None = None) -> list[dict[str, Any]]:
    """Return the ConfigMap, followed by an application for each task.

    Args:
        job: The job.
        job_file: Its file, relative to which the workspace is found.
        profile: Profile with a k8s:// master, for the image, the namespace and Spark's settings; None for none.

    Raises:
        ArgumentError: Code is missing or has a syntax error, the profile is of another kind, or the operator lacks a
            feature.
    """
    if profile is not None and not profile.master.startswith("k8s://"):
        raise ArgumentError(
            f"profile '{profile.name}' has master {profile.master}: manifests are for k8s://; name kubernetes"
        )
    code = spark_submit.code_folder(job, job_file)
    spark_submit.check_paths(job, profile.name if profile is not None else "kubernetes", is_local=False)
    for name, task in job.tasks.items():
        spark_submit.check_code(name, task, code)
        _check_name(f"{job.name}-{name}")
    spark = profile.settings() if profile is not None else {}
    applications = [_application(job, name, task, spark) for name, task in job.tasks.items()]
    return [_config_map(job, job_file, code, spark), *applications]


def _check_name(name: str) -> None:
    """Raise ArgumentError if an application's name is too long for Kubernetes."""
    if len(name) > _LONGEST_NAME:
        raise ArgumentError(
            f"{name}: an application's name has at most {_LONGEST_NAME} characters on Kubernetes, and this has {len(name)}: "
            "shorten the job's or the task's"
        )


def _metadata(job: JobSpec, name: str, spark: dict[str, str], **labels: str) -> dict[str, Any]:
    """Return the metadata of a manifest, with the job's labels and the namespace."""
    found: dict[str, Any] = {"name": name, "labels": {**job.labels, "hopsml-job": job.name, **labels}}
    return found | ({"namespace": spark[key]} if (key := "spark.kubernetes.namespace") in spark else {})


def _config_map(job: JobSpec, job_file: Path, code: Path, spark: dict[str, str]) -> dict[str, Any]:
    """Return the ConfigMap of job file, driver and the tasks' files, by file name, as a ConfigMap has no folders."""
    sources = {JOB_FILE: job_file, SCRIPT.name: SCRIPT}
    for task in job.tasks.values():
        for path in spark_submit.code_files(task, code):
            if sources.setdefault(path.name, path) != path:
                raise ArgumentError(
                    f"{path} and {sources[path.name]} have one name: in a pod they lie in one folder; rename one"
                )
    data = {name: path.read_text(encoding="utf-8") for name, path in sources.items()}
    if (size := sum(len(text.encode()) for text in data.values())) > MOST_CONFIG_BYTES:
        raise ArgumentError(
            f"the job's files have {size} bytes, and a ConfigMap takes {MOST_CONFIG_BYTES}: put the code into the image, "
            "and let a small script call it"
        )
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job, _config_name(job), spark), "data": data}


def _config_name(job: JobSpec) -> str:
    """Return the name of the job's ConfigMap."""
    return f"{job.name[:58]}-code".replace("--", "-")


def _application(job: JobSpec, name: str, task: Task, spark: dict[str, str]) -> dict[str, Any]:
    """Return the manifest of one task."""
    image = _image(name, task, spark)
    labels = {"hopsml-task": name, "hopsml-queue": job.queue}
    spec: dict[str, Any] = {
        "type": "Python",
        "mode": "cluster",
        "image": image,
        "sparkVersion": _spark_version(),
        "mainApplicationFile": f"local://{FOLDER}/{SCRIPT.name}",
        "arguments": [f"{FOLDER}/{JOB_FILE}", name],
        "restartPolicy": _restart(job),
        "sparkConf": _settings(task, spark),
        "driver": {"cores": 1, "memory": f"{DRIVER_MIB}m", **_pod(job, task, labels)},
        "executor": _executor(job, name, task, labels),
    }
    return {
        "apiVersion": VERSION,
        "kind": KIND,
        "metadata": _metadata(job, f"{job.name}-{name}", spark, **labels),
        "spec": spec,
    }


def _image(name: str, task: Task, spark: dict[str, str]) -> str:
    """Return the image of the task, or else of the profile.

    Raises:
        ArgumentError: There is no image, or packages are requested in another way.
    """
    environment = task.environment
    if environment is not None and environment.image is None:
        raise ArgumentError(f"task {name!r}: on Kubernetes packages come in an image: name one as environment.image")
    found = environment.image if environment is not None and environment.image is not None else spark.get(_IMAGE)
    if found is None:
        raise ArgumentError(
            f"task {name!r}: no image is known: name one as environment.image, or a profile with {_IMAGE} (--profile)"
        )
    return found


def _executor(job: JobSpec, name: str, task: Task, labels: dict[str, str]) -> dict[str, Any]:
    """Return the executors of a task."""
    one = task.resources
    heap, rest = spark_submit.split_mib(name, one.memory_mib)
    gpu = {"gpu": {"name": "nvidia.com/gpu", "quantity": one.gpus}} if one.gpus else {}
    node = {"nodeSelector": {"node-label": one.node_label}} if one.node_label is not None else {}
    size = {"instances": task.most, "cores": one.cores, "memory": f"{heap}m", "memoryOverhead": f"{rest}m"}
    return {**size, **gpu, **node, **_pod(job, task, labels)}


def _pod(job: JobSpec, task: Task, labels: dict[str, str]) -> dict[str, Any]:
    """Return the fields that driver and executors have in common."""
    variables = {"PYTHONPATH": FOLDER, **({"HOPSML_DATASET": job.dataset} if job.dataset else {}), **task.env}
    secrets = [{"name": name, "path": f"{SECRETS}/{name}", "secretType": "Generic"} for name in job.secrets]
    return {
        "labels": {"hopsml-job": job.name, **labels},
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "configMaps": [{"name": _config_name(job), "path": FOLDER}],
        **({"secrets": secrets} if secrets else {}),
    }


def _restart(job: JobSpec) -> dict[str, Any]:
    """Return the restart policy that the job's retries require."""
    if not job.retries:
        return {"type": "Never"}
    return {
        "type": "OnFailure",
        "onFailureRetries": job.retries,
        "onFailureRetryInterval": _RETRY_S,
        "onSubmissionFailureRetries": job.retries,
        "onSubmissionFailureRetryInterval": _RETRY_S,
    }


def _settings(task: Task, spark: dict[str, str]) -> dict[str, str]:
    """Return Spark's settings that are not fields of the manifest, with one worker per executor."""
    ours = ("spark.executor.cores", "spark.executor.memory", "spark.executor.resource.gpu.", _IMAGE)
    kept = {key: value for key, value in spark.items() if not key.startswith((*ours, "spark.dynamicAllocation."))}
    gpus = {}
    if task.resources.gpus:
        script = {key: value for key, value in spark.items() if key.startswith("spark.executor.resource.gpu.")}
        amount = str(task.resources.gpus)
        names = ("spark.executor.resource.gpu.amount", "spark.task.resource.gpu.amount")
        gpus = script | dict.fromkeys(names, amount)
    return {**kept, "spark.task.cpus": str(task.resources.cores), **gpus}


def _spark_version() -> str:
    """Return the version of Spark that is installed."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return _SPARK
