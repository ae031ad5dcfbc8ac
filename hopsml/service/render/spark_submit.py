"""Command lines of spark-submit for a job, one per task, for any profile, and what they need of the job's code and memory.

They are built by the same code as those of ``hopsml submit``.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hopsml.core.profiles import Profile
from hopsml.errors import ArgumentError
from hopsml.service.driver import SCRIPT
from hopsml.service.spec import shared
from hopsml.service.spec.job import JobSpec
from hopsml.service.spec.task import Task
from hopsml.submission import SubmissionPlan, is_detachable, plan
from hopsml.submission import script as scripts


def is_git_url(code: str) -> bool:
    """Return True if the code of a job is in a git repository."""
    return "://" in code or code.startswith("git@")


def code_folder(job: JobSpec, job_file: Path) -> Path:
    """Return the folder of a job's code.

    Raises:
        ArgumentError: The folder does not exist, or the code is a zip or git URL, which ``hopsml jobs submit`` unpacks.
    """
    found = job_file.parent / job.code
    if is_git_url(job.code) or job.code.endswith(".zip"):
        raise ArgumentError(
            f"code {job.code}: it is not on this machine as a folder; `hopsml jobs submit` unpacks it, else fetch or unpack "
            "it yourself, and name the folder"
        )
    if not found.is_dir():
        raise ArgumentError(f"code {job.code}: there is no folder {found}; name one that is there{_hint(job)}")
    return found


def _hint(job: JobSpec) -> str:
    """Return the end of the message for a folder that is not there, for a path that may have been meant otherwise."""
    return "; the folder that tasks share is named by workspace next to code" if job.code.startswith("/") else ""


def is_local(profile: Profile) -> bool:
    """Return True if all workers of a profile run on this machine, so that they can use its paths."""
    return profile.master == "none" or profile.master.startswith("local")


def check_paths(job: JobSpec, profile: str, is_local: bool) -> None:
    """Raise ArgumentError if a data set or the workspace is a path of one machine, and workers run on others.

    Args:
        job: The job.
        profile: Name of the profile that it runs under.
        is_local: True if all workers of the profile run on this machine.
    """
    places = {f"datasets.{name}": one.url for name, one in job.datasets.items()}
    if isinstance(job.workspace, str):
        places["workspace"] = job.workspace
    for field, place in places.items():
        if shared.is_path(place) and not is_local:
            raise ArgumentError(
                f"job {job.name}: {field}: {place} is a path of one machine, and workers of profile {profile} run on "
                f"others: write a URL, or file://{place} if all nodes have it (NFS)"
            )


def code_files(task: Task, workspace: Path) -> list[Path]:
    """Return the files that a task names; of a command, those that exist."""
    return [workspace / named for named in task.files() if task.command is None or (workspace / named).is_file()]


def check_code(name: str, task: Task, workspace: Path) -> None:
    """Raise ArgumentError if a task's file is missing, is not valid Python, or lacks the task's function."""
    if task.command is not None:
        return
    (path,) = code_files(task, workspace)
    tree = scripts.parse_script(str(path))
    if task.function is None:
        return
    function = task.function.rpartition(":")[2]
    there = [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    assigned = {each.id for one in tree.body for each in ast.walk(one) if isinstance(each, ast.Name)}
    imported = {alias.asname or alias.name for one in ast.walk(tree) for alias in getattr(one, "names", ())
                if isinstance(alias, ast.alias)}  # fmt: skip
    if function not in {*there, *assigned, *imported}:
        raise ArgumentError(
            f"task {name!r}: {path} has no function {function}; there are: {', '.join(there) or 'none'}"
        )


LEAST_HEAP_MIB = 512  # Spark refuses executors with a heap below 450 MiB
HEAP_MIB = 1024  # an executor's JVM holds an agent and little else


def split_mib(task: str, whole_mib: int) -> tuple[int, int]:
    """Return heap and overhead of an executor in MiB, whose sum is exactly the requested container.

    Args:
        task: Name of the task, for the message.
        whole_mib: Memory of the container, in MiB.

    Raises:
        ArgumentError: The memory is too small for Spark.
    """
    heap = min(HEAP_MIB, whole_mib // 2)
    if heap < LEAST_HEAP_MIB:
        raise ArgumentError(
            f"task {task!r}: memory {whole_mib}m: half of it is the executor's heap, and Spark starts none below "
            f"{LEAST_HEAP_MIB}m; request {2 * LEAST_HEAP_MIB}m or more"
        )
    return heap, whole_mib - heap


def memory_mib(text: str) -> int:
    """Parse a size of memory as Spark does, in MiB: ``512m``, ``1g``, ``2048`` (MiB without a unit).

    Raises:
        ArgumentError: The text is not a size.
    """
    found = re.fullmatch(r"([0-9]+)([kmgt]?)b?", text.strip().lower())
    if found is None:
        raise ArgumentError(f"{text!r} is no size of memory: write 512m or 2g")
    count, unit = int(found[1]), found[2] or "m"
    return count >> 10 if unit == "k" else count << {"m": 0, "g": 10, "t": 20}[unit]


_PLACES = {"yarn": "spark.yarn.dist.files", "": "spark.files"}


def submission_plans(
    job: JobSpec,
    job_file: Path,
    profile: Profile,
    tag: str | None = None,
    variables: Mapping[str, str] | None = None,
    workers: Mapping[str, int] | None = None,
) -> dict[str, SubmissionPlan]:
    """Return the submission plan of each task; nothing is packed or started yet.

    ``hopsml.submission.start`` and ``run`` carry a plan out.

    Args:
        job: Content of ``job_file``.
        job_file: File that is shipped to the driver.
        profile: Profile that the job runs under.
        tag: Tag by which YARN finds all applications of the job; several tags are separated by commas.
        variables: Environment variables of drivers that run in a container of YARN.
        workers: Numbers of workers by task, for tasks that get fewer than their maximum.

    Raises:
        ArgumentError: Code is missing or has a syntax error, or the profile lacks a requested feature.
    """
    code = code_folder(job, job_file)
    check_paths(job, profile.name, is_local(profile))
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
    """Return the submission plan of one task."""
    task = job.tasks[name]
    check_code(name, task, code)
    conf = dict(spark_settings(job, name, task, job_file, code, profile, tag)) if profile.uses_spark else {}
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
    """Return the profile, with the task's size in its master if that specifies the executors (local-cluster)."""
    if not profile.master.startswith("local-cluster["):
        return profile
    one = task.resources
    return dataclasses.replace(profile, master=f"local-cluster[{workers},{one.cores},{one.memory_mib}]")


