"""Functions of ``hopsml.serving``, which start, change and stop servings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hopsml.core import settings
from hopsml.errors import (
    ArgumentError,
    ArgumentTypeError,
    ModelNotFound,
    ServingError,
    ServingNotFound,
    StorageError,
)
from hopsml.model import serving_load
from hopsml.serving import client, definitions, server_records, starting, submitter
from hopsml.serving.definitions import (
    RUNNING,
    STOPPED,
    UNKNOWN,
    ServingDefinition,
    ServingFolder,
    ServingLimits,
    ServingStatus,
)
from hopsml.serving.messages import (
    ChangeRoute,
    Command,
    LogsRequest,
    ServedVersion,
    StatusRequest,
    StopServing,
    SupervisorAnswer,
)
from hopsml.serving.routes import Route
from hopsml.serving.server_records import ServerRecord
from hopsml.storage.filesystem import for_url

STATUS_TIMEOUT_S = 10.0
ROLL_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 90.0  # requests drain, and the request log is uploaded


def start(
    name: str,
    version: int | str | None = None,
    *,
    model: str | None = None,
    host: str | None = None,
    port: int | None = None,
    replicas: int | None = None,
    log_requests: bool | None = None,
    max_body_mb: float | None = None,
    max_batch_rows: int | None = None,
    max_queue: int | None = None,
    deadline: float | None = None,
    token: str | None = None,
    without_token: bool = False,
    start_timeout: float = 300.0,
    lifeline: int = -1,
    profile: str | None = None,
) -> ServingStatus:
    """Serve a model of the registry by REST, and return when it answers.

    The serving outlives this process. It runs on this machine or, with the profile of a cluster, as a Spark application
    with one executor per replica. A failed replica is replaced, its requests are sent to another one, and the address
    does not change.

    Arguments that are None keep their value from the last start of this name; at the first start, the defaults apply.

    Args:
        name: Name of the serving in URLs: ``/v1/models/NAME:predict``.
        version: As for ``hopsml.model.find``: a number, "latest" (the default), "best", an alias.
        model: Name of the model; by default ``name``.
        host: Address to listen at. The default is "127.0.0.1", to which other machines cannot connect; on a cluster it
            is the driver's address.
        port: Port to listen at; 0, the default, for any free one.
        replicas: Number of processes that answer behind one address; default 1. They share the cores.
        log_requests: True to write inputs and outputs to ``Serving/NAME.requests`` of the project; default False.
        max_body_mb: Maximum size of a request, in MiB; default 64.
        max_batch_rows: Maximum rows of one call of the model; default 256.
        max_queue: Maximum number of requests that wait in one replica; default 1,000.
        deadline: Seconds within which a request must be computed; default 30.
        token: Token required for requests; by default a random one, stored in a file that only this user can read.
        without_token: True to accept requests of everyone who can connect.
        start_timeout: Seconds within which all replicas must answer.
        lifeline: File descriptor; the serving stops when it becomes readable, such as a pipe whose writer has ended.
            Not on a cluster.
        profile: File in conf/ with YARN, a standalone Spark or local-cluster; "local" for this machine.

    Raises:
        AlreadyServed: (ArgumentError) Another server has the name; the message has its address.
        ModelNotFound: (ArgumentError) The model, version or alias does not exist.
        ServingError: The port is in use, or a replica cannot load the model; the message has the reason.
    """
    starting.check_server_packages()
    earlier = definitions.find_definition(definitions.checked_name(name)) or ServingDefinition(name, model or name)
    given = {
        "model": model,
        "version": version,
        "host": host,
        "port": None if port is None else _whole("port", port, 0, 65535),
        "replicas": None if replicas is None else _whole("replicas", replicas, 1, 1024),
        "log_requests": log_requests,
        "limits": _limits(earlier.limits, max_body_mb, max_batch_rows, max_queue, deadline),
        "profile": profile,
    }
    definition = msgspec.structs.replace(earlier, **{key: value for key, value in given.items() if value is not None})
    cluster = submitter.spark_profile(definition.profile)
    if cluster is not None and (without_token or lifeline >= 0):
        raise ArgumentError(
            "without_token and lifeline apply to servings on this machine only; omit them with "
            f"profile '{definition.profile}'"
        )
    if cluster is not None and host in starting.LOOPBACK:
        raise ArgumentError(
            f"host={host!r} with profile '{definition.profile}': the server runs on the machine of Spark's driver, "
            "and receives requests from other machines; omit host for the address of the driver, or give another "
            "address of that machine"
        )
    checked = starting.choose_token(token, without_token, definition.host)
    with starting.exclusive_folder(name, settings.project_url()):  # check before files are downloaded
        pass
    try:
        number, served, labels = _found(definition.model, definition.version, fetch=cluster is None)
    except ModelNotFound as error:
        if version is not None or definition.version == "latest":
            raise
        raise ModelNotFound(
            f"{error}. This is the version of the last start; pass version='latest' (--version latest) for the "
            "newest one"
        ) from error
    route, versions = Route(1, number, labels=labels), {number: served}
    if cluster is None:
        starting.start_supervisor(definition, route, versions, checked, start_timeout, lifeline)
    else:
        submitter.start(definition, cluster, route, versions, checked, start_timeout)
    try:
        definitions.write_definition(definition)
    except StorageError:  # a failed start leaves no server behind
        _stop(name)
        raise
    return status(name)


def _limits(
    earlier: ServingLimits, body_mb: float | None, batch_rows: int | None, queue: int | None, deadline_s: float | None
) -> ServingLimits:
    """Return the earlier limits with the given ones changed."""
    found: dict[str, Any] = {}
    if body_mb is not None:
        found["body_bytes"] = int(_number("max_body_mb", body_mb) * (1 << 20))
    if batch_rows is not None:
        found["batch_rows"] = _whole("max_batch_rows", batch_rows, 1, 1 << 20)
    if queue is not None:
        found["queue_requests"] = _whole("max_queue", queue, 1, 1 << 20)
    if deadline_s is not None:
        found["deadline_s"] = _number("deadline", deadline_s)
    return msgspec.structs.replace(earlier, **found)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    """Return a valid whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(f"{name}={value!r:.80} is a {type(value).__name__}; it must be a whole number")
    if not least <= value <= most:
        raise ArgumentError(f"{name}={value}: the value must be {least} to {most}")
    return value


