"""MLflow's model registry beside the project's: the same versions stand there, pointing to their files, and aliases count.

The project's directory says what versions there are; their numbers are the directory's. A version of MLflow's is the one
whose source it has, and has the same number unless somebody else registered versions under that name. MLflow that is away
keeps nobody from exporting: what it has missed it gets with the next export.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hopsml import settings
from hopsml.errors import StorageError
from hopsml.model.alias_store import Aliases, FolderAliases
from hopsml.model.version import Version
from hopsml.storage import urls
from hopsml.storage.run_dir import RunDir
from hopsml.tracking.mlflow import order
from hopsml.tracking.mlflow.store import MlflowAway, MlflowMissing, MlflowRefused, Store, limited_waiting

_MOST_PASSED_OVER = 50  # numbers, each of which costs MLflow a few requests

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0
T = TypeVar("T")


def tracking_uri() -> str:
    """Of the server whose registry counts; "" for none."""
    return settings.mlflow_tracking_uri({})


def publish(made: Version, versions: Iterable[Version]) -> None:
    """Let MLflow have a version that was just made, and those of ``versions``, all of its model by number, that it missed.

    One that was deleted there stays deleted. What goes wrong is a warning.
    """
    name = made.name

    def register(store: Store) -> None:
        known = set(_numbers(store, name, made.model_path).values())
        newest = max(known, default=0)
        for version in versions:
            if version.version > newest or (version.version == made.version and made.version not in known):
                _register(store, version)

    _attempt(f"the versions of the model '{name}' are not in MLflow's registry; the next export sends them", register)


def unpublish(name: str, model_url: str, number: int) -> None:
    """Delete a version there, too. What goes wrong is a warning."""

    def delete(store: Store) -> None:
        for theirs, ours in _numbers(store, name, model_url).items():
            if ours == number:
                store.delete_version(name, theirs)

    _attempt(f"version {number} of the model '{name}' is still in MLflow's registry", delete)


class MlflowAliases(Aliases):
    """Kept by MLflow for versions that it has, and in the model's directory for others and for the time it is away."""

    def __init__(self, name: str, model_url: str) -> None:
        self._name, self._url, self._folder = name, model_url, FolderAliases(model_url)

    def all(self) -> dict[str, int]:
        """Of both; where MLflow has a version, what it says of aliases for that counts."""
        own = self._folder.all()

        def ask(store: Store) -> dict[str, int]:
            numbers = _numbers(store, self._name, self._url)
            theirs = {
                alias: numbers[version] for alias, version in store.aliases(self._name).items() if version in numbers
            }
            return {alias: number for alias, number in own.items() if number not in numbers.values()} | theirs

        found = _attempt(f"the aliases of the model '{self._name}' are read from its directory", ask)
        return dict(sorted((own if found is None else found).items()))

    def set(self, alias: str, version: int) -> None:
        self._folder.set(alias, version)

        def set_there(store: Store) -> None:
            for theirs, ours in _numbers(store, self._name, self._url).items():
                if ours == version:
                    store.set_alias(self._name, alias, theirs)

        _attempt(f"MLflow does not know that {alias} is version {version} of the model '{self._name}'", set_there)

    def delete(self, alias: str) -> bool:
        known = alias in self.all()
        self._folder.delete(alias)
        _attempt(
            f"MLflow still has the alias {alias} of the model '{self._name}'",
            lambda store: store.delete_alias(self._name, alias),
        )
        return known


def _numbers(store: Store, name: str, model_url: str) -> dict[str, int]:
    """MLflow's number of a version -> the directory's, of those whose files lie in the model's directory."""
    return {
        version: int(urls.name(source))
        for version, source in store.sources(name).items()
        if urls.name(source).isdecimal() and urls.parent(source) == model_url
    }


def _register(store: Store, version: Version) -> None:
    known = version.description
    tags = {
        "hopsml.version": str(version.version),
        "hopsml.flavor": known.flavor,
        "hopsml.run_dir": known.lineage.run_url,
        "hopsml.commit": known.lineage.commit,
        **{f"hopsml.metric.{name}": f"{value:.10g}" for name, value in known.metrics.items()},
    }
    run_id = _run_id(known.lineage.run_url)
    tags = {name: text for name, text in tags.items() if text}
    # Numbers that were never complete, or were deleted, are passed over there, too, so that both count alike: but not those
    # of years. It is known by its source and its tag all the same.
    made = store.register(version.name, version.url, run_id, tags, known.description)
    if 0 < version.version - int(made) <= _MOST_PASSED_OVER:
        while int(made) < version.version:
            store.delete_version(version.name, made)
            made = store.register(version.name, version.url, run_id, tags, known.description)


def _run_id(run_url: str) -> str:
    """MLflow's id of the run that the version comes from; "" where it has none, or none yet."""
    if not run_url:
        return ""
    try:
        recorded = order.read(RunDir(run_url))
    except StorageError:
        return ""
    return recorded.run_id if recorded is not None else ""


def _attempt(otherwise: str, action: Callable[[Any], T]) -> T | None:
    """What it returns; None, with a warning, where MLflow is missing, away, or refuses."""
    uri = tracking_uri()
    try:
        with limited_waiting(CALL_TIMEOUT_S):
            return action(Store(uri))
    except (MlflowAway, MlflowMissing, MlflowRefused) as error:
        logger.warning("%s (%s)", otherwise, error)
        return None
