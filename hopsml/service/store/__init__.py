"""The service's memory: SQLite in a file, or PostgreSQL. Every change of state is a row, with its cause and its time.

store = JobStore.open("sqlite:///service.db")     # made, or brought up to date; StoreError where that cannot be
job = store.submit(NewJob(...), now)           # the row of the same submission where it came twice
store.wish(job.serial, Wish(CANCEL), "alice", now)
store.save(before, after, now)                 # one transaction; StaleRecord where somebody else was quicker
"""

from hopsml.service.store.rows import ChangeRow, JobRow, NewJob, WishKind, WishRow
from hopsml.service.store.store import JobStore, StaleRecord

__all__ = ["ChangeRow", "JobRow", "JobStore", "NewJob", "StaleRecord", "WishKind", "WishRow"]
