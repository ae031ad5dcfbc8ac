"""The model registry: versions of models in a project's directory, found by number, alias, age or metric.

    from hopsml.model import registry

    version = registry.find("digits", "production")
    version.metrics, version.url, version.local_files()

A version is complete when its ``model.json`` is there (``claims.py``); nothing else counts. ``project`` is the name of
another project than this one, which lies beside it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hopsml import settings, suggestions
from hopsml.errors import ArgumentError, ModelNotFound, PathNotFound
from hopsml.model import claims, description, mlflow_registry
from hopsml.model.alias_store import Aliases, FolderAliases
from hopsml.model.description import BEST, LATEST, MODEL_JSON, ModelDescription
from hopsml.model.version import Version
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url, read_record

MODELS = "Models"
PARALLEL_READS = 8


def models(project: str | None = None) -> list[str]:
    """Names of the models that have a complete version, sorted."""
    url = urls.join(settings.project_url(project), MODELS)
    try:
        entries = for_url(url).list_dir(url)
    except PathNotFound:
        return []
    return [entry.name for entry in entries if entry.is_dir and _newest(entry.url) is not None]


def versions(name: str, project: str | None = None) -> list[Version]:
    """The complete versions of a model, the oldest first. Raises ModelNotFound where there is none."""
    url = model_url(name, project)
    with ThreadPoolExecutor(PARALLEL_READS, thread_name_prefix="hopsml-read-model") as pool:
        found = pool.map(lambda number: _read(url, number), claims.numbers(url))
        complete = [version for version in found if version is not None]
    if not complete:
        raise _unknown_model(name, project)
    return complete


def find(name: str, version: int | str = LATEST, project: str | None = None) -> Version:
    """One version of a model.

    ``version``: its number, ``"latest"``, an alias, or ``"best"`` by the one metric that the versions have;
    ``"best:accuracy"`` names it, and ``"best:accuracy:MIN"`` a direction, which else is MIN for what by its name is a loss
    or an error.

    Raises:
        ModelNotFound: (LookupError) no such model, version or alias.
        ArgumentError: "best" without a metric that could decide.
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
                raise ArgumentError(f"version={version!r}: it must be 'best', or 'best:METRIC' such as 'best:accuracy'")
            return _best(versions(name, project), metric, direction)
        return _aliased(name, version, project)
    number = description.checked_version(int(version) if isinstance(version, str) else version)
    return _read(url, number) or _no_such_version(name, number, project)


def get_model(name: str, version: int | str = LATEST, project_name: str | None = None) -> Version:
    """As ``find``; the predecessor's name for it."""
    return find(name, version, project_name)


def get_best_model(name: str, metric: str, direction: str, project: str | None = None) -> Version:
    """The version with the largest (``Metric.MAX``) or smallest (``Metric.MIN``) value of a metric; of equals the youngest.

    Raises ModelNotFound for an unknown model, ArgumentError for a metric that no version has and for another direction.
    """
    return _best(versions(name, project), metric, description.checked_direction(direction))


def aliases(name: str, project: str | None = None) -> dict[str, int]:
    """Alias -> number of the version that it stands for."""
    return aliases_of(name, project).all()


def set_alias(name: str, version: int | str, alias: str, project: str | None = None) -> Version:
    """Let ``alias`` stand for a version from now on, whatever it stood for before; returns that version.

    ``version`` as for ``find``. Raises ModelNotFound, and ArgumentError for an alias that is no word of its own.
    """
    description.checked_alias(alias)
    found = find(name, version, project)
    aliases_of(name, project).set(alias, found.version)
    return found


def delete_alias(name: str, alias: str, project: str | None = None) -> None:
    """Forget an alias. Raises ModelNotFound where there is none."""
    description.checked_alias(alias)
    if not aliases_of(name, project).delete(alias):
        raise _unknown_alias(name, alias, project)


