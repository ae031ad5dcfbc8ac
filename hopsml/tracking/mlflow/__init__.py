"""Every hopsml run as one MLflow run, if a tracking URI is set; sent from the driver alone.

    link.py      driver: passes events of runs through a queue and a pipe to ...
    sender.py    ... a separate process, the only one that imports MLflow and waits for its server
    publish.py   the steps: open, log, complete from the run directory, register
    store.py     MLflow's client
    entries.py   a run's files as params, tags and metrics; no side effects
    order.py     mlflow.json: where a run must be sent, and whether it has been sent

All reports of a run are in its run directory anyway, so no second copy is needed: data that could not be sent is read
from there, by the same process later, by the next run of the project, or by ``hopsml runs sync``.
"""
