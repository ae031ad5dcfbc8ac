"""State machines and algorithms of hyper-parameter search, free of threads, sockets, clocks and disk access.

    contract.py     Searcher (suggests configurations) and Stopper (stops, pauses or resumes trials), by trial number
    space/          search space: parameters, configurations as JSON (parameter.py); conditions, trial ids (space.py)
    algorithms/     searchers and stoppers, one family per file
    dispatch/       the state machine of a search:
                    dispatch.py    top level: event in, actions out
                    events.py      events and actions
                    attempts.py    events of a trial's attempts, retries
                    ask_tell.py    all calls to searcher and stopper, and their log; choice of the next trial
                    lanes.py       assignment of trials to trial slots (lanes)
                    groups.py      assignment of slots to distributed trainings
                    ledger.py      state of each trial
                    journal.py     event log from which an interrupted search is restored; snapshot for display
                    spec.py        parameters of a search, deadline and budget
    registry.py     searchers and stoppers by name
    metric.py       selection of the metric among a trial's values, used by all components
    messages.py     messages between the driver and the processes that run trials

Imports nothing of hopsml but ``hopsml.errors``, ``hopsml.core.extras`` and ``hopsml.core.states``.
"""
