"""Where a serving keeps what: on this machine, in a folder of this user's alone, and in the project.

<machine's folder>/models/     copies of models' files, by content
<machine's folder>/places/     a folder for each agent that holds a replica of one on a cluster
<machine's folder>/requests/   segments of the request log of such servings that are not on storage yet
<machine's folder>/<name>-<digest of the project's URL>/
    lock            held while it is served from this machine, by the supervisor
    token           what requests must bear; 0600
    header          the same as a header for curl, whose arguments all users of the machine can see; 0600
    settings.json   what it was started with
    control         socket of the supervisor
    supervisor.log, replica-<n>.log
    submission.log, serve.py, application   of one on a cluster: what spark-submit and the driver say, are given, and are
    requests/       segments of the request log that are not on storage yet

<project>/Serving/<name>.json            what is to be served: model and version
<project>/Serving/<name>.server.json     who serves it; written exclusively: there is one at most
<project>/Serving/<name>.requests/       the request log, a folder a day
<project>/Serving/<name>.private/        of one on a cluster: its tokens and settings, how its start went; 0700
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path

from hopsml import settings
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.storage import privacy, urls

VARIABLE = "HOPSML_SERVING_FOLDER"
SERVING = "Serving"
SERVER = ".server.json"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")


class ServingFolder:
    """The folder of one serving on this machine; each attribute is a path in it."""

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
        self.application = path / "application"  # its id, once YARN has it

    def replica_log(self, number: int) -> Path:
        """What a replica and its model print."""
        return self.path / f"replica-{number}.log"

    def logs(self) -> list[Path]:
        """Those that there are, the supervisor's first."""
        found = sorted(self.path.glob("replica-*.log"))
        return [path for path in (self.supervisor_log, self.submission_log, *found) if path.exists()]

    def read_token(self) -> str:
        """Empty where requests need none."""
        return self.token.read_text() if self.token.exists() else ""

    def write_token(self, token: str) -> None:
        """Readable by this user alone from its first byte on; none for an empty one."""
        for path, text in ((self.token, token), (self.header, f"Authorization: Bearer {token}\n")):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            if token:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)


def folder_of(name: str, project: str) -> ServingFolder:
    """The folder of a serving of a project's, made where it is missing."""
    path = machines_folder() / f"{name}-{_digest(project)}"
    path.mkdir(mode=0o700, exist_ok=True)
    return ServingFolder(path)


def waiting_requests(name: str, project: str) -> Path:
    """Where on this machine the request log of a serving on a cluster waits for storage; all its agents' here."""
    path = machines_folder() / "requests" / f"{name}-{_digest(project)}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _digest(project: str) -> str:
    return hashlib.sha256(project.encode()).hexdigest()[:12]


def machines_folder() -> Path:
    """Where all servings of this user on this machine have their folders. ArgumentError where others could write there."""
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else Path(tempfile.gettempdir(), f"hopsml-serving-{os.geteuid()}")
    try:
        privacy.make_own_folder(path, denied=0o077)
    except PermissionError as error:
        raise ArgumentError(
            f"{path}: others than this user may look into it, and tokens lie there ({error}); take their rights away "
            f"(chmod 700), or let {VARIABLE} name another folder"
        ) from error
    return path.absolute()


def models_folder() -> Path:
    """Copies of models' files on this machine, by content."""
    path = machines_folder() / "models"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def checked_name(name: object) -> str:
    """The name of a serving. Raises ArgumentError, ArgumentTypeError."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"name={name!r:.80} is a {type(name).__name__}; a serving's name is text")
    if not _NAME.fullmatch(name):
        raise ArgumentError(
            f"name={name!r:.80}: it stands in URLs and names files, so it must be 1 to 128 letters, digits, '_' and '-'"
        )
    return name


def definition_url(name: str, project: str | None = None) -> str:
    """What is to be served."""
    return urls.join(servings_url(project), f"{name}.json")


def server_url(name: str, project: str) -> str:
    """Who serves it; ``project``: its URL."""
    return urls.join(project, SERVING, f"{name}{SERVER}")


def requests_url(name: str, project: str) -> str:
    """Where the request log goes; ``project``: its URL."""
    return urls.join(project, SERVING, f"{name}.requests")


def private_url(name: str, project: str) -> str:
    """The folder of what only this user may read of a serving on a cluster; ``project``: its URL."""
    return urls.join(project, SERVING, f"{name}.private")


def servings_url(project: str | None = None) -> str:
    """The folder of all servings of a project; ``project``: its URL, this one by default."""
    return urls.join(project or settings.project_url(), SERVING)
