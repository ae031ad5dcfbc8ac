"""Files of servings on this machine, in a private folder of this user, and in the project.

On this machine:

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

    <project>/Serving/<name>.json            definition: model and version
    <project>/Serving/<name>.server.json     the server; written exclusively, so that there is at most one
    <project>/Serving/<name>.requests/       the request log, a folder per day
    <project>/Serving/<name>.private/        on a cluster: tokens, settings and outcome of the start; 0700
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path

from hopsml.core import settings
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.storage import privacy, urls

VARIABLE = "HOPSML_SERVING_FOLDER"
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


def folder_of(name: str, project: str) -> ServingFolder:
    """Return the folder of a serving, which is created if necessary; ``project`` is the project's URL."""
    path = machines_folder() / f"{name}-{_digest(project)}"
    path.mkdir(mode=0o700, exist_ok=True)
    return ServingFolder(path)


def waiting_requests(name: str, project: str) -> Path:
    """Return the folder for segments of a cluster serving's request log, shared by all its agents on this machine."""
    path = machines_folder() / "requests" / f"{name}-{_digest(project)}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _digest(project: str) -> str:
    """Return a short digest of a project's URL."""
    return hashlib.sha256(project.encode()).hexdigest()[:12]


def machines_folder() -> Path:
    """Return the private folder of this user's servings on this machine.

    It is named by ``HOPSML_SERVING_FOLDER``; by default it is below the temporary folder.

    Raises:
        ArgumentError: Other users have access to the folder.
    """
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
    """Return the folder for copies of models' files on this machine, by content."""
    path = machines_folder() / "models"
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
            f"name={name!r:.80}: it stands in URLs and names files, so it must be 1 to 128 letters, digits, '_' and '-'"
        )
    return name


def definition_url(name: str, project: str | None = None) -> str:
    """Return the URL of a serving's definition."""
    return urls.join(servings_url(project), f"{name}.json")


def server_url(name: str, project: str) -> str:
    """Return the URL of a serving's server record; ``project`` is the project's URL."""
    return urls.join(project, SERVING, f"{name}{SERVER}")


def requests_url(name: str, project: str) -> str:
    """Return the URL of a serving's request log; ``project`` is the project's URL."""
    return urls.join(project, SERVING, f"{name}.requests")


def private_url(name: str, project: str) -> str:
    """Return the URL of the private folder of a serving on a cluster; ``project`` is the project's URL."""
    return urls.join(project, SERVING, f"{name}.private")


def servings_url(project: str | None = None) -> str:
    """Return the URL of the folder of all servings; ``project`` is the project's URL, by default the current one's."""
    return urls.join(project or settings.project_url(), SERVING)
