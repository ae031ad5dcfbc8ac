"""Hyper-parameter search as pure decisions: no thread, socket, clock or disk in this folder.

    space.py        what may be tried; parameter.py, conditions.py, boundaries.py: one hyper-parameter, and what it needs
    trial.py        what a trial is called
    contract.py     Searcher (what to try next) and Stopper (who goes on), by number of the trial
    events.py       what can happen to a search, and what follows from it
    dispatch.py     the state machine between searcher, stopper and whoever carries trials out; its parts: attempts.py, one
                    trial at a time; ask_tell.py, who speaks to searcher and stopper; supply.py, where the next trial comes
                    from; places.py and prefetch.py, lanes; groups.py, distributed trainings; bounds.py, deadline and budget
    ledger.py       what is known of each trial; journal.py, the same as lines from which a search goes on
    registry.py     searchers and stoppers by name
    messages.py     what the driver and the processes that carry trials out say to each other

One algorithm a file besides. Imports nothing of hopsml but ``hopsml.errors``.
"""
