"""Check if a serving on a cluster that does not answer has ended, and end it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

from hopsml import submission
from hopsml.cluster.shared import processes
from hopsml.core import settings
from hopsml.errors import ApplicationNotFound, ClusterError
from hopsml.serving.server_records import ServerRecord
from hopsml.tracking import machine
from hopsml.yarn import ResourceManager

_YARNS = "application_"  # prefix of YARN's application IDs
POLL_S = 0.2


def how_ended(record: ServerRecord) -> str:
    """Return the text about how a serving's application has ended; empty if it runs or its state is unknown here."""
    if not record.is_on_cluster:
        return ""
    if _is_known_here(record) and _driver_has_ended(record):
        return f"its driver, process {record.pid}, has ended"
    return said_by_yarn(record.application) if record.application.startswith(_YARNS) else ""


def end(record: ServerRecord, timeout_s: float) -> bool:
    """End a serving whose driver does not answer, and return True if it has ended.

    Args:
        record: The server.
        timeout_s: Timeout in seconds.

    Raises:
        ClusterError: YARN refuses to end the application.
    """
    if _is_known_here(record) and not _driver_has_ended(record):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(record.pid, signal.SIGKILL)
    if record.application.startswith(_YARNS):
        submission.end(record.application, timeout_s=timeout_s)
        return True
    return wait(record, timeout_s)


def wait(record: ServerRecord, timeout_s: float) -> bool:
    """Wait for the end of a serving's application; False after the timeout, or if its state is unknown here."""
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
    """Return the text about how an application has ended; empty if it runs or YARN does not answer."""
    try:
        found = ResourceManager.of_environment().application(application)
    except ApplicationNotFound:
        return f"YARN does not know {application} any more"
    except ClusterError:
        return ""
    return f"{application} is over: {found.final_status} {found.diagnostics}".strip() if found.is_final else ""


def _is_known_here(record: ServerRecord) -> bool:
    """Return True if the driver's pid is valid here: on the same machine, of the same user, in the same PID namespace.

    A container may have the host name of its machine, but another PID namespace.
    """
    is_here = (record.machine, record.user) == (socket.gethostname(), settings.user_name())
    return is_here and record.pid_namespace in ("", machine.pid_namespace())


def _driver_has_ended(record: ServerRecord) -> bool:
    """Return True if the driver process has ended, even if its pid was reused."""
    began = record.process_started
    return processes.has_ended(record.pid) or (began is not None and machine.process_started(record.pid) != began)
