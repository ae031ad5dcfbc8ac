"""Jobs in YARN's cluster mode, whose driver runs in a container, away from Airflow's machines.

An application is found again by its tag, whatever happened to the process that submitted it.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from hopsml import submission
from hopsml.airflow import jobs
from hopsml.airflow.jobs import LOG_PIECE_BYTES, Job, JobStatus, KnownJob, Request
from hopsml.airflow.local_jobs import DROPPED, hidden_settings, submit_command
from hopsml.core.newer_python import module_arguments
from hopsml.core.states import Lifecycle
from hopsml.errors import ApplicationNotFound, ClusterError, StorageError
from hopsml.storage import run_dir, urls
from hopsml.yarn import ResourceManager, logs
from hopsml.yarn.resource_manager import TIMEOUT_S

SUBMIT_TIMEOUT_S = 600.0
END_TIMEOUT_S = 60.0
SEEN_TIMEOUT_S = 20.0  # from spark-submit's end until the application can be found by its tag
LAST_LINES_S = 20.0
_ID = re.compile(r"application_\d+_\d+")
RECORDS = "Airflow"  # folder in the project


# ---------------------------------------------------------------------- implementation of Jobs


def find(request: Request) -> list[KnownJob]:
    """Return all applications with the request's tag, newest first."""
    found = []
    yarn = ResourceManager.from_environment()
    for application in yarn.find_by_tag(request.tag):
        state = application.lifecycle
        delivered = state is Lifecycle.FINISHED and _is_delivered(request, application.id)
        found.append(KnownJob(_job(yarn, application.id), state, delivered))
    return found


def start(request: Request) -> Job:
    """Submit the application and wait until YARN lists it.

    Raises:
        ClusterError: spark-submit failed, and the message contains its output; or it did not end in time and was ended;
            or YARN does not list the application in time.
    """
    yarn = ResourceManager.from_environment()
    before = {application.id for application in yarn.find_by_tag(request.tag)}
    asked = settings_of(request)
    said = _submit(submit_command(request, asked, "--detach", "--tag", request.tag), hidden_settings(asked))
    printed = _ID.findall(said)  # the last one, if YARN's list cannot be read any more
    deadline = time.monotonic() + SEEN_TIMEOUT_S
    while True:
        try:
            fresh = [application.id for application in yarn.find_by_tag(request.tag) if application.id not in before]
        except ClusterError:
            if not printed:
                raise
            fresh = printed[-1:]
        if fresh:
            return _job(yarn, fresh[0])
        if time.monotonic() > deadline:
            raise ClusterError(
                f"spark-submit succeeded, but YARN shows no application with the tag {request.tag}:\n{said}"
            )
        time.sleep(0.2)


def status(job: Job) -> JobStatus:
    """Return the application's present state. Raises ClusterUnavailable if no ResourceManager answers."""
    try:
        application = _manager(job).application(job.id)
    except ApplicationNotFound as error:
        return JobStatus(Lifecycle.LOST, str(error))
    return JobStatus(application.lifecycle, application.diagnostics)


def read_log(job: Job, offset: int, last: bool = False) -> tuple[str, int]:
    """Read the driver's output from a byte offset; empty if the log is unavailable at present.

    Args:
        job: the job.
        offset: bytes that were read before.
        last: whether the application has ended, so that its last lines are waited for: a NodeManager takes seconds to
            aggregate them.

    Returns:
        The text, and the offset after it.
    """
    deadline = time.monotonic() + LAST_LINES_S
    while True:
        text, behind, complete = _read(job, offset)
        if text or complete or not last or time.monotonic() > deadline:
            return text, behind
        time.sleep(0.5)


def errors(job: Job) -> str:
    """Return the end of the driver's stderr, where Spark explains a failure; empty if it cannot be read."""
    try:
        return logs.tail(_manager(job).application(job.id), "stderr", 4096).strip()
    except ClusterError:
        return ""