def _number(name: str, value: Any) -> float:
    """Return a valid positive number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name}={value!r:.80} is a {type(value).__name__}; it must be a number")
    if not 0 < value < float("inf"):
        raise ArgumentError(f"{name}={value}: the value must be greater than 0")
    return float(value)


def _found(model: str, version: int | str, *, fetch: bool) -> tuple[int, ServedVersion, dict[str, int]]:
    """Return the version's number, the version with its local files, and the model's aliases.

    Without ``fetch`` no files are downloaded; the machines of the cluster download them.
    """
    from hopsml.model import registry

    found = registry.find(model, version)
    _check_servable(found.description)
    if not fetch:
        found.check_owner()  # before a server is started
    files = str(found.local_files(definitions.model_cache_folder())) if fetch else ""
    return found.version, ServedVersion(files, found.description), registry.aliases(model)


def _check_servable(description: Any) -> None:
    """Check that a version has an artifact that can be called.

    Raises:
        ArgumentError: It has none.
    """
    from hopsml.model.flavors.contract import LOADERS

    if not LOADERS.keys() & description.artifacts.keys():
        has = ", ".join(description.artifacts) or "none"
        raise ArgumentError(
            f"version {description.version} of the model '{description.name}' cannot be served: hopsml serves "
            f"{', '.join(LOADERS)}, and this version contains {has}; export the model itself, not one of its files"
        )


def roll(name: str, version: int | str = "latest", *, timeout: float = ROLL_TIMEOUT_S) -> ServingStatus:
    """Switch to another version without failed requests, and return when all replicas answer with it.

    The new version is loaded while the current one answers, and then replaces it. A canary ends. If the roll fails, the
    current version remains.

    Args:
        name: Name of the serving.
        version: As for ``hopsml.model.find``.
        timeout: Seconds within which all replicas must answer with the new version.

    Raises:
        ServingError: A replica cannot load the version, has not enough memory for both, or exceeds the timeout.
        ModelNotFound: The version does not exist.
        ServingNotFound: There is no serving of this name.
    """
    _number("timeout", timeout)
    definition = definitions.existing_definition(name)
    record, _ = _running(name)
    number, served, labels = _found(definition.model, version, fetch=not record.is_on_cluster)
    _change(record, Route(0, number, labels=labels), {number: served}, timeout)
    definitions.write_definition(msgspec.structs.replace(definition, version=version))
    return status(name)


def canary(name: str, version: int | str, share: float, *, timeout: float = ROLL_TIMEOUT_S) -> ServingStatus:
    """Direct a share of requests to another version, in addition to the version that answers by default.

    Requests that name a version, or the label "stable" or "canary", are answered by that one.

    Args:
        name: Name of the serving.
        version: The canary version, as for ``hopsml.model.find``.
        share: Share of requests that it answers, 0 to 1; 0 ends the canary.
        timeout: Seconds within which all replicas must answer.

    Raises:
        ServingError: As for ``roll``.
        ModelNotFound: The version does not exist.
        ServingNotFound: There is no serving of this name.
        ArgumentError: ``share`` is invalid, or the version is the default one.
    """
    _number("timeout", timeout)
    definition = definitions.existing_definition(name)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise ArgumentError(
            f"share={share!r:.80}: the share must be a number from 0 to 1, such as 0.1 for a tenth of the requests"
        )
    record, route = _running(name)
    if share == 0:
        _change(record, Route(0, route.default, labels=route.labels), {}, timeout)
        return status(name)
    number, served, labels = _found(definition.model, version, fetch=not record.is_on_cluster)
    if number == route.default:
        raise ArgumentError(
            f"version {number} of '{name}' is already the default; choose another version for the canary"
        )
    _change(record, Route(0, route.default, number, float(share), labels), {number: served}, timeout)
    return status(name)


def _running(name: str) -> tuple[ServerRecord, Route]:
    """Return the server of a serving, and the route of all its replicas.

    Raises:
        ServingError: The serving is stopped, or runs on another machine.
    """
    record = client.find_server(name)
    if not record.is_here and not record.is_on_cluster:
        raise ServingError(
            f"'{name}' is served by {record.user} on {record.machine}, and can be changed only there; predictions "
            "work from here"
        )
    answer = _ask(record, StatusRequest(), STATUS_TIMEOUT_S)
    if answer is None or answer.route is None:
        raise ServingError(
            f"'{name}' is not running, since its server has ended; start it again by hopsml.serving.start({name!r})"
        )
    return record, answer.route


def _ask(record: ServerRecord, command: Command, timeout_s: float) -> SupervisorAnswer | None:
    """Send a command to the supervisor, here or on a cluster; None if there is none."""
    if record.is_on_cluster:
        return client.send_driver_command(record, command, timeout_s)
    folder = ServingFolder(Path(record.folder))
    return client.send_supervisor_command(folder, command, timeout_s) if folder.path.is_dir() else None


def _change(record: ServerRecord, route: Route, versions: Mapping[int, ServedVersion], timeout_s: float) -> None:
    """Change the route of a running serving."""
    answer = _ask(record, ChangeRoute(route, dict(versions), timeout_s), timeout_s + STATUS_TIMEOUT_S)
    where = f"`hopsml serve logs {record.name}`" if record.is_on_cluster else record.folder
    if answer is None:
        raise ServingError(f"'{record.name}' ended during the request; see its logs: {where}")
    if answer.error:
        raise ServingError(f"'{record.name}' continues without the change: {answer.error}; see its logs: {where}")


def status(name: str) -> ServingStatus:
    """Return the status of a serving.

    Raises:
        ServingNotFound: There is no serving of this name.
    """
    definition = definitions.existing_definition(name)
    project = settings.project_url()
    record = server_records.read_server_record(name, project)
    if record is None:
        return ServingStatus(name, definition.model, STOPPED, profile=definition.profile)
    if not record.is_here and not record.is_on_cluster:
        return ServingStatus(name, definition.model, RUNNING, record.url, replicas=definition.replicas, ready=None)
    answer, why = _heard(record)
    folder = (
        definitions.ensure_serving_folder(name, project) if record.is_on_cluster else ServingFolder(Path(record.folder))
    )
    logs, application, profile = str(folder.path), record.application, record.profile
    if answer is None or answer.route is None:
        ended = server_records.describe_end(record)
        state = STOPPED if ended or not record.is_on_cluster else RUNNING
        url = record.url if state == RUNNING else ""
        why = ended or why
        return ServingStatus(
            name, definition.model, state, url, logs=logs, application=application, profile=profile, why=why
        )
    if record.is_on_cluster and (token := client.read_token(record)) != folder.read_token():
        folder.write_token(token)  # the serving was started on another machine
    return ServingStatus(
        name,
        definition.model,
        RUNNING,
        record.url,
        answer.route.default,
        answer.route.canary,
        answer.route.share,
        answer.replicas,
        answer.ready,
        answer.restarts,
        answer.pids,
        answer.pid,
        str(folder.token) if folder.token.exists() else "",
        logs,
        application,
        profile,
        answer.machines,
    )


def _heard(record: ServerRecord) -> tuple[SupervisorAnswer | None, str]:
    """Return the supervisor's answer, or None and the reason for which a driver does not answer."""
    if not record.is_on_cluster:
        return _ask(record, StatusRequest(), STATUS_TIMEOUT_S), ""
    try:
        answer = _ask(record, StatusRequest(), STATUS_TIMEOUT_S)
    except (ServingError, ArgumentError, StorageError) as error:
        return None, str(error)
    return answer, f"its driver does not answer at {record.url}" if answer is None else "its replicas are starting"


