"""Job store, each of whose methods is one transaction; errors of the database are StoreError with a remedy."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Insert, and_, case, delete, func, insert, or_, select, union, update
from sqlalchemy.exc import IntegrityError

from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError, JobNotFound
from hopsml.service.lifecycle import Ending, JobRecord, TaskLaunch
from hopsml.service.lifecycle.step import state_changes
from hopsml.service.store import database
from hopsml.service.store.database import changes, facts, jobs, launches, leaders, schedules, wishes
from hopsml.service.store.rows import (
    Account,
    ChangeRow,
    JobCount,
    JobFilter,
    JobLimits,
    JobRow,
    Leader,
    NewJob,
    RequestKind,
    RequestRow,
    RowPage,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine, Row
    from sqlalchemy.sql import ColumnElement

# Stores further rows in the transaction of a change; its text argument names what was changed.
Also = Callable[["Connection", str], None]

_JOB_COLUMNS = [jobs.c[name] for name in JobRow.__dataclass_fields__]
AT_ONCE = 1000  # most submissions in progress at the same time
_OVER = [state.value for state in Lifecycle if state.is_final]
_UNFINISHED = [state.value for state in Lifecycle if not state.is_final]
MOST_REQUESTS = 1000  # most requests for a job, such as to pause it; a job can always be cancelled
_REMOVED_AT_ONCE = 100  # most jobs that one submission removes


class StaleRecord(Exception):
    """Error of a write whose job was changed, or whose leader was replaced, in between; nothing was stored."""


class _LeaseObserver:
    """Timer of how long another server's lease has not been renewed, by the clocks of this process."""

    def __init__(self) -> None:
        self._lease: tuple[object, ...] = ()
        self._since = (0.0, 0.0)

    def unchanged_s(self, lease: tuple[object, ...], now: float) -> float:
        """Return the seconds since this lease was first seen.

        It is the larger value of two clocks: ``now`` may be set back, and the monotonic clock stops during a suspension.
        """
        clocks = (now, time.monotonic())
        if lease != self._lease:
            self._lease, self._since = lease, clocks
        return max(here - since for here, since in zip(clocks, self._since, strict=True))


