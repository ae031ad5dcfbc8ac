"""Searches of the benchmark by optuna: FOLDER EXECUTORS CASE; writes result.json.

The processes share a journal file. Each imports optuna and takes the next trial when it is free, as in optuna's
documentation.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.scripts import search_workload as work

STUDY = "benchmark"


def study_in(folder: str) -> Any:
    """Return the study that all processes share."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(Path(folder, "journal.log"))))
    return optuna.create_study(study_name=STUDY, storage=storage, direction="maximize", load_if_exists=True)


def work_on(folder: str, trials: int) -> None:
    """Run trials in this process until all processes have made enough."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.RUNNING)
    stop = optuna.study.MaxTrialsCallback(trials, states=states)

    def objective(trial: Any) -> float:
        if trial.number >= trials:
            trial.study.stop()
            raise optuna.TrialPruned
        seconds = work.SIXTEEN[trial.number]
        time.sleep(seconds)
        return seconds

    study_in(folder).optimize(objective, callbacks=[stop])


if __name__ == "__main__":
    folder, executors, case, *worker = sys.argv[1:]
    if worker:
        work_on(folder, len(work.SIXTEEN))
        sys.exit(0)
    study_in(folder)
    began = time.monotonic()
    processes = [subprocess.Popen([sys.executable, *sys.argv, "worker"]) for _ in range(int(executors))]
    for process in processes:
        if process.wait():
            sys.exit(process.returncode)
    study = study_in(folder)
    ended = time.monotonic()
    facts = {"seconds": ended - began, "best": study.best_value, "trials": len(study.trials), "ended": ended}
    fresh = Path(folder, "result.tmp")
    fresh.write_text(json.dumps(facts))
    fresh.rename(Path(folder, "result.json"))
