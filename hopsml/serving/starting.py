"""Start of a serving's supervisor on this machine, and the wait for its replicas."""

from __future__ import annotations

import importlib.util
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from hopsml.core import extras, file_locks, settings
from hopsml.core.delegation_tokens import environment_as_given
from hopsml.errors import ArgumentError, ServingError
from hopsml.serving import definitions, server_records
from hopsml.serving.definitions import ServingDefinition, ServingFolder
from hopsml.serving.messages import ServedVersion, ServingSettings, SupervisorAnswer, decode_answer
from hopsml.serving.routes import Route
from hopsml.storage import python_child, trust

_NEEDS = ("uvicorn", "httptools", "orjson")
LAST_LINES = 2000  # characters of a log in an error message
SHORTEST_TOKEN = 16
SUBMIT_ENDS_S = 30.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")

_started: dict[int, subprocess.Popen[bytes]] = {}  # supervisors that this process started, to be reaped when they end


def check_server_packages() -> None:
    """Check that all packages that a server needs are installed.

    Raises:
        ArgumentError: A package is missing.
    """
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(f"serving needs {', '.join(missing)}: {extras.install_command('serving')}")


def choose_token(token: str | None, without_token: bool, host: str) -> str:
    """Return the token required for requests: the given one, else a random one; "" for none.

    Raises:
        ArgumentError: The token is too short or invalid, or the server without a token would accept remote connections.
    """
    if without_token:
        if token is not None:
            raise ArgumentError("token and without_token=True exclude each other")
        if host not in LOOPBACK:
            raise ArgumentError(
                f"without_token=True with host={host!r}: anyone who reaches this machine could send requests; listen "
                "at 127.0.0.1 behind a proxy with authentication, or use a token"
            )
        return ""
    if token is not None and (
        len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token
    ):
        raise ArgumentError(
            f"token: a token must have at least {SHORTEST_TOKEN} ASCII characters without spaces; omit it for a "
            "random one"
        )
    return secrets.token_urlsafe(32) if token is None else token


@contextmanager
def exclusive_folder(name: str, project: str) -> Iterator[tuple[ServingFolder, int]]:
    """Provide the folder of a serving and its locked lock file; a process that inherits the lock holds it further.

    Raises:
        AlreadyServed: Another server has the name.
    """
    folder = definitions.ensure_serving_folder(name, project)
    lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(lock, name, project)
        record = server_records.read_server_record(name, project)
        if record is not None and not (record.is_here and record.folder == str(folder.path)):
            if not server_records.describe_end(record):
                raise server_records.already_served_error(record, definitions.server_url(name, project))
            server_records.release_cluster_server(project, record)
        yield folder, lock
    finally:
        os.close(lock)


def _lock(lock: int, name: str, project: str) -> None:
    """Acquire the lock of a serving; wait for the spark-submit of an ended driver, which releases it later."""
    deadline = time.monotonic() + SUBMIT_ENDS_S
    while True:
        if file_locks.try_lock(lock):
            return
        record = server_records.read_server_record(name, project)
        if record is None:
            raise ServingError(f"another process is starting or stopping '{name}'; try again in a moment")
        if not server_records.describe_end(record) or time.monotonic() > deadline:
            raise server_records.already_served_error(record, definitions.server_url(name, project))
        time.sleep(0.1)


