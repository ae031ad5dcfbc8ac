"""Jobs whose driver is a process of this machine: profiles without Spark, and Spark in client mode.

Each job has a folder ``<folder>/<tag>/<n>/`` of ``local_driver``, whose supervisor is detached from the task that started
it, so that the driver continues when the task is killed or Airflow is restarted. The driver is killed when its supervisor
is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopsml.airflow import jobs
from hopsml.airflow.jobs import LOG_PIECE_BYTES, Job, JobStatus, KnownJob, Request, state_name
from hopsml.core import file_locks, processes, profiles
from hopsml.core.decoding import MALFORMED
from hopsml.core.newer_python import code_arguments
from hopsml.core.states import Lifecycle
from hopsml.engines import local_driver
from hopsml.engines.local_driver import ENDED, OUTPUT, DriverOrder, DriverStatus
from hopsml.errors import ArgumentError, ClusterError
from hopsml.storage import privacy, run_dir
from hopsml.submission import spark_command

KEEP_S = 7 * 86400.0  # age at which ended jobs are removed when another one starts
END_TIMEOUT_S = 40.0
DELIVERED = "delivered"
# Files in which earlier versions recorded a job's supervisor and its end.
EARLIER_RUNNING, EARLIER_ENDED = "job.json", "exit.json"
# The driver runs in the project's interpreter, which must not get Airflow's settings: they contain passwords.
DROPPED = ("AIRFLOW", "_AIRFLOW", "__AIRFLOW")


def default_folder() -> str:
    """Return ``$AIRFLOW_HOME/hopsml_jobs``, which all of Airflow's processes on a machine share."""
    return str(Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow", "hopsml_jobs"))


# ---------------------------------------------------------------------- implementation of Jobs


def find(request: Request) -> list[KnownJob]:
    """Return all jobs started for the request's tag, newest first."""
    found = []
    for number in sorted(_numbers(Path(request.folder, request.tag)), reverse=True):
        folder = Path(request.folder, request.tag, str(number))
        job = Job("local", str(folder))
        found.append(KnownJob(job, status(job).state, (folder / DELIVERED).exists()))
    return found


def start(request: Request) -> Job:
    """Start a supervisor process with the driver below it.

    Raises:
        ArgumentError: A job with this tag is active, or others could replace the job's files.
    """
    above = Path(request.folder, request.tag)
    _make_folder(above)
    # This tag's folders remain, because their numbers must not be reused.
    _forget_old(Path(request.folder), besides=request.tag)
    with file_locks.locked(above / "starting"):
        active = [known for known in find(request) if not known.state.is_final]
        if active:
            raise ArgumentError(
                f"{active[0].job.id} was started for this task and is {state_name(active[0].state)}; follow that job "
                "instead of starting another one"
            )
        folder = above / str(max(_numbers(above), default=0) + 1)
        folder.mkdir(mode=0o700)
        job = Job("local", str(folder))
        local_driver.start(folder, DriverOrder(command(request), environment(request, job), is_bound=True))
    return job


def status(job: Job) -> JobStatus:
    """Return the job's present state."""
    folder = Path(job.id)
    found = local_driver.status_of(folder)
    if found is not None and not found.state.is_final:
        return JobStatus(Lifecycle.RUNNING)
    if found is not None and found.state is not Lifecycle.LOST:
        return _how_ended(found)
    with contextlib.suppress(FileNotFoundError, *MALFORMED):
        ended = json.loads((folder / EARLIER_ENDED).read_text())
        return JobStatus(jobs.state_of_name(ended["state"]), str(ended["detail"]))
    if folder.is_dir():
        return JobStatus(Lifecycle.FAILED, "the supervisor of the driver was killed, or this machine was restarted")
    return JobStatus(
        Lifecycle.LOST,
        f"there is no {folder} on this machine: a local job can be followed only on the machine where it was "
        "started. Run task and triggerer on the same machine, or use a profile with YARN's cluster mode",
    )


def _how_ended(ended: DriverStatus) -> JobStatus:
    """Return the state of a job whose driver has ended, with an explanation."""
    code = ended.exit_status
    if ended.was_requested:
        return JobStatus(Lifecycle.STOPPED, "the driver was ended by its task")
    if ended.problem:
        return JobStatus(Lifecycle.FAILED, ended.problem)
    if code < 0:
        return JobStatus(Lifecycle.FAILED, f"the driver was killed by signal {-code} ({processes.signal_name(-code)})")
    if code:
        return JobStatus(Lifecycle.FAILED, f"the driver ended with exit status {code}")
    return JobStatus(Lifecycle.FINISHED)


def read_log(job: Job, offset: int, last: bool = False) -> tuple[str, int]:
    """Read the driver's output from a byte offset, in whole lines while the job is active and has written any."""
    found = local_driver.read_part(Path(job.id, OUTPUT), offset, LOG_PIECE_BYTES)
    if found is None:
        return "", offset
    data = found[0]
    whole = data.rfind(b"\n") + 1
    if whole and not status(job).state.is_final:
        data = data[:whole]
    return data.decode(errors="replace"), offset + len(data)


def errors(job: Job) -> str:
    """Return an empty string: a local job's log contains everything."""
    return ""


def end(job: Job) -> None:
    """End the driver and all processes below it, and wait for that. Raises ClusterError if it does not end in time."""
    deadline = time.monotonic() + END_TIMEOUT_S
    was_requested = False
    while not status(job).state.is_final:
        was_requested = was_requested or local_driver.request_end(Path(job.id)) or _request_earlier_end(Path(job.id))
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the driver of {job.id} did not end within {END_TIMEOUT_S:g} s of the request; end "
                "that process by hand"
            )
        time.sleep(0.05)


