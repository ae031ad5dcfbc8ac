"""Operators with the names and arguments of the predecessor, for existing DAGs.

Also importable as ``hopsworks_plugin``. A job is described by ``<project>/Jobs/<job_name>.json`` with the predecessor's
keys: ``appPath`` (the script: a path on the Airflow worker's machine, or a URL of the store), ``args``,
``spark.executor.instances`` and other Spark settings; and hopsml's ``profile`` (default yarn-cluster). Keys without
effect are named in the task's log. The latest started job is recorded in ``<project>/Jobs/<job_name>.execution.json``,
for the sensor. Because these files select the code that runs, they, and a script on the store, must be owned by
Airflow's user or one of ``HOPSML_TRUSTED_OWNERS``.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException

from hopsml.airflow import jobs, local_jobs
from hopsml.airflow.jobs import Job, Jobs, Request, ignored_key_messages
from hopsml.airflow.operators import HopsMLOperator
from hopsml.core import settings
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError, ClusterUnavailable, PathNotFound
from hopsml.storage import filesystem, run_dir, trust, urls

if TYPE_CHECKING:
    from airflow.sdk import Context

FOLDER = "Jobs"


def project_url(project_name: str | None) -> str:
    """Return the URL of a project's folder, by default the user's own.

    ``HOPSML_PROJECT_URL`` and HDFS apply as elsewhere.
    """
    return settings.project_url(project_name or None)


def read_job_description(project_url: str, job_name: str) -> dict[str, Any]:
    """Return the description of a job.

    Raises:
        ArgumentError: there is none, it names no script, or another user could have written it.
    """
    url = urls.join(project_url, FOLDER, f"{job_name}.json")
    content = _believed(url, "it determines which script runs")
    if content is None or not content.get("appPath"):
        raise ArgumentError(
            f'job {job_name!r}: there is no {url} with an appPath; create that file, for instance with {{"appPath": '
            '"/jobs/train.py", "profile": "yarn-cluster", "spark.executor.instances": 4}'
        )
    return content


class HopsworksLaunchOperator(HopsMLOperator):
    """Operator that runs a job described in the project, with the predecessor's arguments.

    Further arguments are those of ``HopsMLOperator``.

    Args:
        job_name: name of a file in ``Jobs/``, without ``.json``.
        project_name: project of the job; by default $HOPSML_PROJECT.
        job_arguments: arguments of the script, as a string in shell syntax or a list, which replace the description's
            ``args``.
        wait_for_completion: False: succeed as soon as the job has been started.
        poke_interval_s: seconds between two checks of the job.
        wait_timeout_s: seconds after which the task fails and its job is ended; 0 or less for no limit.
        project_id: accepted without effect, which a warning reports.
        hopsworks_conn_id: accepted without effect, which a warning reports.
    """

    template_fields: Sequence[str] = (*HopsMLOperator.template_fields, "job_name", "job_arguments", "project_name")

    def __init__(
        self,
        *,
        job_name: str,
        project_name: str | None = None,
        job_arguments: str | Sequence[str] | None = None,
        wait_for_completion: bool = True,
        poke_interval_s: float = 10,
        wait_timeout_s: float = -1,
        project_id: int | None = None,
        hopsworks_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        if wait_timeout_s > 0:
            from datetime import timedelta

            kwargs.setdefault("execution_timeout", timedelta(seconds=wait_timeout_s))
        super().__init__(script="", poll_interval_s=poke_interval_s, wait_for_completion=wait_for_completion, **kwargs)
        self.job_name, self.project_name, self.job_arguments = job_name, project_name, job_arguments
        for name, value in (("project_id", project_id), ("hopsworks_conn_id", hopsworks_conn_id)):
            if value is not None:
                self.log.warning("%s=%r has no effect: the project is identified by its name", name, value)

    def request(self, context: Context) -> Request:
        """Build the request from the job's description in ``Jobs/``."""
        self.project_url = project_url(self.project_name)
        found = read_job_description(self.project_url, self.job_name)
        self.script = _fetched(str(found["appPath"]), self.jobs_folder or local_jobs.default_folder())
        self.profile = str(found.get("profile", "yarn-cluster"))
        arguments = found.get("args", "") if self.job_arguments is None else self.job_arguments
        self.arguments = shlex.split(arguments) if isinstance(arguments, str) else list(arguments)
        self.name = str(found.get("appName") or self.job_name)
        conf = {key: str(value) for key, value in found.items() if key.startswith("spark.")}
        self.num_workers = conf.pop("spark.executor.instances", None)
        self.conf = {key: value for key, value in conf.items() if not key.startswith("spark.tensorflow.")}
        for text in ignored_key_messages(found, self.job_name):
            self.log.warning(text)
        return super().request(context)

    def _start(self, kind: Jobs, request: Request) -> Job:
        """Start the job, and record it for the sensor."""
        job = super()._start(kind, request)
        run_dir.write_job_record(_execution(request.project_url, self.job_name), job.as_dict())
        return job


class HopsworksJobSuccessSensor(BaseSensorOperator):
    """Sensor that succeeds when the latest execution of a job has succeeded, and fails when that has failed.

    It waits while there is no execution.
    """

    template_fields: Sequence[str] = ("job_name", "project_name")

    def __init__(
        self,
        *,
        job_name: str,
        project_name: str | None = None,
        project_id: int | None = None,
        hopsworks_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_name, self.project_name = job_name, project_name

    def poke(self, context: Context) -> bool:
        """Return True if the job's latest execution has succeeded.

        Raises:
            AirflowException: it has ended without success.
        """
        content = _believed(
            _execution(project_url(self.project_name), self.job_name), "it determines which job the sensor waits for"
        )
        if content is None:
            return False
        job = Job.from_dict(content)
        try:
            seen = jobs.jobs_of_kind(job.kind).status(job)
        except ClusterUnavailable as error:
            self.log.warning("%s; asking again", error)
            return False
        if seen.state.is_final and seen.state is not Lifecycle.FINISHED:
            raise AirflowException(
                f"job {self.job_name}: {job.id} ended as {jobs.state_name(seen.state)}: "
                f"{seen.detail or 'see the log of the job'}"
            )
        return seen.state is Lifecycle.FINISHED


def _execution(project_url: str, job_name: str) -> str:
    """Return the URL of the record of a job's latest execution."""
    return urls.join(project_url, FOLDER, f"{job_name}.execution.json")


def _believed(url: str, what: str) -> dict[str, Any] | None:
    """Return the record at a URL, None without one. Raises ArgumentError if another user could have written it."""
    try:
        trust.check_trusted(filesystem.for_url(url).status(url), what)
    except PathNotFound:
        return None
    return run_dir.read_job_record(url)


def _fetched(path: str, folder: str) -> str:
    """Return the local path of a script; a script on the store is copied below ``folder``."""
    if urls.split(path)[0] in ("", "file"):
        return urls.split(path)[2]
    trust.check_trusted(filesystem.for_url(path).status(path), "its content is executed")
    local = os.path.join(folder, "scripts", urls.split(path)[1].replace(":", "_"), urls.split(path)[2].lstrip("/"))
    os.makedirs(os.path.dirname(local), mode=0o700, exist_ok=True)
    filesystem.for_url(path).download(path, local)
    return local
