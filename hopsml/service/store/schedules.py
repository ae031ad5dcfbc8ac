"""Schedules in the store: a job and the note that it was started are one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, insert, or_, select, update

from hopsml.errors import ArgumentError, JobNotFound
from hopsml.service.lifecycle.timetable import Due
from hopsml.service.store.rows import Leader, NewJob, WishKind
from hopsml.service.store.schema import jobs, schedules, wishes
from hopsml.service.store.store import JobStore, StaleRecord, check_lead
from hopsml.service.store.tokens import Tokens
from hopsml.states import Lifecycle

if TYPE_CHECKING:
    from sqlalchemy.engine import Row

MOST = 1000  # of one owner


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule. ``spec``: the job file as JSON, checked; ``last_job``: the serial of the one before, or None."""

    id: int
    name: str
    owner: str
    spec: str
    workspace: str
    profile: str
    is_paused: bool
    planned_s: float
    looked_s: float
    last_job: int | None
    note: str
    version: int


_COLUMNS = [schedules.c[name] for name in ScheduleRow.__dataclass_fields__]


class Schedules:
    """The schedules of one store."""

    def __init__(self, store: JobStore) -> None:
        self._store, self._tokens = store, Tokens(store)

    def put(
        self, owner: str, name: str, *, spec: str, workspace: str, profile: str, planned_s: float, now: float
    ) -> ScheduleRow:
        """A new one, or other words for the one of this owner and name."""
        values: dict[str, Any] = {"spec": spec, "workspace": workspace, "profile": profile, "planned_s": planned_s}
        values |= {"looked_s": now, "note": ""}
        mine = (schedules.c.owner == owner) & (schedules.c.name == name)
        with self._store.writing() as connection:
            changed = update(schedules).where(mine).values(**values, version=schedules.c.version + 1)
            if not connection.execute(changed).rowcount:
                others = select(func.count()).where(schedules.c.owner == owner)
                if connection.execute(others).scalar_one() >= MOST:
                    raise ArgumentError(
                        f"{owner} has {MOST} schedules, and more are not kept: remove some (`hopsml schedules rm`)"
                    )
                new = {"owner": owner, "name": name, "is_paused": False, "last_job": None, "version": 1}
                connection.execute(insert(schedules).values(**new, **values))
            return _row(connection.execute(select(*_COLUMNS).where(mine)).one())

    def all(self) -> list[ScheduleRow]:
        """Those that there are, the oldest first."""
        with self._store.reading() as connection:
            return [_row(row) for row in connection.execute(select(*_COLUMNS).order_by(schedules.c.id))]

    def one(self, number: int) -> ScheduleRow:
        """One, by its number. Raises JobNotFound."""
        with self._store.reading() as connection:
            row = connection.execute(select(*_COLUMNS).where(schedules.c.id == number)).one_or_none()
        if row is None:
            raise JobNotFound(f"there is no schedule {number}; `hopsml schedules ls` lists those that there are")
        return _row(row)

    def pause(self, number: int, is_paused: bool, planned_s: float, now: float) -> None:
        """Let it rest, or go on from ``planned_s``."""
        values = {"is_paused": is_paused, "planned_s": planned_s, "looked_s": now, "version": schedules.c.version + 1}
        with self._store.writing() as connection:
            connection.execute(update(schedules).where(schedules.c.id == number).values(values))

    def remove(self, number: int) -> None:
        """Start nothing more; jobs that it has started stay."""
        with self._store.writing() as connection:
            connection.execute(delete(schedules).where(schedules.c.id == number))

    def started(self, number: int, serial: int) -> None:
        """This job was started for it, by hand."""
        with self._store.writing() as connection:
            connection.execute(update(schedules).where(schedules.c.id == number).values(last_job=serial))

    def owner_may_submit(self, row: ScheduleRow, now: float) -> bool:
        """True if the owner of a schedule could still submit its job."""
        return self._tokens.may_submit(row.owner, now)

    def to_look_at(self, now: float) -> list[ScheduleRow]:
        """Those whose time has come, or whose plan was made by a clock that was put back since."""
        rule = or_(schedules.c.planned_s <= now, schedules.c.looked_s > now)
        query = select(*_COLUMNS).where(schedules.c.is_paused.is_(False), rule).order_by(schedules.c.id)
        with self._store.reading() as connection:
            return [_row(row) for row in connection.execute(query)]

    def stop(self, row: ScheduleRow, note: str, lead: Leader, now: float) -> None:
        """Pause a schedule for the reason in ``note``. Raises StaleRecord as ``carry_out`` does."""
        rule = (schedules.c.id == row.id) & (schedules.c.version == row.version)
        values = {"is_paused": True, "note": note, "looked_s": now, "version": row.version + 1}
        with self._store.writing() as connection:
            check_lead(connection, lead)
            if connection.execute(update(schedules).where(rule).values(values)).rowcount != 1:
                raise StaleRecord(f"schedule {row.id}")

    def running(self, rows: Iterable[ScheduleRow]) -> set[int]:
        """Serials of those last jobs that are not over."""
        wanted = [row.last_job for row in rows if row.last_job is not None]
        over = [state.value for state in Lifecycle if state.is_final]
        with self._store.reading() as connection:
            query = select(jobs.c.serial).where(jobs.c.serial.in_(wanted), jobs.c.state.not_in(over))
            return set(connection.execute(query).scalars())

    def carry_out(self, row: ScheduleRow, due: Due, new: NewJob, lead: Leader, now: float) -> int | None:
        """Store how a schedule stands now, and the job that is due, once for each planned time; the job's serial.

        Raises StaleRecord if ``lead`` is not the newest lease, or the schedule was changed since, and ArgumentError if the
        owner has too many jobs: nothing is stored then.
        """
        once = replace(new, idempotency_key=f"schedule {row.id} at {row.planned_s:.0f}")
        mine = (jobs.c.owner == new.owner) & (jobs.c.idempotency_key == once.idempotency_key)
        with self._store.writing() as connection:
            check_lead(connection, lead)
            serial = None
            if due.starts and connection.execute(select(jobs.c.serial).where(mine)).scalar() is None:
                serial = self._store.insert_job(connection, once, now, f"by schedule {row.name}-{row.id}")
            values: dict[str, Any] = {"planned_s": due.after.planned_s, "looked_s": due.after.looked_s}
            values |= {"note": due.after.note, "version": row.version + 1}
            values |= {"last_job": serial} if serial is not None else {}
            rule = (schedules.c.id == row.id) & (schedules.c.version == row.version)
            if connection.execute(update(schedules).where(rule).values(values)).rowcount != 1:
                raise StaleRecord(f"schedule {row.id}")
            if due.cancels and serial is not None and row.last_job is not None:
                wish = {"job": row.last_job, "kind": WishKind.CANCEL.value, "value": "", "answer": "", "at_s": now}
                connection.execute(insert(wishes).values(**wish, who=f"schedule {row.name}-{row.id}"))
        return serial


def _row(row: Row[Any]) -> ScheduleRow:
    return ScheduleRow(**row._mapping)
