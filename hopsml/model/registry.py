"""Model registry: versions of models in a project's directory, found by number, alias, age or metric.

    from hopsml.model import registry

    version = registry.find("digits", "production")
    version.metrics, version.url, version.local_files()

A version is complete if its ``model.json`` exists (``directory.py``); other versions are ignored. ``project`` is the name
of another project, whose directory is next to the current one's.

MLflow's model registry mirrors it: versions, with links to their files, and aliases. The project's directory determines
which versions exist, and their numbers. A version in MLflow is identified by its source; it has the same number unless
other versions were registered under that name. If MLflow is unreachable, exports succeed, and the next export registers
the missing versions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hopsml.core import settings, suggestions
from hopsml.errors import ArgumentError, ModelNotFound, PathNotFound, StorageError
from hopsml.model import description, directory
from hopsml.model.description import BEST, LATEST, MODEL_JSON, ModelDescription
from hopsml.model.directory import Aliases, FolderAliases
from hopsml.model.version import Version
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url, read_record
from hopsml.storage.run_dir import RunDir
from hopsml.tracking.mlflow import order
from hopsml.tracking.mlflow.store import MlflowMissing, MlflowRefused, MlflowUnreachable, Store, limited_request_time

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
        for version, source in store.version_sources(name).items()
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
    made = store.register_version(version.name, version.url, run_id, tags, known.description)
    if 0 < version.version - int(made) <= _MOST_PASSED_OVER:
        while int(made) < version.version:
            store.delete_version(version.name, made)
            made = store.register_version(version.name, version.url, run_id, tags, known.description)


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
        with limited_request_time(CALL_TIMEOUT_S):
            return action(Store(uri))
    except (MlflowUnreachable, MlflowMissing, MlflowRefused) as error:
        logger.warning("%s (%s)", otherwise, error)
        return None


MODELS = "Models"
PARALLEL_READS = 8


def models(project: str | None = None) -> list[str]:
    """Return the sorted names of the models that have a complete version."""
    url = urls.join(settings.project_url(project), MODELS)
    try:
        entries = for_url(url).list_dir(url)
    except PathNotFound:
        return []
    return [entry.name for entry in entries if entry.is_dir and _newest(entry.url) is not None]


def versions(name: str, project: str | None = None) -> list[Version]:
    """Return the complete versions of a model, the oldest first.

    Raises:
        ModelNotFound: The model has no complete version.
    """
    url = model_url(name, project)
    with ThreadPoolExecutor(PARALLEL_READS, thread_name_prefix="hopsml-read-model") as pool:
        found = pool.map(lambda number: _read(url, number), directory.claimed_numbers(url))
        complete = [version for version in found if version is not None]
    if not complete:
        raise _unknown_model(name, project)
    return complete


def find(name: str, version: int | str = LATEST, project: str | None = None) -> Version:
    """Return one version of a model.

    Args:
        name: Name of the model.
        version: Version number, ``"latest"``, an alias, or ``"best"`` by the only metric of the versions;
            ``"best:accuracy"`` names the metric, and ``"best:accuracy:MIN"`` also the direction, which by default is
            MIN for a metric whose name denotes a loss or an error, otherwise MAX.
        project: Name of another project.

    Raises:
        ModelNotFound: (LookupError) The model, version or alias does not exist, or no version has the metric of "best".
        ArgumentError: "best" is given and the metric is ambiguous.
    """
    url = model_url(name, project)
    if isinstance(version, str) and not version.isdecimal():
        if version == LATEST:
            found = _newest(url)
            if found is None:
                raise _unknown_model(name, project)
            return found
        if version == BEST or version.startswith(f"{BEST}:"):
            _, _, given = version.partition(":")
            metric, _, direction = given.partition(":")
            if version != BEST and not metric:
                raise ArgumentError(
                    f"version={version!r}: the version must be 'best', or 'best:METRIC' such as 'best:accuracy'"
                )
            return _best(versions(name, project), metric, direction)
        return _aliased(name, version, project)
    number = description.checked_version(int(version) if isinstance(version, str) else version)
    return _read(url, number) or _no_such_version(name, number, project)


def get_model(name: str, version: int | str = LATEST, project_name: str | None = None) -> Version:
    """Return one version of a model; the predecessor's name of ``find``."""
    return find(name, version, project_name)


def get_best_model(name: str, metric: str, direction: str, project: str | None = None) -> Version:
    """Return the version with the best value of a metric; of equal values the newest version.

    Args:
        name: Name of the model.
        metric: Name of the metric.
        direction: ``Metric.MAX`` or ``Metric.MIN``.
        project: Name of another project.

    Raises:
        ModelNotFound: The model does not exist, or no version has the metric.
        ArgumentError: The direction is invalid.
    """
    return _best(versions(name, project), metric, description.checked_direction(direction))


def aliases(name: str, project: str | None = None) -> dict[str, int]:
    """Return alias -> version number for a model."""
    return aliases_of(name, project).all()


def set_alias(name: str, version: int | str, alias: str, project: str | None = None) -> Version:
    """Assign an alias to a version, replacing an earlier assignment, and return that version.

    Args:
        name: Name of the model.
        version: As for ``find``.
        alias: Name of the alias.
        project: Name of another project.

    Raises:
        ModelNotFound: The model or version does not exist.
        ArgumentError: The alias is invalid or reserved.
    """
    description.checked_alias(alias)
    found = find(name, version, project)
    aliases_of(name, project).set(alias, found.version)
    return found


