"""Driver side of a search; the decisions are made in ``hopsml.search``.

call.py       checked arguments of a search; start.py: start of a search from them
session.py    one thread: events of the trials -> dispatch -> its actions, in order
executors.py  execution of the actions: on trial slots (lanes), or as separate runs (groups.py)
writer.py     the event log (journal), written at once; a thread for the files that show the progress
state.py      state of the search for observers
handle.py     the user's handle: a future; result.py, table.py, study.py: its results
recorded.py   a search of an earlier session, from its event log; reader.py: the same for readers only
"""