class JobStore:
    """Database of jobs and their state; thread-safe."""

    def __init__(self, engine: Engine, url: str, limits: JobLimits = JobLimits()) -> None:  # noqa: B008 it is frozen
        self._engine, self._url = engine, url
        self.limits = limits
        self._observer = _LeaseObserver()
        self._writing_engine = engine.execution_options(**{database.WRITES: True})

    @classmethod
    def open(cls, url: str, limits: JobLimits = JobLimits()) -> JobStore:  # noqa: B008 it is frozen
        """Create or migrate a database, and open it.

        Args:
            url: URL of the database.
            limits: Limits of one owner's jobs.

        Raises:
            StoreError: The database cannot be reached, or belongs to a newer hopsml.
        """
        return cls(database.open_database(url), url, limits)

    def close(self) -> None:
        """Close all connections to the database."""
        self._engine.dispose()

    @contextmanager
    def write_transaction(self) -> Iterator[Connection]:
        """Open a transaction that writes, as a context. Raises StoreError."""
        with database.convert_errors(self._url), self._writing_engine.begin() as connection:
            yield connection

    @contextmanager
    def read_transaction(self) -> Iterator[Connection]:
        """Open a transaction that only reads, as a context. Raises StoreError."""
        with database.convert_errors(self._url), self._engine.connect() as connection:
            yield connection

    # ------------------------------------------------------------------------------- jobs

    def submit(self, new: NewJob, now: float, also: Also | None = None) -> JobRow:
        """Store a new job in state WAITING, or return the existing job of the same owner and idempotency key.

        Args:
            new: The job.
            now: The time, in seconds since 1970.
            also: Stores further rows in the same transaction.

        Raises:
            ArgumentError: The key was used for another job, or the owner has too many jobs.
        """
        try:
            with self.write_transaction() as connection:
                row = _job(connection, self.insert_job(connection, new, now, "submitted"))
                if also is not None:
                    also(connection, row.id)
                return row
        except IntegrityError:
            return self._submitted_before(new)

    def insert_job(self, connection: Connection, new: NewJob, now: float, cause: str) -> int:
        """Store a new job in state WAITING within a transaction, and return its serial.

        The owner's oldest ended jobs are removed if more are stored than the limits allow. In PostgreSQL, concurrent
        submissions may exceed the limit of unfinished jobs slightly.

        Args:
            connection: The transaction.
            new: The job.
            now: The time, in seconds since 1970.
            cause: Cause of the first state.

        Raises:
            ArgumentError: Too many of the owner's jobs have not ended.
        """
        serial = _insert_job(connection, new, now, cause)
        _check_unfinished(connection, new.owner, self.limits)
        _remove_oldest(connection, new.owner, self.limits)
        return serial

    def _submitted_before(self, new: NewJob) -> JobRow:
        """Return the job that was stored with the same idempotency key. Raises ArgumentError if it is another one."""
        mine = and_(jobs.c.owner == new.owner, jobs.c.idempotency_key == new.idempotency_key)
        with self.read_transaction() as connection:
            row = _job_row(connection.execute(select(*_JOB_COLUMNS).where(mine)).one())
        if (row.spec, row.workspace) != (new.spec, new.workspace):
            raise ArgumentError(
                f"idempotency key {new.idempotency_key!r} was used for another job, {row.id}: use a new key for this one"
            )
        return row

    def job(self, serial: int) -> JobRow:
        """Return a job by its serial. Raises JobNotFound."""
        with self.read_transaction() as connection:
            return _job(connection, serial)

    def jobs(self, wanted: JobFilter | None = None, *, before: int | None = None, limit: int = 100) -> RowPage:
        """Return a page of jobs, the newest first.

        Args:
            wanted: Filter of the jobs; None for all.
            before: Cursor of the previous page; None for the first page.
            limit: Most jobs of the page.
        """
        older = [jobs.c.serial < before] if before is not None else []
        found = self._chosen(wanted or JobFilter(), (jobs.c.serial.desc(),), limit + 1, *older)
        return RowPage(found[:limit], found[limit - 1].serial if len(found) > limit else None)

    def jobs_by_priority(self, wanted: JobFilter, limit: int) -> RowPage:
        """Return jobs by priority, then the oldest first, as queues consider waiting ones.

        The cursor is not None if there are more.

        Args:
            wanted: Filter of the jobs.
            limit: Most jobs to return.
        """
        found = self._chosen(wanted, (jobs.c.priority.desc(), jobs.c.serial), limit + 1)
        return RowPage(found[:limit], found[limit - 1].serial if len(found) > limit else None)

    def last_ended(self, wanted: JobFilter, limit: int) -> RowPage:
        """Return jobs that have ended, the last one first; the cursor is not None if there are more.

        Args:
            wanted: Filter of the jobs.
            limit: Most jobs to return.
        """
        has_ended = jobs.c.state.in_(_OVER)
        found = self._chosen(wanted, (jobs.c.ended_s.desc(), jobs.c.serial.desc()), limit + 1, has_ended)
        return RowPage(found[:limit], found[limit - 1].serial if len(found) > limit else None)

    def _chosen(
        self, wanted: JobFilter, order: Sequence[ColumnElement[Any]], limit: int, *more: ColumnElement[bool]
    ) -> tuple[JobRow, ...]:
        """Return the jobs that match a filter and further conditions, in an order."""
        rules = [
            jobs.c.state.in_([state.value for state in wanted.states]) if wanted.states else None,
            jobs.c.owner == wanted.owner if wanted.owner else None,
            jobs.c.queue == wanted.queue if wanted.queue else None,
            jobs.c.name.icontains(wanted.text, autoescape=True) if wanted.text else None,
            *more,
        ]
        query = select(*_JOB_COLUMNS).where(*(rule for rule in rules if rule is not None))
        with self.read_transaction() as connection:
            return tuple(map(_job_row, connection.execute(query.order_by(*order).limit(limit)).all()))

    def counts(self) -> list[JobCount]:
        """Return the numbers of jobs by queue and state."""
        since = case((jobs.c.tries > 0, jobs.c.ending_since_s), else_=jobs.c.submitted_s)
        query = select(jobs.c.queue, jobs.c.state, func.count().label("count"), func.min(since).label("since_s"))
        with self.read_transaction() as connection:
            rows = connection.execute(query.group_by(jobs.c.queue, jobs.c.state)).all()
        return [JobCount(row[0], Lifecycle(row[1]), row[2], row[3]) for row in rows]

    def living(self) -> list[JobRow]:
        """Return the jobs that have not ended, the oldest first."""
        query = select(*_JOB_COLUMNS).where(jobs.c.state.not_in(_OVER))
        with self.read_transaction() as connection:
            return [_job_row(row) for row in connection.execute(query.order_by(jobs.c.serial))]

    def new(self, known: Container[int], newest: int) -> list[JobRow]:
        """Return unfinished jobs that are not known yet, the oldest first.

        Of two concurrent submissions, the one with the lower serial may be committed later: slightly older serials are
        checked, too.

        Args:
            known: Serials of known jobs.
            newest: The highest known serial.
        """
        recent = select(jobs.c.serial).where(jobs.c.serial > newest - AT_ONCE, jobs.c.state.not_in(_OVER))
        with self.read_transaction() as connection:
            unknown = [serial for serial in connection.execute(recent).scalars() if serial not in known]
            rows = [
                row
                for some in _in_pieces(unknown)
                for row in connection.execute(select(*_JOB_COLUMNS).where(jobs.c.serial.in_(some)))
            ]
        return sorted(map(_job_row, rows), key=lambda row: row.serial)

    def launches(self, serials: Iterable[int]) -> dict[int, tuple[TaskLaunch, ...]]:
        """Return the launches of each job's newest try, in the order in which they were requested."""
        wanted = list(serials)
        found: dict[int, list[TaskLaunch]] = {serial: [] for serial in wanted}
        query = (
            select(launches)
            .join(jobs, and_(jobs.c.serial == launches.c.job, jobs.c.tries == launches.c["try"]))
            .order_by(launches.c.intended_s, launches.c.number, launches.c.tag)
        )
        with self.read_transaction() as connection:
            for some in _in_pieces(wanted):
                for row in connection.execute(query.where(launches.c.job.in_(some))):
                    found[row.job].append(_launch(row))
        return {serial: tuple(each) for serial, each in found.items()}

    def launches_of(self, serial: int, number: int) -> tuple[TaskLaunch, ...]:
        """Return the launches of one try of a job, in the order in which they were requested."""
        rule = and_(launches.c.job == serial, launches.c["try"] == number)
        query = select(launches).where(rule).order_by(launches.c.intended_s, launches.c.number, launches.c.tag)
        with self.read_transaction() as connection:
            return tuple(map(_launch, connection.execute(query)))

    def ended_before(self, serials: Iterable[int], before_s: float) -> set[int]:
        """Return those of these jobs that ended before a time, in seconds since 1970, or whose rows were removed."""
        found: set[int] = set()
        with self.read_transaction() as connection:
            newest = connection.execute(select(func.max(jobs.c.serial))).scalar() or 0
            for some in _in_pieces(list(serials)):
                there = set(connection.execute(select(jobs.c.serial).where(jobs.c.serial.in_(some))).scalars())
                found.update(serial for serial in some if serial not in there and serial < newest)
                rule = and_(jobs.c.serial.in_(some), jobs.c.state.in_(_OVER), jobs.c.ended_s < before_s)
                found.update(connection.execute(select(jobs.c.serial).where(rule)).scalars())
        return found

    def code_in_use(self, since_s: float) -> set[str]:
        """Return the digests of the code of schedules, and of jobs that have not ended before ``since_s``."""
        of_jobs = select(jobs.c.workspace).where(or_(jobs.c.state.not_in(_OVER), jobs.c.ended_s >= since_s))
        with self.read_transaction() as connection:
            return set(connection.execute(union(of_jobs, select(schedules.c.workspace))).scalars())

    def forget_code(self, serial: int) -> None:
        """Record that the code of an ended job is not needed any more."""
        with self.write_transaction() as connection:
            rule = and_(jobs.c.serial == serial, jobs.c.state.in_(_OVER))
            connection.execute(update(jobs).where(rule).values(workspace=""))

    def changes(self, serial: int, after: int = 0) -> list[ChangeRow]:
        """Return the state changes of a job, the oldest first; ``after`` selects those with a higher id."""
        query = select(changes).where(changes.c.job == serial, changes.c.id > after).order_by(changes.c.id)
        with self.read_transaction() as connection:
            return [_change_row(row) for row in connection.execute(query)]

    def newest_changes(self, after: int | None, limit: int) -> list[tuple[ChangeRow, str]]:
        """Return state changes of all jobs, the oldest first, each with the job's name.

        Args:
            after: Return the first ones with a higher id; None for the newest ones.
            limit: Most changes to return.
        """
        query = select(changes, jobs.c.name).join(jobs, jobs.c.serial == changes.c.job).limit(limit)
        if after is None:
            query = query.order_by(changes.c.id.desc())
        else:
            query = query.where(changes.c.id > after).order_by(changes.c.id)
        with self.read_transaction() as connection:
            rows = [(_change_row(row), row.name) for row in connection.execute(query)]
        return rows if after is not None else rows[::-1]

    def save(
        self, before: JobRecord, after: JobRecord, lead: Leader, now: float, account: Account | None = None
    ) -> JobRecord:
        """Store the new state of a job, and return its record with the new version.

        Args:
            before: The record on which the decision was based.
            after: The new record.
            lead: Lease under which the decision was made.
            now: The time, in seconds since 1970.
            account: State of the scheduler to store with the job; None to leave it unchanged.

        Raises:
            StaleRecord: The job has changed, the lease is not the newest one, or the stored state is final.
        """
        values = _columns(after, account)
        with self.write_transaction() as connection:
            check_lead(connection, lead)
            rule = and_(jobs.c.serial == before.serial, jobs.c.version == before.version, jobs.c.state.not_in(_OVER))
            done = connection.execute(update(jobs).where(rule).values(**values, version=before.version + 1))
            if done.rowcount != 1:
                raise StaleRecord(f"job {before.serial}")
            known = {launch.tag: launch for launch in before.launches}
            for launch in after.launches:
                _store_launch(connection, after, launch, known.get(launch.tag))
            for task, state, cause in state_changes(before, after):
                _change(connection, after.serial, after.tries, task, state, cause, now)
        return replace(after, version=before.version + 1)

    def move(self, serial: int, queue: str, priority: int, lead: Leader, now: float) -> None:
        """Store another queue or priority of a job, with a change that all followers of the job receive.

        Args:
            serial: Serial of the job.
            queue: Name of the queue.
            priority: Priority in the queue.
            lead: Lease of this server.
            now: The time, in seconds since 1970.

        Raises:
            StaleRecord: ``lead`` is not the newest lease.
        """
        with self.write_transaction() as connection:
            check_lead(connection, lead)
            connection.execute(update(jobs).where(jobs.c.serial == serial).values(queue=queue, priority=priority))
            row, cause = _job(connection, serial), f"moved: queue {queue}, priority {priority}"
            _change(connection, serial, row.tries, "", row.state, cause, now)

    # ------------------------------------------------------------------------------- requests

    def add_request(
        self, serial: int, kind: RequestKind, value: str, who: str, now: float, also: Also | None = None
    ) -> RequestRow:
        """Store a user's request for a job.

        Args:
            serial: Serial of the job.
            kind: What is requested.
            value: Argument of the request.
            who: The user.
            now: The time, in seconds since 1970.
            also: Stores further rows in the same transaction.

        Raises:
            JobNotFound: There is no such job.
            ArgumentError: The job has had too many requests.
        """
        with self.write_transaction() as connection:
            row = _job(connection, serial)
            _check_requests(connection, row, kind)
            if also is not None:
                also(connection, row.id)
            values = {"job": serial, "kind": kind.value, "value": value, "who": who, "at_s": now, "answer": ""}
            number = _inserted(connection, insert(wishes).values(values))
        return RequestRow(number, serial, kind, value, who, now)

    def open_requests(self) -> list[RequestRow]:
        """Return the requests that were neither applied nor refused, the oldest first."""
        query = select(wishes).where(wishes.c.answered_s.is_(None)).order_by(wishes.c.id)
        with self.read_transaction() as connection:
            return [_wish(row) for row in connection.execute(query)]

    def answer(self, wish: int, answer: str, lead: Leader, now: float) -> None:
        """Store the outcome of a request: "" if it was applied, else the reason why not.

        Args:
            wish: Number of the request.
            answer: The outcome.
            lead: Lease of this server.
            now: The time, in seconds since 1970.

        Raises:
            StaleRecord: ``lead`` is not the newest lease.
        """
        with self.write_transaction() as connection:
            check_lead(connection, lead)
            connection.execute(update(wishes).where(wishes.c.id == wish).values(answered_s=now, answer=answer))

    # ------------------------------------------------------------------------------- the service itself

    def service(self, made: str) -> str:
        """Return the unique name of this service, in lower case, which is stored in the database.

        Args:
            made: Name to store if there is none yet.
        """
        with self.write_transaction() as connection:
            query = select(facts.c.value).where(facts.c.name == "service")
            if (known := connection.execute(query).scalar()) is None:
                connection.execute(insert(facts).values(name="service", value=made))
            return known or made

    def acquire_lease(
        self,
        holder: str,
        address: str,
        now: float,
        lease_s: float,
        is_gone: Callable[[str], bool] = lambda holder: False,
        term: int = 0,
    ) -> Leader:
        """Acquire or renew the leader's lease for ``lease_s`` seconds; return the newest lease, perhaps another server's.

        Another server's lease has expired when its time has passed, or when it was not renewed for ``lease_s`` seconds by
        the clocks of this process: the clock by which it was written may have been wrong.

        Args:
            holder: Unique name of this process among all servers.
            address: URL of this process.
            now: The time, in seconds since 1970.
            lease_s: Validity of the lease, in seconds.
            is_gone: Returns True for a holder that has certainly ended, so that its lease can be replaced at once.
            term: Term of the caller's own lease, if it has not expired; 0: a new lease is acquired, under the next term.
        """
        with self.write_transaction() as connection:
            query = select(leaders).where(leaders.c.id == 1).with_for_update()
            row = connection.execute(query).one_or_none()
            if row is not None and row.holder != holder and not self._is_over(row, now, lease_s, is_gone):
                return Leader(row.holder, row.address, row.until_s, row.term)
            is_renewed = row is not None and row.holder == holder and row.term == term
            number = term if is_renewed else (row.term if row is not None else 0) + 1
            values = {"holder": holder, "address": address, "until_s": now + lease_s, "term": number}
            if row is None:
                connection.execute(insert(leaders).values(id=1, **values))
            else:
                connection.execute(update(leaders).where(leaders.c.id == 1).values(values))
            return Leader(holder, address, now + lease_s, number)

    def _is_over(self, row: Row[Any], now: float, lease_s: float, is_gone: Callable[[str], bool]) -> bool:
        """Return True if another server's lease has expired, or its process has ended."""
        unchanged_s = self._observer.unchanged_s((row.holder, row.term, row.until_s), now)
        return row.until_s <= now or unchanged_s >= lease_s or is_gone(row.holder)

    def still_leads(self, lead: Leader) -> bool:
        """Return True if no server has acquired a newer lease."""
        with self.read_transaction() as connection:
            return _leads(connection, lead)

    def resign(self, lead: Leader) -> None:
        """End a lease, so that another server can lead at once."""
        rule = (leaders.c.holder == lead.holder) & (leaders.c.term == lead.term)
        with self.write_transaction() as connection:
            connection.execute(update(leaders).where(rule).values(until_s=0.0))  # expired, by whatever clock


