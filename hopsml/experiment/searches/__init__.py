"""A search on the driver; what is decided is decided in ``hopsml.search``.

call.py       what the user asked for, checked; start.py: from there to a search under way
session.py    one thread: events of the trials -> dispatch -> its actions, in order
executors.py  who carries actions out: on lanes, or as runs of their own (groups.py)
writer.py     the journal at once; a thread for the files that show how far the search is
state.py      how the search stands, for whoever looks at it
handle.py     the user's handle: a future; result.py, table.py, study.py: what it gives
recorded.py   a search of an earlier session, from its journal; reader.py: the same for whoever only reads it
"""
