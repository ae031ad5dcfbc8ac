"""Execution of one task of a job in its driver, by the verbs of hopsml.

A worker gets a private copy of the code that a service stores for all jobs with that code. Files that remain in a
worker's folder are stored with the run; therefore the unchanged files of the copy are deleted at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hopsml.core.commands import run_command
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError
from hopsml.service.driver import driver_requests
from hopsml.service.spec import load
from hopsml.service.spec.job import JobSpec, searchspace
from hopsml.service.spec.task import Task
from hopsml.storage import privacy
from hopsml.storage.filesystem import for_url
from hopsml.submission import script
from hopsml.training import datasets, discovery
from hopsml.training.datasets import DatasetSource
from hopsml.training.discovery import TaskPorts, delete_earlier_tries, driver_host, encode_tasks
from hopsml.training.prepare import register_secrets_first


@contextlib.contextmanager
def temporary_copy(source: Path, target: Path) -> Iterator[None]:
    """Copy a folder into another one for the duration of the context; only new and changed files remain there."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    before = {path: _look(path) for path in target.rglob("*") if (source / path.relative_to(target)).exists()}
    try:
        yield
    finally:
        for path in sorted(before, reverse=True):  # files of a folder before the folder itself
            with contextlib.suppress(OSError):  # already deleted, or a folder with new files
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                elif _look(path) == before[path]:
                    path.unlink()


def _look(path: Path) -> tuple[int, int, int]:
    """Return inode, modification time and size of a file, by which a change is detected."""
    found = os.lstat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


COMMAND_SHOWN = 60  # characters of a command in an error, which must not contain a whole script
MODULE = "__hopsml_job__"  # prefix of a module's name: no worker can import it, so its functions are pickled by value


def run(job_file: str, name: str) -> int:
    """Run a task's workers to their end, and return the driver's exit status.

    The job file and the task's files are searched for at their given paths and in the working directory, to which YARN
    ships them. Exceptions of the verb are passed on.

    Raises:
        ArgumentError: The job has no such task, or a file is missing.
    """
    driver_requests.watch_for_end(os.environ)
    path = _found(Path(job_file), Path(Path(job_file).name))
    job = load(path)
    if (task := job.tasks.get(name)) is None:
        raise ArgumentError(f"job {job.name} has no task {name!r}; there are: {', '.join(job.tasks)}")
    driver_requests.watch_slots(os.environ)
    listener = _listener(job, name, task)
    secrets = driver_requests.take_secrets(job.secrets, os.environ)
    variables = {**_variables(job, task), **secrets}
    sources = _dataset_sources(job)
    if task.script is not None:
        os.environ.update(variables | datasets.fetch_all(sources))
        if task.ports:
            listener.reserve_and_publish(driver_host(os.environ))
        return _run_script(_code(job, path, task.script), task)
    function = _command(job, path, task) if task.command is not None else _function(job, path, task)
    function = listener.wrap_function(function) if task.ports else function
    function = datasets.fetch_first(function, sources)  # before ports are published: others may connect at once
    _verb(job, name, task, register_secrets_first(function, tuple(secrets)), variables)
    return 0


def _found(*places: Path) -> Path:
    """Return the first of these paths that is a file.

    Raises:
        ArgumentError: No such file exists.
    """
    for path in places:
        if path.is_file():
            return path
    raise ArgumentError(
        f"{places[0]} is not there, and its like neither in {Path.cwd()}: it has not come with the driver; submit the job "
        "again from its folder"
    )


def _code(job: JobSpec, job_file: Path, named: str) -> Path:
    """Return the path of a workspace file; shipped files are next to the job file or in the working directory."""
    alone = Path(named).name
    return _found(job_file.parent / job.code / named, job_file.parent / alone, Path(alone))


def _listener(job: JobSpec, name: str, task: Task) -> TaskPorts:
    """Return the listener through which the task's workers publish their addresses; earlier addresses are removed.

    Trials of a search start and end often: they have ports, but do not publish them.
    """
    folder = "" if _is_searched(job, name) else os.environ.get(discovery.FOLDER, "")
    launch = SETTINGS.application_attempt
    listener = TaskPorts(name, task.ports, folder, launch, SETTINGS.port_range, changes=task.min is not None)
    if folder and task.ports:
        delete_earlier_tries(folder)
        listener.invalidate_addresses()
    return listener


