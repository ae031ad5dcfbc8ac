"""Whether a serving on a cluster that does not answer has ended, and making sure of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

from hopsml import settings, submission
from hopsml.cluster.shared import processes
from hopsml.errors import ApplicationNotFound, ClusterError
from hopsml.serving.claims import ServerRecord
from hopsml.tracking import machine
from hopsml.yarn import ResourceManager

_YARNS = "application_"  # how YARN's ids begin
POLL_S = 0.2


def how_ended(record: ServerRecord) -> str:
    """In words; empty while its application runs, and where that cannot be known from here."""
    if not record.is_on_cluster:
        return ""
    if _is_known_here(record) and _driver_has_ended(record):
        return f"its driver, process {record.pid}, has ended"
    return said_by_yarn(record.application) if record.application.startswith(_YARNS) else ""


def end(record: ServerRecord, timeout_s: float) -> bool:
    """End a serving whose driver does not answer; whether it has ended. Raises ClusterError where YARN refuses."""
    if _is_known_here(record) and not _driver_has_ended(record):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(record.pid, signal.SIGKILL)
    if record.application.startswith(_YARNS):
        submission.end(record.application, timeout_s=timeout_s)
        return True
    return wait(record, timeout_s)


def wait(record: ServerRecord, timeout_s: float) -> bool:
    """Until its application is over; False where it is not in time, or that cannot be known from here."""
    deadline = time.monotonic() + timeout_s
    is_yarns = record.application.startswith(_YARNS)
    if not is_yarns and not _is_known_here(record):
        return False
    while time.monotonic() < deadline:
        if said_by_yarn(record.application) if is_yarns else _driver_has_ended(record):
            return True
        time.sleep(POLL_S)
    return False


def said_by_yarn(application: str) -> str:
    """How an application has ended; empty where it has not, or YARN does not answer."""
    try:
        found = ResourceManager.of_environment().application(application)
    except ApplicationNotFound:
        return f"YARN does not know {application} any more"
    except ClusterError:
        return ""
    return f"{application} is over: {found.final_status} {found.diagnostics}".strip() if found.over else ""


def _is_known_here(record: ServerRecord) -> bool:
    """Whether the driver's pid means its process here: not in another container, though that has the machine's name."""
    is_here = (record.machine, record.user) == (socket.gethostname(), settings.user_name())
    return is_here and record.pid_namespace in ("", machine.pid_namespace())


def _driver_has_ended(record: ServerRecord) -> bool:
    """Also where another process has its pid by now."""
    began = record.process_started
    return processes.has_ended(record.pid) or (began is not None and machine.process_started(record.pid) != began)
