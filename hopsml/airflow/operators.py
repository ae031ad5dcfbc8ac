"""Operator that runs a script under a profile as an Airflow task; its job outlives Airflow's processes.

    train = HopsMLOperator(
        task_id="train", script="/jobs/train.py", arguments=["--data", "{{ ti.xcom_pull('etl')['run_dir'] }}"],
        profile="yarn-cluster", num_workers=8,
    )

The task's result (XCom) is ``{"run_dir", "run_id", "state", "metrics", "job"}``; ``run_dir`` and ``metrics`` are also
pushed under these keys.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, TaskDeferralTimeout

from hopsml.airflow import jobs, local_jobs
from hopsml.airflow.jobs import Job, Jobs, JobStatus, KnownJob, OutageTolerance, Request, TaskStep
from hopsml.airflow.triggers import HopsMLJobTrigger
from hopsml.core import profiles, settings
from hopsml.core.states import Lifecycle
from hopsml.core.variables import SETTINGS
from hopsml.errors import ClusterError, HopsmlError

if TYPE_CHECKING:
    from airflow.sdk import Context


class _KilledWhileStarting(AirflowException):
    """Raised by the handler of SIGTERM while the job is being started."""


JOB_KEY, DONE_KEY = "hopsml_job", "hopsml_done"  # keys of Airflow's task state, which outlives a try


class HopsMLOperator(BaseOperator):
    """Operator that runs a script on a profile's cluster, follows it, and returns its run directory and metrics.

    A task that was killed, or whose Airflow was restarted, finds its job again and follows it; no job is started twice.
    Killing the task, or exceeding its ``execution_timeout``, ends the job.

    Args:
        script: path of the script, on the machine of the Airflow worker.
        profile: name of a file in conf/ ($HOPSML_CONF_DIR); in YARN's cluster mode the job is a YARN application, else
            a process on the worker's machine.
        arguments: command-line arguments of the script.
        num_workers: executors, or local workers for a profile without Spark.
        conf: Spark settings, which override the profile's.
        name: name of the application.
        environment: environment variables of the driver.
        project_url: URL below which the driver creates its runs; by default $HOPSML_PROJECT_URL, the profile's store,
            or HDFS.
        python: interpreter that has pyspark and the frameworks; by default $HOPSML_PYTHON, else Airflow's own.
        deferrable: wait in the triggerer, without occupying a worker slot; False for an Airflow without a triggerer.
        poll_interval_s: seconds between two checks of the job.
        wait_for_completion: False: succeed as soon as the job has been started.
        jobs_folder: folder of local jobs, on a disk that task and triggerer share; by default
            $AIRFLOW_HOME/hopsml_jobs.
    """

    template_fields: Sequence[str] = (
        "script", "arguments", "profile", "num_workers", "conf", "name", "environment", "project_url", "python",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {"conf": "json", "environment": "json"}
    ui_color = "#d7ecd9"

    def __init__(
        self,
        *,
        script: str,
        profile: str = "yarn-cluster",
        arguments: Sequence[str] = (),
        num_workers: int | str | None = None,
        conf: Mapping[str, str] | None = None,
        name: str = "{{ dag.dag_id }}.{{ task.task_id }}",
        environment: Mapping[str, str] | None = None,
        project_url: str = "",
        python: str = "",
        deferrable: bool = True,
        poll_interval_s: float = 5.0,
        wait_for_completion: bool = True,
        jobs_folder: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.script, self.profile, self.arguments, self.num_workers = script, profile, arguments, num_workers
        self.conf, self.name, self.environment = conf or {}, name, environment or {}
        self.project_url, self.python = project_url, python
        self.deferrable, self.poll_interval_s = deferrable, poll_interval_s
        self.wait_for_completion, self.jobs_folder = wait_for_completion, jobs_folder
        self._job: Job | None = None
        self._request: Request | None = None
        self._is_starting = False

    # ------------------------------------------------------------------------------------------ called by Airflow

    def execute(self, context: Context) -> Any:
        """Start the job, or find the one that an earlier try of this task has started, and follow it."""
        request = self._request = self.request(context)
        kind = self._kind(request)
        step, job, why = self._decide(kind, request, context)
        self.log.info("%s", why)
        if job is None:
            job = self._start(kind, request)
        self._job = job
        context["task_state_store"].set(JOB_KEY, job.as_dict())
        context["ti"].xcom_push(key="job", value=job.as_dict())
        if not self.wait_for_completion and step is not TaskStep.COLLECT:
            self._note_done(context, job)
            return {"job": job.as_dict()}
        if self.deferrable and step is not TaskStep.COLLECT:
            self.defer(
                trigger=HopsMLJobTrigger(job.as_dict(), self.poll_interval_s),
                method_name="execute_complete",
                timeout=self.execution_timeout,
            )
        seen, offset = self._follow(kind, job)
        return self._conclude(context, job, seen, offset)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Return the job's result, when Airflow resumes the task after the trigger's event."""
        job = self._job = Job.from_dict(event["job"])
        return self._conclude(
            context, job, JobStatus(jobs.state_of_name(event["state"]), event["detail"]), int(event["offset"])
        )

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the task, as in BaseOperator; end the job if the wait exceeded ``execution_timeout``."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            stored = context["task_state_store"].get(JOB_KEY)
            self._job = Job.from_dict(stored) if stored else None
            self.on_kill()
            raise

    def on_kill(self) -> None:
        """End the job and all processes that it started, when Airflow kills the task."""
        if self._is_starting:  # called from a signal handler: the interrupted start cleans up after itself
            raise _KilledWhileStarting("the task was killed while it started its job")
        if self._job is not None:
            self._end(self._job)
        elif self._request is not None:
            for known in self._kind(self._request).find(self._request):
                if not known.state.is_final:
                    self._end(known.job)

    # ------------------------------------------------------------------------------------------ steps

    def request(self, context: Context) -> Request:
        """Build the request for this task's job; templated fields must have been rendered."""
        ti = context["ti"]
        store = self.project_url or SETTINGS.project_url or profiles.load(self.profile).store
        return Request(
            tag=jobs.tag_of(ti.dag_id, ti.run_id, ti.task_id, ti.map_index),
            script=os.path.abspath(self.script),
            profile=self.profile,
            python=self.python or SETTINGS.python or sys.executable,
            project_url=store or settings.project_url(),
            arguments=tuple(map(str, self.arguments)),
            num_workers=None if self.num_workers in (None, "") else int(str(self.num_workers)),
            conf={key: str(value) for key, value in self.conf.items()},
            environment={key: str(value) for key, value in self.environment.items()},
            name=self.name,
            folder=self.jobs_folder or local_jobs.default_folder(),
        )

    @staticmethod
    def _kind(request: Request) -> Jobs:
        """Return the implementation of ``Jobs`` for the request's profile."""
        return jobs.jobs_of_kind(jobs.kind_of(profiles.load(request.profile)))

    def _start(self, kind: Jobs, request: Request) -> Job:
        """Start the job; if SIGTERM arrives during that, end it."""
        self._is_starting = True
        try:
            job = kind.start(request)
        except _KilledWhileStarting:
            self._is_starting = False
            self.on_kill()
            raise
        finally:
            self._is_starting = False
        self.log.info("started job %s with the tag %s", job.id, request.tag)
        return job

    def _end(self, job: Job) -> None:
        """End the job and all its processes."""
        self.log.info("ending %s", job.id)
        jobs.jobs_of_kind(job.kind).end(job)

    def _decide(self, kind: Jobs, request: Request, context: Context) -> tuple[TaskStep, Job | None, str]:
        """Find the jobs of this task, and decide whether to start, follow or collect one."""
        memory = context["task_state_store"]
        content, done = memory.get(JOB_KEY), memory.get(DONE_KEY) or []
        found: list[KnownJob] = kind.find(request)
        stored = None
        if content:
            job = Job.from_dict(content)
            stored = job, jobs.jobs_of_kind(job.kind).status(job).state
        return jobs.decide_first_step(stored, done, found)

    def _follow(self, kind: Jobs, job: Job) -> tuple[JobStatus, int]:
        """Wait in this process for the job's end, copying the driver's log."""
        offset, told = 0, ""
        patience = OutageTolerance(self.log.warning)
        while True:
            try:
                seen = kind.status(job)
                offset = self._tell_log(kind, job, offset)
                patience.record_answer()
            except ClusterError as error:  # includes errors that a failing ResourceManager reports
                patience.record_outage(error)
                seen = JobStatus(Lifecycle.RUNNING)
            if seen.state.is_final:
                return seen, offset
            if seen.state is Lifecycle.STARTING and seen.detail != told:
                told = seen.detail
                self.log.info("waiting: %s", told or "for resources")
            time.sleep(self.poll_interval_s)

    def _tell_log(self, kind: Jobs, job: Job, offset: int, last: bool = False) -> int:
        """Copy the driver's log from ``offset`` on to the task's log, and return the new offset."""
        while True:
            text, offset = kind.read_log(job, offset, last)
            if not text:
                return offset
            for line in text.splitlines():
                self.log.info("%s", line)

    def _outcome(self, kind: Jobs, context: Context, job: Job, seen: JobStatus) -> dict[str, Any]:
        """Return the job's result.

        Empty if that of a failed job cannot be read, so that the job's own error is raised.
        """
        try:
            return kind.outcome(job, self.request(context))
        except HopsmlError as error:
            if seen.state is Lifecycle.FINISHED:
                raise
            self.log.warning("the result of %s cannot be read: %s", job.id, error)
            return {}

    def _conclude(self, context: Context, job: Job, seen: JobStatus, offset: int) -> dict[str, Any]:
        """Log the remaining output, and return the result. Raises AirflowException if the job did not succeed."""
        kind = jobs.jobs_of_kind(job.kind)
        with contextlib.suppress(ClusterError):
            self._tell_log(kind, job, offset, last=True)
        left = self._outcome(kind, context, job, seen)
        if seen.state is not Lifecycle.FINISHED:
            if more := kind.errors(job):
                self.log.info("the end of the driver's stderr:\n%s", more)
            reason = left.get("error") or seen.detail or "see its log above"
            where = f"; run directory {left['run_dir']}" if left.get("run_dir") else ""
            raise AirflowException(f"{job.id} ended as {jobs.state_name(seen.state)}: {reason}{where}")
        kind.mark_delivered(job, self.request(context))
        self._note_done(context, job)
        for key in ("run_dir", "metrics"):
            context["ti"].xcom_push(key=key, value=left.get(key))
        return {**left, "job": job.as_dict()}

    @staticmethod
    def _note_done(context: Context, job: Job) -> None:
        """Record that the result is returned: if this task is run again it starts another job."""
        memory = context["task_state_store"]
        memory.set(DONE_KEY, [*(memory.get(DONE_KEY) or []), job.id])