def check_lead(connection: Connection, lead: Leader) -> None:
    """Raise StaleRecord unless a lease is the newest one. No other server can lead before the transaction has ended."""
    if not _leads(connection, lead, is_locked=True):
        raise StaleRecord(f"the lead (term {lead.term})")


def _leads(connection: Connection, lead: Leader, *, is_locked: bool = False) -> bool:
    """Return True if a lease is the newest one; optionally lock it until the transaction ends."""
    query = select(leaders.c.holder, leaders.c.term).where(leaders.c.id == 1)
    row = connection.execute(query.with_for_update(read=True) if is_locked else query).one_or_none()
    return row is not None and (row.holder, row.term) == (lead.holder, lead.term)


# ------------------------------------------------------------------------------------- rows


def _job(connection: Connection, serial: int) -> JobRow:
    """Return a job by its serial, within a transaction. Raises JobNotFound."""
    row = connection.execute(select(*_JOB_COLUMNS).where(jobs.c.serial == serial)).one_or_none()
    if row is None:
        raise JobNotFound(f"there is no job {serial}; `hopsml jobs ls --all` lists the existing ones")
    return _job_row(row)


def _check_unfinished(connection: Connection, owner: str, limits: JobLimits) -> None:
    """Raise ArgumentError if an owner's unfinished jobs exceed the limits."""
    mine = and_(jobs.c.owner == owner, jobs.c.state.in_(_UNFINISHED))
    query = select(func.count(), func.coalesce(func.sum(jobs.c.spec_length), 0)).where(mine)
    count, length = connection.execute(query).one()
    if limits.unfinished and count > limits.unfinished:
        raise ArgumentError(
            f"{owner} has {count - 1} jobs that have not ended, and at most {limits.unfinished} of one user are queued; "
            "wait until some have ended, cancel some by hopsml jobs cancel, or request a higher --unfinished-jobs from "
            "the administrator"
        )
    if limits.unfinished and length > limits.unfinished_length:
        raise ArgumentError(
            f"the job files of {owner}'s jobs that have not ended, and of this one, have {length >> 20} Mi characters; at "
            f"most {limits.unfinished_length >> 20} Mi of one user are queued; wait until some have ended, or put long "
            "lists into files of the workspace"
        )