def _is_searched(job: JobSpec, name: str) -> bool:
    """Return True if a task runs the trials of the job's search."""
    return job.search is not None and job.searched() == name


def _variables(job: JobSpec, task: Task) -> dict[str, str]:
    """Return the environment variables of every worker."""
    return {
        **_known_addresses(job),
        **({"HOPSML_DATASET": job.dataset} if job.dataset else {}),
        **datasets.passed_variables(_dataset_sources(job)),
        **({datasets.WORKSPACE: _shared_folder(job)} if job.workspace else {}),
        **task.env,
    }


def _dataset_sources(job: JobSpec) -> tuple[DatasetSource, ...]:
    """Return the job's data sets by name."""
    return tuple(DatasetSource(name, one.url, one.fetch) for name, one in job.datasets.items())


def _shared_folder(job: JobSpec) -> str:
    """Create the folder that all tasks and tries of the job share, and return its path, or URL if it is not local.

    Raises:
        ArgumentError: It is to be a folder of the project, and no service has started this driver.
        StorageError: It cannot be created, or is another user's.
    """
    url = job.workspace if isinstance(job.workspace, str) else SETTINGS.job_workspace
    if not url:
        raise ArgumentError(
            f"job {job.name}: workspace: true is a folder that the job service chooses in its project, and no service has "
            f"started this driver; name a URL, or set {Settings.job_workspace.name} to one"
        )
    # The project's folder may be open to others; one that the job names has the permission of the folder above it.
    for_url(url).make_dirs(url, None if isinstance(job.workspace, str) else privacy.share_mode(None))
    return datasets.local_path(url)


def _known_addresses(job: JobSpec) -> dict[str, str]:
    """Return variables with the addresses of tasks that have started, and with the means to look up the others."""
    if not (folder := os.environ.get(discovery.FOLDER)):
        return {}
    tasks = {name: task for name, task in job.tasks.items() if task.ports and not _is_searched(job, name)}
    found = {name: discovery.published_addresses(folder, name, task.ports[0]) for name, task in tasks.items()}
    return {
        discovery.FOLDER: folder,
        discovery.TASKS: encode_tasks({name: (task.fewest, task.ports) for name, task in tasks.items()}),
        **{discovery.address_variable(name): ",".join(there) for name, there in found.items()},
    }


def _run_script(path: Path, task: Task) -> int:
    """Run a script as ``__main__`` with the task's arguments."""
    sys.argv = [str(path), *(word for key, value in task.arguments.items() for word in (f"--{key}", _word(value)))]
    sys.path.insert(0, str(path.resolve().parent))
    runpy.run_path(str(path), run_name="__main__")
    return 0


