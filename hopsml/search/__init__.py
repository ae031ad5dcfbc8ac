"""Hyper-parameter search as pure decisions: no thread, socket, clock or disk in this folder.

    space.py        what may be tried
    contract.py     Searcher (what to try next) and Stopper (who goes on), by number of the trial
    events.py       what can happen to a search, and what follows from it
    dispatch.py     the state machine between searcher, stopper and whoever carries trials out
    messages.py     what the driver and the processes that carry trials out say to each other

One algorithm a file besides. Imports nothing of hopsml but ``hopsml.errors``.
"""
