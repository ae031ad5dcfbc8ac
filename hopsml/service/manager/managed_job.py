"""In-memory representation of a job that has not ended."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hopsml.service.lifecycle import JobRecord, TaskLaunch
from hopsml.service.manager import requests
from hopsml.service.spec import JobSpec
from hopsml.service.store import JobRow
from hopsml.service.store.store import record_of


@dataclass(slots=True)
class ManagedJob:
    """Job that has not ended, as the manager holds it in memory.

    Attributes:
        row: The database row as it was read; only its queue, priority, account and number of tries are updated. The
            state of the job is in ``record``.
        spec: The validated job file.
        record: The current record of the job's state and launches.
    """

    row: JobRow
    spec: JobSpec
    record: JobRecord

    @property
    def id(self) -> str:
        """Job ID as displayed to users."""
        return self.row.id

    @classmethod
    def of(cls, row: JobRow, launches: tuple[TaskLaunch, ...]) -> ManagedJob:
        """Create a managed job from its database row and its launches.

        The job file in the row was validated when the job was submitted.

        Raises:
            ValueError: This version of hopsml does not accept the job file.
        """
        spec = JobSpec.model_validate_json(row.spec)
        record = record_of(row, launches, requests.rules(spec))
        placement = requests.placement_of(row.target or row.placement)
        return cls(row, spec, replace(record, slots=requests.slots(spec, placement) if record.holds_slots else ()))