def _remove_oldest(connection: Connection, owner: str, limits: JobLimits) -> None:
    """Remove the rows of an owner's oldest ended jobs that exceed the limits."""
    query = select(func.count(), func.coalesce(func.sum(jobs.c.spec_length), 0)).where(jobs.c.owner == owner)
    count, length = connection.execute(query).one()
    if not limits.stored or (count <= limits.stored and length <= limits.stored_length):
        return
    ended = select(jobs.c.serial, jobs.c.spec_length).where(jobs.c.owner == owner, jobs.c.state.in_(_OVER))
    removed: list[int] = []
    for serial, its_length in connection.execute(ended.order_by(jobs.c.serial).limit(_REMOVED_AT_ONCE)).all():
        if count <= limits.stored and length <= limits.stored_length:
            break
        removed.append(serial)
        count, length = count - 1, length - its_length
    for table in (wishes, changes, launches):
        connection.execute(delete(table).where(table.c.job.in_(removed)))
    connection.execute(delete(jobs).where(jobs.c.serial.in_(removed)))


def _check_requests(connection: Connection, row: JobRow, kind: RequestKind) -> None:
    """Raise ArgumentError if so many requests about a job are stored that one more is refused."""
    mine = wishes.c.job == row.serial
    if kind is RequestKind.CANCEL:  # never refused, unless many are open
        mine = and_(mine, wishes.c.kind == kind.value, wishes.c.answered_s.is_(None))
    if connection.execute(select(func.count()).where(mine)).scalar_one() >= MOST_REQUESTS:
        raise ArgumentError(
            f"job {row.id} has had {MOST_REQUESTS} requests to pause, resume or move it, and no more are stored: clone it, "
            f"and cancel it by hopsml jobs cancel {row.id}"
        )


