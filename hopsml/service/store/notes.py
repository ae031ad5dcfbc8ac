"""Notes and tags that users attach to runs, their saved views of the list of runs, and the data sets that jobs name."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from hopsml.core.decoding import checked
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError, PermissionRefused
from hopsml.service.store.database import jobs, run_notes, views
from hopsml.service.store.store import JobStore

LOOKED_AT = 5000  # newest jobs with a data set that are examined
SHOWN = 5  # newest jobs that are returned for one data set


class _Located(msgspec.Struct):
    """The field of a named data set with its location."""

    url: str


class _NamesSome(msgspec.Struct):
    """The fields of a job's specification that name data sets."""

    dataset: str | None = None
    datasets: dict[str, _Located] = {}


_decode = checked(msgspec.json.Decoder(_NamesSome).decode)


@dataclass(frozen=True, slots=True)
class DatasetJob:
    """A job that names a data set; ``name`` is the data set's name in the job file, "" in the field ``dataset``."""

    id: str
    owner: str
    state: Lifecycle
    submitted_s: float
    name: str = ""


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


def dataset_uses(store: JobStore) -> list[DatasetUse]:
    """Return the data sets that jobs name, the most recently used first."""
    return [
        DatasetUse(url, len(those), sum(not job.state.is_final for job in those), tuple(those[:SHOWN]))
        for url, those in _jobs_by_dataset(store).items()
    ]


def dataset_use(store: JobStore, url: str, owner: str | None = None) -> DatasetUse | None:
    """Return one data set with the jobs that name it, or with those of one owner; None if there are none."""
    those = _jobs_by_dataset(store, owner).get(url, [])
    living = sum(not job.state.is_final for job in those)
    return DatasetUse(url, len(those), living, tuple(those[:SHOWN])) if those else None


def _jobs_by_dataset(store: JobStore, owner: str | None = None) -> dict[str, list[DatasetJob]]:
    """Return the newest jobs by the URLs of the data sets that they name; those of one owner if it is given."""
    columns = (jobs.c.serial, jobs.c.name, jobs.c.owner, jobs.c.state, jobs.c.submitted_s, jobs.c.spec)
    # Most jobs name none: those are excluded by the query, before their specifications are parsed.
    named = or_(jobs.c.spec.contains('"dataset"'), jobs.c.spec.contains('"datasets"'))
    query = select(*columns).where(named).order_by(jobs.c.serial.desc()).limit(LOOKED_AT)
    if owner is not None:
        query = query.where(jobs.c.owner == owner)
    found: dict[str, list[DatasetJob]] = {}
    with store.read_transaction() as connection:
        for row in connection.execute(query):
            for url, name in _named(row.spec).items():
                job = DatasetJob(f"{row.name}-{row.serial}", row.owner, Lifecycle(row.state), row.submitted_s, name)
                found.setdefault(url, []).append(job)
    return found


def _named(spec: str) -> dict[str, str]:
    """Return the URLs of the data sets that a job's specification names, with their names there, "" without one."""
    try:
        known = _decode(spec)
    except msgspec.DecodeError:  # written by another version of hopsml
        return {}
    found = {one.url: name for name, one in known.datasets.items()}
    return {known.dataset: "", **found} if known.dataset else found


LONGEST_NOTE, LONGEST_TAG, MOST_TAGS = 4000, 40, 20
LONGEST_NAME, LONGEST_QUERY, MOST_VIEWS = 100, 2000, 200  # limits of a view; most views of a user


@dataclass(frozen=True, slots=True)
class RunNote:
    """Note and tags of one run; ``who`` wrote them last, at ``at_s`` seconds since 1970."""

    run: str
    note: str
    tags: tuple[str, ...]
    who: str
    at_s: float


@dataclass(frozen=True, slots=True)
class SavedView:
    """Saved view of the list of runs, with the page's ``query``; others see it if it is ``shared``."""

    id: int
    owner: str
    name: str
    query: str
    shared: bool
    at_s: float


def checked_tags(tags: list[str]) -> tuple[str, ...]:
    """Return the tags without duplicates, in order. Raises ArgumentError for a tag that a filter could not name."""
    found = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    for tag in found:
        if len(tag) > LONGEST_TAG or not tag.isprintable() or any(letter in ' ,"' for letter in tag):
            raise ArgumentError(
                f"tag {tag[:LONGEST_TAG]!r}: a tag has at most {LONGEST_TAG} characters that can be seen, and neither "
                "blanks nor commas nor quotes; join its words with -"
            )
    if len(found) > MOST_TAGS:
        raise ArgumentError(f"{len(found)} tags: a run has at most {MOST_TAGS}; leave some out")
    return found