def _request_earlier_end(folder: Path) -> bool:
    """Request the supervisor of a job of an earlier version to end it; return False if none is recorded."""
    with contextlib.suppress(FileNotFoundError, *MALFORMED):
        recorded = json.loads((folder / EARLIER_RUNNING).read_text())["keeper"]
        running = {"pid": int(recorded["pid"]), "ticks": int(recorded["process_started"])}
        local_driver.end_supervisor(folder, {**recorded, **running})
        return True
    return False


def outcome(job: Job, request: Request) -> dict[str, Any]:
    """Return the result of the run that the driver recorded; without one, metrics from its log."""
    found = jobs.result_of_record(record_url(job))
    if found:
        return found
    part = local_driver.read_part(Path(job.id, OUTPUT), -LOG_PIECE_BYTES, LOG_PIECE_BYTES)
    return {} if part is None else {"metrics": jobs.metrics_of_log(part[0].decode(errors="replace"))}


def mark_delivered(job: Job, request: Request) -> None:
    """Record that the job's result was returned: a later task with the same tag starts another job."""
    if Path(job.id).is_dir():
        Path(job.id, DELIVERED).touch()


def record_url(job: Job) -> str:
    """Return the URL of the file in which the driver records its run."""
    return f"file://{Path(job.id, 'record.json')}"


# ---------------------------------------------------------------------- processes and files


def command(request: Request) -> list[str]:
    """Return the driver's command line: the script itself without Spark, ``hopsml submit`` with it."""
    profile = profiles.load(request.profile)
    if not profile.uses_spark:
        if request.conf:
            raise ArgumentError(
                f"conf has {', '.join(sorted(request.conf))}, but profile '{request.profile}' runs without Spark; "
                "remove these settings, or use the profile of a cluster"
            )
        return [request.python, request.script, *request.arguments]
    return submit_command(request, {"spark.app.name": request.name, **request.conf} if request.name else request.conf)


def submit_command(request: Request, conf: Mapping[str, str], *options: str) -> list[str]:
    """Return the command line of ``hopsml submit``, with those settings that other users may read."""
    line = [
        request.python,
        *code_arguments("from hopsml.cli import main; main()"),  # the working directory is that of Airflow
        "submit",
        "--profile",
        request.profile,
        *options,
    ]
    if request.num_workers is not None:
        line += ["--num-workers", str(request.num_workers)]
    for key, value in spark_command.split_hidden(conf)[0].items():
        line += ["--conf", f"{key}={value}"]
    return [*line, request.script, "--", *request.arguments]


def hidden_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that passes confidential settings to ``hopsml submit``; empty without any."""
    held = spark_command.split_hidden(conf)[1]
    return {spark_command.HIDDEN_VARIABLE: json.dumps(held)} if held else {}


def environment(request: Request, job: Job) -> dict[str, str]:
    """Return the driver's environment.

    The profile's variables are overridden by this process's (without Airflow's settings), and these by the request's.
    """
    profile = profiles.load(request.profile)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(DROPPED)}
    slots = (
        {} if request.num_workers is None or profile.uses_spark else {"HOPSML_LOCAL_SLOTS": str(request.num_workers)}
    )
    return {
        "PYTHONUNBUFFERED": "1",  # its log is read while it runs
        **profile.environment,
        **kept,
        **slots,
        "HOPSML_PROFILE": request.profile,
        "HOPSML_PROJECT_URL": request.project_url,
        **request.environment,
        **(hidden_settings(request.conf) if profile.uses_spark else {}),
        run_dir.JOB_RECORD: record_url(job),
    }


def _make_folder(above: Path) -> None:
    """Make the folder of a tag, in which only this user may write.

    Raises:
        ArgumentError: Other users could replace the files of jobs there.
    """
    try:
        above.parent.mkdir(parents=True, exist_ok=True)
        mode = above.parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise PermissionError("all users may write to the folder above it")
        privacy.ensure_private_folder(above)
    except PermissionError as error:
        raise ArgumentError(f"{above} cannot keep jobs: {error.strerror or error}; name a folder of your own") from None


def _numbers(above: Path) -> list[int]:
    """Return the numbers of a tag's job folders."""
    try:
        return [int(entry) for entry in os.listdir(above) if entry.isdigit()]
    except FileNotFoundError:
        return []


def _forget_old(root: Path, besides: str) -> None:
    """Remove folders of jobs that ended long ago, except those with the tag ``besides``."""
    horizon = time.time() - KEEP_S
    for ended in (*root.glob(f"*/*/{ENDED}"), *root.glob(f"*/*/{EARLIER_ENDED}")):
        with contextlib.suppress(OSError):
            if ended.parent.parent.name != besides and ended.stat().st_mtime < horizon:
                shutil.rmtree(ended.parent)
