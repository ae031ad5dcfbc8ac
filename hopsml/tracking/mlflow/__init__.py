"""Every hopsml run as one MLflow run, where a tracking URI is set; from the driver alone.

    link.py      driver: what happens goes through a queue and a pipe to ...
    sender.py    ... a process of its own, the only one that imports MLflow and waits for its server
    publish.py   the steps: open, log, complete from the run directory, register
    store.py     MLflow's client
    entries.py   a run's files as params, tags and metrics; pure
    order.py     mlflow.json: where a run is to be sent, and whether it has been

What a run has reported lies in its run directory anyway, so nothing needs to be kept twice: what could not be sent is read
back from there, by the same process later, by the next run of the project, or by ``hopsml runs sync``.
"""