def _insert_job(connection: Connection, new: NewJob, now: float, cause: str) -> int:
    """Insert a new job with its first state change; return its serial."""
    values = {
        **asdict(new), "spec_length": len(new.spec),
        "state": Lifecycle.WAITING.value, "ending": Ending.NONE.value, "cause": cause,
        "tries": 0, "failed_submissions": 0, "preemptions": 0, "failed_fills": 0, "attained_s": 0.0, "waited_s": 0.0,
        "placement": None, "submitted_s": now, "placed_s": 0.0, "started_s": 0.0, "ending_since_s": 0.0,
        "ended_s": 0.0, "version": 1, "target": None, "shrinking_since_s": 0.0,
    }  # fmt: skip
    serial = _inserted(connection, insert(jobs).values(values))
    _change(connection, serial, 0, "", Lifecycle.WAITING, cause, now)
    return serial


def _inserted(connection: Connection, row: Insert) -> int:
    """Insert a row, and return its integer key."""
    key = connection.execute(row).inserted_primary_key
    assert key is not None
    return int(key[0])


def _job_row(row: Row[Any]) -> JobRow:
    """Convert a row to a job."""
    values = dict(row._mapping)
    return JobRow(**{**values, "state": Lifecycle(values["state"])})


def _launch(row: Row[Any]) -> TaskLaunch:
    """Convert a row to a launch."""
    return TaskLaunch(
        row.task,
        row.number,
        row.tag,
        Lifecycle(row.state),
        row.application_id,
        intended_s=row.intended_s,
        seen_s=row.seen_s,
        cause=row.cause,
    )