def delete_alias(name: str, alias: str, project: str | None = None) -> None:
    """Delete an alias of a model.

    Raises:
        ModelNotFound: The alias does not exist.
    """
    description.checked_alias(alias)
    if not aliases_of(name, project).delete(alias):
        raise _unknown_alias(name, alias, project)


def delete(name: str, version: int | str, *, force: bool = False, project: str | None = None) -> None:
    """Delete a version with its files; its number is not reused.

    Args:
        name: Name of the model.
        version: As for ``find``, or the number of a version whose export was killed.
        force: True to also delete a version that has aliases, together with them.
        project: Name of another project.

    Raises:
        ModelNotFound: The version does not exist.
        ArgumentError: The version has an alias, and ``force`` is False.
    """
    url, kept = model_url(name, project), aliases_of(name, project)
    if isinstance(version, str) and not version.isdecimal():
        number = find(name, version, project).version
    else:
        number = description.checked_version(int(version) if isinstance(version, str) else version)
    standing = [alias for alias, meant in kept.all().items() if meant == number]
    if standing and not force:
        raise ArgumentError(
            f"nothing was deleted, since version {number} of the model '{name}' is {', '.join(standing)}; make "
            "another version that first, or pass force=True (--force)"
        )
    if number not in directory.claimed_numbers(url):
        _no_such_version(name, number, project)
    for alias in standing:
        kept.delete(alias)
    directory.delete_version(urls.join(url, str(number)))
    if tracking_uri():
        unpublish(name, url, number)


def model_url(name: str, project: str | None = None) -> str:
    """Return the URL of the directory that holds all versions of a model. Raises ArgumentError: the name is invalid."""
    return urls.join(settings.project_url(project), MODELS, description.checked_name(name))


def aliases_of(name: str, project: str | None = None) -> Aliases:
    """Return the storage of a model's aliases: MLflow if it is configured, otherwise the directory."""
    url = model_url(name, project)
    return MlflowAliases(name, url) if tracking_uri() else FolderAliases(url)


def publish_if_configured(made: Version, project: str | None = None) -> None:
    """Register a new version in MLflow if it is configured; errors are logged as warnings."""
    if tracking_uri():
        publish(made, versions(made.name, project))


# ------------------------------------------------------------------------------------------ reading


def _read(url: str, number: int) -> Version | None:
    """Return a version of the model; None if it is not complete."""
    place = urls.join(url, str(number), MODEL_JSON)
    try:
        data = read_record(place)
    except PathNotFound:
        return None
    return Version(urls.join(url, str(number)), description.decode(data, place))


def _newest(url: str) -> Version | None:
    """Return the complete version with the highest number; None if there is none."""
    return next(filter(None, (_read(url, number) for number in reversed(directory.claimed_numbers(url)))), None)


def _best(found: list[Version], metric: str, direction: str) -> Version:
    """Return the best version; without a metric by the only one, without a direction by the usual one."""
    descriptions = [version.description for version in found]
    metric = metric or description.main_metric(descriptions)
    chosen: ModelDescription = description.best_version(
        descriptions, metric, description.checked_direction(direction or description.usual_direction(metric))
    )
    return next(version for version in found if version.description is chosen)


def _aliased(name: str, alias: str, project: str | None) -> Version:
    """Return the version of an alias."""
    number = aliases(name, project).get(alias)
    if number is None:
        raise _unknown_alias(name, alias, project)
    found = _read(model_url(name, project), number)
    if found is None:
        raise ModelNotFound(
            f"the alias {alias!r} of the model '{name}' points to version {number}, which has been deleted; set the "
            "alias again"
        )
    return found


# ------------------------------------------------------------------------------------------ errors


def _unknown_model(name: str, project: str | None) -> ModelNotFound:
    """Return the error for a model that does not exist."""
    known = models(project)
    url = urls.join(settings.project_url(project), MODELS)
    hint = suggestions.suggestion_text(name, known, "`hopsml models ls` lists them") if known else "there are none"
    return ModelNotFound(f"there is no model '{name}' in {url}; {hint}")


def _unknown_alias(name: str, alias: str, project: str | None) -> ModelNotFound:
    """Return the error for an alias that does not exist."""
    numbers = [version.version for version in versions(name, project)]  # an unknown model is reported first
    known = [*aliases(name, project), LATEST, BEST]
    hint = suggestions.suggestion_text(alias, known, f"`hopsml models show {name}` lists them")
    return ModelNotFound(f"the model '{name}' has no version or alias {alias!r} (versions: {_listed(numbers)}); {hint}")


def _no_such_version(name: str, number: int, project: str | None) -> Any:
    """Raise the error for a version that does not exist."""
    numbers = [version.version for version in versions(name, project)]
    claimed = number in directory.claimed_numbers(model_url(name, project))
    why = ", since its export is not complete, or it was deleted" if claimed else ""
    raise ModelNotFound(f"the model '{name}' has no version {number}{why}; it has {_listed(numbers)}")


def _listed(numbers: list[int]) -> str:
    """Return the highest numbers as text."""
    shown = ", ".join(map(str, numbers[-8:]))
    return f"..., {shown}" if len(numbers) > 8 else shown
