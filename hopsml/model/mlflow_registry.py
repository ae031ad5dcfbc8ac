"""Mirror of the registry in MLflow's model registry: versions, with links to their files, and aliases.

The project's directory determines which versions exist, and their numbers. A version in MLflow is identified by its
source; it has the same number unless other versions were registered under that name. If MLflow is unreachable, exports
succeed, and the next export registers the missing versions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hopsml.core import settings
from hopsml.errors import StorageError
from hopsml.model.directory import Aliases, FolderAliases
from hopsml.model.version import Version
from hopsml.storage import urls
from hopsml.storage.run_dir import RunDir
from hopsml.tracking.mlflow import order
from hopsml.tracking.mlflow.store import MlflowAway, MlflowMissing, MlflowRefused, Store, limited_waiting

_MOST_PASSED_OVER = 50  # numbers, each of which costs a few requests to MLflow

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0
T = TypeVar("T")


def tracking_uri() -> str:
    """Return the URI of the MLflow server whose registry is used; "" for none."""
    return settings.mlflow_tracking_uri({})


def publish(made: Version, versions: Iterable[Version]) -> None:
    """Register a new version in MLflow, and earlier versions that are missing there.

    Versions that were deleted in MLflow are not registered again. Errors are logged as warnings.

    Args:
        made: The new version.
        versions: All versions of the model, ordered by number.
    """
    name = made.name

    def register(store: Store) -> None:
        known = set(_numbers(store, name, made.model_path).values())
        newest = max(known, default=0)
        for version in versions:
            if version.version > newest or (version.version == made.version and made.version not in known):
                _register(store, version)

    _attempt(
        f"the versions of the model '{name}' are missing in MLflow's registry; the next export sends them", register
    )


def unpublish(name: str, model_url: str, number: int) -> None:
    """Delete a version in MLflow; errors are logged as warnings."""

    def delete(store: Store) -> None:
        for theirs, ours in _numbers(store, name, model_url).items():
            if ours == number:
                store.delete_version(name, theirs)

    _attempt(f"version {number} of the model '{name}' is still in MLflow's registry", delete)


class MlflowAliases(Aliases):
    """Aliases in MLflow, with the model's directory as the second storage.

    MLflow stores the aliases of versions that are registered there; the directory is used for other versions, and while
    MLflow is unreachable.
    """

    def __init__(self, name: str, model_url: str) -> None:
        self._name, self._url, self._folder = name, model_url, FolderAliases(model_url)

    def all(self) -> dict[str, int]:
        """Return alias -> version number; for versions that MLflow has, its aliases override those of the directory."""
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
        """Write an alias to the directory and, if MLflow has the version, to MLflow."""
        self._folder.set(alias, version)

        def set_there(store: Store) -> None:
            for theirs, ours in _numbers(store, self._name, self._url).items():
                if ours == version:
                    store.set_alias(self._name, alias, theirs)

        _attempt(
            f"the alias {alias} for version {version} of the model '{self._name}' was not sent to MLflow", set_there
        )

    def delete(self, alias: str) -> bool:
        """Delete an alias in both places; return False if it did not exist."""
        known = alias in self.all()
        self._folder.delete(alias)
        _attempt(
            f"MLflow still has the alias {alias} of the model '{self._name}'",
            lambda store: store.delete_alias(self._name, alias),
        )
        return known


def _numbers(store: Store, name: str, model_url: str) -> dict[str, int]:
    """Return MLflow's number -> number in the directory, for versions whose files are in the model's directory."""
    return {
        version: int(urls.name(source))
        for version, source in store.sources(name).items()
        if urls.name(source).isdecimal() and urls.parent(source) == model_url
    }


def _register(store: Store, version: Version) -> None:
    """Register a version in MLflow, with the same number if possible."""
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
    # Numbers of incomplete or deleted versions are skipped in MLflow as well, so that both registries have the same
    # numbers, but only up to a limit: a version is identified by its source and its tag in any case.
    made = store.register(version.name, version.url, run_id, tags, known.description)
    if 0 < version.version - int(made) <= _MOST_PASSED_OVER:
        while int(made) < version.version:
            store.delete_version(version.name, made)
            made = store.register(version.name, version.url, run_id, tags, known.description)


def _run_id(run_url: str) -> str:
    """Return MLflow's ID of the run that produced a version; "" if it has none yet."""
    if not run_url:
        return ""
    try:
        recorded = order.read(RunDir(run_url))
    except StorageError:
        return ""
    return recorded.run_id if recorded is not None else ""


def _attempt(otherwise: str, action: Callable[[Any], T]) -> T | None:
    """Run an action on MLflow; None, with a warning, if MLflow is not installed, is unreachable or refuses."""
    uri = tracking_uri()
    try:
        with limited_waiting(CALL_TIMEOUT_S):
            return action(Store(uri))
    except (MlflowAway, MlflowMissing, MlflowRefused) as error:
        logger.warning("%s (%s)", otherwise, error)
        return None