def _change_row(row: Row[Any]) -> ChangeRow:
    """Convert a row to a state change."""
    return ChangeRow(row.id, row.job, row._mapping["try"], row.task, Lifecycle(row.state), row.cause, row.at_s)


def _wish(row: Row[Any]) -> RequestRow:
    """Convert a row to a request."""
    return RequestRow(row.id, row.job, RequestKind(row.kind), row.value, row.who, row.at_s, row.answered_s, row.answer)


def _columns(record: JobRecord, account: Account | None) -> Mapping[str, Any]:
    """Return the columns of a job that a record and the scheduler's state determine."""
    return {
        "state": record.state.value,
        "ending": record.ending.value,
        "cause": record.cause,
        "tries": record.tries,
        "retries": record.retries,
        "failed_submissions": record.failed_submissions,
        "preemptions": record.preemptions,
        "placed_s": record.placed_s,
        "started_s": record.started_s,
        "ending_since_s": record.ending_since_s,
        "ended_s": record.ended_s,
        "shrinking_since_s": record.shrinking_since_s,
        **(asdict(account) if account is not None else {}),
    }


def _store_launch(connection: Connection, record: JobRecord, launch: TaskLaunch, before: TaskLaunch | None) -> None:
    """Insert a launch, or update it if it has changed."""
    values = {
        "state": launch.state.value,
        "application_id": launch.application_id,
        "seen_s": launch.seen_s,
        "cause": launch.cause,
    }
    if before is None:
        new = {"tag": launch.tag, "job": record.serial, "try": record.tries, "task": launch.task}
        new |= {"number": launch.number, "intended_s": launch.intended_s}
        connection.execute(insert(launches).values({**new, **values}))
    elif any(getattr(before, name) != getattr(launch, name) for name in ("state", "application_id", "seen_s", "cause")):
        connection.execute(update(launches).where(launches.c.tag == launch.tag).values(values))


def _change(
    connection: Connection, serial: int, number: int, task: str, state: Lifecycle, cause: str, now: float
) -> None:
    """Insert a state change of a job or task."""
    values = {"job": serial, "try": number, "task": task, "state": state.value, "cause": cause, "at_s": now}
    connection.execute(insert(changes).values(values))


def _in_pieces(wanted: Sequence[int], length: int = 500) -> Iterator[Sequence[int]]:
    """Yield pieces of a list, as a database limits the number of parameters of a query."""
    return (wanted[at : at + length] for at in range(0, len(wanted), length))


def record_of(row: JobRow, found: tuple[TaskLaunch, ...], ruled: JobRecord) -> JobRecord:
    """Return the record of a job from its row and launches.

    Args:
        row: The job's row.
        found: Launches of its newest try.
        ruled: Record with the tasks and limits that its job file specifies.
    """
    names = ("serial", "state", "cause", "tries", "retries", "failed_submissions", "preemptions", "placed_s", "started_s",
             "ending_since_s", "ended_s", "shrinking_since_s", "version")  # fmt: skip
    return replace(ruled, **{name: getattr(row, name) for name in names}, ending=Ending(row.ending), launches=found)
