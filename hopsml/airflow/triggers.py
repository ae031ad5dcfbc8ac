"""Triggers that wait on behalf of deferred tasks; each can be serialized, and run again anywhere and repeatedly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from hopsml.airflow import jobs
from hopsml.airflow.jobs import Job, JobStatus, OutageTolerance
from hopsml.core.states import Lifecycle
from hopsml.errors import ClusterError, StorageError


class HopsMLJobTrigger(BaseTrigger):
    """Trigger that waits for the end of a job, and logs its driver's output as it grows.

    Its event is ``{"job", "state", "detail", "offset"}``, where ``offset`` is the number of bytes of output that were
    logged.
    """

    def __init__(self, job: dict[str, Any], poll_interval_s: float = 5.0, offset: int = 0) -> None:
        super().__init__()
        self.job, self.poll_interval_s, self.offset = job, poll_interval_s, offset

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments, from which a triggerer creates this trigger again."""
        content = {"job": self.job, "poll_interval_s": self.poll_interval_s, "offset": self.offset}
        return "hopsml.airflow.triggers.HopsMLJobTrigger", content

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Follow the job until it ends, and then yield the only event."""
        job = Job.from_dict(self.job)
        kind = jobs.jobs_of_kind(job.kind)
        offset, told = self.offset, ""
        patience = OutageTolerance(self.log.warning)
        while True:
            try:
                seen = await asyncio.to_thread(kind.status, job)
                text, offset = await asyncio.to_thread(kind.read_log, job, offset)
                patience.record_answer()
            except ClusterError as error:  # includes errors that a failing ResourceManager reports
                patience.record_outage(error)
                await asyncio.sleep(self.poll_interval_s)
                continue
            for line in text.splitlines():
                self.log.info("%s", line)
            if seen.state.is_final and not text:
                end = {
                    "job": self.job,
                    "state": jobs.state_name(seen.state),
                    "detail": seen.detail,
                    "offset": offset,
                }
                yield TriggerEvent(end)
                return
            told = self._tell(seen, told)
            await asyncio.sleep(0 if text else self.poll_interval_s)

    async def on_kill(self) -> None:
        """End the job, when a user clears or marks the waiting task."""
        job = Job.from_dict(self.job)
        await asyncio.to_thread(jobs.jobs_of_kind(job.kind).end, job)

    def _tell(self, seen: JobStatus, told: str) -> str:
        """Log why the job waits, if that has changed, and return the new status text."""
        words = f"{jobs.state_name(seen.state)} {seen.detail}".strip()
        if words != told and seen.state is Lifecycle.STARTING:
            self.log.info("waiting: %s", seen.detail or "for resources")
        return words


class HopsMLRunTrigger(BaseTrigger):
    """Trigger that waits until a run has ended; its event is the result, as ``jobs.result_of_run`` returns it."""

    def __init__(self, run: str, project_url: str, poll_interval_s: float = 60.0) -> None:
        super().__init__()
        self.run_name, self.project_url, self.poll_interval_s = run, project_url, poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments, from which a triggerer creates this trigger again."""
        content = {"run": self.run_name, "project_url": self.project_url, "poll_interval_s": self.poll_interval_s}
        return "hopsml.airflow.triggers.HopsMLRunTrigger", content

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll the run until it has ended, and then yield the only event."""
        patience = OutageTolerance(self.log.warning)
        while True:
            try:
                found = await asyncio.to_thread(jobs.result_if_ended, self.run_name, self.project_url)
                patience.record_answer()
            except StorageError as error:
                patience.record_outage(error)
                found = None
            if found is not None:
                yield TriggerEvent(found)
                return
            await asyncio.sleep(self.poll_interval_s)