class Notes:
    """Notes and views of one job store."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def all(self) -> dict[str, RunNote]:
        """Return all notes, by run id."""
        with self._store.read_transaction() as connection:
            return {row.run: _note(row) for row in connection.execute(select(run_notes))}

    def get(self, run: str) -> RunNote | None:
        """Return the note of one run; None if there is none."""
        with self._store.read_transaction() as connection:
            row = connection.execute(select(run_notes).where(run_notes.c.run == run)).one_or_none()
        return None if row is None else _note(row)

    def store_note(self, run: str, note: str, tags: list[str], who: str, now: float) -> RunNote:
        """Store a note that replaces the run's previous one. Raises ArgumentError if it is too long."""
        if len(note) > LONGEST_NOTE:
            raise ArgumentError(
                f"a note of {len(note)} characters: at most {LONGEST_NOTE}; what is longer belongs into a file"
            )
        kept = RunNote(run, note.replace("\0", ""), checked_tags(tags), who, now)
        values = {"note": kept.note, "tags": list(kept.tags), "who": who, "at_s": now}
        try:
            with self._store.write_transaction() as connection:
                if not connection.execute(update(run_notes).where(run_notes.c.run == run).values(values)).rowcount:
                    connection.execute(insert(run_notes).values(run=run, **values))
        except IntegrityError:  # two first notes at the same moment: the other one is stored now
            return self.store_note(run, note, tags, who, now)
        return kept

    def views(self, user: str) -> list[SavedView]:
        """Return a user's views, and those that others share, by name."""
        mine = or_(views.c.owner == user, views.c.shared)
        with self._store.read_transaction() as connection:
            return [SavedView(*row) for row in connection.execute(select(views).where(mine).order_by(views.c.name))]

    def save(self, owner: str, name: str, query: str, shared: bool, now: float) -> SavedView:
        """Store a view that replaces the owner's view of the same name.

        Args:
            owner: The user.
            name: Name of the view.
            query: Query of the page's URL.
            shared: True if other users see the view.
            now: The time, in seconds since 1970.

        Raises:
            ArgumentError: The owner has too many views, or the name or query is too long.
        """
        if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
            raise ArgumentError(f"view {name[:40]!r}: its name has 1 to {LONGEST_NAME} characters that can be seen")
        if len(query) > LONGEST_QUERY or "\0" in query:
            raise ArgumentError(f"view {name!r}: a query of {len(query)} characters: at most {LONGEST_QUERY}")
        values = {"query": query, "shared": shared, "at_s": now}
        own = (views.c.owner == owner) & (views.c.name == name)
        try:
            with self._store.write_transaction() as connection:
                if not connection.execute(update(views).where(own).values(values)).rowcount:
                    count = len(connection.execute(select(views.c.id).where(views.c.owner == owner)).all())
                    if count >= MOST_VIEWS:
                        raise ArgumentError(f"{owner} has {count} views, which is the most; delete one first")
                    connection.execute(insert(views).values(owner=owner, name=name, **values))
                return SavedView(*connection.execute(select(views).where(own)).one())
        except IntegrityError:  # saved twice at the same moment: the other one is stored now
            return self.save(owner, name, query, shared, now)

    def delete(self, view: int, user: str, of_others: bool) -> None:
        """Delete a view of the user, or any shared view.

        Args:
            view: Id of the view.
            user: The user.
            of_others: True if the user may delete shared views of others.

        Raises:
            ArgumentError: There is no such view that the user can see.
            PermissionRefused: The view belongs to another user.
        """
        with self._store.write_transaction() as connection:
            row = connection.execute(select(views).where(views.c.id == view)).one_or_none()
            if row is None or not (row.shared or row.owner == user):
                raise ArgumentError(f"there is no view {view}; look at the list again")
            if row.owner != user and not of_others:
                raise PermissionRefused(
                    f"the view {row.name!r} is {row.owner}'s; ask them, or an operator, to delete it"
                )
            connection.execute(delete(views).where(views.c.id == view))


def _note(row: object) -> RunNote:
    """Convert a row to a note."""
    return RunNote(row.run, row.note, tuple(row.tags), row.who, row.at_s)  # type: ignore[attr-defined]  # SQLAlchemy's