def stop(name: str) -> None:
    """Answer the received requests and stop a serving; nothing happens if it is stopped already.

    Raises:
        ServingNotFound: There is no serving of this name.
        ServingError: It runs on another machine, or does not end.
    """
    definitions.existing_definition(name)
    _stop(name)


def _stop(name: str) -> None:
    """Stop the server of a name, if any."""
    project = settings.project_url()
    record = server_records.read_server_record(name, project)
    if record is None:
        return
    if record.is_on_cluster:
        _stop_on_cluster(record, project)
        return
    if not record.is_here:
        raise ServingError(f"'{name}' is served by {record.user} on {record.machine} ({record.url}); stop it there")
    folder = ServingFolder(Path(record.folder))
    if folder.path.is_dir():
        client.send_supervisor_command(folder, StopServing(), STOP_TIMEOUT_S)
        starting.wait_for_end(name, record.pid, STOP_TIMEOUT_S)
        folder.write_token("")
    url = definitions.server_url(name, project)
    if (
        left := server_records.read_server_record(name, project)
    ) is not None and left.pid == record.pid:  # left by a server that was killed
        for_url(url).delete(url)


def _stop_on_cluster(record: ServerRecord, project: str) -> None:
    """Request the driver to end; if it does not answer, end the application."""
    try:
        answer = client.send_driver_command(record, StopServing(), STATUS_TIMEOUT_S)
    except ServingError:
        answer = None
    is_over = (
        server_records.wait_for_end(record, STOP_TIMEOUT_S)
        if answer is not None
        else bool(server_records.describe_end(record))
    )
    if not is_over and not server_records.end_server(record, STOP_TIMEOUT_S):
        raise ServingError(
            f"'{record.name}' has not ended: {record.application} (process {record.pid} of {record.user} on "
            f"{record.machine}); end it there"
        )
    submitter.reap_spark_submit(record.name, project)
    starting.wait_for_end(record.name, 0, STOP_TIMEOUT_S)  # waits for spark-submit, if it runs on this machine
    server_records.release_cluster_server(project, record)
    server_records.delete_access(record.name, project)
    definitions.ensure_serving_folder(record.name, project).write_token("")


