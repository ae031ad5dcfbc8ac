"""``mlflow.json``: where a run must be sent, and whether it has been; and the project's list of unsent runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any
from urllib.parse import quote, unquote

from hopsml.core import decoding, redact
from hopsml.core.redact import REDACTED
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import filesystem, trust, urls
from hopsml.storage.run_dir import EXPERIMENTS, RunDir, to_json

PENDING, SENT, REFUSED = "pending", "sent", "refused"
_PENDING_FOLDER = ".mlflow-pending"


@dataclass(frozen=True)
class RunGroup:
    """Runs below one MLflow run: the combinations of a ``launch``, the trials of a search.

    ``ends_itself``: the parent is itself a hopsml run, with this key, and its members' states do not end it.
    """

    key: str
    name: str
    count: int
    ends_itself: bool = False


@dataclass(frozen=True)
class Order:
    """Request to send one run to MLflow, and its state."""

    tracking_uri: str
    experiment: str
    experiment_id: str = ""  # takes precedence over the name
    run_name: str = ""
    parent_run_id: str = ""  # id of the user's own MLflow run
    register_as: str = ""
    group: RunGroup | None = None
    evaluates: str = ""  # URL of the hopsml run whose checkpoints this one evaluates
    evaluates_as: str = ""  # name of that evaluation, since the run may have others
    state: str = PENDING
    run_id: str = ""  # MLflow's id
    note: str = ""  # reason, if it was refused

    def to_record(self) -> dict[str, Any]:
        """Return the order as a record for ``mlflow.json``, without a password in the URI."""
        return {**asdict(self), "tracking_uri": redact.text(self.tracking_uri), "note": redact.text(self.note)}


def parse(record: Mapping[str, Any]) -> Order:
    """Return the order in a record made by ``to_record`` or ``asdict``; unknown entries are ignored.

    Raises:
        ArgumentError: The record is malformed.
    """
    known = {field.name for field in fields(Order)} - {"group"}
    with decoding.understood("the entries of mlflow.json are", "delete the file; the run is then not sent to MLflow"):
        group = record.get("group")
        values = {name: str(record[name]) for name in known if record.get(name) is not None}
        return Order(**values, group=RunGroup(**group) if group else None)


def run_key(run_url: str) -> str:
    """Return the tag by which a run is found again in MLflow, even if the response with its id was lost."""
    return hashlib.sha256(run_url.encode()).hexdigest()[:32]


def with_trusted_uri(directory: RunDir, order: Order, current_uri: str) -> Order:
    """Return a recorded run's order with an address to which this user's MLflow credentials may be sent.

    It is the configured address, ``current_uri``, if the record has the same one, or one with a password that was not
    recorded; else the record's, if only this user can have written it.

    Args:
        directory: the run directory.
        order: the recorded order.
        current_uri: the configured tracking URI; "" for none.

    Raises:
        ArgumentError: no address can be trusted, or none is known.
        StorageError: the record cannot be read.
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
    what = f"it determines that your MLflow credentials (MLFLOW_TRACKING_TOKEN) are sent to {order.tracking_uri}"
    for record in (directory.mlflow_json, _mark(directory)):
        with contextlib.suppress(PathNotFound):
            data, status = trust.read_bytes(record, what)
            if not status.owner:
                raise ArgumentError(
                    f"{record} can be written by other users, and {what}; if you trust that server, set "
                    "MLFLOW_TRACKING_URI to it"
                )
            with decoding.understood(f"the content of {record} is", "delete the file"):
                content = json.loads(data)
                return replace(order, tracking_uri=parse(content.get("order", content)).tracking_uri)
    raise ArgumentError(
        f"{directory.url} has no address of an MLflow server; set MLFLOW_TRACKING_URI to the server "
        "that receives the run"
    )


def is_recorded_by_this_user(directory: RunDir) -> bool:
    """Return True if a run on the list was recorded by this user, as far as the shared storage has owners.

    Raises StorageError.
    """
    try:
        trust.check_trusted(
            filesystem.for_url(directory.run_json).status(directory.run_json),
            "it determines the run that is sent to MLflow",
        )
    except ArgumentError:
        return False
    except PathNotFound:  # it was deleted, and is only removed from the list
        return True
    return True


# ---------------------------------------------------------------------------------------------- storage


def read(directory: RunDir) -> Order | None:
    """Return the order of a recorded run; None if it had none. Raises StorageError, ArgumentError."""
    with contextlib.suppress(PathNotFound):
        return parse(directory.read_json(directory.mlflow_json))
    with contextlib.suppress(PathNotFound, KeyError):  # the process was killed after it had listed the run
        return parse(directory.read_json(_mark(directory))["order"])
    return None


def write(directory: RunDir, order: Order) -> None:
    """Record the state of an order, in the run directory and in the project's list of unsent runs.

    It is added to the list first and removed last: a run that was not sent is listed, whenever the process that writes
    is killed.
    """
    mark, recorded = _mark(directory), order.to_record()
    if order.state != SENT:
        listed = {"run_dir": directory.url, "state": order.state, "order": recorded}
        filesystem.for_url(mark).write_bytes(mark, to_json(listed))
    directory.write_json(directory.mlflow_json, recorded)
    if order.state == SENT:
        filesystem.for_url(mark).delete(mark)


def list_unsent_runs(project_url: str) -> list[str]:
    """Return the URLs of the project's unsent runs, sorted by name."""
    folder = urls.join(project_url, _PENDING_FOLDER)
    try:
        entries = filesystem.for_url(folder).list_dir(folder)
    except PathNotFound:
        return []
    names = [entry.name for entry in entries if not urls.is_temporary(entry.url)]
    return [urls.join(project_url, EXPERIMENTS, unquote(name)) for name in sorted(names)]


def remove_from_unsent(directory: RunDir) -> None:
    """Remove a run from the list, for instance because it was deleted."""
    mark = _mark(directory)
    filesystem.for_url(mark).delete(mark)


def run_project_url(run_url: str) -> str:
    """Return the URL of the project of a run, also of one that is nested in another."""
    return run_url.rpartition(f"/{EXPERIMENTS}/")[0] or run_url.rstrip("/").rsplit("/", 2)[0]


def _mark(directory: RunDir) -> str:
    """Return the URL of a run's entry in the list; its name is the run's path below the project."""
    project = run_project_url(directory.url)
    below = directory.url.removeprefix(f"{project}/{EXPERIMENTS}/") if directory.url.startswith(project) else ""
    return urls.join(project, _PENDING_FOLDER, quote(below or directory.run_id, safe="=&@+,"))
