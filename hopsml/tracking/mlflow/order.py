"""``mlflow.json``: where a run is to be sent and whether that has been done; and the list of runs that still must be."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any
from urllib.parse import quote, unquote

from hopsml import redact
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.redact import REDACTED
from hopsml.storage import filesystem, trust, urls
from hopsml.storage.run_dir import EXPERIMENTS, RunDir, to_json

PENDING, SENT, REFUSED = "pending", "sent", "refused"
_PENDING_FOLDER = ".mlflow-pending"


@dataclass(frozen=True)
class RunGroup:
    """Runs that belong together below one MLflow run: the combinations of a ``launch``, the trials of a search.

    ``ends_itself``: that run is a run of ours, with this key, and what becomes of its members does not end it.
    """

    key: str
    name: str
    count: int
    ends_itself: bool = False


@dataclass(frozen=True)
class Order:
    """What is to be done in MLflow for one run."""

    tracking_uri: str
    experiment: str
    experiment_id: str = ""  # wins over the name
    run_name: str = ""
    parent_run_id: str = ""  # of the user's own MLflow run
    register_as: str = ""
    group: RunGroup | None = None
    evaluates: str = ""  # URL of the run of ours whose checkpoints this one judges
    evaluates_as: str = ""  # the name of that evaluation, where the run may have others
    state: str = PENDING
    run_id: str = ""  # MLflow's
    note: str = ""  # why not, where it was refused

    def recorded(self) -> dict[str, Any]:
        """As a record for ``mlflow.json``: without a password in the URI."""
        return {**asdict(self), "tracking_uri": redact.text(self.tracking_uri), "note": redact.text(self.note)}


def parse(record: Mapping[str, Any]) -> Order:
    """The order in a record made by ``recorded`` or ``asdict``; unknown entries are left out."""
    known = {field.name for field in fields(Order)} - {"group"}
    group = record.get("group")
    values = {name: str(record[name]) for name in known if record.get(name) is not None}
    return Order(**values, group=RunGroup(**group) if group else None)


def key_of(run_url: str) -> str:
    """The tag by which a run is found again in MLflow, whatever happened to the answer that held its id."""
    return hashlib.sha256(run_url.encode()).hexdigest()[:32]


def with_uri(directory: RunDir, order: Order, current_uri: str) -> Order:
    """Return a recorded run's order with an address to which this user's MLflow credentials may be sent.

    It is the configured address, ``current_uri``, if the record has the same one, or one with a password that was not
    recorded; else the record's, if only this user can have written it. Raises ArgumentError, StorageError.
    """
    if REDACTED in order.tracking_uri:
        if not current_uri:
            raise ArgumentError(
                f"the run's tracking URI {order.tracking_uri} held a password, which was not recorded; set "
                "MLFLOW_TRACKING_URI"
            )
        return replace(order, tracking_uri=current_uri)
    if order.tracking_uri.rstrip("/") == current_uri.rstrip("/"):
        return order
    what = f"it sends what you have for MLflow's server (MLFLOW_TRACKING_TOKEN) to {order.tracking_uri}"
    for record in (directory.mlflow_json, _mark(directory)):
        with contextlib.suppress(PathNotFound):
            data, status = trust.read_bytes(record, what)
            if not status.owner:
                raise ArgumentError(
                    f"{record} can be written by other users, and {what}; if you trust that server, set "
                    "MLFLOW_TRACKING_URI to it"
                )
            content = json.loads(data)
            return replace(order, tracking_uri=parse(content.get("order", content)).tracking_uri)
    raise ArgumentError(f"{directory.url} names no MLflow server; set MLFLOW_TRACKING_URI to the server to send it to")


def is_own(directory: RunDir) -> bool:
    """True if a run on the list was recorded by this user, as far as the store knows owners. StorageError."""
    try:
        trust.check(filesystem.for_url(directory.run_json).status(directory.run_json), "its run is sent to MLflow")
    except ArgumentError:
        return False
    except PathNotFound:  # it was deleted, and is only taken off the list
        return True
    return True


# ---------------------------------------------------------------------------------------------- on the store


def read(directory: RunDir) -> Order | None:
    """The order of a recorded run; None where it had none."""
    with contextlib.suppress(PathNotFound):
        return parse(directory.read_json(directory.mlflow_json))
    with contextlib.suppress(PathNotFound, KeyError):  # whoever put it on the list was killed then
        return parse(directory.read_json(_mark(directory))["order"])
    return None


def write(directory: RunDir, order: Order) -> None:
    """Note how far it is, in the run directory and in the project's list of runs that must still be sent.

    On the list first and off it last: a run that was not sent is on it, whenever the process that writes is killed.
    """
    mark, recorded = _mark(directory), order.recorded()
    if order.state != SENT:
        listed = {"run_dir": directory.url, "state": order.state, "order": recorded}
        filesystem.for_url(mark).write_bytes(mark, to_json(listed))
    directory.write_json(directory.mlflow_json, recorded)
    if order.state == SENT:
        filesystem.for_url(mark).delete(mark)


def pending(project_url: str) -> list[str]:
    """URLs of the project's runs that were not sent, oldest name first."""
    folder = urls.join(project_url, _PENDING_FOLDER)
    try:
        entries = filesystem.for_url(folder).list_dir(folder)
    except PathNotFound:
        return []
    names = [entry.name for entry in entries if not urls.is_temporary(entry.url)]
    return [urls.join(project_url, EXPERIMENTS, unquote(name)) for name in sorted(names)]


def forget(directory: RunDir) -> None:
    """Take a run off the list, for instance because it was deleted."""
    mark = _mark(directory)
    filesystem.for_url(mark).delete(mark)


def project_of(run_url: str) -> str:
    """URL of the project that a run belongs to, also one that is a part of another."""
    return run_url.rpartition(f"/{EXPERIMENTS}/")[0] or run_url.rstrip("/").rsplit("/", 2)[0]


def _mark(directory: RunDir) -> str:
    """A file whose name tells the place of the run: a part of another one has a place below it."""
    project = project_of(directory.url)
    below = directory.url.removeprefix(f"{project}/{EXPERIMENTS}/") if directory.url.startswith(project) else ""
    return urls.join(project, _PENDING_FOLDER, quote(below or directory.run_id, safe="=&@+,"))
