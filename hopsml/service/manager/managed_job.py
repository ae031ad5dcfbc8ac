"""A job that is not over, as the manager holds it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hopsml.service.lifecycle import JobRecord, TaskLaunch
from hopsml.service.manager import requests
from hopsml.service.spec import JobSpec
from hopsml.service.store import JobRow
from hopsml.service.store.store import record_of


@dataclass(slots=True)
class ManagedJob:
    """``row`` as it was read, but for its queue and priority; how it stands is in ``record``."""

    row: JobRow
    spec: JobSpec
    record: JobRecord

    @property
    def id(self) -> str:
        """As people call it."""
        return self.row.id

    @classmethod
    def of(cls, row: JobRow, launches: tuple[TaskLaunch, ...]) -> ManagedJob:
        """From the store's rows; the job file in them was checked when it came."""
        spec = JobSpec.model_validate_json(row.spec)
        record = record_of(row, launches, requests.rules(spec))
        placement = requests.placement_of(row.target or row.placement)
        return cls(row, spec, replace(record, slots=requests.slots(spec, placement) if record.holds_slots else ()))