def delete(name: str) -> None:
    """Stop a serving and delete its definition; its request log remains.

    Raises:
        ServingNotFound: There is no serving of this name.
    """
    stop(name)
    definitions.delete_definition(name)
    serving_load.delete_load(name, settings.project_url())  # which a killed supervisor has left


def servings() -> list[ServingStatus]:
    """Return the status of all servings of the project, by name."""
    found = []
    for name in definitions.serving_names():
        try:
            found.append(status(name))
        except ServingNotFound:  # deleted since the listing
            continue
        except (
            ArgumentError,
            ServingError,
            StorageError,
        ) as error:  # another user's, or one that hangs, must not hide others
            found.append(ServingStatus(name, "", UNKNOWN, why=str(error)))
    return found


def logs(name: str, last: int = 100) -> str:
    """Return the newest ``last`` lines of each log: the supervisor's, and one per replica.

    They are read from this machine; those of replicas on a cluster are requested while the serving runs.
    """
    definitions.existing_definition(name)
    project = settings.project_url()
    parts = []
    for path in definitions.ensure_serving_folder(name, project).logs():
        lines = path.read_text(errors="replace").splitlines()[-last:]
        parts.append("\n".join([f"==> {path} <==", *lines]))
    record = server_records.read_server_record(name, project)
    if record is not None and record.is_on_cluster:
        answer = client.send_driver_command(record, LogsRequest(last), STATUS_TIMEOUT_S)
        found = answer.logs if answer is not None else {}
        parts += [f"==> {where} <==\n{text}" for where, text in sorted(found.items())]
    return "\n".join(parts)


def predict(
    name: str, rows: Any, *, version: int | None = None, label: str | None = None, timeout: float = 60.0
) -> Any:
    """Return predictions for rows; if the server of the request fails, it is sent once more to another replica.

    Args:
        name: Name of the serving.
        rows: An array, or nested lists, for a model with one input, with one row per prediction; or a dict of them by
            input; or a list of dicts, one per row.
        version: Version to use in place of the one that answers by default.
        label: Label to use instead: "stable", "canary", or an alias.
        timeout: Seconds to wait for the answer.

    Returns:
        An array for a model with one output, else a dict of arrays by output.

    Raises:
        ArgumentError: The rows do not fit the model; the message names the input.
        ServingError: The serving is stopped or overloaded, or the model fails.
    """
    if version is not None and label is not None:
        raise ArgumentError("version and label exclude each other")
    which = f"/versions/{version}" if version is not None else f"/labels/{label}" if label is not None else ""
    path, asked = f"/v1/models/{name}{which}:predict", {"inputs": client.rows_to_columns(rows)}
    found = client.post_json(client.find_server(name), path, asked, timeout)["outputs"]
    if isinstance(found, dict):
        return {output: client.to_array(value) for output, value in found.items()}
    return client.to_array(found)


def exists(name: str) -> bool:
    """Return True if a serving of this name is defined, whether it runs or not."""
    return definitions.find_definition(name) is not None
