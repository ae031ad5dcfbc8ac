"""Start, change and stop what is served: the calls of ``hopsml.serving``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hopsml import settings
from hopsml.errors import (
    ArgumentError,
    ArgumentTypeError,
    ModelNotFound,
    ServingError,
    ServingNotFound,
    StorageError,
)
from hopsml.serving import access, claims, client, definitions, endings, launching, places, starting, submitter
from hopsml.serving.claims import ServerRecord
from hopsml.serving.definitions import ServingDefinition
from hopsml.serving.limits import ServingLimits
from hopsml.serving.messages import (
    AskLogs,
    AskStatus,
    ChangeRoute,
    Command,
    ServedVersion,
    StopServing,
    SupervisorAnswer,
)
from hopsml.serving.places import ServingFolder
from hopsml.serving.routes import Route
from hopsml.storage.filesystem import for_url

STATUS_TIMEOUT_S = 10.0
ROLL_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 90.0  # requests drain, the request log goes to storage
RUNNING, STOPPED, UNKNOWN = "Running", "Stopped", "Unknown"


class ServingStatus(msgspec.Struct, frozen=True):
    """How a serving stands.

    ``state``: "Running" or "Stopped", in a list also "Unknown", and ``why``. ``version`` answers by default, ``canary`` a
    ``share`` of requests instead. ``ready`` of ``replicas`` answer, None where another machine alone knows; ``restarts``:
    how often one was started again. ``token_file`` is empty where requests need no token, or it lies on another machine.
    On a cluster ``application`` is Spark's id, ``profile`` says which cluster, ``supervisor`` and ``pids`` are of its
    machines; ``why`` says how it ended by itself, or what is wrong.
    """

    name: str
    model: str
    state: str
    url: str = ""
    version: int | None = None
    canary: int | None = None
    share: float = 0.0
    replicas: int = 0
    ready: int | None = 0
    restarts: int = 0
    pids: tuple[int, ...] = ()  # of replicas
    supervisor: int = 0  # its pid
    token_file: str = ""
    logs: str = ""  # folder
    application: str = ""
    profile: str = ""
    machines: tuple[str, ...] = ()  # that replicas run on
    why: str = ""

    def __str__(self) -> str:
        if self.state == UNKNOWN:
            return f"{self.name}: how it stands is not known: {self.why}"
        if self.state != RUNNING:
            how = f" ({self.why})" if self.why else ""
            verb = f"hopsml serve start {self.name}" if self.profile else f"hopsml serve run {self.name}"
            return f"{self.name}: stopped{how}; `{verb}` starts it"
        what = f"version {self.version} of {self.model}" if self.version else self.model
        canary = f", and version {self.canary} {self.share:.1%} of requests" if self.canary else ""
        bearer = f"-H @{ServingFolder(Path(self.token_file).parent).header} " if self.token_file else ""
        restarts = f", {self.restarts} restarted" if self.restarts else ""
        unknown = f"{self.replicas}; how many of them answer is known on that machine"
        answering = unknown if self.ready is None else f"{self.ready} of {self.replicas} answer"
        return (
            f"{self.name}: {what} answers at {self.url}{canary}\n"
            f"replicas: {answering}{restarts}\n"
            f"what it takes:  curl {bearer}{self.url}/v2/models/{self.name}\n"
            f"a prediction:   curl {bearer}-d '{{\"instances\": [...]}}' {self.url}/v1/models/{self.name}:predict\n"
            f"logs: {self.logs}"
            + (f"\nSpark: {self.application}, profile {self.profile}" if self.application else "")
            + (f"\n{self.why}" if self.why else "")
        )


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
    """Serve a model of the registry by REST; returns when it answers. It outlives this process.

    It runs on this machine, or with the profile of a cluster as a Spark application there, with an executor for each
    replica; a replica that is lost is replaced, its requests are sent to another one, and the address stays.

    What is None is as it was when the name was served last, else the default.

    Args:
        name: Of what is served, in URLs: ``/v1/models/NAME:predict``.
        version: As ``hopsml.model.find`` takes it: a number, "latest" (the default), "best", an alias.
        model: The model's name; the same as ``name`` by default.
        host: The address to listen at; "127.0.0.1" by default: who is on another machine cannot connect. On a cluster it
            is the driver's by default.
        port: 0, the default, for any that is free.
        replicas: Processes that answer, behind one address; 1 by default. Cores are shared out among them.
        log_requests: Whether inputs and outputs are written to ``Serving/NAME.requests`` of the project; False by
            default.
        max_body_mb: Of a request, in MiB; 64 by default.
        max_batch_rows: Of one call of the model; 256 by default.
        max_queue: Requests that wait in one replica; 1,000 by default.
        deadline: Seconds that a request may take until it is computed; 30 by default.
        token: What requests must bear; a random one by default, which is kept in a file that only this user can read.
        without_token: Let everybody ask who can connect.
        start_timeout: Seconds until all replicas must answer.
        lifeline: A file descriptor; the serving stops when it can be read, as the end of a pipe can when its writer is
            gone; not on a cluster.
        profile: A file of conf/ with YARN, a standalone Spark or local-cluster; "local" for this machine.

    Raises:
        AlreadyServed: (ArgumentError) another server has the name; the message has its address.
        ModelNotFound: (ArgumentError) no such model, version or alias.
        ServingError: the port is taken, or a replica cannot load the model; the message says why.
    """
    starting.check_installed()
    earlier = definitions.find(places.checked_name(name)) or ServingDefinition(name, model or name)
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
    cluster = submitter.checked_profile(definition.profile)
    if cluster is not None and (without_token or lifeline >= 0):
        raise ArgumentError(f"without_token and lifeline are for this machine, not for profile '{definition.profile}'")
    if cluster is not None and host in starting.LOOPBACK:
        raise ArgumentError(
            f"host={host!r} with profile '{definition.profile}': the server runs on the machine of Spark's driver, and is "
            "asked from others; leave host out for the driver's address, or name one of that machine's"
        )
    checked = starting.checked_token(token, without_token, definition.host)
    with starting.alone(name, settings.project_url()):  # before anything is fetched
        pass
    try:
        number, served, labels = _found(definition.model, definition.version, fetch=cluster is None)
    except ModelNotFound as error:
        if version is not None or definition.version == "latest":
            raise
        raise ModelNotFound(
            f"{error}. It was served last, and nothing else is asked for: version='latest' (--version latest) is the newest"
        ) from error
    route, versions = Route(1, number, labels=labels), {number: served}
    if cluster is None:
        starting.start(definition, route, versions, checked, start_timeout, lifeline)
    else:
        launching.start(definition, cluster, route, versions, checked, start_timeout)
    try:
        definitions.write(definition)
    except StorageError:  # a start that fails leaves nothing behind
        _stop(name)
        raise
    return status(name)


def _limits(
    earlier: ServingLimits, body_mb: float | None, batch_rows: int | None, queue: int | None, deadline_s: float | None
) -> ServingLimits:
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
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(f"{name}={value!r:.80} is a {type(value).__name__}; it must be a whole number")
    if not least <= value <= most:
        raise ArgumentError(f"{name}={value}: it must be {least} to {most}")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name}={value!r:.80} is a {type(value).__name__}; it must be a number")
    if not 0 < value < float("inf"):
        raise ArgumentError(f"{name}={value}: it must be above 0")
    return float(value)


def _found(model: str, version: int | str, *, fetch: bool) -> tuple[int, ServedVersion, dict[str, int]]:
    """The version's number, its files on this machine, and the model's aliases.

    Without ``fetch`` it has no files yet: the machines of a cluster that serve it get them.
    """
    from hopsml.model import registry

    found = registry.find(model, version)
    _check_servable(found.description)
    if not fetch:
        found.check_owner()  # before anything is started
    files = str(found.local_files(places.models_folder())) if fetch else ""
    return found.version, ServedVersion(files, found.description), registry.aliases(model)


def _check_servable(description: Any) -> None:
    from hopsml.model.flavors.contract import LOADERS

    if not LOADERS.keys() & description.artifacts.keys():
        has = ", ".join(description.artifacts) or "none"
        raise ArgumentError(
            f"version {description.version} of the model '{description.name}' cannot be served: of {', '.join(LOADERS)} it "
            f"has {has}; export the model itself, not a file of it"
        )


def roll(name: str, version: int | str = "latest", *, timeout: float = ROLL_TIMEOUT_S) -> ServingStatus:
    """Go over to another version without a failed request: it is loaded beside the one that answers, and then takes
    over.

    Returns when all replicas answer with it. A canary ends. Raises ServingError where a replica cannot load it, has not
    the memory for both, or does not answer with it within ``timeout`` seconds: then the version before it answers as ever.
    ModelNotFound, ServingNotFound.
    """
    _number("timeout", timeout)
    definition = definitions.known(name)
    record, _ = _running(name)
    number, served, labels = _found(definition.model, version, fetch=not record.is_on_cluster)
    _change(record, Route(0, number, labels=labels), {number: served}, timeout)
    definitions.write(msgspec.structs.replace(definition, version=version))
    return status(name)


def canary(name: str, version: int | str, share: float, *, timeout: float = ROLL_TIMEOUT_S) -> ServingStatus:
    """Let another version answer a share of requests, from 0 to 1, beside the one that answers by default.

    ``share=0`` ends it. Requests that name a version, or the label "stable" or "canary", get that one. Raises as
    ``roll`` does.
    """
    _number("timeout", timeout)
    definition = definitions.known(name)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise ArgumentError(
            f"share={share!r:.80}: it must be a number from 0 to 1, such as 0.1 for a tenth of requests"
        )
    record, route = _running(name)
    if share == 0:
        _change(record, Route(0, route.default, labels=route.labels), {}, timeout)
        return status(name)
    number, served, labels = _found(definition.model, version, fetch=not record.is_on_cluster)
    if number == route.default:
        raise ArgumentError(f"version {number} of '{name}' answers by default already; a canary is another version")
    _change(record, Route(0, route.default, number, float(share), labels), {number: served}, timeout)
    return status(name)


def _running(name: str) -> tuple[ServerRecord, Route]:
    """Who serves it, and what all its replicas follow. Raises ServingError where it is stopped, or runs elsewhere."""
    record = client.server_of(name)
    if not record.is_here and not record.is_on_cluster:
        raise ServingError(
            f"'{name}' is served by {record.user} on {record.machine}: it can be changed there alone; predict works here"
        )
    answer = _ask(record, AskStatus(), STATUS_TIMEOUT_S)
    if answer is None or answer.route is None:
        raise ServingError(
            f"'{name}' is not running: its server has ended; hopsml.serving.start({name!r}) starts it again"
        )
    return record, answer.route


def _ask(record: ServerRecord, command: Command, timeout_s: float) -> SupervisorAnswer | None:
    """What its supervisor says, wherever that is; None where there is none."""
    if record.is_on_cluster:
        return client.ask_driver(record, command, timeout_s)
    folder = ServingFolder(Path(record.folder))
    return client.ask(folder, command, timeout_s) if folder.path.is_dir() else None


def _change(record: ServerRecord, route: Route, versions: Mapping[int, ServedVersion], timeout_s: float) -> None:
    answer = _ask(record, ChangeRoute(route, dict(versions), timeout_s), timeout_s + STATUS_TIMEOUT_S)
    where = f"`hopsml serve logs {record.name}`" if record.is_on_cluster else record.folder
    if answer is None:
        raise ServingError(f"'{record.name}' ended meanwhile; its logs: {where}")
    if answer.error:
        raise ServingError(f"'{record.name}' answers as before: {answer.error}; logs: {where}")


def status(name: str) -> ServingStatus:
    """How a serving stands. Raises ServingNotFound."""
    definition = definitions.known(name)
    project = settings.project_url()
    record = claims.read(name, project)
    if record is None:
        return ServingStatus(name, definition.model, STOPPED, profile=definition.profile)
    if not record.is_here and not record.is_on_cluster:
        return ServingStatus(name, definition.model, RUNNING, record.url, replicas=definition.replicas, ready=None)
    answer, why = _heard(record)
    folder = places.folder_of(name, project) if record.is_on_cluster else ServingFolder(Path(record.folder))
    logs, application, profile = str(folder.path), record.application, record.profile
    if answer is None or answer.route is None:
        ended = endings.how_ended(record)
        state = STOPPED if ended or not record.is_on_cluster else RUNNING
        url = record.url if state == RUNNING else ""
        why = ended or why
        return ServingStatus(
            name, definition.model, state, url, logs=logs, application=application, profile=profile, why=why
        )
    if record.is_on_cluster and (token := client.token_of(record)) != folder.read_token():
        folder.write_token(token)  # it was started from another machine
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
    """What its supervisor says of itself, or why a driver of a cluster says nothing."""
    if not record.is_on_cluster:
        return _ask(record, AskStatus(), STATUS_TIMEOUT_S), ""
    try:
        answer = _ask(record, AskStatus(), STATUS_TIMEOUT_S)
    except (ServingError, ArgumentError, StorageError) as error:
        return None, str(error)
    return answer, f"its driver does not answer at {record.url}" if answer is None else "its replicas are starting"


def stop(name: str) -> None:
    """Answer what has come, and end. What is stopped already stays so. Raises ServingNotFound, ServingError."""
    definitions.known(name)
    _stop(name)


def _stop(name: str) -> None:
    project = settings.project_url()
    record = claims.read(name, project)
    if record is None:
        return
    if record.is_on_cluster:
        _stop_on_cluster(record, project)
        return
    if not record.is_here:
        raise ServingError(f"'{name}' is served by {record.user} on {record.machine} ({record.url}): stop it there")
    folder = ServingFolder(Path(record.folder))
    if folder.path.is_dir():
        client.ask(folder, StopServing(), STOP_TIMEOUT_S)
        starting.wait_for_end(name, record.pid, STOP_TIMEOUT_S)
        folder.write_token("")
    url = places.server_url(name, project)
    if (left := claims.read(name, project)) is not None and left.pid == record.pid:  # of one that was killed
        for_url(url).delete(url)


def _stop_on_cluster(record: ServerRecord, project: str) -> None:
    """Ask its driver to end; where that does not answer, end the application."""
    try:
        answer = client.ask_driver(record, StopServing(), STATUS_TIMEOUT_S)
    except ServingError:
        answer = None
    is_over = endings.wait(record, STOP_TIMEOUT_S) if answer is not None else bool(endings.how_ended(record))
    if not is_over and not endings.end(record, STOP_TIMEOUT_S):
        raise ServingError(
            f"'{record.name}' has not ended: {record.application} (process {record.pid} of {record.user} on "
            f"{record.machine}); end it there"
        )
    launching.reap(record.name, project)
    starting.wait_for_end(record.name, 0, STOP_TIMEOUT_S)  # spark-submit, where it was started from here
    claims.release_on_cluster(project, record)
    access.forget(record.name, project)
    places.folder_of(record.name, project).write_token("")


def delete(name: str) -> None:
    """Stop it, and forget it; its request log stays. Raises ServingNotFound."""
    stop(name)
    definitions.delete(name)


def servings() -> list[ServingStatus]:
    """All of the project, by name."""
    found = []
    for name in definitions.names():
        try:
            found.append(status(name))
        except ServingNotFound:  # it was deleted meanwhile
            continue
        except (
            ArgumentError,
            ServingError,
            StorageError,
        ) as error:  # another user's, or one that hangs: not all others'
            found.append(ServingStatus(name, "", UNKNOWN, why=str(error)))
    return found


def logs(name: str, last: int = 100) -> str:
    """The newest ``last`` lines of each log: the supervisor's, and one of each replica.

    They lie on this machine; those of replicas on a cluster are fetched while it runs.
    """
    definitions.known(name)
    project = settings.project_url()
    parts = []
    for path in places.folder_of(name, project).logs():
        lines = path.read_text(errors="replace").splitlines()[-last:]
        parts.append("\n".join([f"==> {path} <==", *lines]))
    record = claims.read(name, project)
    if record is not None and record.is_on_cluster:
        answer = client.ask_driver(record, AskLogs(last), STATUS_TIMEOUT_S)
        found = answer.logs if answer is not None else {}
        parts += [f"==> {where} <==\n{text}" for where, text in sorted(found.items())]
    return "\n".join(parts)


def predict(
    name: str, rows: Any, *, version: int | None = None, label: str | None = None, timeout: float = 60.0
) -> Any:
    """Ask for predictions; where the server that has the request ends, another replica is asked once more.

    Args:
        name: Of what is served.
        rows: An array, or lists, of the only input, a row a prediction; or a dict of them by input; or a list of dicts, a
            row each.
        version: A certain version instead of the one that answers by default.
        label: A certain label instead: "stable", "canary", or an alias.
        timeout: Seconds to wait for the answer.

    Returns: An array for a model with one output, else a dict of arrays by output.

    Raises:
        ArgumentError: the rows are not what the model takes; the message names the input.
        ServingError: it is stopped, overloaded, or fails.
    """
    if version is not None and label is not None:
        raise ArgumentError("version and label exclude each other")
    which = f"/versions/{version}" if version is not None else f"/labels/{label}" if label is not None else ""
    path, asked = f"/v1/models/{name}{which}:predict", {"inputs": client.by_input(rows)}
    found = client.request(client.server_of(name), path, asked, timeout)["outputs"]
    if isinstance(found, dict):
        return {output: client.array_of(value) for output, value in found.items()}
    return client.array_of(found)


def exists(name: str) -> bool:
    """Whether it is served, or was created to be."""
    return definitions.find(name) is not None