def _word(value: Any) -> str:
    """Return an argument as text; values that are not strings are written as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _function(job: JobSpec, job_file: Path, task: Task) -> Callable[..., Any]:
    """Load the function of ``FILE.py:NAME``; modules next to the file can be imported from then on."""
    named, _, name = str(task.function).rpartition(":")
    path = _code(job, job_file, named).resolve()
    return script.load_function(path, name, MODULE)


def _command(job: JobSpec, job_file: Path, task: Task) -> Callable[..., Any]:
    """Return a function that runs the task's command in its workspace.

    If nodes cannot read the workspace, the worker's folder receives the files that the command names.
    """
    line = list(task.command or ())
    shown = textwrap.shorten(" ".join(line), COMMAND_SHOWN, placeholder=" ...")
    paths = {named: _code(job, job_file, named) for named in task.files() if _is_there(job, job_file, named)}
    files = {named: (path.read_bytes(), os.access(path, os.X_OK)) for named, path in paths.items()}
    root = (job_file.parent / job.code).resolve()
    folders = dict.fromkeys([*(str((root / named).parent) for named in files), str(root)])
    framework = task.framework
    is_kept = bool(SETTINGS.job_tag)  # by a service, for all jobs: each worker gets a copy

    def call() -> None:
        from hopsml.cluster.worker import collective_stats
        from hopsml.training import mpi

        variables = dict(os.environ)
        variables |= _group_variables(framework)
        variables["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), variables.get("PATH", os.defpath)))
        beside = [folder for folder in folders if Path(folder).is_dir()]  # where the node can read them
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (*beside, variables.get("PYTHONPATH"))))
        with _workspace(root, files, is_kept) as folder:
            collective_stats.record_command()
            (mpi.run_ranks if framework == "mpi" else run_command)(line, shown, variables, folder)

    return call


def _group_variables(framework: str) -> dict[str, str]:
    """Return the variables by which TensorFlow in a command forms a fixed group; torch's are set already."""
    from hopsml.cluster.shared.layout import OURS
    from hopsml.cluster.worker.context import current
    from hopsml.training import distributed

    context = current()
    if framework != "tensorflow" or context is None or context.world_size == 1 or "TF_CONFIG" in os.environ:
        return {}
    if context.spec.group.regroups:
        print(
            "TF_CONFIG is not set for a command whose group may change: its TensorFlow processes train separately. Give the "
            "task count instead of min and max, or a function instead of the command",
            file=sys.stderr,
            flush=True,
        )
        return {}
    task = {"type": "worker", "index": context.rank}
    config = json.dumps({"cluster": {"worker": distributed.addresses()}, "task": task})
    return {"TF_CONFIG": config, OURS: ",".join((*SETTINGS.group_variables, "TF_CONFIG"))}


@contextlib.contextmanager
def _workspace(root: Path, files: Mapping[str, tuple[bytes, bool]], is_kept: bool) -> Iterator[Path]:
    """Provide the working directory of a command: the workspace, a private copy, or the folder of shipped files.

    Args:
        root: Folder of the code; on some nodes it does not exist.
        files: Path -> (content, True if executable) of the shipped files.
        is_kept: True if a service stores the workspace, so that a private copy is used.
    """
    if not root.is_dir():
        _write(files)
        yield Path.cwd()
    elif is_kept:
        with temporary_copy(root, Path.cwd()):
            yield Path.cwd()
    else:
        yield root


def _write(files: Mapping[str, tuple[bytes, bool]]) -> None:
    """Write files by their paths relative to the working directory, with their executable bits."""
    for named, (content, is_program) in files.items():
        Path(named).parent.mkdir(parents=True, exist_ok=True)
        Path(named).write_bytes(content)
        if is_program:
            Path(named).chmod(0o700)


def _is_there(job: JobSpec, job_file: Path, named: str) -> bool:
    """Return True if a named file of the code can be found."""
    try:
        return bool(_code(job, job_file, named))
    except ArgumentError:
        return False


def _verb(job: JobSpec, name: str, task: Task, function: Callable[..., Any], variables: dict[str, str]) -> None:
    """Call the verb that runs the task, and print its result."""
    from hopsml import experiment

    if _is_searched(job, name):
        _search(job, task, function, variables)
        return
    framework = "distributed" if task.command is not None else task.framework
    verb = experiment.collective_all_reduce if framework == "tensorflow" else getattr(experiment, framework)
    size = {"num_workers": task.most} if task.min is None else {"min_workers": task.min, "max_workers": task.max}
    result = verb(function, name=f"{job.name}-{name}", args=dict(task.arguments), environment=variables, **size)
    print(result.summary())


def _search(job: JobSpec, task: Task, function: Callable[..., Any], variables: dict[str, str]) -> None:
    """Run the job's search with the task's function, and print its result."""
    from hopsml import experiment

    asked = job.search
    assert asked is not None
    of_groups: dict[str, Any] = {"framework": asked.framework or task.framework} if asked.workers_per_trial > 1 else {}
    result = experiment.search(
        function,
        searchspace(asked.space),
        asked.searcher,
        searcher_args=asked.searcher_args,
        stopper=asked.stopper,
        stopper_args=asked.stopper_args,
        num_trials=asked.num_trials,
        metric=asked.metric,
        direction=asked.direction,
        deadline=asked.deadline_s,
        seed=asked.seed,
        max_executors=task.most,
        workers_per_trial=asked.workers_per_trial,
        **of_groups,
        args=dict(task.arguments),
        environment=variables,
        name=job.name,
    )
    print(result.summary())
