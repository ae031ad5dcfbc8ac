"""Files and definitions of servings, and their status for users.

On this machine, in a private folder of this user:

    <machine's folder>/models/     copies of models' files, by content
    <machine's folder>/places/     a folder for each agent that holds a replica of a serving on a cluster
    <machine's folder>/requests/   segments of the request log of such servings that are not uploaded yet
    <machine's folder>/<name>-<digest of the project's URL>/
        lock            held by the supervisor while it serves from this machine
        token           token required for requests; 0600
        header          the same as a header for curl, whose arguments all users of the machine can see; 0600
        settings.json   settings of the start
        control         socket of the supervisor
        supervisor.log, replica-<n>.log
        submission.log, serve.py, application   on a cluster: output of spark-submit and driver, script, application ID
        requests/       segments of the request log that are not uploaded yet

In the project:

    <project>/Serving/<name>.json            definition: model and version; remains when the server stops
    <project>/Serving/<name>.server.json     the server; written exclusively, so that there is at most one
    <project>/Serving/<name>.load.json       load for the web page, while it runs (hopsml/model/serving_load.py)
    <project>/Serving/<name>.requests/       the request log, a folder per day
    <project>/Serving/<name>.private/        on a cluster: tokens, settings and outcome of the start; 0700
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from datetime import datetime
from pathlib import Path

import msgspec

from hopsml.core import settings, suggestions
from hopsml.core.decoding import checked
from hopsml.core.newer_python import UTC
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, ArgumentTypeError, PathNotFound, ServingNotFound, StorageError
from hopsml.storage import privacy, urls
from hopsml.storage.filesystem import for_url, read_record

VARIABLE = Settings.serving_folder.name
SERVING = "Serving"
SERVER = ".server.json"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")


class ServingFolder:
    """Folder of one serving on this machine; each attribute is a path in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "lock"
        self.token = path / "token"
        self.header = path / "header"
        self.settings = path / "settings.json"
        self.control = path / "control"
        self.requests = path / "requests"
        self.supervisor_log = path / "supervisor.log"
        self.submission_log = path / "submission.log"
        self.script = path / "serve.py"
        self.application = path / "application"  # ID of the application, once YARN has accepted it

    def replica_log(self, number: int) -> Path:
        """Return the path of a replica's log, which also has the output of its model."""
        return self.path / f"replica-{number}.log"

    def logs(self) -> list[Path]:
        """Return the paths of the existing logs, the supervisor's first."""
        found = sorted(self.path.glob("replica-*.log"))
        return [path for path in (self.supervisor_log, self.submission_log, *found) if path.exists()]

    def read_token(self) -> str:
        """Return the token required for requests; empty if there is none."""
        return self.token.read_text() if self.token.exists() else ""

    def write_token(self, token: str) -> None:
        """Write the token and its header for curl, or delete them if the token is empty.

        From their creation on, only this user can read the files.
        """
        for path, text in ((self.token, token), (self.header, f"Authorization: Bearer {token}\n")):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            if token:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)


def ensure_serving_folder(name: str, project: str) -> ServingFolder:
    """Return the folder of a serving, which is created if necessary; ``project`` is the project's URL."""
    path = local_servings_folder() / f"{name}-{_digest(project)}"
    path.mkdir(mode=0o700, exist_ok=True)
    return ServingFolder(path)


def ensure_request_segments_folder(name: str, project: str) -> Path:
    """Return the folder for segments of a cluster serving's request log, shared by all its agents on this machine."""
    path = local_servings_folder() / "requests" / f"{name}-{_digest(project)}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _digest(project: str) -> str:
    """Return a short digest of a project's URL."""
    return hashlib.sha256(project.encode()).hexdigest()[:12]


