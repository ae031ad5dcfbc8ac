"""Hyper-parameter search as pure decisions: no thread, socket, clock or disk in this folder.

    contract.py     Searcher (what to try next) and Stopper (which trials go on), by number of the trial
    space/          what may be tried: parameters and their conditions, configurations as JSON, ids of trials
    algorithms/     searchers and stoppers, one algorithm a file
    dispatch/       dispatch.py: the state machine between searcher, stopper and whoever runs trials; events.py, what can
                    happen and what follows; attempts.py, one trial at a time; ask_tell.py, all calls to searcher and
                    stopper; supply.py, the next trial; lanes.py; groups.py, distributed trainings;
                    limits.py, deadline and budget; ledger.py, the state of each trial; journal.py, the same as lines from
                    which a search is continued
    registry.py     searchers and stoppers by name
    metric.py       which of several values the metric is, the same for all who ask
    snapshot.py     a search at one moment, for whoever shows it, and how long it will take
    messages.py     what the driver and the processes that carry trials out say to each other

One algorithm a file besides. Imports nothing of hopsml but ``hopsml.errors`` and ``hopsml.states``.
"""