def spark_settings(
    job: JobSpec, name: str, task: Task, job_file: Path, code: Path, profile: Profile, tag: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield Spark's settings for a task: one executor per worker, the queue, and the shipped files.

    Args:
        job: The job.
        name: Name of the task.
        task: The task.
        job_file: The job file.
        code: Folder of the job's code.
        profile: Profile that the job runs under.
        tag: Tag of the applications; None for none.

    Raises:
        ArgumentError: The profile's cluster lacks a requested feature.
    """
    one, yarn = task.resources, profile.master.startswith("yarn")
    yield "spark.app.name", f"{job.name}-{name}"
    yield "spark.executor.cores", str(one.cores)
    yield "spark.task.cpus", str(one.cores)  # one slot, and therefore one worker, per executor
    heap, rest = split_mib(name, one.memory_mib)
    yield "spark.executor.memory", f"{heap}m"
    yield "spark.executor.memoryOverhead", f"{rest}m"
    if one.gpus or "spark.executor.resource.gpu.amount" in profile.spark:
        yield "spark.executor.resource.gpu.amount", str(one.gpus)
    if one.gpus:
        yield "spark.task.resource.gpu.amount", str(one.gpus)
    if yarn:
        yield from _of_yarn(job, task)
        if tag is not None:
            yield "spark.yarn.maxAppAttempts", "1"  # the service that finds it by its tag retries it
    elif one.node_label is not None:
        raise ArgumentError(
            f"task {name!r}: node_label {one.node_label}: profile '{profile.name}' (master {profile.master}) has no labels; "
            "leave it out, or name a profile of YARN's"
        )
    yield from _files(task, job_file, code, profile)


def _of_yarn(job: JobSpec, task: Task) -> Iterator[tuple[str, str]]:
    """Yield the settings of YARN: queue, priority, node label and container image."""
    yield "spark.yarn.queue", job.queue
    yield "spark.yarn.priority", str(job.priority)
    if task.resources.node_label is not None:
        yield "spark.yarn.executor.nodeLabelExpression", task.resources.node_label
    if task.environment is not None and task.environment.image is not None:
        for where in ("spark.executorEnv", "spark.yarn.appMasterEnv"):
            yield f"{where}.YARN_CONTAINER_RUNTIME_TYPE", "docker"
            yield f"{where}.YARN_CONTAINER_RUNTIME_DOCKER_IMAGE", task.environment.image


def _files(task: Task, job_file: Path, code: Path, profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the settings that ship the job file and the task's file to a remote driver and to executors."""
    sources = [str(path) for path in code_files(task, code)]
    for path in (str(job_file), *sources):
        if "," in path or "#" in path:
            raise ArgumentError(f"{path}: Spark reads , and # in its lists of files as something else: rename it")
    if profile.deploy_mode == "cluster":
        key = _PLACES["yarn" if profile.master.startswith("yarn") else ""]
        yield key, ",".join(filter(None, (profile.spark.get(key), str(job_file), *sources)))
    if task.command is None:
        yield "spark.submit.pyFiles", ",".join(filter(None, (profile.spark.get("spark.submit.pyFiles"), *sources)))


def _has_images(profile: Profile) -> bool:
    """Return True if a profile's cluster can start containers of images."""
    return profile.master.startswith(("yarn", "k8s://"))