def local_servings_folder() -> Path:
    """Return the private folder of this user's servings on this machine.

    It is named by ``HOPSML_SERVING_FOLDER``; by default it is below the temporary folder.

    Raises:
        ArgumentError: Other users have access to the folder.
    """
    named = SETTINGS.serving_folder
    path = Path(named) if named else Path(tempfile.gettempdir(), f"hopsml-serving-{os.geteuid()}")
    try:
        privacy.ensure_private_folder(path, denied=0o077)
    except PermissionError as error:
        raise ArgumentError(
            f"{path} contains tokens, but other users have access to it ({error}); remove their rights (chmod 700), "
            f"or set {VARIABLE} to another folder"
        ) from error
    return path.absolute()


def model_cache_folder() -> Path:
    """Return the folder for copies of models' files on this machine, by content."""
    path = local_servings_folder() / "models"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def checked_name(name: object) -> str:
    """Return a valid name of a serving.

    Raises:
        ArgumentError: The name has invalid characters or an invalid length.
        ArgumentTypeError: The name is not text.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"name={name!r:.80} is a {type(name).__name__}; a serving's name is text")
    if not _NAME.fullmatch(name):
        raise ArgumentError(
            f"name={name!r:.80}: the name is part of URLs and file names, so it must have 1 to 128 letters, digits, "
            "'_' and '-'"
        )
    return name


def definition_url(name: str) -> str:
    """Return the URL of a serving's definition."""
    return urls.join(servings_url(), f"{name}.json")


def server_url(name: str, project: str) -> str:
    """Return the URL of a serving's server record; ``project`` is the project's URL."""
    return urls.join(project, SERVING, f"{name}{SERVER}")


def request_log_url(name: str, project: str) -> str:
    """Return the URL of a serving's request log; ``project`` is the project's URL."""
    return urls.join(project, SERVING, f"{name}.requests")


def private_folder_url(name: str, project: str) -> str:
    """Return the URL of the private folder of a serving on a cluster; ``project`` is the project's URL."""
    return urls.join(project, SERVING, f"{name}.private")


def servings_url() -> str:
    """Return the URL of the folder of all servings of the current project."""
    return urls.join(settings.project_url(), SERVING)


class ServingLimits(msgspec.Struct, frozen=True):
    """Limits of a request, of a call of the model, and of the request queue.

    Attributes:
        body_bytes: Maximum size of a request's body, in bytes.
        batch_rows: Maximum rows of one call of the model; a request with more rows is a separate call.
        queue_requests: Maximum number of waiting requests per version; further ones are refused with 429.
        deadline_s: Time from the head of a request to its answer, in seconds.
    """

    body_bytes: int = 64 << 20
    batch_rows: int = 256
    queue_requests: int = 1000
    deadline_s: float = 30.0


SAVED_AS = ".json"


class ServingDefinition(msgspec.Struct, frozen=True):
    """Definition of a serving.

    Attributes:
        name: Name of the serving.
        model: Name of the model.
        version: As for ``hopsml.model.find``: a number, an alias, "latest" or "best".
        host: Address to listen at.
        port: Port to listen at; 0 for a free one.
        replicas: Number of replicas.
        log_requests: True to write the request log.
        limits: Limits of requests.
        profile: Profile of the cluster; empty for the machine on which it is started.
        model_server: Model server in the predecessor's terms.
        creator: User who created the definition.
        created: Time of its creation, in UTC.
    """

    name: str
    model: str
    version: int | str = "latest"
    host: str = "127.0.0.1"
    port: int = 0
    replicas: int = 1
    log_requests: bool = False
    limits: ServingLimits = ServingLimits()
    profile: str = ""
    model_server: str = ""
    creator: str = ""
    created: datetime | None = None


RUNNING, STOPPED, UNKNOWN = "Running", "Stopped", "Unknown"


