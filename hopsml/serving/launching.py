"""Start of a serving on a cluster: submission, and the wait for its replicas' answers or the reason of a failure."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time

from hopsml import submission
from hopsml.core import settings
from hopsml.core.profiles import Profile
from hopsml.errors import ClusterError, ServingError
from hopsml.serving import access, endings, starting, submitter
from hopsml.serving.access import ServingAccess
from hopsml.serving.definitions import ServingDefinition
from hopsml.serving.messages import ServedVersion, ServingSettings
from hopsml.serving.places import ServingFolder
from hopsml.serving.routes import Route
from hopsml.storage import python_child

POLL_S, ASK_YARN_S = 0.2, 2.0
END_S = 60.0

_submitters: dict[tuple[str, str], subprocess.Popen[bytes]] = {}  # (name, project) -> process of spark-submit


def start(
    definition: ServingDefinition,
    profile: Profile,
    route: Route,
    versions: dict[int, ServedVersion],
    token: str,
    timeout_s: float,
) -> None:
    """Start a serving on a cluster; returns when all replicas answer. After an error, no process remains.

    Args:
        definition: Definition of the serving.
        profile: Profile of the cluster.
        route: First route.
        versions: Versions of the route.
        token: Token required for requests.
        timeout_s: Timeout in seconds.

    Raises:
        AlreadyServed: Another server has the name.
        ArgumentError: The profile or definition is not suitable.
        ServingError: The serving could not be started.
    """
    project = settings.project_url()
    with starting.exclusive_folder(definition.name, project) as (folder, lock):
        launch = secrets.token_hex(8)
        chosen = starting.chosen_settings(definition, project, route, versions)
        submitter.plan(profile, folder, definition.name, launch, definition.replicas)  # check first
        access.write(ServingAccess(launch, profile.name, token, secrets.token_urlsafe(32), chosen))
        folder.write_token(token)
        folder.application.unlink(missing_ok=True)
        began = folder.submission_log.stat().st_size if folder.submission_log.exists() else 0
        process = _submit(folder, lock, chosen, profile, launch)
        try:
            error = _awaited(folder, process, chosen, launch, timeout_s)
        except BaseException:  # Ctrl-C: the start is abandoned
            _end(folder, process, chosen)
            raise
        if error:
            _end(folder, process, chosen)
            said = folder.submission_log.read_bytes()[began:].decode(errors="replace")[-starting.LAST_LINES :]
            raise ServingError(f"'{definition.name}' could not be started: {error}\n{said}\nlogs: {folder.path}")


def _submit(
    folder: ServingFolder, lock: int, chosen: ServingSettings, profile: Profile, launch: str
) -> subprocess.Popen[bytes]:
    """Start the submitter process, which inherits the lock of the serving."""
    words = (str(folder.path), profile.name, chosen.name, launch, str(chosen.replicas), str(lock))
    environment = {**python_child.environment(), "HOPSML_PROJECT_URL": chosen.project}
    with folder.submission_log.open("ab") as output:
        process = subprocess.Popen(
            # -P: the process loads profiles, but not modules, from the working directory
            [os.path.abspath(sys.executable), "-P", "-m", "hopsml.serving.submitter", *words],
            pass_fds=[lock],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # it outlives a notebook, and must not receive Ctrl-C of its terminal
        )
    starting.remember(process)
    reap(chosen.name, chosen.project)  # of a serving that ended before
    _submitters[chosen.name, chosen.project] = process
    return process


def _awaited(
    folder: ServingFolder, process: subprocess.Popen[bytes], chosen: ServingSettings, launch: str, timeout_s: float
) -> str:
    """Wait for the outcome of a start, and return the error; empty if it succeeded."""
    deadline = time.monotonic() + timeout_s
    asked_s = time.monotonic()
    while time.monotonic() < deadline:
        has_ended = process.poll() is not None
        over = ""
        if time.monotonic() - asked_s > ASK_YARN_S:
            asked_s = time.monotonic()
            over = _over(folder)
        outcome = access.read_outcome(chosen.name, chosen.project, launch)
        if outcome is not None:
            return outcome.error
        if has_ended and (process.returncode or not folder.application.exists()):
            return f"its driver ended at once, with exit status {process.returncode}"
        if over:
            return over
        time.sleep(POLL_S)
    return f"its replicas did not answer within {timeout_s:g} s (start_timeout)"


def _over(folder: ServingFolder) -> str:
    """Return the text about how a detached YARN application has ended; empty if it runs or there is none."""
    return endings.said_by_yarn(folder.application.read_text()) if folder.application.exists() else ""


def reap(name: str, project: str) -> None:
    """Wait for the end of spark-submit, if this process started it.

    Args:
        name: Name of the serving, which must have ended.
        project: URL of the project.
    """
    process = _submitters.pop((name, project), None)
    if process is not None:
        starting.reap(process.pid, END_S)


def _end(folder: ServingFolder, process: subprocess.Popen[bytes], chosen: ServingSettings) -> None:
    """End the application of a failed start, and delete its tokens."""
    if process.poll() is None:
        process.terminate()
    reap(chosen.name, chosen.project)
    if folder.application.exists():
        with contextlib.suppress(ClusterError):
            submission.end(folder.application.read_text(), timeout_s=END_S)
    folder.write_token("")
    access.forget(chosen.name, chosen.project)
