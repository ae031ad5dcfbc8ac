"""Data sets that job files name, with the jobs that use them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sqlalchemy import select

from hopsml.core.states import Lifecycle
from hopsml.service.store.schema import jobs
from hopsml.service.store.store import JobStore

LOOKED_AT = 5000  # newest jobs with a data set that are examined
SHOWN = 5  # newest jobs that are returned for one data set


class _NamesOne(msgspec.Struct):
    """The field of a job's specification that names a data set."""

    dataset: str | None = None


_DECODER = msgspec.json.Decoder(_NamesOne)


@dataclass(frozen=True, slots=True)
class DatasetJob:
    """A job that names a data set."""

    id: str
    owner: str
    state: Lifecycle
    submitted_s: float


@dataclass(frozen=True, slots=True)
class DatasetUse:
    """A data set with its jobs.

    Attributes:
        url: URL of the data set.
        count: Number of jobs that name it.
        living: Number of those that have not ended.
        jobs: The newest of them.
    """

    url: str
    count: int
    living: int
    jobs: tuple[DatasetJob, ...]


def uses(store: JobStore) -> list[DatasetUse]:
    """Return the data sets that jobs name, the most recently used first."""
    columns = (jobs.c.serial, jobs.c.name, jobs.c.owner, jobs.c.state, jobs.c.submitted_s, jobs.c.spec)
    # Most jobs name none: those are excluded by the query, before their specifications are parsed.
    query = select(*columns).where(jobs.c.spec.contains('"dataset"')).order_by(jobs.c.serial.desc()).limit(LOOKED_AT)
    found: dict[str, list[DatasetJob]] = {}
    with store.reading() as connection:
        for row in connection.execute(query):
            if url := _named(row.spec):
                job = DatasetJob(f"{row.name}-{row.serial}", row.owner, Lifecycle(row.state), row.submitted_s)
                found.setdefault(url, []).append(job)
    return [
        DatasetUse(url, len(those), sum(not job.state.is_final for job in those), tuple(those[:SHOWN]))
        for url, those in found.items()
    ]


def _named(spec: str) -> str | None:
    """Return the data set that a job's specification names; None if there is none."""
    try:
        return _DECODER.decode(spec).dataset
    except msgspec.DecodeError:  # written by another version of hopsml
        return None
