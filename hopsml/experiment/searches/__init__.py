"""The hands of a search, on the driver; what is decided is decided in ``hopsml.search``.

call.py       what the user asked for, checked
session.py    one thread: events of the lanes -> dispatch -> what follows, in order
scribe.py     one thread: the journal first, then the files that show how far the search is
board.py      what anybody may see of the search
handle.py     the user's handle: a future; result.py: what it gives
continued.py  a search of an earlier session, from its journal
"""