def delete(name: str, version: int | str, *, force: bool = False, project: str | None = None) -> None:
    """Delete a version with its files; its number is not given again.

    ``version`` as for ``find``, and the number of one whose export was killed. ``force``: also one that an alias stands for,
    with the alias. Raises ModelNotFound, and ArgumentError where an alias stands for it.
    """
    url, kept = model_url(name, project), aliases_of(name, project)
    if isinstance(version, str) and not version.isdecimal():
        number = find(name, version, project).version
    else:
        number = description.checked_version(int(version) if isinstance(version, str) else version)
    standing = [alias for alias, meant in kept.all().items() if meant == number]
    if standing and not force:
        raise ArgumentError(
            f"version {number} of the model '{name}' is {', '.join(standing)}: let that be another version first, or pass "
            "force=True (--force); nothing was deleted"
        )
    if number not in claims.numbers(url):
        _no_such_version(name, number, project)
    for alias in standing:
        kept.delete(alias)
    claims.delete(urls.join(url, str(number)))
    if mlflow_registry.tracking_uri():
        mlflow_registry.unpublish(name, url, number)


def model_url(name: str, project: str | None = None) -> str:
    """URL of the directory that holds all versions of a model. Raises ArgumentError for what is no model's name."""
    return urls.join(settings.project_url(project), MODELS, description.checked_name(name))


def aliases_of(name: str, project: str | None = None) -> Aliases:
    """Where the aliases of a model are kept."""
    url = model_url(name, project)
    return mlflow_registry.MlflowAliases(name, url) if mlflow_registry.tracking_uri() else FolderAliases(url)


def announce(made: Version, project: str | None = None) -> None:
    """Let MLflow's registry have a new version, where there is one. What goes wrong is a warning."""
    if mlflow_registry.tracking_uri():
        mlflow_registry.publish(made, versions(made.name, project))


# ------------------------------------------------------------------------------------------ reading


def _read(url: str, number: int) -> Version | None:
    """None unless it is complete."""
    place = urls.join(url, str(number), MODEL_JSON)
    try:
        data = read_record(place)
    except PathNotFound:
        return None
    return Version(urls.join(url, str(number)), description.decode(data, place))


def _newest(url: str) -> Version | None:
    return next(filter(None, (_read(url, number) for number in reversed(claims.numbers(url)))), None)


def _best(found: list[Version], metric: str, direction: str) -> Version:
    descriptions = [version.description for version in found]
    metric = metric or description.main_metric(descriptions)
    chosen: ModelDescription = description.best(
        descriptions, metric, description.checked_direction(direction or description.usual_direction(metric))
    )
    return next(version for version in found if version.description is chosen)


def _aliased(name: str, alias: str, project: str | None) -> Version:
    number = aliases(name, project).get(alias)
    if number is None:
        raise _unknown_alias(name, alias, project)
    found = _read(model_url(name, project), number)
    if found is None:
        raise ModelNotFound(
            f"the alias {alias!r} of the model '{name}' stands for version {number}, which has been deleted; set it anew"
        )
    return found


# ------------------------------------------------------------------------------------------ what is not there


def _unknown_model(name: str, project: str | None) -> ModelNotFound:
    known = models(project)
    url = urls.join(settings.project_url(project), MODELS)
    hint = suggestions.instead(name, known, "`hopsml models ls` lists them") if known else "there is none"
    return ModelNotFound(f"there is no model '{name}' in {url}; {hint}")


def _unknown_alias(name: str, alias: str, project: str | None) -> ModelNotFound:
    numbers = [version.version for version in versions(name, project)]  # an unknown model is told first
    known = [*aliases(name, project), LATEST, BEST]
    hint = suggestions.instead(alias, known, f"`hopsml models show {name}` lists them")
    return ModelNotFound(f"the model '{name}' has no version or alias {alias!r} (versions: {_listed(numbers)}); {hint}")


def _no_such_version(name: str, number: int, project: str | None) -> Any:
    """Raises."""
    numbers = [version.version for version in versions(name, project)]
    claimed = number in claims.numbers(model_url(name, project))
    why = ": its export is not complete, or it was deleted" if claimed else ""
    raise ModelNotFound(f"the model '{name}' has no version {number}{why}; it has {_listed(numbers)}")


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[-8:]))
    return f"..., {shown}" if len(numbers) > 8 else shown
