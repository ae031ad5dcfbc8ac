"""Model registry: versions of models in a project's directory, found by number, alias, age or metric.

    from hopsml.model import registry

    version = registry.find("digits", "production")
    version.metrics, version.url, version.local_files()

A version is complete if its ``model.json`` exists (``directory.py``); other versions are ignored. ``project`` is the name
of another project, whose directory is next to the current one's.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hopsml.core import settings, suggestions
from hopsml.errors import ArgumentError, ModelNotFound, PathNotFound
from hopsml.model import description, directory, mlflow_registry
from hopsml.model.description import BEST, LATEST, MODEL_JSON, ModelDescription
from hopsml.model.directory import Aliases, FolderAliases
from hopsml.model.version import Version
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url, read_record

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
        found = pool.map(lambda number: _read(url, number), directory.numbers(url))
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
    if number not in directory.numbers(url):
        _no_such_version(name, number, project)
    for alias in standing:
        kept.delete(alias)
    directory.delete(urls.join(url, str(number)))
    if mlflow_registry.tracking_uri():
        mlflow_registry.unpublish(name, url, number)


def model_url(name: str, project: str | None = None) -> str:
    """Return the URL of the directory that holds all versions of a model. Raises ArgumentError: the name is invalid."""
    return urls.join(settings.project_url(project), MODELS, description.checked_name(name))


def aliases_of(name: str, project: str | None = None) -> Aliases:
    """Return the storage of a model's aliases: MLflow if it is configured, otherwise the directory."""
    url = model_url(name, project)
    return mlflow_registry.MlflowAliases(name, url) if mlflow_registry.tracking_uri() else FolderAliases(url)


def announce(made: Version, project: str | None = None) -> None:
    """Register a new version in MLflow if it is configured; errors are logged as warnings."""
    if mlflow_registry.tracking_uri():
        mlflow_registry.publish(made, versions(made.name, project))


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
    return next(filter(None, (_read(url, number) for number in reversed(directory.numbers(url)))), None)


def _best(found: list[Version], metric: str, direction: str) -> Version:
    """Return the best version; without a metric by the only one, without a direction by the usual one."""
    descriptions = [version.description for version in found]
    metric = metric or description.main_metric(descriptions)
    chosen: ModelDescription = description.best(
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
    hint = suggestions.instead(name, known, "`hopsml models ls` lists them") if known else "there are none"
    return ModelNotFound(f"there is no model '{name}' in {url}; {hint}")


def _unknown_alias(name: str, alias: str, project: str | None) -> ModelNotFound:
    """Return the error for an alias that does not exist."""
    numbers = [version.version for version in versions(name, project)]  # an unknown model is reported first
    known = [*aliases(name, project), LATEST, BEST]
    hint = suggestions.instead(alias, known, f"`hopsml models show {name}` lists them")
    return ModelNotFound(f"the model '{name}' has no version or alias {alias!r} (versions: {_listed(numbers)}); {hint}")


def _no_such_version(name: str, number: int, project: str | None) -> Any:
    """Raise the error for a version that does not exist."""
    numbers = [version.version for version in versions(name, project)]
    claimed = number in directory.numbers(model_url(name, project))
    why = ", since its export is not complete, or it was deleted" if claimed else ""
    raise ModelNotFound(f"the model '{name}' has no version {number}{why}; it has {_listed(numbers)}")


def _listed(numbers: list[int]) -> str:
    """Return the highest numbers as text."""
    shown = ", ".join(map(str, numbers[-8:]))
    return f"..., {shown}" if len(numbers) > 8 else shown
