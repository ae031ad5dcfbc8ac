"""Storage of schedules: a job and the record that its schedule started it are stored in one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, insert, or_, select, update

from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError, JobNotFound
from hopsml.service.spec.schedule import DueDecision
from hopsml.service.store.accounts import Tokens
from hopsml.service.store.database import jobs, schedules, wishes
from hopsml.service.store.rows import Leader, NewJob, RequestKind
from hopsml.service.store.store import JobStore, StaleRecord, check_lead

if TYPE_CHECKING:
    from sqlalchemy.engine import Row

MOST = 1000  # most schedules of one owner


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule as it is stored; times are in seconds since 1970.

    ``spec`` is the validated job file as JSON; ``last_job`` is the serial of the job that was started last, or None.
    """

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
    """Schedules of one job store."""

    def __init__(self, store: JobStore) -> None:
        self._store, self._tokens = store, Tokens(store)

    def store_schedule(
        self, owner: str, name: str, *, spec: str, workspace: str, profile: str, planned_s: float, now: float
    ) -> ScheduleRow:
        """Store a schedule, or replace the owner's schedule of the same name.

        Args:
            owner: The user.
            name: Name of the schedule.
            spec: The validated job file as JSON.
            workspace: Digest of the uploaded code.
            profile: Name of the profile that its jobs run under.
            planned_s: Time of its next job, in seconds since 1970.
            now: The time, in seconds since 1970.

        Raises:
            ArgumentError: The owner has too many schedules.
        """
        values: dict[str, Any] = {"spec": spec, "workspace": workspace, "profile": profile, "planned_s": planned_s}
        values |= {"looked_s": now, "note": ""}
        mine = (schedules.c.owner == owner) & (schedules.c.name == name)
        with self._store.write_transaction() as connection:
            changed = update(schedules).where(mine).values(**values, version=schedules.c.version + 1)
            if not connection.execute(changed).rowcount:
                others = select(func.count()).where(schedules.c.owner == owner)
                if connection.execute(others).scalar_one() >= MOST:
                    raise ArgumentError(
                        f"{owner} has {MOST} schedules, which is the limit; remove some (`hopsml schedules rm`)"
                    )
                new = {"owner": owner, "name": name, "is_paused": False, "last_job": None, "version": 1}
                connection.execute(insert(schedules).values(**new, **values))
            return _row(connection.execute(select(*_COLUMNS).where(mine)).one())

    def all(self) -> list[ScheduleRow]:
        """Return all schedules, the oldest first."""
        with self._store.read_transaction() as connection:
            return [_row(row) for row in connection.execute(select(*_COLUMNS).order_by(schedules.c.id))]

    def one(self, number: int) -> ScheduleRow:
        """Return a schedule by its number. Raises JobNotFound."""
        with self._store.read_transaction() as connection:
            row = connection.execute(select(*_COLUMNS).where(schedules.c.id == number)).one_or_none()
        if row is None:
            raise JobNotFound(f"there is no schedule {number}; `hopsml schedules ls` lists the existing ones")
        return _row(row)

    def pause(self, number: int, is_paused: bool, planned_s: float, now: float) -> None:
        """Pause a schedule, or resume it with the next job at ``planned_s``.

        Args:
            number: Number of the schedule.
            is_paused: True to pause, False to resume.
            planned_s: Time of its next job, in seconds since 1970.
            now: The time, in seconds since 1970.
        """
        values = {"is_paused": is_paused, "planned_s": planned_s, "looked_s": now, "version": schedules.c.version + 1}
        with self._store.write_transaction() as connection:
            connection.execute(update(schedules).where(schedules.c.id == number).values(values))

    def remove(self, number: int) -> None:
        """Delete a schedule, but not the jobs that it has started."""
        with self._store.write_transaction() as connection:
            connection.execute(delete(schedules).where(schedules.c.id == number))

    def started(self, number: int, serial: int) -> None:
        """Record the job that a user started from this schedule as its last job."""
        with self._store.write_transaction() as connection:
            connection.execute(update(schedules).where(schedules.c.id == number).values(last_job=serial))

    def owner_may_submit(self, row: ScheduleRow, now: float) -> bool:
        """Return True if the owner of a schedule could still submit its job."""
        return self._tokens.may_submit(row.owner, now)

    def schedules_to_check(self, now: float) -> list[ScheduleRow]:
        """Return the active schedules whose time has come, or whose plan was made before the clock was set back."""
        rule = or_(schedules.c.planned_s <= now, schedules.c.looked_s > now)
        query = select(*_COLUMNS).where(schedules.c.is_paused.is_(False), rule).order_by(schedules.c.id)
        with self._store.read_transaction() as connection:
            return [_row(row) for row in connection.execute(query)]

    def stop(self, row: ScheduleRow, note: str, lead: Leader, now: float) -> None:
        """Pause a schedule for the reason in ``note``. Raises StaleRecord as ``carry_out`` does."""
        rule = (schedules.c.id == row.id) & (schedules.c.version == row.version)
        values = {"is_paused": True, "note": note, "looked_s": now, "version": row.version + 1}
        with self._store.write_transaction() as connection:
            check_lead(connection, lead)
            if connection.execute(update(schedules).where(rule).values(values)).rowcount != 1:
                raise StaleRecord(f"schedule {row.id}")

    def running(self, rows: Iterable[ScheduleRow]) -> set[int]:
        """Return the serials of the schedules' last jobs that have not ended."""
        wanted = [row.last_job for row in rows if row.last_job is not None]
        over = [state.value for state in Lifecycle if state.is_final]
        with self._store.read_transaction() as connection:
            query = select(jobs.c.serial).where(jobs.c.serial.in_(wanted), jobs.c.state.not_in(over))
            return set(connection.execute(query).scalars())

    def carry_out(self, row: ScheduleRow, due: DueDecision, new: NewJob, lead: Leader, now: float) -> int | None:
        """Store the new state of a schedule and the job that is due, once for each planned time.

        Args:
            row: The schedule.
            due: Result of the evaluation of its plan.
            new: The job to be stored if one is due.
            lead: Lease of this server.
            now: The time, in seconds since 1970.

        Returns:
            The serial of the stored job; None if none was due or it was stored before.

        Raises:
            StaleRecord: ``lead`` is not the newest lease, or the schedule has changed; nothing is stored.
            ArgumentError: The owner has too many jobs; nothing is stored.
        """
        once = replace(new, idempotency_key=f"schedule {row.id} at {row.planned_s:.0f}")
        mine = (jobs.c.owner == new.owner) & (jobs.c.idempotency_key == once.idempotency_key)
        with self._store.write_transaction() as connection:
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
                wish = {"job": row.last_job, "kind": RequestKind.CANCEL.value, "value": "", "answer": "", "at_s": now}
                connection.execute(insert(wishes).values(**wish, who=f"schedule {row.name}-{row.id}"))
        return serial


def _row(row: Row[Any]) -> ScheduleRow:
    """Convert a row of the table to a schedule."""
    return ScheduleRow(**row._mapping)
