"""Hyper-parameter search as pure decisions: no thread, socket, clock or disk in this folder.

    space.py        what may be tried; parameter.py, conditions.py, boundaries.py: one hyper-parameter, and what it needs
    trial.py        what a trial is called
    contract.py     Searcher (what to try next) and Stopper (who goes on), by number of the trial
    events.py       what can happen to a search, and what follows from it
    dispatch.py     the state machine between searcher, stopper and whoever carries trials out
    registry.py     searchers and stoppers by name
    messages.py     what the driver and the processes that carry trials out say to each other

One algorithm a file besides. Imports nothing of hopsml but ``hopsml.errors``.
"""
