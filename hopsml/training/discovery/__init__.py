"""Discovery of addresses among the tasks of a job through files on the project's store.

Each worker writes its address there, and others read it. The package needs no optional dependency, because workers
use it.
"""
