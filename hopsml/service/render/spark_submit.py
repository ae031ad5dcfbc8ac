"""A job as spark-submit's command lines, one a task: built as ``hopsml submit`` builds its own, for any profile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from hopsml.errors import ArgumentError
from hopsml.profiles import Profile
from hopsml.service.driver import SCRIPT
from hopsml.service.render import memory, workspace
from hopsml.service.spec.job import JobSpec
from hopsml.service.spec.task import Task
from hopsml.submission import SubmissionPlan, is_detachable, plan

_PLACES = {"yarn": "spark.yarn.dist.files", "": "spark.files"}


def plans(
    job: JobSpec,
    job_file: Path,
    profile: Profile,
    tag: str | None = None,
    variables: Mapping[str, str] | None = None,
    workers: Mapping[str, int] | None = None,
) -> dict[str, SubmissionPlan]:
    """Of each task what ``hopsml.submission.start`` and ``run`` carry out; nothing is packed or started.

    Args:
        job: of ``job_file``, which travels to the driver.
        profile: where it runs.
        tag: by which YARN finds all applications of the job; several are separated by commas.
        variables: of drivers that run in a container of YARN.
        workers: by task how many it gets, for those that get fewer than their most.

    Raises ArgumentError for code that is not there or has a syntax error, and for what the profile cannot give.
    """
    code = workspace.folder(job, job_file)
    return {
        name: _plan(job, name, job_file, code, profile, tag, variables or {}, (workers or {}).get(name, task.most))
        for name, task in job.tasks.items()
    }


def _plan(
    job: JobSpec,
    name: str,
    job_file: Path,
    code: Path,
    profile: Profile,
    tag: str | None,
    variables: Mapping[str, str],
    workers: int,
) -> SubmissionPlan:
    task = job.tasks[name]
    workspace.check(name, task, code)
    conf = dict(settings(job, name, task, job_file, code, profile, tag)) if profile.uses_spark else {}
    if is_detachable(profile):
        conf |= {f"spark.yarn.appMasterEnv.{key}": value for key, value in variables.items()}
    environment = task.environment
    if environment is not None and environment.image is not None and not _has_images(profile):
        raise ArgumentError(
            f"task {name!r}: environment.image {environment.image}: profile '{profile.name}' (master {profile.master}) "
            "starts no containers of images; name an archive, or render for kubernetes"
        )
    ships = None
    if environment is not None:
        ships = environment.archive or ("auto" if environment.packages else None)
    return plan(
        _sized(profile, task, workers),
        str(SCRIPT),
        [str(job_file), name],
        num_workers=workers,
        conf=conf,
        tag=tag,
        ship_environment=ships,
    )


def _sized(profile: Profile, task: Task, workers: int) -> Profile:
    """The profile itself; where its master says how large executors are (local-cluster), one of the task's size."""
    if not profile.master.startswith("local-cluster["):
        return profile
    one = task.resources
    return dataclasses.replace(profile, master=f"local-cluster[{workers},{one.cores},{one.memory_mib}]")


def settings(
    job: JobSpec, name: str, task: Task, job_file: Path, code: Path, profile: Profile, tag: str | None = None
) -> Iterator[tuple[str, str]]:
    """Spark's settings for a task: an executor for each worker, of its size; the queue; the files that travel.

    Raises ArgumentError for what the profile's cluster cannot give.
    """
    one, yarn = task.resources, profile.master.startswith("yarn")
    yield "spark.app.name", f"{job.name}-{name}"
    yield "spark.executor.cores", str(one.cores)
    yield "spark.task.cpus", str(one.cores)  # a slot, and so a worker, for each executor
    heap, rest = memory.split_mib(name, one.memory_mib)
    yield "spark.executor.memory", f"{heap}m"
    yield "spark.executor.memoryOverhead", f"{rest}m"
    if one.gpus or "spark.executor.resource.gpu.amount" in profile.spark:
        yield "spark.executor.resource.gpu.amount", str(one.gpus)
    if one.gpus:
        yield "spark.task.resource.gpu.amount", str(one.gpus)
    if yarn:
        yield from _of_yarn(job, task)
        if tag is not None:
            yield "spark.yarn.maxAppAttempts", "1"  # whoever finds it by its tag tries it again
    elif one.node_label is not None:
        raise ArgumentError(
            f"task {name!r}: node_label {one.node_label}: profile '{profile.name}' (master {profile.master}) has no labels; "
            "leave it out, or name a profile of YARN's"
        )
    yield from _files(task, job_file, code, profile)


def _of_yarn(job: JobSpec, task: Task) -> Iterator[tuple[str, str]]:
    yield "spark.yarn.queue", job.queue
    yield "spark.yarn.priority", str(job.priority)
    if task.resources.node_label is not None:
        yield "spark.yarn.executor.nodeLabelExpression", task.resources.node_label
    if task.environment is not None and task.environment.image is not None:
        for where in ("spark.executorEnv", "spark.yarn.appMasterEnv"):
            yield f"{where}.YARN_CONTAINER_RUNTIME_TYPE", "docker"
            yield f"{where}.YARN_CONTAINER_RUNTIME_DOCKER_IMAGE", task.environment.image


def _files(task: Task, job_file: Path, code: Path, profile: Profile) -> Iterator[tuple[str, str]]:
    """The job file and the task's own file, for a driver that is not on this machine, and for its executors."""
    sources = [str(path) for path in workspace.files(task, code)]
    for path in (str(job_file), *sources):
        if "," in path or "#" in path:
            raise ArgumentError(f"{path}: Spark reads , and # in its lists of files as something else: rename it")
    if profile.deploy_mode == "cluster":
        key = _PLACES["yarn" if profile.master.startswith("yarn") else ""]
        yield key, ",".join(filter(None, (profile.spark.get(key), str(job_file), *sources)))
    if task.command is None:
        yield "spark.submit.pyFiles", ",".join(filter(None, (profile.spark.get("spark.submit.pyFiles"), *sources)))


def _has_images(profile: Profile) -> bool:
    return profile.master.startswith(("yarn", "k8s://"))
