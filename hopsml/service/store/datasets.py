"""What job files name as their data sets, and which jobs those are."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sqlalchemy import select

from hopsml.service.store.schema import jobs
from hopsml.service.store.store import JobStore
from hopsml.states import Lifecycle

LOOKED_AT = 5000  # jobs that name one, the newest
SHOWN = 5  # of one data set, the newest


class _NamesOne(msgspec.Struct):
    dataset: str | None = None


_DECODER = msgspec.json.Decoder(_NamesOne)


@dataclass(frozen=True, slots=True)
class DatasetJob:
    """A job that names it."""

    id: str
    owner: str
    state: Lifecycle
    submitted_s: float


@dataclass(frozen=True, slots=True)
class DatasetUse:
    """``count``: jobs that name it, of which ``jobs`` are the newest; ``living``: how many of them are not over."""

    url: str
    count: int
    living: int
    jobs: tuple[DatasetJob, ...]


def uses(store: JobStore) -> list[DatasetUse]:
    """Data sets, the one that was used last first."""
    columns = (jobs.c.serial, jobs.c.name, jobs.c.owner, jobs.c.state, jobs.c.submitted_s, jobs.c.spec)
    # Most jobs name none: those are left out before their files are looked into.
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
    try:
        return _DECODER.decode(spec).dataset
    except msgspec.DecodeError:  # of another hopsml, whose files are others
        return None
