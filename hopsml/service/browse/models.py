"""Models of a project for the web page: versions, aliases, metrics, signature, lineage.

Aliases are those of the model's directory; each alias that is set in MLflow by hopsml is there, too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hopsml.errors import ArgumentError, HopsmlError, PathNotFound, StorageError
from hopsml.model import description, directory
from hopsml.model.description import MODEL_JSON, ModelDescription, Signature
from hopsml.model.directory import FolderAliases
from hopsml.model.registry import MODELS
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url, read_record
from hopsml.storage.run_dir import EXPERIMENTS

MOST_MODELS, MOST_VERSIONS, MOST_FILES = 500, 100, 200  # that are returned


class ModelSummary(msgspec.Struct, frozen=True):
    """A model with its newest version.

    Attributes:
        name: Name of the model.
        versions: Number of its version numbers, including those of deleted and incomplete versions.
        newest: Its newest complete version.
        flavor: Framework of that version.
        created: Time of its export, in seconds since 1970.
        creator: User who exported it.
        metrics: Metrics of that version.
        aliases: Alias -> version.
        problem: Why the newest version cannot be read; empty if it can.
    """

    name: str
    versions: int
    newest: int | None
    flavor: str
    created: float | None
    creator: str
    metrics: dict[str, float]
    aliases: dict[str, int]
    problem: str = ""


class ModelList(msgspec.Struct, frozen=True):
    """Models by name; ``is_cut`` is True if the project has more."""

    models: list[ModelSummary]
    is_cut: bool


class VersionFile(msgspec.Struct, frozen=True):
    """File of a version with its length."""

    name: str
    bytes: int


class VersionDetail(msgspec.Struct, frozen=True):
    """One version of a model.

    Attributes:
        version: Its number.
        flavor: Framework.
        created: Time of the export, in seconds since 1970.
        creator: User who exported it.
        description: Text by the exporter.
        metrics: Name -> value of each metric.
        signature: Inputs and outputs; None if unknown.
        artifacts: Formats that can be loaded.
        run: ID of the run of this project that produced it; empty if there is none.
        origin: URL of the run's directory; empty if unknown.
        commit: Commit of the code's repository; empty if unknown.
        is_dirty: True if the code differed from the commit; None if unknown.
        inputs: URLs of the training data.
        requirements: Package -> version.
        files: The first files.
        file_count: Number of all files.
        bytes: Total size of all files.
        url: URL of the version's directory.
    """

    version: int
    flavor: str
    created: float
    creator: str
    description: str
    metrics: dict[str, float]
    signature: Signature | None
    artifacts: list[str]
    run: str
    origin: str
    commit: str
    is_dirty: bool | None
    inputs: list[str]
    requirements: dict[str, str]
    files: list[VersionFile]
    file_count: int
    bytes: int
    url: str


class ModelDetail(msgspec.Struct, frozen=True):
    """A model with its newest versions, the newest first.

    Attributes:
        name: Name of the model.
        aliases: Alias -> version.
        versions: The newest complete versions.
        unread: Number of a version that cannot be read -> why.
        older: Number of further, older version numbers.
    """

    name: str
    aliases: dict[str, int]
    versions: list[VersionDetail]
    unread: dict[int, str]
    older: int


def list_models(project: str) -> ModelList:
    """Return the models of a project that have a version. Raises StorageError."""
    url = urls.join(project, MODELS)
    try:
        entries = for_url(url).list_dir(url)
    except PathNotFound:
        return ModelList([], False)
    folders = [entry for entry in entries if entry.is_dir and not urls.is_temporary(entry.url)]
    found = [summary for entry in folders[:MOST_MODELS] if (summary := _summary(entry.name, entry.url)) is not None]
    return ModelList(found, len(folders) > MOST_MODELS)


def _summary(name: str, url: str) -> ModelSummary | None:
    """Return a model with its newest version; None if it has no complete one."""
    numbers, problem, newest = directory.claimed_numbers(url), "", None
    for number in reversed(numbers):
        try:
            newest = _read(url, number)
        except StorageError as error:
            problem = problem or f"version {number}: {error}"
        if newest is not None:
            break
    if newest is None and not problem:
        return None
    return ModelSummary(
        name=name,
        versions=len(numbers),
        newest=newest.version if newest is not None else None,
        flavor=newest.flavor if newest is not None else "",
        created=newest.created.timestamp() if newest is not None else None,
        creator=newest.creator if newest is not None else "",
        metrics=newest.metrics if newest is not None else {},
        aliases=_aliases(url),
        problem=problem,
    )


def model_detail(project: str, name: str) -> ModelDetail:
    """Return a model with its newest versions.

    Raises:
        ArgumentError: The name is no name of a model.
        PathNotFound: There is no such model.
        StorageError: The store cannot be read.
    """
    try:
        url = urls.join(project, MODELS, description.checked_name(name))
    except ArgumentError:
        raise _unknown(name) from None
    numbers = directory.claimed_numbers(url)
    if not numbers:
        raise _unknown(name)
    found: list[VersionDetail] = []
    unread: dict[int, str] = {}
    shown = numbers[-MOST_VERSIONS:]
    for number in reversed(shown):
        try:
            if (version := _read(url, number)) is not None:
                found.append(_detail(version, project, urls.join(url, str(number))))
        except StorageError as error:
            unread[number] = str(error)
    return ModelDetail(name, _aliases(url), found, unread, len(numbers) - len(shown))


def _unknown(name: str) -> PathNotFound:
    """Return the error for a model that does not exist."""
    return PathNotFound(f"there is no model {name[:80]!r} in this project; take one from the list of models")


def _read(url: str, number: int) -> ModelDescription | None:
    """Return a version's description; None if the version is not complete. Raises StorageError."""
    place = urls.join(url, str(number), MODEL_JSON)
    try:
        found: ModelDescription = description.decode(read_record(place), place)
    except PathNotFound:
        return None
    return msgspec.structs.replace(found, version=number)


def _aliases(url: str) -> dict[str, int]:
    """Return the aliases of a model, without those that cannot be read."""
    try:
        return FolderAliases(url).all()
    except HopsmlError:
        return {}


def _detail(version: ModelDescription, project: str, url: str) -> VersionDetail:
    """Return what the page shows of one version."""
    origin = version.lineage
    files = sorted(version.files.items())[:MOST_FILES]
    runs = urls.join(project, EXPERIMENTS)
    return VersionDetail(
        version=version.version,
        flavor=version.flavor,
        created=version.created.timestamp(),
        creator=version.creator,
        description=version.description,
        metrics=version.metrics,
        signature=version.signature,
        artifacts=sorted(version.artifacts),
        run=urls.name(origin.run_url) if origin.run_url and urls.parent(origin.run_url) == runs else "",
        origin=origin.run_url,
        commit=origin.commit,
        is_dirty=origin.dirty,
        inputs=[_input(one) for one in origin.data[:MOST_FILES]],
        requirements=version.requirements,
        files=[VersionFile(name, file.bytes) for name, file in files],
        file_count=len(version.files),
        bytes=version.bytes,
        url=url,
    )


def _input(record: dict[str, Any]) -> str:
    """Return the URL of a training input."""
    return str(record.get("url", ""))