def end(job: Job) -> None:
    """Kill the application and wait for its end. Raises ClusterError if it does not end in time."""
    with contextlib.suppress(ApplicationNotFound):
        submission.end_application(job.id, yarn=_manager(job), timeout_s=END_TIMEOUT_S)


def outcome(job: Job, request: Request) -> dict[str, Any]:
    """Return the result of the run that the driver recorded; without one, metrics from its log."""
    found = jobs.result_of_record(record_url(request), job.id)
    return found or {"metrics": jobs.metrics_of_log(_tail(job))}


def mark_delivered(job: Job, request: Request) -> None:
    """Record that the application's result was returned: a later task with the same tag starts another one."""
    record = run_dir.read_job_record(record_url(request)) or {}
    run_dir.write_job_record(record_url(request), {**record, "delivered": job.id})


# ---------------------------------------------------------------------- pure


def record_url(request: Request) -> str:
    """Return the URL of the file that records the driver's run, and that its result was returned."""
    return urls.join(request.project_url, RECORDS, f"{request.tag}.json")


def settings_of(request: Request) -> dict[str, str]:
    """Return the Spark settings of the request, including the driver's environment variables."""
    variables = {
        "HOPSML_PROJECT_URL": request.project_url,
        **request.environment,
        run_dir.JOB_RECORD: record_url(request),
    }
    return {
        **({"spark.app.name": request.name} if request.name else {}),
        **request.conf,
        **{f"spark.yarn.appMasterEnv.{name}": value for name, value in variables.items()},
    }


# ---------------------------------------------------------------------- YARN and processes


def _submit(command: list[str], variables: Mapping[str, str]) -> str:
    """Run the command, and return its output; the command ends with this process and with this call."""
    line = [sys.executable, *module_arguments("hopsml.airflow.parent_guard"), str(os.getpid()), *command]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(DROPPED)}
    with subprocess.Popen(
        line,
        env={**kept, **variables, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            said = process.communicate(timeout=SUBMIT_TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"spark-submit did not end within {SUBMIT_TIMEOUT_S:g} s, and was terminated; check "
                "that the ResourceManager answers"
            ) from None
        finally:
            process.terminate()
    if process.returncode:
        raise ClusterError(f"hopsml submit ended with exit status {process.returncode}:\n{said[-4000:]}")
    return said[-4000:]


def _read(job: Job, offset: int) -> tuple[str, int, bool]:
    """Return a piece of the log, the offset after it, and whether the log is complete."""
    try:
        application = _manager(job).application(job.id)
        if not application.am_log_url:  # no container has begun
            return "", offset, application.is_final
        part = logs.read(application, "stdout", offset, LOG_PIECE_BYTES)
    except (ClusterError, StorageError):
        return "", offset, False
    if part is None:
        return "", offset, False
    data, whole = part.data, part.data.rfind(b"\n") + 1
    if whole and not part.complete:
        data = data[:whole]
    return data.decode(errors="replace"), part.offset + len(data), part.complete


def _job(yarn: ResourceManager, application_id: str) -> Job:
    """Return the job of an application, with the ResourceManagers at which it is found."""
    where = {"addresses": list(yarn.addresses), "scheme": yarn.scheme, "user": yarn.user}
    return Job("yarn", application_id, where)


def _manager(job: Job) -> ResourceManager:
    """Return the client of the job's ResourceManagers."""
    where = job.where
    timeout_s = float(where.get("timeout_s", TIMEOUT_S))
    return ResourceManager(tuple(where["addresses"]), str(where["scheme"]), timeout_s, user=str(where["user"]))


def _is_delivered(request: Request, application_id: str) -> bool:
    """Return True if the application's result was returned; True also without a record, as there is no result."""
    record = run_dir.read_job_record(record_url(request)) or {}
    return record.get("application") != application_id or record.get("delivered") == application_id


def _tail(job: Job) -> str:
    """Return the end of the driver's output; empty if it cannot be read."""
    try:
        return logs.tail(_manager(job).application(job.id))
    except ClusterError:
        return ""
