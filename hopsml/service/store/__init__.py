"""Database of the job service: SQLite in a file, or PostgreSQL; each change of state is a row with its cause and time.

store = JobStore.open("sqlite:///service.db")     # created or migrated; raises StoreError on failure
job = store.submit(NewJob(...), now)              # the existing row if the same submission was stored before
store.add_request(job.serial, RequestKind.CANCEL, "", "alice", now)
store.save(before, after, lead, now)              # one transaction; raises StaleRecord after a change in between
"""

from hopsml.service.store.rows import ChangeRow, JobRow, NewJob, RequestKind, RequestRow
from hopsml.service.store.store import JobStore, StaleRecord

__all__ = ["ChangeRow", "JobRow", "JobStore", "NewJob", "RequestKind", "RequestRow", "StaleRecord"]