def start_supervisor(
    definition: ServingDefinition,
    route: Route,
    versions: dict[int, ServedVersion],
    token: str,
    timeout_s: float,
    lifeline: int,
) -> int:
    """Start the supervisor, and return its pid when all replicas answer; after an error, no process remains.

    Args:
        definition: Definition of the serving.
        route: First route.
        versions: Versions of the route.
        token: Token required for requests.
        timeout_s: Timeout in seconds.
        lifeline: File descriptor at whose end the serving stops; -1 for none.

    Raises:
        AlreadyServed: Another server has the name.
        ServingError: The serving could not be started.
    """
    project = settings.project_url()
    with exclusive_folder(definition.name, project) as (folder, lock):
        folder.write_token(token)
        chosen = make_settings(definition, project, route, versions)
        folder.settings.write_bytes(msgspec.json.encode(chosen))
        began = folder.supervisor_log.stat().st_size if folder.supervisor_log.exists() else 0
        answer = _announced(folder, lock, lifeline, timeout_s)
        if answer.error:
            said = (
                folder.supervisor_log.read_bytes()[began:].decode(errors="replace") if answer.error == "ended" else ""
            )
            why = f"its supervisor ended at once: {said[-LAST_LINES:]}" if said else answer.error
            raise ServingError(f"'{definition.name}' could not be started: {why}\nlogs: {folder.path}")
        return answer.pid


def make_settings(
    definition: ServingDefinition, project: str, route: Route, versions: dict[int, ServedVersion]
) -> ServingSettings:
    """Return the settings of a start for its supervisor; ``project`` is the project's URL."""
    return ServingSettings(
        definition.name,
        project,
        definition.model,
        definition.host,
        definition.port,
        definition.replicas,
        definition.log_requests,
        definition.limits,
        route,
        versions,
        tuple(sorted(trust.trusted_owners())),
    )


def register_child(process: subprocess.Popen[bytes]) -> None:
    """Register a child process to be reaped when it has ended."""
    _started[process.pid] = process


def _announced(folder: ServingFolder, lock: int, lifeline: int, timeout_s: float) -> SupervisorAnswer:
    """Start the supervisor, and return its announcement of success or failure."""
    reader, writer = os.pipe()
    kept = [lock, writer, *([lifeline] if lifeline >= 0 else [])]
    with open(reader, "rb") as said:
        try:
            with folder.supervisor_log.open("ab") as output:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "hopsml.serving.supervisor",
                        str(folder.path),
                        *map(str, (lock, writer, lifeline)),
                    ],
                    pass_fds=kept,
                    cwd="/",
                    env=environment_as_given(python_child.environment()),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # it outlives a notebook, and must not receive Ctrl-C of its terminal
                )
        finally:
            os.close(writer)
        register_child(process)
        try:
            answers = select.select([said], [], [], timeout_s)[0]
        except BaseException:  # Ctrl-C: the start is abandoned
            _end(process)
            raise
        if not answers:
            _end(process)
            return SupervisorAnswer(f"its replicas did not answer within {timeout_s:g} s (start_timeout)")
        line = said.readline()
    answer = decode_answer(line) if line else SupervisorAnswer("ended")
    if answer.error:
        reap(process.pid, 60.0)
    return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process and wait for its end."""
    process.terminate()
    reap(process.pid, 60.0)


def wait_for_exit(pid: int) -> int:
    """Wait for the end of a supervisor that this process started, and return its exit status.

    Returns:
        0 for a supervisor that another process started.
    """
    process = _started.get(pid)
    return 0 if process is None else process.wait()


def reap(pid: int, timeout_s: float) -> None:
    """Wait for the end of a supervisor if this process started it, and kill it after the timeout."""
    process = _started.pop(pid, None)
    if process is not None:
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_end(name: str, pid: int, timeout_s: float) -> None:
    """Wait until the lock of a serving is free.

    Args:
        name: Name of the serving.
        pid: Process ID of its supervisor, which is reaped if it is a child; 0 if unknown.
        timeout_s: Timeout in seconds.

    Raises:
        ServingError: The lock is not free in time.
    """
    reap(pid, timeout_s)
    folder = definitions.ensure_serving_folder(name, settings.project_url())
    deadline = time.monotonic() + timeout_s
    with open(folder.lock, "ab") as lock:
        while True:
            if file_locks.try_lock(lock.fileno()):
                return
            if time.monotonic() > deadline:
                raise ServingError(
                    f"'{name}' has not ended within {timeout_s:g} s; end process {pid}, and see its logs: {folder.path}"
                )
            time.sleep(0.02)
