"""Program in Airflow's environment that forks processes of program.py, with the common modules already imported.

Airflow's imports take longer than most tests. A line of JSON on standard input requests a process:

    {"arguments": [...], "environment": {...}, "folder": "where it runs", "output": "a file"}

The answer is one number, the pid. After the process has ended, its exit status is in the file OUTPUT.exit (-9: killed by
signal 9). Processes end with this one, which ends with its input. _AIRFLOW__AS_LIBRARY prevents Airflow from reading its
settings before they exist; each process reads them later.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

IMPORTED = (
    "airflow.sdk", "airflow.models.dagrun", "airflow.models.dagbag", "airflow.models.trigger", "airflow.models.xcom",
    "airflow.serialization.definitions.dag", "airflow.jobs.scheduler_job_runner", "airflow.providers_manager",
    "airflow.api_fastapi.execution_api.app", "airflow.api_fastapi.execution_api.routes",
    "airflow.sdk.execution_time.supervisor", "airflow.sdk.execution_time.task_runner", "starlette.testclient",
    "hopsml.airflow", "hopsml.airflow.operators", "hopsml.airflow.triggers", "hopsml.airflow.sensors",
)  # fmt: skip

outputs: dict[int, str] = {}  # of running processes


def note_ended(*_: object) -> None:
    """Store the exit statuses of ended processes."""
    while outputs:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        path = outputs.pop(pid) + ".exit"
        with open(f"{path}.part", "w") as file:
            file.write(str(os.waitstatus_to_exitcode(status)))
        os.replace(f"{path}.part", path)


def become(asked: dict[str, Any], parent: int) -> list[str]:
    """Set up the new process as if it had been started with this, and return program.py's arguments."""
    from hopsml.core.processes import die_with_parent

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    die_with_parent(parent)
    outputs.clear()
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    for target, path, how in (
        (0, os.devnull, os.O_RDONLY),
        (1, asked["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        (2, asked["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, how, 0o644)
        os.dup2(opened, target)
        os.close(opened)
    from airflow import settings

    settings.initialize()
    arguments: list[str] = asked["arguments"]
    return arguments


def serve() -> list[str]:
    """Fork until the input ends; returns only in the new processes, with their arguments."""
    for name in IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, note_ended)
    parent = os.getpid()
    answers = os.dup(1)
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        # A process that ends at once is recorded only once it is known.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            os.close(answers)
            return become(asked, parent)
        outputs[pid] = asked["output"]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        os.write(answers, b"%d\n" % pid)
    sys.exit()


if __name__ == "__main__":
    import program  # next to this file

    arguments = serve()
    program.main(*arguments)