class ServingStatus(msgspec.Struct, frozen=True):
    """Status of a serving.

    Attributes:
        name: Name of the serving.
        model: Name of the model.
        state: "Running" or "Stopped"; in a list also "Unknown".
        url: URL of the server; empty if it does not run.
        version: Version that answers by default.
        canary: Version that answers a share of the requests; None if there is none.
        share: Share of the requests that the canary answers, 0 to 1.
        replicas: Configured number of replicas.
        ready: Number of replicas that answer; None if only another machine knows it.
        restarts: Number of restarts of replicas.
        pids: Process IDs of the replicas, on their machines.
        supervisor: Process ID of the supervisor, on its machine.
        token_file: File with the token; empty if requests need no token, or the file is on another machine.
        logs: Folder of the logs.
        application: ID of the Spark application on a cluster.
        profile: Profile of the cluster.
        machines: Machines on which replicas run, on a cluster.
        why: Reason for which a serving on a cluster ended or does not answer, or for which the state is unknown.
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
    pids: tuple[int, ...] = ()
    supervisor: int = 0
    token_file: str = ""
    logs: str = ""
    application: str = ""
    profile: str = ""
    machines: tuple[str, ...] = ()
    why: str = ""

    def __str__(self) -> str:
        if self.state == UNKNOWN:
            return f"{self.name}: its state is unknown: {self.why}"
        if self.state != RUNNING:
            how = f" ({self.why})" if self.why else ""
            verb = f"hopsml serve start {self.name}" if self.profile else f"hopsml serve run {self.name}"
            return f"{self.name}: stopped{how}; `{verb}` starts it"
        what = f"version {self.version} of {self.model}" if self.version else self.model
        canary = f", and version {self.canary} {self.share:.1%} of requests" if self.canary else ""
        bearer = f"-H @{ServingFolder(Path(self.token_file).parent).header} " if self.token_file else ""
        restarts = f", {self.restarts} restarted" if self.restarts else ""
        unknown = f"{self.replicas}; the number of them that answer is known only on that machine"
        answering = unknown if self.ready is None else f"{self.ready} of {self.replicas} answer"
        return (
            f"{self.name}: {what} answers at {self.url}{canary}\nreplicas: {answering}{restarts}\nthe inputs:     "
            f'curl {bearer}{self.url}/v2/models/{self.name}\na prediction:   curl {bearer}-d \'{{"instances": '
            f"[...]}}' {self.url}/v1/models/{self.name}:predict\nlogs: {self.logs}"
            + (f"\nSpark: {self.application}, profile {self.profile}" if self.application else "")
            + (f"\n{self.why}" if self.why else "")
        )


_decode = checked(msgspec.json.Decoder(ServingDefinition).decode)


def write_definition(definition: ServingDefinition) -> ServingDefinition:
    """Write a definition, replacing an earlier one except for its creator and creation time."""
    earlier = find_definition(definition.name)
    created = datetime.now(UTC) if earlier is None else earlier.created
    creator = settings.user_name() if earlier is None else earlier.creator
    whole = msgspec.structs.replace(definition, created=created, creator=creator)
    url = definition_url(definition.name)
    for_url(url).write_bytes(url, msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    return whole


def find_definition(name: str) -> ServingDefinition | None:
    """Return the definition of a serving; None if there is none.

    Raises:
        ArgumentError: The name is invalid.
        StorageError: The file cannot be read.
    """
    url = definition_url(checked_name(name))
    try:
        return _decode(read_record(url))
    except PathNotFound:
        return None
    except msgspec.MsgspecError as error:
        raise StorageError(f"cannot read {url}: it does not describe a serving ({error}); delete it", url) from error


def existing_definition(name: str) -> ServingDefinition:
    """Return the definition of a serving that must exist.

    Raises:
        ServingNotFound: There is none.
    """
    found = find_definition(name)
    if found is None:
        there = serving_names()
        hint = suggestions.suggestion_text(name, there, "`hopsml serve ls` lists them") if there else "there are none"
        raise ServingNotFound(f"there is no serving '{name}' in {servings_url()}; {hint}")
    return found


def serving_names() -> list[str]:
    """Return the sorted names of all servings of the project."""
    url = servings_url()
    try:
        entries = for_url(url).list_dir(url)
    except PathNotFound:
        return []
    endings = [entry.name.removesuffix(SAVED_AS) for entry in entries if entry.name.endswith(SAVED_AS)]
    return sorted(name for name in endings if "." not in name)


def delete_definition(name: str) -> None:
    """Delete the definition of a serving; nothing happens if there is none."""
    url = definition_url(name)
    for_url(url).delete(url)
